"""How commands print: one JSON document with --json, else plain aligned text."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import click

from console.commands import completing
from engine_ctl.errors import Usage

F = TypeVar("F", bound=Callable[..., Any])

json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)
# A command that only looks may be asked without a unit; one that changes anything names it.
looked_at: Callable[[F], F] = click.argument("unit", required=False, shell_complete=completing.unit)
yes_option: Callable[[F], F] = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask for confirmation."
)


def limit_option(default: int | None = None) -> Callable[[F], F]:
    return click.option(
        "-n",
        "--limit",
        type=click.IntRange(min=0),
        default=default,
        show_default=default is not None,
        help="Only the newest N.",
    )


def examples(*lines: str) -> str:
    """The epilog of a command's help: command lines as they can be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def plain(value: Any) -> Any:
    """Dataclasses, enums, msgspec records and tuples as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {k: plain(v) for k, v in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "__struct_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def emit_json(document: Any) -> None:
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    json.dump(plain(document), sys.stdout, indent=1, ensure_ascii=ascii_only)
    sys.stdout.write("\n")
    sys.stdout.flush()


def emit_json_line(document: Any) -> None:
    """One document on one line, for output that does not end."""
    sys.stdout.write(json.dumps(plain(document)) + "\n")
    sys.stdout.flush()


def table(rows: Sequence[Sequence[str]], heads: Sequence[str], right: Iterable[int] = ()) -> str:
    """Aligned columns; `right` are the indices of right-aligned ones."""
    right = set(right)
    cells = [[*map(str, row)] for row in (heads, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = []
    for row in cells:
        parts = [
            c.rjust(w) if i in right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; without one and without --yes, refuse (exit code 2)."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{question.rstrip('?')}: add --yes to confirm without a terminal")
    if not click.confirm(question, default=False, err=True):
        raise click.Abort
