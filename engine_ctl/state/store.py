"""Units and runs on disk: create, list, load, remove; locks; run numbers; the current run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine_ctl import atomic, identity
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.model import Kind
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.state.records import (
    CurrentRecord,
    ExitRecord,
    ReadyRecord,
    RunIdentity,
    RunSpec,
    StopRequest,
    UnitRecord,
    WaitRecord,
)

UNIT_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# A shim holds the lock for milliseconds when it makes the next run, an observer when it looks.
LOCK_PATIENCE_S = 0.3


def check_unit_name(unit: str) -> str:
    """The name itself, or Usage when it cannot name a unit."""
    if not UNIT_NAME.fullmatch(unit):
        raise Usage(
            f"{unit!r} cannot name a unit: use up to 64 of a-z 0-9 . _ - and begin with a-z or 0-9"
        )
    return unit


@dataclass(frozen=True, slots=True)
class Run:
    """One run's directory. Its records are None while they are not there.

    Every reader raises CorruptRecord (one line) on a damaged file."""

    unit: str
    number: int
    dir: Path

    @property
    def id(self) -> str:
        return f"{self.unit}/{self.number}"

    @property
    def log(self) -> Path:
        return self.dir / "log"

    @property
    def state(self) -> Path:
        """The state directory that this run is in."""
        return self.dir.parents[3]

    @property
    def executed(self) -> bool:
        """Whether a process has begun, as its shim noted."""
        return (self.dir / "identity.json").exists()

    def first(self, name: str) -> bool:
        """True for one caller alone, whoever asks: leaves the file `name` in the run's directory.
        False also when there is no room to remember it."""
        try:
            os.close(os.open(self.dir / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return False
        return True

    def spec(self) -> RunSpec:
        """What was to be started. Raises NotFound when nobody has got so far as to say it."""
        path, remedy = self.dir / "spec.json", f"to go on: stoker stop {self.unit}"
        spec = atomic.read_record(path, RunSpec, remedy)
        if spec is None and self.executed:
            raise atomic.CorruptRecord(f"{path} is empty or gone; {remedy}")
        if spec is None:
            raise NotFound(f"run {self.id} has no spec.json: its creation was interrupted")
        return spec

    def identity(self) -> RunIdentity | None:
        path, remedy = self.dir / "identity.json", f"to go on: stoker stop {self.unit}"
        found = atomic.read_record(path, RunIdentity, remedy)
        if found is not None and found.run.partition("/")[0] != self.unit:
            where = self.dir.parents[1]  # a copied directory: to end this would end the original
            raise atomic.CorruptRecord(f"{path} is of run {found.run}; move {where} away to go on")
        return found

    def ready(self) -> ReadyRecord | None:
        return atomic.read_record(self.dir / "ready.json", ReadyRecord)

    def request(self) -> StopRequest | None:
        return atomic.read_record(self.dir / "request.json", StopRequest)

    def exit(self) -> ExitRecord | None:
        return atomic.read_record(self.dir / "exit.json", ExitRecord)

    def waits(self) -> WaitRecord | None:
        """None where it is damaged, too: it only says more."""
        with contextlib.suppress(atomic.CorruptRecord):
            return atomic.read_record(self.dir / "waits.json", WaitRecord)
        return None


@dataclass(frozen=True, slots=True)
class Listing:
    """Units that can be read, in order of name, and one line for each that cannot."""

    units: tuple[UnitRecord, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a unit's lock, and its command line."""

    who: identity.Identity
    command: str


