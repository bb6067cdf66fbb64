"""Leftovers of ended runs: found, described, and ended after a check of who they are."""

from __future__ import annotations

from contextlib import suppress

from engine_ctl.atomic import CorruptRecord
from engine_ctl.operations.context import Context
from engine_ctl.supervise import copies
from engine_ctl.supervise import orphans as supervise_orphans
from engine_ctl.supervise.orphans import Orphan


def orphans(ctx: Context) -> list[Orphan]:
    """Processes whose run has ended."""
    return supervise_orphans.find(ctx.store)


def of_an_original(ctx: Context) -> str:
    """One line when this state directory is a copy of one whose runs live, and where those are
    ended: they are not touched from here. "" when it is none."""
    for unit in ctx.store.list_units().units:
        run = ctx.store.current(unit.unit)
        with suppress(CorruptRecord):
            state = copies.original(run, run.identity()) if run is not None else ""
            if run is not None and state:
                return copies.refusal(run, state, "stoker reap")
    return ""


def describe(orphan: Orphan) -> str:
    """`pid 48122 VLLM::EngineCore, left by chat-8b/17`."""
    return f"pid {orphan.pid} {orphan.command}, left by {orphan.run}"


def reap(ctx: Context, found: list[Orphan]) -> tuple[list[int], list[int]]:
    """End them; returns (ended, still there)."""
    result = supervise_orphans.reap(found)
    for unit in sorted({orphan.unit for orphan in found}):
        pids = [o.pid for o in found if o.unit == unit and o.pid in result.ended]
        if pids:
            ctx.event(unit, f"reaped {len(pids)} leftover process(es): {pids}", "warning")
    return list(result.ended), list(result.remaining)


def tidy(ctx: Context) -> list[str]:
    """Remove the sockets and shared memory of runs of which no process is left; their ids."""
    return supervise_orphans.tidy(ctx.store)


def reap_pids(ctx: Context, pids: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """End those of `pids` that are leftovers now; others are not touched."""
    reaped = reap(ctx, [orphan for orphan in orphans(ctx) if orphan.pid in pids])
    tidy(ctx)
    return reaped
