"""What of a log is shown: levels, processes, a stretch of it; and what is folded away.

A scan (see `index.Scan`) that takes each line apart with one regular expression and falls back on
`lines.split_prefix` for the shapes that it does not know.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine_ctl.logs.blocks import LOOKBACK, EveryLine, Found, Scan, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.lines import clean, split_prefix
from engine_ctl.logs.search import Finder, Query

DEBUG, INFO, WARNING, ERROR = range(4)
LEVELS = {
    "TRACE": DEBUG,
    "DEBUG": DEBUG,
    "INFO": INFO,
    "WARN": WARNING,
    "WARNING": WARNING,
    "ERROR": ERROR,
    "CRITICAL": ERROR,
    "FATAL": ERROR,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines are wanted. `level` is the least one; `processes` names (None: all; an empty
    name stands for lines without one); `start` and `end` are positions in bytes; `query`: only
    lines that match. A line that says no level counts as INFO."""

    level: int = DEBUG
    processes: frozenset[str] | None = None
    start: int = 0
    end: int | None = None
    query: Query | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Choice()


def scan_for(choice: Choice, fold: bool, opened: Opened | None = None) -> Scan:
    """The cheapest scan for a choice. `fold` hides lines that belong to the one before them or
    repeat it; it has no effect on a choice with a query, whose matches would hide."""
    if choice.query is not None and choice == Choice(query=choice.query):
        return choice.query
    if choice.everything and not fold:
        return EveryLine()
    opened = Opened() if opened is None else opened
    return ViewScan(choice, fold and choice.query is None, opened)


class Opened:
    """Folds that the reader opened: stretches whose lines are all shown."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self.version = 0

    def toggle(self, start: int, end: int) -> tuple[int, int]:
        """Open the fold that begins at `start`, or close it; the stretch that changed."""
        self.version += 1
        known = self._ends.pop(start, None)
        if known is not None:
            return start, known
        self._ends[start] = end
        return start, end

    def __contains__(self, offset: int) -> bool:
        return any(start < offset < end for start, end in self._ends.items())

    def is_open(self, start: int) -> bool:
        """Whether the fold that begins at `start` is open."""
        return start in self._ends

    def __bool__(self) -> bool:
        return bool(self._ends)


_HEAD = re.compile(
    rb"(?:\(([^ ()\n]{1,80}) pid=\d{1,10}\) ?)?"
    rb"(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    rb"(?: \d\d-\d\d \d\d:\d\d:\d\d \[([^\]\n]{1,200})\] ?|:\s+))?"
)
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_JSON = re.compile(
    rb'"(?:levelname|level|severity)": ?"([A-Za-z]+)".*?'
    rb'"(?:message|msg|event)": ?"((?:[^"\\]|\\.)*)'
)
_JSON_WHO = re.compile(rb'"vllm_process_name": ?"([^"]*)"')
_JSON_SOURCE = re.compile(rb'"processName": ?"([^"]*)"')
_NATIVE = re.compile(rb"(?:\[rank\d+\]:)?\[?([IWEFC])\d{4} \d\d:\d\d:\d\d")
_PY_WARNING = re.compile(rb"\S+?[\w-]+\.py:\d{1,9}: \w*Warning: ")
_NATIVE_RANK = {b"I": INFO, b"W": WARNING, b"E": ERROR, b"F": ERROR, b"C": ERROR}
_RANK = {name.encode(): rank for name, rank in LEVELS.items()}
_TRACEBACK = b"Traceback (most recent call last):"
_ROUTE = (b"Route: ", b"Available routes are")
_WORDS = (
    b"WARN",
    b"ERROR",
    b"CRITICAL",
    b"FATAL",
    b"Traceback",
    b"Warning: ",
    b'warning"',
    b'error"',
)
_NATIVE_LINE = re.compile(rb"\n(?:\[?[WEFC]|\[rank)")
_DIGITS = b"0123456789"


class Part:
    """One line taken apart: process, level (None: it says none), what it says, and its key for
    repetition; `head` is what lines of one record have in common."""

    __slots__ = ("file", "head", "level", "text", "who")

    def __init__(self, who: bytes, level: int | None, file: bytes, text: bytes) -> None:
        self.who = who
        self.level = level
        self.file = file
        self.text = text


def part(line: bytes) -> Part:
    """Take a line apart, in any of vLLM's shapes."""
    found = _HEAD.match(line)
    assert found is not None
    level = found[2]
    if level is not None:
        return Part(found[1] or b"", _RANK[level], found[3] or b"", line[found.end() :])
    if b"\x1b" in line:
        return part(_COLOUR.sub(b"", line))
    if b"\0" in line:
        return part(line.replace(b"\0", b""))
    if line.startswith(b"{") and (record := _JSON.search(line)) is not None:
        who = _JSON_WHO.search(line) or _JSON_SOURCE.search(line)
        name = who[1] if who is not None else b""
        return Part(name, _RANK.get(record[1].upper(), INFO), b"", record[2])
    text = line[found.end() :] if found.end() else line
    if found[1] is None and b":" in text[:120] and (b" [" in text or b"pid=" in text):
        head, rest = split_prefix(clean(text[:1000]))
        if head.level is not None or head.process is not None:
            rank = LEVELS.get(head.level or "")
            name = (head.process or "").encode()
            return Part(name, rank, (head.file or "").encode(), rest.encode())
    native = _NATIVE.match(text)
    if native is not None:
        return Part(found[1] or b"", _NATIVE_RANK[native[1]], b"", text)
    if b"Warning: " in text and _PY_WARNING.match(text) is not None:
        return Part(found[1] or b"", WARNING, b"", text)
    return Part(found[1] or b"", None, b"", text)