class Store:
    """The state directory. Cheap to make; keeps nothing in memory but the paths.

    Raises Failed when others could write to the directory (see paths.ensure_private)."""

    def __init__(self, dirs: Dirs) -> None:
        self.dirs = dirs
        self.root = ensure_private(dirs.state).resolve()
        # Resolved, because processes are marked with the path of their run's directory.
        self.units_dir = ensure_private(dirs.units).resolve()

    # Units

    def unit_dir(self, unit: str) -> Path:
        return self.units_dir / check_unit_name(unit)

    def exists(self, unit: str) -> bool:
        return (self.unit_dir(unit) / "unit.json").exists()

    def create(self, unit: str, kind: Kind, profile: str = "", by: str = "") -> UnitRecord:
        """Make a unit. Raises Busy when the name is taken, Usage when it is no name."""
        directory = self.unit_dir(unit)
        record = UnitRecord(unit=unit, kind=kind, profile=profile, created=time.time(), by=by)
        with _writing(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            (directory / "runs").mkdir(mode=0o700, exist_ok=True)
            with self.lock(unit):
                if (directory / "unit.json").exists():
                    raise Busy(f"unit {unit} exists already; choose another name or remove it")
                atomic.write_record(directory / "unit.json", record)
        return record

    def load(self, unit: str) -> UnitRecord:
        """Raises NotFound, or CorruptRecord."""
        remedy = f"to go on: stoker stop {unit}; stoker remove {unit}"
        path = self.unit_dir(unit) / "unit.json"
        record = atomic.read_record(path, UnitRecord, remedy)
        if record is None and self._newest(unit) is not None:
            raise atomic.CorruptRecord(f"{path} is empty or gone; {remedy}")
        if record is None:
            raise self.missing(unit)
        if record.unit != unit:
            where = path.parent  # a copy: what is done to one would be done to the other
            raise atomic.CorruptRecord(f"{path} is of unit {record.unit!r}; move {where} away")
        return record

    def missing(self, unit: str) -> NotFound:
        """The error for a name that is no unit's, with the nearest that is one."""
        import difflib

        names = [name for name in os.listdir(self.units_dir) if UNIT_NAME.fullmatch(name)]
        near = difflib.get_close_matches(unit, names, n=1)
        return NotFound(
            f"no unit named {unit}; {f'did you mean {near[0]}?' if near else 'see: stoker ps'}"
        )

    def save(self, record: UnitRecord) -> None:
        """Replace unit.json. Hold the unit's lock."""
        path = self.unit_dir(record.unit) / "unit.json"
        with _writing(path):
            atomic.write_record(path, record)

    def wish_stopped(self, unit: str) -> str:
        """Note in unit.json that the unit is not to run. Hold its lock. "" or what prevented it:
        a full disk must not keep up an engine whose stop has room reserved."""
        try:
            self.save(msgspec.structs.replace(self.load(unit), desired="stopped"))
        except Failed as error:
            return str(error)
        return ""

    def list_units(self) -> Listing:
        """All units. A damaged one becomes a line in `problems`; the others are unaffected."""
        units: list[UnitRecord] = []
        problems: list[str] = []
        for entry in sorted(self.units_dir.iterdir()):
            if entry.name.startswith("."):
                continue
            if not UNIT_NAME.fullmatch(entry.name) or not entry.is_dir():
                problems.append(f"{entry} is not a unit; move it away")
                continue
            try:
                units.append(self.load(entry.name))
            except NotFound:
                if any((entry / "runs").glob("*")):
                    problems.append(f"unit {entry.name} has no unit.json; remove it or restore it")
            except Failed as error:
                problems.append(str(error))
        return Listing(tuple(units), tuple(problems))

    def remove(self, unit: str) -> None:
        """Delete a unit with all of its runs. The caller holds its lock and made sure that
        nothing of it is alive. Raises NotFound."""
        directory = self.unit_dir(unit)
        if not directory.is_dir():
            raise self.missing(unit)
        grave = self.units_dir / f".removed-{unit}-{os.getpid()}-{time.monotonic_ns()}"
        with _writing(directory):
            directory.rename(grave)
        for left in self.units_dir.glob(".removed-*"):  # those of killed removals too
            shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, unit: str, command: str | None = None) -> Iterator[None]:
        """Hold the unit's lock for one operation. Raises Busy (who holds it) instead of waiting.

        The lock belongs to this open file, so it also excludes other threads of this process."""
        path = self.unit_dir(unit) / "lock"
        fd = _acquire(path, unit)
        try:
            _sign(fd, command or " ".join(["stoker", *sys.argv[1:]]).strip())
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def locked(self, unit: str) -> bool:
        """True while some operation holds the unit's lock."""
        return is_locked(self.unit_dir(unit) / "lock")

    def holder(self, unit: str) -> Holder | None:
        """Who holds the unit's lock now; None when nobody does, or it did not say so yet."""
        path = self.unit_dir(unit) / "lock"
        try:
            record = json.loads(atomic.regular_bytes(path))
            who = identity.Identity(record["boot"], record["pid"], record["start_ticks"])
            found = Holder(who, str(record["command"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A killed holder leaves its name; one that has the lock is alive.
        return found if is_locked(path) and identity.alive(who) else None

    # Runs

    def new_run(self, spec: RunSpec) -> Run:
        """Allocate the next number of the unit and write spec.json with `run` filled in.

        Safe without a lock: the number is taken by mkdir. Raises NotFound, Failed (disk full)."""
        unit_dir = self.unit_dir(spec.unit)
        if not unit_dir.is_dir():
            raise self.missing(spec.unit)
        runs = unit_dir / "runs"
        with _writing(runs):
            runs.mkdir(mode=0o700, exist_ok=True)
            number = max(_numbers(runs), default=0) + 1
            while True:
                try:
                    (runs / str(number)).mkdir(mode=0o700)
                    break
                except FileExistsError:
                    number += 1
            run = Run(spec.unit, number, runs / str(number))
            try:
                atomic.write_record(
                    run.dir / "spec.json",
                    msgspec.structs.replace(spec, run=run.id, created=spec.created or time.time()),
                )
            except OSError:
                shutil.rmtree(run.dir, ignore_errors=True)
                raise
        return run

    def set_current(self, run: Run) -> None:
        """Make `run` the unit's current run. Hold the unit's lock."""
        path = self.unit_dir(run.unit) / "current.json"
        with _writing(path):
            atomic.write_record(path, CurrentRecord(run=run.id, since=time.time()))

    def current(self, unit: str) -> Run | None:
        """The unit's current run, None before the first. Where the record is damaged or gone, the
        newest run that executed: an engine that runs can then still be seen and stopped."""
        path = self.unit_dir(unit) / "current.json"
        try:
            record = atomic.read_record(path, CurrentRecord)
        except atomic.CorruptRecord:
            return self._newest(unit) or next(reversed(self.runs(unit)), None)
        if record is None:
            return self._newest(unit)
        try:
            run = self.run(record.run)
        except (NotFound, Usage):
            return self._newest(unit)
        known = run.executed or (run.dir / "spec.json").exists()
        return run if run.unit == unit and known else self._newest(unit)

    def _newest(self, unit: str) -> Run | None:
        """The newest run of the unit that executed."""
        return next((run for run in self.runs(unit)[::-1] if run.executed), None)

    def runs(self, unit: str) -> list[Run]:
        """All runs of the unit, oldest first. A directory without spec.json is none: whoever was
        making it was killed before anything could run."""
        runs = self.unit_dir(unit) / "runs"
        found = [Run(unit, number, runs / str(number)) for number in sorted(_numbers(runs))]
        return [run for run in found if (run.dir / "spec.json").exists()]

    def run(self, reference: str, unit: str | None = None) -> Run:
        """A run by id ("chat-8b/3") or, with `unit`, by number ("3"). Raises NotFound, Usage."""
        name, _, number = reference.rpartition("/")
        name = name or unit or ""
        if not name or not number.isdecimal() or number != str(int(number)):
            of = (
                f"a number of: stoker runs {unit}"
                if unit
                else "UNIT/NUMBER, as in: stoker runs UNIT"
            )
            raise Usage(f"{reference!r} is not a run; write {of}")
        directory = self.unit_dir(name) / "runs" / number
        if not directory.is_dir():
            raise NotFound(f"no run {name}/{number}; see: stoker runs {name}")
        return Run(name, int(number), directory)


def is_locked(path: Path) -> bool:
    """True while another open file holds an exclusive flock on `path`. Changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _numbers(runs: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(runs) if name.isdecimal()]
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror or error}") from error


def _acquire(path: Path, unit: str) -> int:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fd = atomic.open_lock(path)
        except FileNotFoundError:
            raise NotFound(f"no unit named {unit}; see: stoker ps") from None
        except OSError as error:
            raise Failed(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0)
            os.close(fd)
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            raise Busy(f"unit {unit} is busy: {_describe(holder)}; try again") from None
        try:
            same = os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            same = False
        if same:
            return fd
        os.close(fd)


def _sign(fd: int, command: str) -> None:
    me = msgspec.to_builtins(
        identity.identify(os.getpid()) or identity.Identity("", os.getpid(), 0)
    )
    text = json.dumps({**me, "command": command[:400]}).encode()
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


def _describe(holder: bytes) -> str:
    try:
        record = json.loads(holder)
        return f"held by pid {record['pid']} ({record['command']})"
    except (ValueError, KeyError, TypeError):
        return "held by another process"
