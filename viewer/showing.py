"""One trajectory on a terminal: its facts, its conversation, its tree of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..reader import Call
from ..reader.conversation import ToolCall, Turn
from ..reader.facts import FACTS
from ..reader.payloads import is_numbers, json_text
from ..schemas.wording import counted
from .terminal import Line, line
from .text import cell_width, cut_to_width, human_seconds, visible, visible_lines, wrapped

__all__ = ["call_lines", "conversation_lines", "fact_lines", "json_lines", "traceback_lines"]

# What of a text is shown without --full: a long answer is whole, a 1 MB message is not.
_MAX_LINES = 60
_MAX_CHARS = 6_000
_INDENT = "  "
ROLE_STYLES = {"system": "magenta", "user": "cyan", "prompt": "cyan", "assistant": "green", "tool": "yellow"}


def fact_lines(facts: dict[str, Any], columns: int) -> Iterator[Line]:
    """What is known of the trajectory in a few lines."""
    yield line(("trajectory ", "bold"), (visible(facts["trace_id"]), "bold"))
    words = [
        f"{name} {visible(facts[key])}"
        for name, key in (("step", "step"), ("sample", "sample_index"), ("rollout", "rollout_n"))
        if facts[key] is not None
    ]
    words += ["validation"] * bool(facts["validate"])
    words += [facts["status"], human_seconds(facts["duration"])]
    words += [counted(facts["turns"], "turn")] if facts["turns"] else []
    words += [counted(facts["tokens"], "token")] if facts["tokens"] is not None else []
    words.append(counted(facts["calls"], "call"))
    words += [counted(facts["errors"], "error")] if facts["errors"] else []
    yield from (line(_INDENT, text) for text in _row_by_row(words, columns - 2))
    if "reward" in facts:
        yield line(_INDENT, ("reward ", ""), (visible(_short(facts["reward"])), "bold"))
    rest = {name: value for name, value in facts.items() if name not in FACTS and name not in ("reward",)}
    if rest:
        told = [f"{visible(name)} {visible(_short(value))}" for name, value in rest.items()]
        yield from (line(_INDENT, (text, "dim")) for text in _row_by_row(told, columns - 2))
    attempt = f"attempt {facts['attempt']}" if facts["attempt"] else ""
    # of a file that has lost its header, or comes from elsewhere, not all of it is known
    where = [known for known in (facts["experiment_name"], attempt, facts["started_at"], facts["op"]) if known]
    yield from (line(_INDENT, (text, "dim")) for text in _row_by_row(map(visible, where), columns - 2))


def _row_by_row(facts: Iterable[str], columns: int) -> Iterator[str]:
    """Facts with dots between them; a row ends between two of them, where they fit into one at all."""
    row = ""
    for fact in facts:
        longer = f"{row} · {fact}" if row else fact
        if row and cell_width(longer) > columns:
            yield from wrapped(row, columns)
            longer = fact
        row = longer
    yield from wrapped(row, columns)


def conversation_lines(turns: list[Turn], columns: int, *, full: bool = False) -> Iterator[Line]:
    """The turns, each under a line that says whose it is."""
    if not turns:
        yield line(("no conversation is in these records; the calls below have what there is", "dim"))
    for turn in turns:
        yield line()
        yield _title(turn, columns)
        if turn.role == "tool" and turn.call is not None and turn.arguments is not None:
            yield from _block("→ " + _compact(turn.arguments), columns, full)
        yield from _said(turn, columns, full)
        for asked in turn.tool_calls:
            yield from _asked(asked, columns, full)
        if turn.call is not None and turn.call.exception is not None:
            yield from traceback_lines(turn.call.exception, columns, full=full)


def call_lines(call: Call, columns: int, parts: dict[str, Any], *, full: bool = False) -> Iterator[Line]:
    """One call: what it is, its inputs, its output, its exception."""
    yield line(("call ", "bold"), (visible(call.id), "bold"), "  ", visible(call.op))
    told = f"{call.status} · {human_seconds(call.duration)} · {call.started_at} · parent {call.parent_id or 'none'}"
    yield from (line(_INDENT, (text, "dim")) for text in wrapped(visible(told), columns - 2))
    for name, value in parts.items():
        yield line((name, "bold"))
        yield from json_lines(value, columns, full=full)
    if call.exception is not None:
        yield from traceback_lines(call.exception, columns, full=full)


def json_lines(value: Any, columns: int, *, full: bool = False) -> Iterator[Line]:
    """A value: text as text, anything else as indented JSON with long lists of numbers on one line."""
    if isinstance(value, str):
        yield from _block(value, columns, full)
        return
    try:
        shown = value if full else _without_long_lists(value)
    except RecursionError:
        shown = value
    yield from _block(json_text(shown, indent=True), columns, full)


def traceback_lines(exception: dict[str, Any], columns: int, *, full: bool = False) -> Iterator[Line]:
    """Type, message and frames, the innermost last."""
    frames = exception.get("traceback")
    for frame in frames if isinstance(frames, list) else []:
        if isinstance(frame, dict):
            place = f"{frame.get('filename')}:{frame.get('line_number')} in {frame.get('function_name')}"
            yield from (line(_INDENT, (text, "dim")) for text in wrapped(visible(place), columns - 2))
            if frame.get("text"):
                yield from (line("    ", (text, "dim")) for text in wrapped(visible(frame["text"]), columns - 4))
    said = f"{exception.get('type', 'error')}: {exception.get('message', '')}"
    for pieces in _block(said, columns, full):
        yield line(*((text, style or "bold red") for text, style in pieces))


def _title(turn: Turn, columns: int) -> Line:
    words = [turn.role]
    if turn.role == "response":
        words = ["response: the model's and the tools' (tell them apart with --tokenizer)"]
    if turn.name:
        words.append(visible(turn.name))
    if turn.request is not None:
        words.append(f"request {turn.request + 1:,}")
    if turn.answer is not None:
        words.append(f"answer {turn.answer + 1:,}")
    if turn.call is not None:
        words.append(human_seconds(turn.call.duration))
        if turn.call.status != "success":
            words.append(turn.call.status)
    if turn.tokens is not None:
        words.append(counted(turn.tokens, "token"))
    if turn.decoded:
        words.append("decoded")
    title = cut_to_width(visible(" · ".join(words)), columns - 6)
    style = ROLE_STYLES.get(turn.role, "blue")
    return line(("── ", style), (title, f"bold {style}"), (" " + "─" * max(2, columns - 4 - cell_width(title)), style))


def _said(turn: Turn, columns: int, full: bool) -> Iterator[Line]:
    if turn.text is not None:
        if turn.text or not turn.tool_calls:
            yield from _block(turn.text, columns, full)
    elif turn.tokens is not None:
        yield line(_INDENT, (f"{counted(turn.tokens, 'token id')} and no text; --tokenizer PATH decodes them", "dim"))
    elif turn.call is not None and turn.call.unfinished:
        # a process that has closed its recording was not killed
        closed = "has no end here: the record was not written, or the recording ended first"
        killed = "did not end: its process was killed, or is still at it"
        yield line(_INDENT, (closed if turn.call.writer.closed else killed, "yellow"))


def _asked(asked: ToolCall, columns: int, full: bool) -> Iterator[Line]:
    yield from _block(f"→ calls {asked.name} {_compact(asked.arguments)}", columns, full)


def _block(text: str, columns: int, full: bool) -> Iterator[Line]:
    """A text, wrapped; what is left out is told in its place."""
    shown = text if full or len(text) <= _MAX_CHARS else text[:_MAX_CHARS]
    count = 0
    for raw in visible_lines(shown):
        for piece in wrapped(raw, columns - len(_INDENT)):
            if not full and count >= _MAX_LINES:
                break
            count += 1
            yield line(_INDENT, piece)
        else:
            continue
        break
    if not full and (len(shown) < len(text) or count >= _MAX_LINES):
        lines = text.count("\n") + 1
        size = f"{counted(len(text), 'character')} in {counted(lines, 'line')}"
        yield line(_INDENT, (f"… shortened: {size}; --full shows all", "bold"))


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _short(value: Any) -> str:
    text = _compact(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text):,} characters)"


def _without_long_lists(value: Any) -> Any:
    """Lists of more than 24 numbers as one line that says so."""
    if isinstance(value, dict):
        return {key: _without_long_lists(below) for key, below in value.items()}
    if isinstance(value, list):
        if len(value) > 24 and is_numbers(value):
            first = ", ".join(str(item) for item in value[:8])
            return f"[{first}, … {len(value):,} numbers; --full shows all]"
        return [_without_long_lists(below) for below in value]
    return value
