"""Which runs of a unit were good: what a rollback or an undo may go back to."""

from __future__ import annotations

from collections.abc import Iterator

from engine_ctl.errors import StokerError
from engine_ctl.operations import snapshots
from engine_ctl.state.store import Run, Store
from profiles.model import Profile

NEW, OLD = "new", "old"
# The purpose of runs that a sweep starts.
SWEEP = "sweep"


def mark(swap: str, role: str) -> str:
    """`RunSpec.operation` of a run that a swap made: as the new engine, or to go back."""
    return f"{swap}:{role}"


def good_runs(store: Store, unit: str) -> Iterator[tuple[Run, Profile]]:
    """Runs that became ready with the profile they ran with, newest first; those that a swap gave
    up although they were ready (they proved nothing) are left out."""
    given_up: set[str] = set()
    for run in reversed(store.runs(unit)):
        try:
            operation = run.spec().operation
            swap, _, role = operation.partition(":")
            if role == OLD:
                given_up.add(mark(swap, NEW))
            profile = snapshots.load(run) if run.ready() is not None else None
        except StokerError:
            continue
        if profile is not None and operation not in given_up:
            yield run, profile
