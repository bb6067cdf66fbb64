"""Which runs of a unit were good: what a rollback or an undo may go back to."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine_ctl.errors import StokerError
from engine_ctl.operations import snapshots
from engine_ctl.state.store import Run, Store
from profiles.model import Profile

NEW, OLD = "new", "old"
# The purpose of runs that a sweep starts: this, and the sweep's id.
SWEEP = "sweep"


def mark(swap: str, role: str) -> str:
    """`RunSpec.operation` of a run that a swap made: as the new engine, or to go back."""
    return f"{swap}:{role}"


def good_runs(store: Store, unit: str) -> Iterator[tuple[Run, Profile]]:
    """Runs that became ready with the profile they ran with, newest first; those that a swap gave
    up although they were ready (they proved nothing) are left out."""
    return _runs(store, unit, tried=True)


def settled_runs(store: Store, unit: str) -> Iterator[tuple[Run, Profile]]:
    """As `good_runs`, of a sweep only the run that was left when it ended."""
    return _runs(store, unit, tried=False)


def _runs(store: Store, unit: str, tried: bool) -> Iterator[tuple[Run, Profile]]:
    given_up: set[str] = set()
    newer = ""
    for run in reversed(store.runs(unit)):
        try:
            spec = run.spec()
            profile = snapshots.load(run) if run.ready() is not None else None
        except StokerError:
            continue
        swap, _, role = spec.operation.partition(":")
        if role == OLD:
            given_up.add(mark(swap, NEW))
        passed = spec.purpose.startswith(SWEEP) and spec.purpose == newer
        newer = spec.purpose
        if profile is not None and spec.operation not in given_up and (tried or not passed):
            yield run, profile


def placed(profile: Profile, run: Run) -> Profile:
    """The profile with the port that clients had in that run, so that a port that was pinned on
    the way (a sweep does) is no difference."""
    return msgspec.structs.replace(profile, port=run.spec().client_port)
