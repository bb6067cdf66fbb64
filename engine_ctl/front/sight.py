"""What the front knows about its engine: read from the unit's files, decided without anybody.

The files are looked at before every request (a handful of stat calls) and read when they have
changed, so that no request goes to an engine that has been asked to stop."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine_ctl import atomic
from engine_ctl.errors import StokerError
from engine_ctl.state.records import CurrentRecord, RunSpec, UnitRecord
from engine_ctl.state.store import Run
from engine_ctl.swap.journal import NAME as SWAP
from engine_ctl.swap.journal import SwapRecord

# Time stamps of files have steps of some milliseconds: two changes within one look like one.
READ_AGAIN_S = 1.0
OF_UNIT = ("unit.json", "current.json", SWAP)
OF_RUN = ("spec.json", "ready.json", "request.json", "exit.json")


class Way(StrEnum):
    """What to do with a request now."""

    PASS = "pass"
    HOLD = "hold"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Sight:
    """The files of a unit at one moment. `restarts`: the shim will start the next run by itself.
    `swapping`: a swap has begun and has no outcome yet."""

    desired: str = "stopped"
    swapping: bool = False
    run: str | None = None
    host: str | None = None
    port: int | None = None
    ready: bool = False
    asked: bool = False
    ended: bool = False
    restarts: bool = False
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where requests go. `run` and `address` (host, port) are the engine's for PASS. `planned`:
    the engine is being replaced on purpose, so that what it did not answer may be asked again."""

    way: Way
    run: str | None = None
    address: tuple[str, int] | None = None
    why: str = ""
    planned: bool = False


def decide(sight: Sight, last: Decision | None = None) -> Decision:
    """What to do with requests. Pure. `last` is the decision before this one: damaged files take
    nothing away from an engine that serves."""
    if sight.damaged:
        if last is not None and last.way is Way.PASS:
            return last
        return Decision(Way.HOLD, why=sight.damaged)
    coming = sight.swapping or sight.desired == "running"
    if sight.run is None:
        return _wait(coming, "the engine was never started", sight.swapping)
    if sight.ended:
        again = sight.swapping or (sight.restarts and sight.desired == "running")
        return _wait(again, f"{sight.run} has ended", sight.swapping)
    if sight.asked:
        return _wait(coming, f"{sight.run} is stopping", True)
    if not sight.ready or sight.host is None or sight.port is None:
        return _wait(True, f"{sight.run} is starting", sight.swapping)
    return Decision(Way.PASS, sight.run, (sight.host, sight.port), planned=sight.swapping)


def _wait(coming: bool, why: str, planned: bool) -> Decision:
    return Decision(Way.HOLD if coming else Way.REFUSE, why=why, planned=planned)


def read(unit_dir: Path) -> Sight:
    """Read the unit's files. Never raises: what cannot be read is said in `damaged`."""
    try:
        unit = atomic.read_record(unit_dir / "unit.json", UnitRecord)
        current = atomic.read_record(unit_dir / "current.json", CurrentRecord)
        swap = atomic.read_record(unit_dir / SWAP, SwapRecord)
        if unit is None:
            return Sight()
        base = Sight(desired=unit.desired, swapping=swap is not None and swap.outcome is None)
        if current is None:
            return base
        return _of_run(unit_dir, current.run, base)
    except (StokerError, OSError) as error:
        return Sight(damaged=str(error))


def _of_run(unit_dir: Path, reference: str, base: Sight) -> Sight:
    unit, _, number = reference.rpartition("/")
    if not number.isdecimal():
        return Sight(damaged=f"current.json names no run: {reference!r}")
    run = Run(unit, int(number), unit_dir / "runs" / number)
    spec = atomic.read_record(run.dir / "spec.json", RunSpec)
    if spec is None:
        return Sight(damaged=f"run {reference} has no spec.json")
    end = run.exit()
    return Sight(
        desired=base.desired,
        swapping=base.swapping,
        run=reference,
        host=spec.host,
        port=spec.port,
        ready=run.ready() is not None,
        asked=run.request() is not None,
        ended=end is not None,
        restarts=end is not None and end.restart_in_s is not None and not end.gave_up,
    )


class Watch:
    """Follows one unit's files. `look()` is cheap enough to be called for every request."""

    def __init__(self, unit_dir: Path) -> None:
        self.unit_dir = unit_dir
        self.decision = Decision(Way.HOLD, why="not looked yet")
        self._stamps: tuple[object, ...] | None = None
        self._run_dir: str | None = None
        self._read_at = 0.0

    def look(self) -> Decision:
        now = time.monotonic()
        stamps = self._look_at_files()
        if stamps != self._stamps or now - self._read_at > READ_AGAIN_S:
            sight = read(self.unit_dir)
            self._read_at = now
            if sight.run is not None:
                number = sight.run.rpartition("/")[2]
                self._run_dir = f"{self.unit_dir}/runs/{number}"
            # Taken before the reading: what changes meanwhile is read the next time.
            self._stamps = stamps
            self.decision = decide(sight, self.decision)
        return self.decision

    def _look_at_files(self) -> tuple[object, ...]:
        paths = [f"{self.unit_dir}/{name}" for name in OF_UNIT]
        if self._run_dir is not None:
            paths += [f"{self._run_dir}/{name}" for name in OF_RUN]
        return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino
