"""`$((…))` of shells: whole numbers and known names only; nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def arithmetic(text: str, numbers: Mapping[str, int]) -> int | None:
    """The value of `$((…))` with whole numbers and known names; None for anything else."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    try:
        root = ast.parse(text[1:-1].strip().replace("$", ""), mode="eval").body
        return _value_of(root, numbers)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value_of(node: ast.expr, numbers: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value_of(node.left, numbers), _value_of(node.right, numbers)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return _quotient(left, right)
            case ast.Mod():
                return left - right * _quotient(left, right)
    raise ValueError


def _quotient(left: int, right: int) -> int:
    """A shell's division: towards zero."""
    found = abs(left) // abs(right)
    return found if (left < 0) == (right < 0) else -found
