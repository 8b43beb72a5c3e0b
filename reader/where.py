"""`--where 'reward < 0.5 and step % 10 == 0'`: an expression over the facts of a trajectory.

A small part of Python's expressions, read with Python's own parser and evaluated by walking it: nothing is ever called
or looked up but the facts. A fact that a trajectory does not have is None; ordering None, or values that cannot be
ordered, is false, so a trajectory without a reward is neither below nor above one.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..schemas.errors import BadFilter

__all__ = ["Where"]

_HINT = "e.g. --where 'reward < 0.5 and step >= 10 and not validate'"
# An expression is typed by a person; anything larger is an accident.
_MAX_CHARS = 10_000
# Names that are kept to propose one of them: attributes may have keys that are new in every trajectory.
_MAX_SEEN = 10_000

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CONSTANTS = {"null": None, "none": None, "true": True, "false": False}


class Where:
    """A parsed expression; call it with the facts of a trajectory.

    Of every trajectory that was read, `note` keeps which of the names there are: `missing` has those that none had so
    far (`extra`, `extra.depth`), `seen` the names that there were in their places while some were missing.

    Raises:
        BadFilter: the text is no such expression.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MAX_CHARS:
            raise BadFilter(f"--where: the expression is longer than {_MAX_CHARS:,} characters", hint=_HINT)
        try:
            self._body = ast.parse(text.strip(), mode="eval").body
            _check(self._body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise BadFilter(f"--where {text!r}: {reason}", hint=_HINT) from None
        paths = filter(None, map(_path, ast.walk(self._body)))
        self._paths = {".".join(path): path for path in paths if path[0] not in _CONSTANTS}
        self.missing = set(self._paths)
        self.seen: set[str] = set()

    def __call__(self, facts: Mapping[str, Any]) -> bool:
        """Whether the expression is true of these facts."""
        return bool(_value(self._body, facts))

    def note(self, facts: Mapping[str, Any]) -> None:
        """Know the names of one more trajectory."""
        for name in tuple(self.missing):
            *way, last = self._paths[name]
            there = _inside(facts, way)
            if last in there:
                self.missing.remove(name)
            if len(self.seen) < _MAX_SEEN:
                self.seen.update(".".join([*way, key]) for key in there)

    @property
    def names(self) -> frozenset[str]:
        """The facts that it asks for."""
        return frozenset(node.id for node in ast.walk(self._body) if isinstance(node, ast.Name))


def _path(node: ast.AST) -> tuple[str, ...]:
    """`extra.depth` as its parts; () of what is no name, or an attribute of none."""
    if isinstance(node, ast.Name):
        return (node.id,)
    inner = _path(node.value) if isinstance(node, ast.Attribute) else ()
    return (*inner, node.attr) if isinstance(node, ast.Attribute) and inner else ()


def _inside(facts: Mapping[str, Any], way: Sequence[str]) -> Mapping[str, Any]:
    """What is found on the way; nothing where that ends before."""
    inner: Any = facts
    for name in way:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _check(node: ast.AST) -> None:
    """Raise ValueError where there is more than is understood."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Compare, ast.BoolOp, ast.Name, ast.List, ast.Tuple, ast.Load)):
            continue
        if isinstance(part, ast.Constant) and isinstance(part.value, (bool, int, float, str, type(None))):
            continue
        if isinstance(part, (ast.UnaryOp, ast.BinOp)):
            continue
        if isinstance(part, (ast.Attribute, ast.boolop, ast.Not, ast.USub, ast.UAdd)):
            continue
        if type(part) in _COMPARE or type(part) in _ARITHMETIC:
            continue
        raise ValueError(f"{ast.unparse(part) if isinstance(part, ast.expr) else type(part).__name__} is not allowed")


def _value(node: ast.AST, facts: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return facts[node.id] if node.id in facts else _CONSTANTS.get(node.id)
    if isinstance(node, ast.Attribute):
        inner = _value(node.value, facts)
        return inner.get(node.attr) if isinstance(inner, Mapping) else None
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, facts) for item in node.elts]
    if isinstance(node, ast.BoolOp):
        if isinstance(node.op, ast.And):
            return all(_value(part, facts) for part in node.values)
        return any(_value(part, facts) for part in node.values)
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, _value(node.operand, facts))
    if isinstance(node, ast.BinOp):
        return _tried(_ARITHMETIC[type(node.op)], _value(node.left, facts), _value(node.right, facts), otherwise=None)
    assert isinstance(node, ast.Compare)
    left = _value(node.left, facts)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, facts)
        if not _tried(_COMPARE[type(op)], left, right, otherwise=False):
            return False
        left = right
    return True


def _unary(op: ast.unaryop, value: Any) -> Any:
    if isinstance(op, ast.Not):
        return not value
    if not isinstance(value, (int, float)):
        return None
    return -value if isinstance(op, ast.USub) else value


def _tried(function: Callable[[Any, Any], Any], left: Any, right: Any, *, otherwise: Any) -> Any:
    # text times a number may fill the memory
    if isinstance(left, (str, list)) and isinstance(right, int) and function is operator.mul:
        return otherwise
    if isinstance(left, str) and function is operator.mod:
        return otherwise
    try:
        return function(left, right)
    except (TypeError, ValueError, ArithmeticError):
        return otherwise
