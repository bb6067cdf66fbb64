"""A log in blocks of 256 KiB: which of its lines begin in one, and which of them are rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import local
from typing import NamedTuple, Protocol

from engine_ctl.logs.index_file import LogFile

BLOCK = 1 << 18
LOOKBACK = 1 << 14
"""How far before a block a scan may look for what its first line belongs to."""
FEW = 64
_LONGEST = 1 << 20
_MORE = 4096


class Found(NamedTuple):
    """The rows that begin in one block: the positions of their lines.

    `more[i]` lines are folded behind row i within the block, `lead` lines at the block's start
    behind a line of an earlier block. `through`: no line begins in the block but such ones;
    `open`: the last line that is not folded is a row, so that the next block's go behind it."""

    rows: Sequence[int]
    more: Sequence[int] = ()
    lead: int = 0
    through: bool = False
    open: bool = False


class Scan(Protocol):
    """What is a row. A pure function of the bytes of a block, of `LOOKBACK` bytes before it and
    of the rest of the last line that begins in it."""

    @property
    def version(self) -> int:
        """Changes with what is a row."""

    @property
    def may_not_end(self) -> bool:
        """Whether a block may take for ever: looked at within `patience`, or by a process that
        can be killed."""

    def look(self, file: LogFile, block: int) -> Found | int:
        """The rows that begin in the block; only their number where that is cheaper to say."""

    def find(self, file: LogFile, block: int) -> Found:
        """The rows that begin in the block."""


class Lines(NamedTuple):
    """Whole lines: those that begin in one block, from position `start` on, and some before."""

    start: int
    data: bytes
    before: bytes = b""


class _Buffers(local):
    """One buffer a thread."""

    def __init__(self) -> None:
        self.data = bytearray(LOOKBACK + BLOCK + _MORE)
        # glibc learns from the first big block that is freed to keep such memory at hand: without
        # it every copy of a block faults its pages in anew, which costs more than the search.
        bytes(4 << 20)


_buffers = _Buffers()


def lines_of(file: LogFile, block: int, lookback: int = 0) -> Lines:
    """Read the lines that begin in a block. One longer than 1 MiB behind the block is cut."""
    low, high = block * BLOCK, min((block + 1) * BLOCK, file.size)
    base = max(low - max(lookback, 1), 0)
    buffer = _buffers.data
    view = memoryview(buffer)
    filled = file.read_into(view[: high - base + _MORE], base)
    first = low
    if low:
        first = base + buffer.find(b"\n", low - 1 - base, filled) + 1
        if first == base or first >= high:
            return Lines(high, b"")
    end = buffer.find(b"\n", high - 1 - base, filled)
    if end >= 0:
        data = bytes(view[first - base : end + 1])
    else:
        data = bytes(view[first - base : filled])
        at = base + filled
        while at < file.size and at - high < _LONGEST:
            more = file.read(at, 1 << 16)
            cut = more.find(b"\n") + 1
            data += more[:cut] if cut else more
            at += len(more) or _LONGEST
            if cut:
                break
    before = bytes(view[: first - base]) if lookback else b""
    if base:
        before = before.partition(b"\n")[2]
    return Lines(first, data, before)


class EveryLine:
    """Every line is a row; the last one counts without its newline."""

    version = 0
    may_not_end = False

    def _window(self, file: LogFile, block: int) -> tuple[int, bytes]:
        """Each newline in it (but one at the end of the file) begins a line of the block."""
        low = max(block * BLOCK - 1, 0)
        return low, file.read(low, min((block + 1) * BLOCK, file.size) - 1 - low)

    def look(self, file: LogFile, block: int) -> int:
        _, data = self._window(file, block)
        return data.count(b"\n") + (block == 0 and file.size > 0)

    def find(self, file: LogFile, block: int) -> Found:
        low, data = self._window(file, block)
        lengths = list(map(len, data.split(b"\n")))
        lengths.pop()
        starts = array("Q", [end + low + at for at, end in enumerate(accumulate(lengths), 1)])
        if block == 0 and file.size > 0:
            starts.insert(0, 0)
        return Found(starts)


def counted(file: LogFile, scan: Scan, blocks: Iterable[int]) -> list[Found | int]:
    """What is to be kept of each block: its rows where they are few, else only their number.
    A hole has none."""
    out: list[Found | int] = []
    for block in blocks:
        if file.sparse and file.data_from(block * BLOCK) >= (block + 1) * BLOCK:
            out.append(Found((), through=True))
            continue
        found = scan.look(file, block)
        if not isinstance(found, int) and len(found.rows) > FEW:
            found = len(found.rows)
        out.append(found)
    return out
