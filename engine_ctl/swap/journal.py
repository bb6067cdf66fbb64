"""swap.json: how far a swap has come, written before each step, so that any `stoker` can go on."""

from __future__ import annotations

import time
import uuid
from enum import StrEnum

import msgspec

from engine_ctl import atomic
from engine_ctl.state.store import Store
from profiles.model import Profile

NAME = "swap.json"


class Step(StrEnum):
    """What is being done. Nothing is touched before `stopping`."""

    CHECKED = "checked"
    STOPPING = "stopping"
    STARTING = "starting"
    PROVING = "proving"
    ROLLING_BACK = "rolling back"
    PROVING_OLD = "proving the old one"
    DONE = "done"


class Outcome(StrEnum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"
    ABANDONED = "abandoned"


class SwapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One swap of one unit. Writer: the operation that holds the unit's lock.

    `profile` is the new profile in full (a file may change meanwhile), `old_profile` the last
    good one (None: there was none to go back to). `from_run`, `new_run`, `old_run` are run ids;
    `reason` says why the new engine was given up. `seconds` from the request to the outcome,
    `down_s` from the old engine's stop to the new one's readiness. `live`: the running engine was
    changed without a restart, and how. `proof`: what the engine was asked for and gave."""

    schema: int = 1
    id: str
    unit: str
    by: str
    started: float
    step: Step
    profile: Profile
    old_profile: Profile | None = None
    from_run: str | None = None
    new_run: str | None = None
    old_run: str | None = None
    rollback: bool = True
    what: str = "swap"
    reason: str = ""
    outcome: Outcome | None = None
    ended: float | None = None
    seconds: float | None = None
    down_s: float | None = None
    live: str = ""
    proof: str | None = None


class Journal:
    """The swap of one unit, kept up to date on disk."""

    def __init__(self, store: Store, record: SwapRecord) -> None:
        self._path = store.unit_dir(record.unit) / NAME
        self.record = record
        self._began = time.monotonic()
        self._down: float | None = None
        self._write()

    def to(self, step: Step, **changes: object) -> None:
        """Note that `step` begins now (before it does)."""
        if step is Step.STOPPING:
            self._down = time.monotonic()
        self.record = msgspec.structs.replace(self.record, step=step, **changes)
        self._write()

    def note(self, **changes: object) -> None:
        """Keep what is known now with the next step."""
        self.record = msgspec.structs.replace(self.record, **changes)

    def end(self, outcome: Outcome, reason: str = "") -> SwapRecord:
        now = time.monotonic()
        self.record = msgspec.structs.replace(
            self.record,
            step=Step.DONE,
            outcome=outcome,
            reason=reason or self.record.reason,
            ended=time.time(),
            seconds=round(now - self._began, 3),
            down_s=None if self._down is None else round(now - self._down, 3),
        )
        self._write()
        return self.record

    def _write(self) -> None:
        atomic.write_record(self._path, self.record)


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def read(store: Store, unit: str) -> SwapRecord | None:
    """The unit's last swap, None before the first. Raises CorruptRecord."""
    return atomic.read_record(store.unit_dir(unit) / NAME, SwapRecord)


def unfinished(store: Store) -> list[SwapRecord]:
    """Swaps that nobody works on any more and that have no outcome."""
    found = []
    for record in store.list_units().units:
        path = store.unit_dir(record.unit) / NAME
        if not path.exists() or store.locked(record.unit):
            continue
        try:
            swap = atomic.read_record(path, SwapRecord)
        except atomic.CorruptRecord:
            continue
        if swap is not None and swap.outcome is None:
            found.append(swap)
    return found
