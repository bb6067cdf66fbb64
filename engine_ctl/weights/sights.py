"""What can be seen of preload daemons at one moment, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import NotFound
from engine_ctl.model import Kind, Phase, Reason, Verdict
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness
from engine_ctl.weights import records, sockets
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.records import RankKey, WeightsRecord


@dataclass(frozen=True, slots=True)
class DaemonSight:
    """A preload unit and its current run. `alive` covers loading and serving; `ready` that its
    health port said 200 once. `statuses` by socket, for those that were asked."""

    unit: str
    run: Run
    spec: RunSpec
    record: WeightsRecord
    alive: bool
    ready: bool
    phase: Phase | None = None
    statuses: Mapping[str, DaemonStatus] = field(default_factory=dict)

    @property
    def loading(self) -> bool:
        return self.alive and not self.ready


@dataclass(frozen=True, slots=True)
class EngineUse:
    """An engine run as a possible client. `verdict` is what its log says of its weights."""

    unit: str
    run: str
    alive: bool
    verdict: Verdict | None
    sockets: tuple[str, ...]
    daemon: str | None = None


def daemons(store: Store) -> tuple[DaemonSight, ...]:
    """Every preload unit that has a run. Reads small files only; damaged units are left out (the
    store's own listing names them)."""
    found = []
    for unit in store.list_units().units:
        if unit.kind is not Kind.PRELOAD:
            continue
        try:
            sight = sight_of(store, unit.unit)
        except (CorruptRecord, NotFound):
            continue
        if sight is not None:
            found.append(sight)
    return tuple(found)


def sight_of(store: Store, unit: str) -> DaemonSight | None:
    """One preload unit's current run, None before its first."""
    run = store.current(unit)
    if run is None:
        return None
    life = liveness.look(run, Kind.PRELOAD)
    spec = run.spec()
    return DaemonSight(
        unit=unit,
        run=run,
        spec=spec,
        record=record_of(store, run, spec),
        alive=not life.ended,
        ready=life.ready and not life.ended,
        phase=life.phase,
    )


def record_of(store: Store, run: Run, spec: RunSpec) -> WeightsRecord:
    """The run's record; a run that its shim started again has its predecessor's."""
    record = records.read(run)
    while record is None and spec.attempt > 1 and spec.predecessor is not None:
        run = store.run(spec.predecessor)
        spec, record = run.spec(), records.read(run)
    return record or WeightsRecord()


def engines(store: Store, verdict_of: Callable[[Run], Verdict | None]) -> tuple[EngineUse, ...]:
    """Engine units whose current run asks daemons for its weights."""
    found = []
    for unit in store.list_units().units:
        if unit.kind is not Kind.ENGINE:
            continue
        try:
            run = store.current(unit.unit)
            record = None if run is None else records.read(run)
            if run is None or record is None or not record.sockets:
                continue
            alive = not liveness.look(run, Kind.ENGINE).ended
        except (CorruptRecord, NotFound):
            continue
        verdict = verdict_of(run) if alive else None
        found.append(EngineUse(unit.unit, run.id, alive, verdict, record.sockets, record.daemon))
    return tuple(found)


def clients(daemon: DaemonSight, uses: Iterable[EngineUse]) -> tuple[EngineUse, ...]:
    """Engines that run on this daemon's weights: alive, mapped, through one of its sockets, and
    not from an earlier daemon at the same sockets."""
    held = set(daemon.record.sockets)
    return tuple(
        use
        for use in uses
        if use.alive
        and use.verdict is Verdict.MAPPED
        and held & set(use.sockets)
        and use.daemon in (None, daemon.run.id)
    )


def consequences(uses: Sequence[EngineUse]) -> tuple[str, ...]:
    """What stopping a daemon means for the engines that map its weights; () for none."""
    if not uses:
        return ()
    names = ", ".join(use.unit for use in uses)
    plural = len(uses) > 1
    return (
        f"{names} {'run' if plural else 'runs'} on these weights",
        f"{'they keep' if plural else 'it keeps'} serving, and the memory of the weights moves to "
        f"{'them' if plural else 'it'}",
        "a new daemon needs room for a second copy until then",
        f"the next start of {names} loads from disk unless a daemon serves again",
    )


def occupied(
    wanted: Sequence[RankKey],
    looks: Mapping[str, sockets.SocketFacts],
    ours: Sequence[DaemonSight],
) -> Reason | None:
    """Why a second daemon would fail, before it loads anything: one of ours is at a socket that
    it wants (loading ones too: vLLM notices only after the whole load), or somebody holds its
    lock or listens there."""
    by_socket = {s: d for d in ours if d.alive for s in d.record.sockets}
    for key in wanted:
        if key.socket is None:
            continue
        held = by_socket.get(key.socket)
        if held is not None:
            return Reason(
                "wc_daemon_duplicate",
                f"use it (its profile: {held.spec.profile}) or stop it: stoker stop {held.unit}",
                f"{held.unit} holds the weights of {key.device or key.socket} already",
            )
        look = looks.get(key.socket)
        if look is not None and (look.lock_held or look.listening):
            owner = f"pid {look.lock_pid}" if look.lock_pid else "a process that is not Stoker's"
            return Reason(
                "wc_daemon_duplicate",
                "stop it, or set preload: {socket_dir: …} to have a daemon of your own",
                f"{owner}, no daemon of this Stoker's, serves weights at {key.socket} already",
            )
    return None


def ranks_gone(sight: DaemonSight) -> tuple[RankKey, ...]:
    """Ranks of a daemon that was ready whose sockets do not answer any more."""
    if not sight.ready:
        return ()
    dead = ("missing", "stale", "gone")
    return tuple(
        key
        for key in sight.record.keys
        if key.socket is not None
        and (status := sight.statuses.get(key.socket)) is not None
        and status.state in dead
    )


def lost_ranks(sight: DaemonSight) -> tuple[RankKey, ...]:
    """Ranks of a ready daemon that nobody serves any more, by a look that asks nobody: cheap
    enough for every tick of an observer. vLLM's launcher says nothing when it loses a rank."""
    if not sight.ready:
        return ()
    looks = (
        (key, sockets.look(key.socket, strict=False)) for key in sight.record.keys if key.socket
    )
    return tuple(
        key for key, facts in looks if facts.socket.kind == "missing" or facts.listening is False
    )


def partial(sight: DaemonSight, gone: Sequence[RankKey]) -> Reason:
    """What to say when ranks of a daemon are gone."""
    names = ", ".join(f"{key.role} {key.rank}" for key in gone)
    return Reason(
        "wc_daemon_partial",
        f"engines on these ranks will load from disk: reload {sight.unit}",
        f"rank {names} of {len(sight.record.keys)} is gone",
    )


def unreachable(sight: DaemonSight, keys: Sequence[RankKey]) -> Reason:
    """What to say when ranks run on, but their socket directory has vanished."""
    names = ", ".join(f"{key.role} {key.rank}" for key in keys)
    return Reason(
        "wc_daemon_partial",
        f"engines will load from disk: reload {sight.unit}",
        f"the directory of {keys[0].socket} has vanished: nobody reaches rank {names}",
    )


def complete(sight: DaemonSight) -> tuple[Phase | None, Reason | None]:
    """Phase and trouble of a daemon. Ready is said only when every rank's socket answers; a lost
    rank (which vLLM's launcher does not report) is `wc_daemon_partial`."""
    if not sight.alive or not sight.ready:
        return sight.phase, None
    gone = ranks_gone(sight)
    if gone:
        return sight.phase or Phase.READY, partial(sight, gone)
    asked = [s for s in sight.record.sockets if s in sight.statuses]
    hung = [s for s in asked if sight.statuses[s].state in ("silent", "garbage", "unsafe")]
    if hung:
        return sight.phase or Phase.READY, Reason(
            "wc_daemon_partial",
            f"reload {sight.unit}",
            sight.statuses[hung[0]].message or f"{hung[0]} does not answer",
        )
    return sight.phase or Phase.READY, None


def repeated_fallback(
    history: Sequence[tuple[Verdict | None, tuple[Reason, ...]]],
) -> str | None:
    """What to do about a unit whose last two starts fell back for the same reason; None when they
    did not. `history` oldest first."""
    if len(history) < 2 or any(verdict is not Verdict.FALLBACK for verdict, _ in history[-2:]):
        return None
    before = {reason.category for reason in history[-2][1]}
    for reason in history[-1][1]:
        if reason.category in before and reason.category.startswith("wc_fallback."):
            fields = ", ".join(name for name, _, _ in reason.fields)
            what = reason.category.removeprefix("wc_fallback.").replace("_", " ")
            return f"loaded from disk twice in a row: {what}" + (
                f" ({fields}); {reason.hint}" if fields else f"; {reason.hint}"
            )
    return None
