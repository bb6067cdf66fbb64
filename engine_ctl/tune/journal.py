"""A sweep on disk: `tune/sweeps/<n>/` with sweep.json (the plan, written once), journal.jsonl
(what has happened, appended before and after each step) and a lock held by its one writer.

A killed sweep is gone on with from these files alone; a cut last line counts as not written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.atomic import NotRegular, regular_bytes
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.paths import Dirs
from engine_ctl.state.store import is_locked
from engine_ctl.tune import records
from profiles.model import Profile

PLAN, JOURNAL, LOCK = "sweep.json", "journal.jsonl", "lock"


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The plan. `points` in the order asked for, `order` their indices in the order of trial;
    `base` the profile that ran when the sweep began, with the port pinned; `options` settings of
    the benchmark over the profile's own; `goal` as text, `keep` best or last-good."""

    schema: int = 1
    id: str
    unit: str
    at: float
    by: str = ""
    mode: str = "grid"
    goal: str = "throughput"
    keep: str = "last-good"
    axes: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    points: list[dict[str, Any]] = msgspec.field(default_factory=list)
    order: list[int] = msgspec.field(default_factory=list)
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    base: Profile


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal. `what`: begun, resumed, checked (all points ahead), trying, refused,
    failed, done, stopped, ended (both after putting back). Seconds: `swap_s` until the point's
    engine served, `bench_s` of its bench, `wall_s` of the whole step, `vllm_s` the part of it that
    was vLLM's own (None: not known)."""

    at: float
    what: str
    point: int | None = None
    rung: int = 0
    bench: str | None = None
    reason: str = ""
    swap_s: float | None = None
    bench_s: float | None = None
    wall_s: float | None = None
    vllm_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """What became of one point in one rung: trying, refused, failed or done."""

    state: str
    bench: str | None = None
    reason: str = ""
    swap_s: float | None = None
    bench_s: float | None = None
    wall_s: float | None = None
    vllm_s: float | None = None


@dataclass(slots=True)
class SweepState:
    """The journal, replayed. `state`: running, interrupted (nobody works on it), stopped, ended.
    `wall_s` of all steps of which it is known how much was vLLM's, and that: `vllm_s`."""

    state: str = "interrupted"
    reason: str = ""
    wall_s: float = 0.0
    vllm_s: float = 0.0
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)

    def of(self, point: int, rung: int = 0) -> Outcome | None:
        return self.outcomes.get((rung, point))

    def settled(self, point: int, rung: int = 0) -> bool:
        """Whether this point needs no more trial in this rung."""
        found = self.of(point, rung)
        return found is not None and found.state != "trying"


def replay(entries: Sequence[Entry]) -> SweepState:
    """Pure."""
    state = SweepState()
    for entry in entries:
        if entry.wall_s is not None and entry.vllm_s is not None:
            state.wall_s += entry.wall_s
            state.vllm_s += entry.vllm_s
        if entry.what in ("stopped", "ended"):
            state.state, state.reason = entry.what, entry.reason
        elif entry.what in ("begun", "resumed"):
            state.state, state.reason = "interrupted", ""
        elif entry.point is not None:
            state.outcomes[(entry.rung, entry.point)] = Outcome(
                entry.what,
                entry.bench,
                entry.reason,
                entry.swap_s,
                entry.bench_s,
                entry.wall_s,
                entry.vllm_s,
            )
    return state


class Journal:
    """A sweep's files, with its writer's lock held."""

    def __init__(self, dirs: Dirs, id: str) -> None:
        self.path = records.directory(dirs, id) / JOURNAL
        self.entries = read_entries(dirs, id)

    @property
    def state(self) -> SweepState:
        found = replay(self.entries)
        if found.state == "interrupted":
            found.state = "running"
        return found

    def note(self, what: str, **values: Any) -> None:
        """Append one entry, on disk when this returns. Raises Failed (disk full)."""
        entry = Entry(at=time.time(), what=what, **values)
        line = msgspec.json.encode(entry) + b"\n"
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                # What a killed writer left of a line must not swallow this one.
                cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                data = b"\n" + line if cut else line
                if os.write(fd, data) != len(data):
                    raise OSError(28, os.strerror(28))
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror or error}") from None
        self.entries.append(entry)


@contextlib.contextmanager
def writing(dirs: Dirs, id: str) -> Iterator[Journal]:
    """Be the one writer of a sweep. Raises Busy while another `stoker` works on it."""
    path = records.directory(dirs, id) / LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise NotFound(f"there is no sweep {id}; see: stoker sweep --list") from None
    except OSError as error:
        raise Failed(f"cannot open {path}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"sweep {id} is being worked on by another stoker") from None
        yield Journal(dirs, id)
    finally:
        os.close(fd)


def create(dirs: Dirs, made: SweepRecord) -> SweepRecord:
    """Write the plan of a new sweep; the record with its id. Raises Failed (disk full)."""
    id, directory = records.allocate(dirs, "s")
    made = msgspec.structs.replace(made, id=id)
    try:
        atomic.write_record(directory / PLAN, made)
    except OSError as error:
        raise Failed(f"cannot write {directory / PLAN}: {error.strerror or error}") from None
    return made


def load(dirs: Dirs, id: str) -> SweepRecord:
    """Raises NotFound, Usage, CorruptRecord."""
    if not id.startswith("s"):
        raise Usage(f"{id!r} is no sweep; sweeps are called s1, s2, …")
    found = atomic.read_record(records.directory(dirs, id) / PLAN, SweepRecord)
    if found is None:
        raise NotFound(f"there is no sweep {id}; see: stoker sweep --list")
    return found


def read_entries(dirs: Dirs, id: str) -> list[Entry]:
    try:
        data = regular_bytes(records.directory(dirs, id) / JOURNAL)
    except (FileNotFoundError, NotRegular):
        return []
    found = []
    for line in data.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Entry))
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue
    return found


def state_of(dirs: Dirs, id: str) -> SweepState:
    """How far a sweep has come, as anybody may look."""
    found = replay(read_entries(dirs, id))
    if found.state == "interrupted" and is_locked(records.directory(dirs, id) / LOCK):
        found.state = "running"
    return found


def newest(dirs: Dirs, unit: str | None = None) -> str | None:
    """The id of the newest sweep (of the unit)."""
    for id in reversed(records.ids(dirs, "s")):
        with contextlib.suppress(Failed, NotFound):
            if unit is None or load(dirs, id).unit == unit:
                return id
    return None
