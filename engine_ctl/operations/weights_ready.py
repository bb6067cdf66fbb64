"""A daemon for an engine about to start: shared, waited for, or made where there is room."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine_ctl.errors import Failed, StokerError
from engine_ctl.hardware.host import Host
from engine_ctl.hardware.ledger import CONTEXT_BYTES
from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuSource
from engine_ctl.hardware.visible import visible
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import wait_ready
from engine_ctl.operations.weights import asked_of, beginner, checker, say_begun
from engine_ctl.operations.weights_room import room_problem_for
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.store import Run
from engine_ctl.weights import checkpoint, daemons, layout, records, sights
from engine_ctl.weights.records import RankKey
from engine_ctl.weights.sights import DaemonSight
from profiles.argv import preload_arguments
from profiles.loading import Resolved

Tell = Callable[[str], None]
GIB = 1 << 30
HOST = "the host"
# Loading needs more than the weights for a moment: shards, and layers that are repacked.
MARGIN = 1.1


class Way(StrEnum):
    """How an engine gets its daemon: there is one, one loads, one is made first, or none can be."""

    NONE_WANTED = "none wanted"
    SHARED = "shared"
    WAITED_FOR = "waited for"
    MADE = "made"
    NO_ROOM = "no room"


@dataclass(frozen=True, slots=True)
class DaemonAhead:
    """`why` says what is in the way where none can be made; `sight` is the daemon that is there."""

    way: Way
    why: str = ""
    sight: DaemonSight | None = None

    @property
    def note(self) -> str:
        """For a forecast; empty where nothing is done first."""
        if self.way is Way.MADE:
            return "a daemon is loaded first"
        return "the daemon that loads is waited for" if self.way is Way.WAITED_FOR else ""


def daemon_ahead(
    ctx: Context,
    unit: str,
    resolved: Resolved,
    live: Run | None,
    wanted: Collection[str] | None = None,
) -> DaemonAhead:
    """What a start of `resolved` will do about its daemon; changes nothing. `live`: the engine that
    still runs and keeps its memory. `wanted`: sockets of the engine's ranks, where they are known.

    Raises StokerError when its profile or runtime cannot be used."""
    if resolved.profile.preload is None:
        return DaemonAhead(Way.NONE_WANTED)
    asked, runtime = asked_of(ctx, unit, resolved)
    held = _held(ctx, asked, runtime, wanted)
    if held is not None:
        return DaemonAhead(Way.SHARED if held.ready else Way.WAITED_FOR, sight=held)
    why = room_problem_for(ctx, asked) if live is None else _no_room(asked, runtime)
    return DaemonAhead(Way.MADE) if why is None else DaemonAhead(Way.NO_ROOM, why)


def keys_ahead(
    ctx: Context, unit: str, resolved: Resolved, ahead: DaemonAhead
) -> tuple[RankKey, ...]:
    """Fingerprints of the daemon that will be ready before the engine starts, where it is not yet;
    asks the runtime about one that is still to be made. Raises StokerError."""
    if ahead.way is Way.WAITED_FOR and ahead.sight is not None:
        return tuple(ahead.sight.record.keys)
    if ahead.way is not Way.MADE:
        return ()
    asked, runtime = asked_of(ctx, unit, resolved)
    return records.keys_of(checker(ctx, runtime, asked)(asked.words, asked.env))


def ensure_daemon(
    ctx: Context,
    unit: str,
    resolved: Resolved,
    tell: Tell,
    live: Run | None = None,
    wanted: Collection[str] | None = None,
) -> Run | None:
    """A ready daemon for the unit's weights before an engine starts: one that is there is shared,
    one that loads is waited for, a missing one is started. None when there is none.

    A daemon that cannot be had is said and is no error where the profile allows falling back."""
    section = resolved.profile.preload
    if section is None:
        return None
    try:
        ahead = daemon_ahead(ctx, unit, resolved, live, wanted)
        if ahead.way is Way.NO_ROOM:
            raise Failed(ahead.why)
        if ahead.sight is not None and ahead.way is Way.SHARED:
            return ahead.sight.run
        run = ahead.sight.run if ahead.sight is not None else _made(ctx, unit, resolved, tell)
        wait_ready(ctx, run, tell)
        return run
    except StokerError as error:
        if not section.fallback:
            raise
        why = f"no weights daemon of its own: {error}"
        tell(f"{unit}: {why}")
        ctx.event(unit, why, "warning")  # what the engine's log will only call a missing socket
        return None


def _made(ctx: Context, unit: str, resolved: Resolved, tell: Tell) -> Run:
    asked, runtime = asked_of(ctx, unit, resolved)
    begin = beginner(ctx, asked, tell)
    run = daemons.start(ctx.store, asked, checker(ctx, runtime, asked), begin)
    say_begun(ctx, run, "loading the weights once", tell)
    return run


def _held(
    ctx: Context, asked: daemons.Asked, runtime: Runtime, wanted: Collection[str] | None
) -> DaemonSight | None:
    """A live daemon of ours at the sockets that this profile's weights would have."""
    own = sights.sight_of(ctx.store, asked.unit) if ctx.store.exists(asked.unit) else None
    if own is not None and own.alive:
        return own
    alive = [d for d in sights.daemons(ctx.store) if d.alive]
    if not alive:
        return None
    if wanted is None:
        answer = checker(ctx, runtime, asked)(asked.words, asked.env)
        wanted = {key.socket for key in records.keys_of(answer) if key.socket is not None}
    return next((d for d in alive if set(wanted) & set(d.record.sockets)), None)


def _no_room(asked: daemons.Asked, runtime: Runtime) -> str | None:
    """Why a daemon cannot be loaded beside the engine that runs; None when it can."""
    size = weights_on_disk(asked)
    placed = layout.from_arguments(preload_arguments(asked.profile, asked.schema))
    ranks = len(layout.placements(placed))
    if runtime.platform == "cpu":
        needed = None if size is None else int(size * MARGIN)
        return room_problem(needed, {HOST: Host().read().memory_available})
    needed = None if size is None else int(size * MARGIN / (placed.tp * placed.pp)) + CONTEXT_BYTES
    return room_problem(needed, free_of(asked.env, ranks, open_source()))


def weights_on_disk(asked: daemons.Asked) -> int | None:
    """Bytes of the checkpoint's weight files; None where they are not on this machine."""
    args = preload_arguments(asked.profile, asked.schema)
    found = checkpoint.of(asked.profile.model, args, {**os.environ, **asked.env})
    return None if found is None else found.bytes


def free_of(env: Mapping[str, str], ranks: int, source: GpuSource) -> dict[str, int | None]:
    """Free bytes of each GPU that the ranks would run on, by name; {} where that is not known."""
    readings = source.read().gpus
    seen = visible(readings, {**os.environ, **env}).uuids or ()
    by_uuid = {gpu.uuid: gpu for gpu in readings}
    return {f"GPU {by_uuid[uuid].index}": by_uuid[uuid].free for uuid in seen[:ranks]}


def room_problem(needed: int | None, free: Mapping[str, int | None]) -> str | None:
    """Why weights that need so many bytes on each place do not fit beside what runs. Pure."""
    beside = "beside the running engine"
    if needed is None:
        return f"how much room its weights need {beside} is not known; start it by hand first"
    if not free:
        return f"how much memory is free {beside} is not known; start it by hand first"
    for where, left in free.items():
        if left is None:
            return f"{where} does not tell what is free {beside}; start it by hand first"
        if left < needed:
            return (
                f"its weights need {needed / GIB:.1f} GiB {beside}, {where} has "
                f"{left / GIB:.1f} GiB free"
            )
    return None
