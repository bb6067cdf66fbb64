"""Searching a log of any size: plain text or a regular expression, counted as `grep -c` counts.

Literals do the work: `memmem` runs at memory speed (and without the interpreter's lock), so an
expression is first asked for literals one of which every match contains, the rarest are looked
for, and only lines with one are given to `re`.
"""

from __future__ import annotations

import ctypes
import re
import time
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

from engine_ctl.errors import Usage
from engine_ctl.logs.blocks import FEW, Found, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.patience import TooSlow, at_most

# The parser of `re` itself: what it makes of a pattern is what will be matched.
_parser: Any = re._parser  # type: ignore[attr-defined]
_SAMPLE = 4096
_MARK_S = 0.02
_MARKS_S = 0.2
_MARKS_SHARE = 0.1


class Query:
    """What is searched for; rows are the lines that match. Raises Usage for a bad expression.

    Without `case`, case is ignored (plain text: of ASCII letters, as in the C locale)."""

    version = 0

    def __init__(self, text: str, *, regex: bool = False, case: bool = True) -> None:
        self.text = text
        self.regex = regex
        self.case = case
        flags = 0 if case else re.IGNORECASE
        source = text if regex else re.escape(text)
        literal = text.encode("utf-8", "surrogateescape")
        try:
            self._shown = re.compile(source, flags)
            self._pattern = re.compile(source.encode("utf-8", "surrogateescape"), flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise Usage(f"not a regular expression: {error}") from None
        self._folding = not case
        self._dense = False
        self._choices: list[tuple[bytes, ...]] = []
        if regex:
            self._choices = _literals(source, flags)
        elif literal:
            self._choices = [(literal if case else literal.lower(),)]
        self.may_not_end = regex and not _ends(source, flags)
        self.unmarked = False
        self._spent = (0.0, 0.0)
        self._inside = not regex or (not self._pattern.groups and _inside_a_line(source))
        # One match a line, found by one call for a whole block (of a plain word, in lower case).
        ending = b")[^\n]*"
        if not self._inside:
            self._whole = None
        elif regex or case:
            self._whole = re.compile(b"(?:" + self._pattern.pattern + ending, flags)
        else:
            self._whole = re.compile(b"(?:" + re.escape(literal.lower()) + ending)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, bool, bool]:
        return self.text, self.regex, self.case

    def spans(self, text: str, limit: int = 50) -> list[tuple[int, int]]:
        """Where it is in a line as shown: begin and end of at most `limit` matches. None any more
        once that has taken too long (`unmarked`). In the main thread only."""
        if not self.may_not_end:
            return self._spans(text, limit)
        if self.unmarked:
            return []
        begun = time.thread_time()
        try:
            with at_most(_MARK_S):
                return self._spans(text, limit)
        except TooSlow:
            self.unmarked = True
            return []
        finally:
            # Many lines, none of which is slow alone: a share of the time, and some at once.
            now, (spent, at) = time.monotonic(), self._spent
            spent = max(spent - (now - at) * _MARKS_SHARE, 0.0) + time.thread_time() - begun
            self._spent = spent, now
            self.unmarked = self.unmarked or spent > _MARKS_S

    def _spans(self, text: str, limit: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for match in self._shown.finditer(text):
            if match.end() > match.start():
                found.append(match.span())
            if len(found) >= limit:
                break
        return found

    def matches(self, line: bytes) -> bool:
        """Whether one raw line matches."""
        return self._pattern.search(line) is not None

    # As a scan (see `index.Scan`)

    def look(self, file: LogFile, block: int) -> Found | int:
        start, data, _ = lines_of(file, block)
        text = data.lower() if self._folding else data
        plain = data if self.regex else text
        if self._dense and self._whole is not None:
            # The block before was full of matches: this one will be.
            count = len(self._whole.findall(plain))
            self._dense = count > FEW
            if self._dense:
                return count
        first = list(islice(self._starts(data, text), FEW + 1))
        if len(first) <= FEW:
            return Found([start + at for at in first])
        if self._whole is None:
            return self.count_in(data)
        self._dense = True
        rest = data.find(b"\n", first[-1]) + 1
        return len(first) + (len(self._whole.findall(plain, rest)) if rest else 0)

    def find(self, file: LogFile, block: int) -> Found:
        start, data, _ = lines_of(file, block)
        return Found(array("Q", [start + at for at in self.starts(data)]))

    def count_in(self, data: bytes) -> int:
        """How many lines of `data` match."""
        return sum(1 for _ in self.starts(data))

    def starts(self, data: bytes) -> Iterator[int]:
        """Where each matching line of `data` begins."""
        return self._starts(data, data.lower() if self._folding else data)

    def _starts(self, data: bytes, text: bytes) -> Iterator[int]:
        if not self._choices:
            yield from self._each(data)
            return
        finder = Finder(text)
        literals = self._rarest(text)
        places = {literal: finder.find(literal, 0) for literal in literals}
        while True:
            known = [at for at in places.values() if at >= 0]
            if not known:
                return
            at = min(known)
            start = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            if not self.regex or self._pattern.search(data[start:end]):
                yield start
            for literal, place in places.items():
                if 0 <= place < end:
                    places[literal] = finder.find(literal, end)

    def _each(self, data: bytes) -> Iterator[int]:
        search, at = self._pattern.search, 0
        for line in data.split(b"\n"):
            if at < len(data) and search(line):
                yield at
            at += len(line) + 1

    def _rarest(self, text: bytes) -> tuple[bytes, ...]:
        """The choice with the fewest hits in the first text that is long enough to tell."""
        if len(self._choices) > 1 and len(text) >= _SAMPLE:

            def hits(choice: tuple[bytes, ...]) -> tuple[int, int]:
                return sum(map(text.count, choice)), -min(map(len, choice))

            self._choices = [min(self._choices, key=hits)]
        return self._choices[0]


class Finder:
    """`bytes.find` at the speed of the C library."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._address = _address_of(text)

    def find(self, literal: bytes, start: int) -> int:
        if _memmem is None:
            return self._text.find(literal, start)
        at = _memmem(self._address + start, len(self._text) - start, literal, len(literal))
        return -1 if at is None else int(at) - self._address


def _c_memmem() -> Any:
    try:
        function = ctypes.CDLL(None).memmem
    except (AttributeError, OSError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    return function


_memmem = _c_memmem()
_address_of: Any = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)


# What can be said about an expression


def _literals(source: str, flags: int) -> list[tuple[bytes, ...]]:
    """Sets of literals: of each set every match contains one. Empty where nothing can be said."""
    tree = _parser.parse(source, flags)
    ignoring = bool(flags & re.IGNORECASE)
    if bool(tree.state.flags & re.IGNORECASE) != ignoring or tree.state.flags & re.VERBOSE:
        return []
    found: list[tuple[bytes, ...]] = []
    for literals in _needed(tree):
        if min(map(len, literals)) < 2 or not all(literal.isascii() for literal in literals):
            continue
        texts = [literal.lower() if ignoring else literal for literal in literals]
        found.append(tuple(dict.fromkeys(text.encode() for text in texts)))
    return found


_ENDS = {"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "SUBPATTERN", "BRANCH"}
_MOST_BRANCHES = 8


def _ends(source: str, flags: int) -> bool:
    """Whether a match takes a time that is bounded by the length of the text: nothing repeats,
    nothing is referred to, and there are few choices."""
    branches = 0

    def plain(tree: Any) -> bool:
        nonlocal branches
        for operation, argument in tree:
            name = str(operation)
            if name not in _ENDS:
                return False
            if name == "SUBPATTERN" and not plain(argument[3]):
                return False
            if name == "BRANCH":
                branches += 1
                if not all(plain(branch) for branch in argument[1]):
                    return False
        return branches <= _MOST_BRANCHES

    return plain(_parser.parse(source, flags))


def _needed(tree: Any) -> list[tuple[str, ...]]:
    """Sets of literals of a sequence: of each set one is in every match."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL" and argument != 10:
            run += chr(argument)
            continue
        if run:
            found.append((run,))
        run = ""
        if name == "SUBPATTERN" and not argument[1] and not argument[2]:
            found += _needed(argument[3])
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] >= 1:
            found += _needed(argument[2])
        elif name == "BRANCH" and len(argument[1]) <= 8:
            parts = [_best(_needed(branch)) for branch in argument[1]]
            if all(parts):
                found.append(tuple(literal for part in parts for literal in part))
    if run:
        found.append((run,))
    return found


