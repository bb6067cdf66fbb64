"""The starts that a log of any size holds, and what each of their phases wrote.

The beginning of a start is read whole; of what is behind only lines with words that tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine_ctl.logs.blocks import BLOCK, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.lines import Record, RecordReader
from engine_ctl.logs.starts import FIRST_WORDS, Starts
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.logs.view import telling_stretches
from engine_ctl.model import STARTING, Phase

WHOLE_BYTES = 8 << 20
"""Of each start so much is read whole, unless it is ready before."""
ALL_WHOLE_BYTES = 64 << 20
"""And of all starts of a log together."""
_PIECE = 1 << 14
_TRACEBACK = b"Traceback (most recent call last):"
_TRACEBACKS = 1 << 15
_FIRST = tuple(words.encode() for words in FIRST_WORDS)
_TELLING = (
    *_FIRST,
    "█".encode(),
    b"Starting to load model",
    b"oading weights took",
    b"Mapped ",
    b"Weight cache",
    b"Model loading took",
    b"torch.compile",
    b"Available KV cache memory",
    b"KV cache size",
    b"Graph capturing",
    b"init engine (",
    b"startup complete",
    b"Uvicorn running on",
    b"daemon READY",
    b"seconds to fall asleep",
    b"seconds to wake up",
    b"[shutdown]",
    b"hutting down",
    b"application shutdown",
    b"Waiting up to ",
    b"Received SIG",
    b"Received signal",
    b"failed to start",
    b"EngineCore encountered",
    b"EngineCore hit",
    b"died unexpectedly",
    b"exited during startup",
    _TRACEBACK,
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a log that one phase wrote: positions in bytes, `end` None for the rest.
    `start_number` counts the log's starts from 1."""

    phase: Phase
    start: int
    end: int | None
    start_number: int = 1


@dataclass(frozen=True, slots=True)
class LogStarts:
    """Where each start speaks first (what its imports print, not counted), and the phases of all of
    them, in order."""

    first_words: tuple[int, ...]
    phases: tuple[Stretch, ...]


def starts_of(file: LogFile) -> LogStarts:
    """Looks through the whole log: seconds for a gigabyte."""
    reading = _Reading()
    for block in range(-(-file.size // BLOCK)):
        if file.sparse and file.data_from(block * BLOCK) >= (block + 1) * BLOCK:
            continue
        start, data, _ = lines_of(file, block)
        at = 0
        while at < len(data):
            at = (reading.piece if reading.whole else reading.telling)(start, data, at)
    return reading.found()


class _Reading:
    """The log so far: its starts, each with the places where its phase changed."""

    def __init__(self) -> None:
        self._rule = Starts()
        self._first_words: list[int] = []
        self._speaker: tuple[int | None, int] = (None, 0)
        self._marks: list[list[tuple[Phase, int]]] = []
        self._left = ALL_WHOLE_BYTES
        self._reader, self._next, self._until = RecordReader(), 0, 0
        self._begin(0)

    def _begin(self, offset: int) -> None:
        while len(self._marks[-1:] and self._marks[-1]) > 1 and self._marks[-1][-1][1] >= offset:
            self._marks[-1].pop()  # the banner's
        self._timeline = StartTimeline()
        self._marks.append([(self._timeline.phase, offset)])
        self._read = 0

    @property
    def whole(self) -> bool:
        """Whether every line tells now: in a start, and where tracebacks may follow each other."""
        starting = self._timeline.phase in STARTING and self._read < WHOLE_BYTES
        return (starting or self._next < self._until) and self._left > 0

    def piece(self, start: int, data: bytes, at: int) -> int:
        """Take the next lines; where they end. Not many: the start may be ready behind them."""
        end = data.find(b"\n", min(at + _PIECE, len(data) - 1)) + 1 or len(data)
        self._take(start + at, data[at:end])
        return end

    def telling(self, start: int, data: bytes, at: int) -> int:
        """Take the lines that tell, to the end or until every line does; where that is."""
        for low, high in telling_stretches(data[at:], _TELLING):
            self._take(start + at + low, data[at + low : at + high])
            if self.whole:
                return at + high
        return len(data)

    def _take(self, offset: int, data: bytes) -> None:
        """Some whole lines that stand at a place."""
        self._read += len(data)
        self._left -= len(data)
        if offset != self._next:
            self._told(self._reader.flush())
            self._reader = RecordReader(offset)
        self._next = offset + len(data)
        if _TRACEBACK in data:
            self._until = self._next + _TRACEBACKS
        self._told(self._reader.feed(data))

    def _told(self, records: Sequence[Record]) -> None:
        for record in records:
            at = record.offset
            if record.pid != self._speaker[0]:
                self._speaker = record.pid, at
            if self._rule.first(record.message):
                # With the banner, which the same process wrote before.
                begin = at if record.pid is None else self._speaker[1]
                if self._rule.again(record.message, record.pid):
                    self._begin(begin)
                    self._first_words.append(begin)
                elif not self._first_words:
                    self._first_words.append(begin)
            self._timeline.take(record)
            marks = self._marks[-1]
            if self._timeline.phase != marks[-1][0]:
                marks.append((self._timeline.phase, at))

    def found(self) -> LogStarts:
        """What has been read, as what the log holds."""
        self._told(self._reader.flush())
        phases: list[Stretch] = []
        for number, marks in enumerate(self._marks, 1):
            behind = self._marks[number][0][1] if number < len(self._marks) else None
            ends = [*(at for _, at in marks[1:]), behind]
            for (phase, at), end in zip(marks, ends, strict=True):
                if end is None or end > at:
                    phases.append(Stretch(phase, at, end, number))
        return LogStarts(tuple(self._first_words), tuple(phases))
