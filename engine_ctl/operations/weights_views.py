"""Every weight daemon on this machine, rank by rank, for the weights screen and `stoker weights`:
ours with clients and verdicts, others' with what can be seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine_ctl.answers import DaemonField, DaemonView
from engine_ctl.errors import StokerError
from engine_ctl.hardware.nvml import open_source
from engine_ctl.model import Kind, Phase, Reason, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.operations.weights import SUFFIX, uses
from engine_ctl.operations.weights_plan import reload_reasons
from engine_ctl.weights import daemons, records, sights, sockets, strangers
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.sights import DaemonSight, EngineUse


def views(ctx: Context) -> tuple[DaemonView, ...]:
    """Every rank and role of every daemon: socket, fingerprint, clients, verdicts."""
    found: list[DaemonView] = []
    engines = uses(ctx)
    history = _history(ctx)
    for sight in sights.daemons(ctx.store):
        asked = _ask(sight)
        reload = reload_reasons(ctx, sight)
        mapped = sights.clients(asked, engines)
        phase, trouble = sights.complete(asked)
        gone = sights.ranks_gone(asked)
        found += [
            _view(
                ctx,
                asked,
                key,
                phase,
                mapped,
                engines,
                history,
                trouble if not gone or key in gone else None,
                reload,
            )
            for key in asked.record.keys
        ]
    return (*found, *_foreign(ctx))


def _foreign(ctx: Context) -> tuple[DaemonView, ...]:
    """Daemons that this Stoker did not start. One socket is one rank."""
    ours = {s for d in sights.daemons(ctx.store) if d.alive for s in d.record.sockets}
    others = strangers.strangers(ours, strangers.CPU_DEVICES, ctx.store.units_dir)
    if not others:
        return ()
    gpus = {gpu.uuid: gpu.index for gpu in open_source().read().gpus}
    others = strangers.strangers(ours, [*gpus, *strangers.CPU_DEVICES], ctx.store.units_dir)
    return tuple(
        DaemonView(
            name=f"{'pid ' + str(o.pid) if o.pid else o.user or 'other'}/{o.role}",
            unit="",
            rank=o.key.rank if o.key is not None else 0,
            role=o.role,
            gpu=gpus.get(o.device or ""),
            phase=Phase.READY,
            socket=o.socket,
            socket_state="ok, left over" if o.left else "ok, foreign",
            fields=tuple(
                DaemonField(n, str(v)) for n, v in (o.key.fields if o.key else {}).items()
            ),
            foreign=o.words,
            pid=o.pid,
            user=o.user,
        )
        for o in others
    )


def _ask(sight: DaemonSight) -> DaemonSight:
    try:
        return daemons.ask(sight) if sight.ready else sight
    except StokerError:
        return sight


def _view(
    ctx: Context,
    sight: DaemonSight,
    key: records.RankKey,
    phase: Phase | None,
    mapped: tuple[EngineUse, ...],
    engines: tuple[EngineUse, ...],
    history: Sequence[_Start],
    trouble: Reason | None,
    reload: tuple[str, ...],
) -> DaemonView:
    ready = sight.run.ready()
    status = sight.statuses.get(key.socket or "")
    rows = []
    for name, value in key.fields.items():
        others = []
        for use in engines:
            other = _key_of(ctx, use, key)
            if other is not None:
                theirs = other.fields.get(name)
                others.append((use.unit, None if theirs == value else str(theirs)))
        rows.append(DaemonField(name, str(value), tuple(others)))
    seen = [start for start in history if start.met(sight.unit, key.socket)]
    counts: dict[str, int] = {}
    for start in seen:
        counts[start.verdict.value] = counts.get(start.verdict.value, 0) + 1
    fallbacks = [start.reason for start in seen if start.verdict is Verdict.FALLBACK]
    return DaemonView(
        name=f"{sight.unit}/{key.role}-{key.rank}",
        unit=sight.unit,
        rank=key.rank,
        role=key.role,
        gpu=_gpu(sight, key),
        phase=phase or (Phase.READY if sight.ready else Phase.LOADING if sight.alive else None),
        weights_bytes=status.memory_bytes if status else None,
        socket=key.socket,
        socket_state=_state_of(sight, key, status, trouble),
        clients=tuple(use.run for use in mapped),
        since_s=max(0.0, time.time() - ready.wall) if ready and sight.alive else None,
        fields=tuple(rows),
        verdicts=tuple(sorted(counts.items())),
        last_fallback=fallbacks[-1] if fallbacks else "",
        reload=reload,
    )


def _gpu(sight: DaemonSight, key: records.RankKey) -> int | None:
    gpus = sight.spec.gpus
    if key.local_rank < len(gpus):
        chosen = gpus[key.local_rank]
        return chosen if isinstance(chosen, int) else None
    return key.local_rank if sight.spec.platform != "cpu" else None


def _state_of(
    sight: DaemonSight, key: records.RankKey, status: DaemonStatus | None, trouble: Reason | None
) -> str:
    """Empty for a daemon that has ended: what is at its socket now is another's."""
    if not sight.alive:
        return ""
    return trouble.line if trouble is not None else _socket_state(key, status)


def _socket_state(key: records.RankKey, status: DaemonStatus | None) -> str:
    if key.socket is None:
        return "no socket"
    judged = sockets.judge(sockets.look(key.socket, strict=False))
    if judged.refusal is not None:
        return judged.refusal.line or judged.refusal.category
    return f"0600 ok, {status.state}" if status is not None else "0600 ok"


def _key_of(ctx: Context, use: EngineUse, key: records.RankKey) -> records.RankKey | None:
    try:
        record = records.read(ctx.store.run(use.run))
    except StokerError:
        return None
    if record is None:
        return None
    return next((k for k in record.keys if k.socket == key.socket and k.role == key.role), None)


@dataclass(frozen=True, slots=True)
class _Start:
    """What became of one start's weights: the daemon's unit that it met, and its sockets."""

    unit: str
    verdict: Verdict
    reason: str
    daemon: str | None
    sockets: tuple[str, ...]

    def met(self, daemon: str, socket: str | None) -> bool:
        if self.daemon is not None:
            return self.daemon == daemon and socket in self.sockets
        return f"{self.unit}{SUFFIX}" == daemon and socket in self.sockets


def _history(ctx: Context) -> list[_Start]:
    """The last starts of every engine unit that asked for a daemon, oldest first."""
    found = []
    for unit in ctx.store.list_units().units:
        if unit.kind is not Kind.ENGINE:
            continue
        for run in ctx.store.runs(unit.unit)[-20:]:
            known = run_facts.load(run.dir)
            if known is None or known.verdict is None:
                continue
            try:
                record = records.read(run)
            except StokerError:
                continue
            if record is None or not record.sockets:
                continue
            reason = known.reasons[0].category if known.reasons else ""
            daemon = record.daemon.rpartition("/")[0] if record.daemon else None
            found.append(_Start(unit.unit, known.verdict, reason, daemon, record.sockets))
    return found