def _best(sets: list[tuple[str, ...]]) -> tuple[str, ...]:
    return max(sets, key=lambda literals: min(map(len, literals)), default=())


_SAFE = {"LITERAL", "SUBPATTERN", "BRANCH", "MAX_REPEAT", "MIN_REPEAT", "ANY", "RANGE"}


def _inside_a_line(source: str) -> bool:
    """Whether no match can reach over a newline, nor depend on where a line begins or ends."""

    def safe(tree: Any) -> bool:
        for operation, argument in tree:
            name = str(operation)
            if name == "IN":
                kinds = [(str(op), value) for op, value in argument]
                if any(
                    kind == "NEGATE"
                    or (kind == "CATEGORY" and str(value) != "CATEGORY_DIGIT")
                    or (kind == "LITERAL" and value == 10)
                    or (kind == "RANGE" and value[0] <= 10 <= value[1])
                    for kind, value in kinds
                ):
                    return False
            elif name not in _SAFE or (name == "LITERAL" and argument == 10):
                return False
            elif name == "SUBPATTERN":
                if argument[1] or argument[2] or not safe(argument[3]):
                    return False
            elif name == "BRANCH":
                if not all(safe(branch) for branch in argument[1]):
                    return False
            elif name in ("MAX_REPEAT", "MIN_REPEAT") and not safe(argument[2]):
                return False
        return True

    tree = _parser.parse(source)
    return not tree.state.flags & ~re.UNICODE and tree.getwidth()[0] > 0 and safe(tree)
