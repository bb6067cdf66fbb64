"""Reading a run's log as it grows: phases, verdict and facts up to readiness, then only the few
lines that change what a run is (stopping, draining, sleep, a lost daemon)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine_ctl.atomic import regular_bytes, regular_fd
from engine_ctl.logs.clock import Clock, parse_clock
from engine_ctl.logs.facts import StartFacts
from engine_ctl.logs.lines import RecordReader
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.logs.verdict import VerdictReader
from engine_ctl.model import Kind, Phase
from engine_ctl.observe.facts import RunFacts
from engine_ctl.observe.telling import newest_statistics, telling_lines

if TYPE_CHECKING:
    from engine_ctl.tune.progress import ProgressReader

# At most so much of a log is read in one tick; what an engine prints faster than this is skipped
# (it is served by then: only the newest lines tell anything).
TICK_BYTES = 4 << 20
_PAIR = struct.calcsize("<QQ")


class StartReader:
    """One start, out of its log's bytes in order. Times come from the run's `clock` file."""

    def __init__(self, run_dir: Path, kind: Kind, version: str | None = None) -> None:
        self._clock_path = run_dir / "clock"
        self._clock: Clock | None = None
        self._clock_size = -1
        self.kind = kind
        self.timeline = StartTimeline(
            kind, time_of=self._seconds_at, silent_children=silent_children(version)
        )
        self.weights = VerdictReader()
        self._records = RecordReader()

    def feed(self, chunk: bytes) -> None:
        self._read_clock()
        self.timeline.feed(chunk)
        for record in self._records.feed(chunk):
            self.weights.take(record)

    def finish(self) -> None:
        """The log has ended."""
        self.timeline.finish()
        for record in self._records.flush():
            self.weights.take(record)

    def facts(self, run: str, *, standby: bool | None, log_bytes: int) -> RunFacts:
        verdict, reasons = self.weights.result()
        timeline = self.timeline
        return RunFacts(
            run=run,
            kind=self.kind,
            start_s=timeline.ready_at_s,
            phases=timeline.marks(),
            silent=tuple((gap.name, gap.start_s, gap.seconds) for gap in timeline.gaps),
            verdict=verdict,
            reasons=reasons,
            start=plain_facts(timeline.facts),
            standby=standby,
            log_bytes=log_bytes,
        )

    def _seconds_at(self, offset: int) -> float | None:
        return None if self._clock is None else self._clock.seconds_at(offset)

    def _read_clock(self) -> None:
        try:
            size = os.stat(self._clock_path).st_size
            if size - size % _PAIR != self._clock_size:
                self._clock = parse_clock(regular_bytes(self._clock_path)) or None
                self._clock_size = size - size % _PAIR
        except OSError:
            return


class RunLog:
    """Follows the log of a live run. Survives truncation and replacement of the file.

    `statistics` is the newest line of engine statistics since the run was ready, or b"";
    `written` the wall-clock time of the log's last change."""

    def __init__(
        self, run_dir: Path, kind: Kind, version: str | None = None, *, known: bool = False
    ) -> None:
        """`known`: the start is known from facts.json; only what comes now matters."""
        self._path = run_dir / "log"
        self._version = version
        self.start = StartReader(run_dir, kind, version)
        self._known = known
        self._offset = 0
        self._inode: int | None = None
        self._partial = b""
        self.size = 0
        self.written = 0.0
        self.statistics = b""
        self.bench: ProgressReader | None = None  # of a benchmark: also counts its requests

    @property
    def phase(self) -> Phase | None:
        """The phase by the log; None when its start was not read and nothing was seen since."""
        phase = self.start.timeline.phase
        return None if self._known and phase is Phase.IMPORTING else phase

    def poll(self, ready: bool) -> bool:
        """Take what was appended. `ready`: the run is known to serve. True if anything came."""
        try:
            fd = regular_fd(self._path)
        except OSError:
            return False
        try:
            info = os.fstat(fd)
            self._notice(info, ready)
            self.size, self.written = info.st_size, info.st_mtime
            data = os.pread(fd, TICK_BYTES, self._offset)
        except OSError:
            return False
        finally:
            os.close(fd)
        if not data:
            return False
        self._offset += len(data)
        if self.bench is not None:
            self.bench.feed(data)
            return True
        if ready or self._known or self.start.timeline.ready_seen:
            self._take_telling(data)
        else:
            self.start.feed(data)
        return True

    def _notice(self, info: os.stat_result, ready: bool) -> None:
        """A new or shorter file is read from its beginning; a served run's is read at its end."""
        replaced = self._inode is not None and self._inode != info.st_ino
        first, self._inode = self._inode is None, info.st_ino
        if replaced or info.st_size < self._offset:
            self._offset, self._partial = 0, b""
        served = ready or self._known or self.start.timeline.ready_seen
        behind = info.st_size - self._offset
        if served and (behind > TICK_BYTES or (first and self._known)):
            self._offset = max(self._offset, info.st_size - TICK_BYTES)
            self._partial = b""

    def _take_telling(self, data: bytes) -> None:
        data = self._partial + data
        end = data.rfind(b"\n") + 1
        self._partial = data[end:][-65536:]
        self.statistics = newest_statistics(data[:end]) or self.statistics
        lines = telling_lines(data[:end])
        if lines:
            self.start.feed(lines)


def plain_facts(facts: StartFacts) -> dict[str, Any]:
    """The known fields as they stand in a record."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(facts))
    return {name: value for name, value in plain.items() if value not in (None, [])}


def silent_children(version: str | None) -> bool:
    """True for versions whose preload daemons print nothing while they load (0.31 and 0.32)."""
    return (version or "").startswith(("0.31.", "0.32."))
