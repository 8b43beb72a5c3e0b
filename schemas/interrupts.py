"""Exceptions that are not about the value being recorded: what a signal handler of the program raises, wherever Python
happens to be. A time limit by `signal.alarm` must end the program's work also when it strikes inside of the recorder.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, TracebackType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["examine", "is_of_handler", "pass_on", "traceback_of"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OURS = tuple(os.path.join(_PACKAGE, part, "") for part in ("schemas", "recorder"))
# Read from where they are stored: a class may call them otherwise.
_dict_of: Callable[[BaseException], dict[str, Any]] = BaseException.__dict__["__dict__"].__get__
_cause_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
_MARK = "__verl_trace_passes_on__"
# `id` of the last error in the main thread that `examine` found to be the value's own. Not the error: it holds values.
_of_value = 0


def pass_on(error: BaseException) -> None:
    """Raise `error` again, or what it was made of, if a signal handler raised it. Handlers run in the main thread."""
    if _MARK in _dict_of(error) or is_of_handler(error):
        raise error
    # `__context__` would lead to errors that the program was dealing with before
    cause = _cause_of(error)
    if cause is not None and (is_of_handler(cause) or _is_unexamined(cause)):
        # its traceback no longer says so, and there are more of us on the way out
        _dict_of(cause)[_MARK] = True
        raise cause


def examine(error: BaseException) -> None:
    """Have `pass_on` know an error that orjson is to get: it wraps what its callback raises, without its traceback."""
    global _of_value
    if threading.current_thread() is threading.main_thread():
        _of_value = 0 if is_of_handler(error) else id(error)


def _is_unexamined(cause: BaseException) -> bool:
    """Whether it came out of the callback where that looks at no error: at its first line, where a handler that has
    waited for orjson is run; or from a line that raises TypeError alone."""
    if traceback_of(cause) is not None or id(cause) == _of_value:
        return False
    # the last two are the interpreter's own, at the first line
    if isinstance(cause, (TypeError, RecursionError, MemoryError)):
        return False
    return threading.current_thread() is threading.main_thread()


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, going by its traceback."""
    codes = _foreign_codes(error)
    if not codes or threading.current_thread() is not threading.main_thread():
        return False
    return bool(codes & _handler_codes())


def _foreign_codes(error: BaseException) -> set[CodeType]:
    """Of the functions that the error came through, those that are not ours: hardly ever any."""
    found = set()
    entry = traceback_of(error)
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.add(code)
        entry = entry.tb_next
    return found


def _handler_codes() -> set[CodeType]:
    # nobody set a handler without it; and this is no place to load modules in
    signal = sys.modules.get("signal")
    if signal is None or not hasattr(signal, "valid_signals"):
        return set()
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return {code for handler in handlers if callable(handler) and (code := _code_of(handler)) is not None}


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