def telling_stretches(data: bytes, words: Sequence[bytes] = _WORDS) -> list[tuple[int, int]]:
    """Where lines stand that may be warnings or errors, by the words that these have: stretches of
    whole lines, each with the lines behind it that may belong to it. All others need not be taken
    apart."""
    finder = Finder(data)
    starts: set[int] = set()
    for word in words:
        at = finder.find(word, 0)
        while at >= 0:
            starts.add(data.rfind(b"\n", 0, at) + 1)
            end = data.find(b"\n", at)
            at = finder.find(word, end) if end >= 0 else -1
    starts.update(found.start() + 1 for found in _NATIVE_LINE.finditer(data))
    if data[:1] in (b"W", b"E", b"F", b"C", b"["):
        starts.add(0)
    found: list[tuple[int, int]] = []
    for start in sorted(starts):
        if found and start < found[-1][1]:
            continue
        end = data.find(b"\n", start) + 1 or len(data)
        goes_on = True
        while goes_on and end < len(data):
            stop = data.find(b"\n", end) + 1 or len(data)
            now = part(data[end:stop].rstrip(b"\r\n"))
            if now.level is not None:
                break
            end = stop
            goes_on = not now.text or now.text[:1].isspace() or now.text.startswith(_TRACEBACK)
        found.append((start, end))
    return found


class ViewScan:
    """Rows are lines that a choice wants and that no fold hides."""

    def __init__(self, choice: Choice, fold: bool, opened: Opened) -> None:
        self.choice = choice
        self.fold = fold
        self.opened = opened
        names = choice.processes
        self.may_not_end = choice.query is not None and choice.query.may_not_end
        self._names = None if names is None else frozenset(name.encode() for name in names)
        query = choice.query
        self._matches = None if query is None else query.matches

    @property
    def version(self) -> int:
        return self.opened.version

    def look(self, file: LogFile, block: int) -> Found:
        return self.find(file, block)

    def find(self, file: LogFile, block: int) -> Found:
        start, data, before = lines_of(file, block, LOOKBACK)
        choice = self.choice
        if not data:
            return Found((), through=True)
        if choice.start >= start + len(data) or (choice.end is not None and choice.end <= start):
            return Found(())
        if choice.level < WARNING or self.fold or b"Traceback" in before:
            return self._scan(start, data, before)
        telling = telling_stretches(data)
        rows = array("Q")
        for low, high in telling:
            before = data[data.rfind(b"\n", 0, max(low - 1, 0)) + 1 : low]
            rows.extend(self._scan(start + low, data[low:high], before).rows)
        return Found(rows, array("I", bytes(4 * len(rows))))

    def _scan(self, start: int, data: bytes, before: bytes) -> Found:
        state = _State()
        for line in before.split(b"\n")[:-1]:
            state.take(line)
        shown, begun = 0, False
        choice, fold, names, matches = self.choice, self.fold, self._names, self._matches
        least, low, high = choice.level, choice.start, choice.end
        opened = self.opened if self.opened else None
        rows, more = array("Q"), array("I")
        lead = 0
        wanted = data.split(b"\n")
        if not wanted[-1]:
            wanted.pop()
        at = start
        for line in wanted:
            hidden = state.take(line) and fold
            offset = at
            at += len(line) + 1
            if hidden and (opened is None or offset not in opened):
                if shown:
                    more[-1] += 1
                if not begun:
                    lead += 1
                continue
            begun = True
            if (
                state.level < least
                or (names is not None and state.who not in names)
                or offset < low
                or (high is not None and offset >= high)
                or (matches is not None and not matches(line))
            ):
                shown = 0
                continue
            shown = 1
            rows.append(offset)
            more.append(0)
        return Found(rows, more, lead, not begun, shown == 1)


class _State:
    """What one line says about the next: whether it goes on, whether it is the same again."""

    __slots__ = ("_announced", "_key", "_part", "_traceback", "level", "who")

    def __init__(self) -> None:
        self.level = INFO
        self.who = b""
        self._announced = False
        self._traceback = False
        self._key: object = None
        self._part: Part | None = None

    def take(self, line: bytes) -> bool:
        """Take the next line; True when a fold hides it behind the one before."""
        announced = line.endswith(b"\r")
        now = part(line.rstrip(b"\r") if announced else line)
        before, self._part = self._part, now
        same = before is not None and before.who == now.who and before.file == now.file
        text, level = now.text, now.level
        if same and before is not None and before.level == level and self._announced:
            self._announced = announced
            self._key = None
            return True
        self._announced = announced and level is not None
        if self._traceback and same and level is None:
            if text and not text[:1].isspace() and not text.startswith(_TRACEBACK):
                self._traceback = False
            self._key = None
            return True
        warned = before is not None and before.level == WARNING and not before.file
        if warned and same and level is None and text[:1].isspace():
            now.level = WARNING
            self._key = None
            return True
        self._traceback = level is None and text.startswith(_TRACEBACK)
        self.level = ERROR if self._traceback else INFO if level is None else level
        self.who = now.who
        if text.startswith(_ROUTE):
            key: object = (now.who, b"Route: ")
        elif b" HTTP/1." in text:
            key = (now.who, text.translate(None, _DIGITS), text[-16:])
        else:
            key = (now.who, level, text)
        repeated = key == self._key and bool(text)
        self._key = key
        return repeated
