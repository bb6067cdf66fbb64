"""What a log offers to choose from: its processes, its first error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from engine_ctl.logs.blocks import BLOCK, lines_of
from engine_ctl.logs.classify import classify_file
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import ERROR, Choice, Opened, ViewScan, part
from engine_ctl.logs.view_remote import answered

_SMALL_BYTES = 1 << 20
T = TypeVar("T")


class _Question:
    """A question about one file, as a task."""

    def __init__(self, function: Callable[[LogFile], Any]) -> None:
        self._function = function

    def do(self, files: Sequence[LogFile], wanted: object) -> Any:
        return self._function(files[0])


def asked(function: Callable[[LogFile], T], file: LogFile) -> T:
    """What one of the functions below says of a file; of a big one by a process of its own, so
    that the threads here are not held up. Blocks."""
    if file.size < _SMALL_BYTES:
        return function(file)
    return cast(T, answered(_Question(function), (file,)))


def processes_of(file: LogFile) -> tuple[str, ...]:
    """The processes that wrote the log's first and last blocks, in order of appearance; an empty
    name when there are lines without one."""
    last = max((file.size - 1) // BLOCK, 0)
    blocks = sorted({b for b in (0, 1, 2, last - 2, last - 1, last) if 0 <= b <= last})
    found: dict[str, None] = {}
    for block in blocks:
        for line in lines_of(file, block).data.split(b"\n")[:-1]:
            found[part(line).who.decode("utf-8", "replace")] = None
    return tuple(sorted(found, key=lambda name: name == ""))


def first_error(file: LogFile) -> int | None:
    """Where the root cause stands by `classify`, else the first line that is an error."""
    try:
        cause = classify_file(file.path)
    except OSError:
        cause = None
    text = (cause.line or "").strip().splitlines()[0][:200] if cause and cause.line else ""
    for needle in dict.fromkeys((text, json.dumps(text)[1:-1], text[-60:])):
        if len(needle) > 5 and (found := first_line_with(file, needle)) is not None:
            return found
    scan = ViewScan(Choice(level=ERROR), False, Opened())
    for block in range(-(-file.size // BLOCK)):
        rows = scan.find(file, block).rows
        if rows:
            return rows[0]
    return None


def first_line_with(file: LogFile, text: str) -> int | None:
    """Where the first line begins that has a text."""
    query = Query(text)
    for block in range(-(-file.size // BLOCK)):
        start, data, _ = lines_of(file, block)
        for at in query.starts(data):
            return start + at
    return None
