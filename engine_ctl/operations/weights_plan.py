"""What a preload daemon would be, before it is started: ranks and their GPUs, every node's exact
command, what is in the way, and why a running daemon would have to be loaded again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from engine_ctl.errors import StokerError
from engine_ctl.operations.context import Context
from engine_ctl.operations.weights import asked_of, checker, other_daemons
from engine_ctl.weights import content, daemons, layout, refusals, sights, spec
from engine_ctl.weights.daemons import reload_needed
from engine_ctl.weights.layout import Layout, Placement
from engine_ctl.weights.records import RankKey
from profiles.argv import preload_arguments, serve_argv


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank of the layout: `label` as vLLM names its workers (DP0 PP0 TP1)."""

    node: int
    local_rank: int
    global_rank: int
    label: str
    gpu: int | str | None


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Where a local rank's weights would be served, and under which fingerprint."""

    role: str
    rank: int
    socket: str | None
    device: str | None
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The words to run on one node; a secret stays a reference that its shell resolves."""

    node: int
    preload: tuple[str, ...]
    serve: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreloadPlan:
    """`problems` would stop the daemon before it is started, `warnings` would not. `reload` says
    why the running daemon does not hold what the profile says now; `running` is its run."""

    unit: str
    profile: str
    nodes: int
    ranks: tuple[RankPlan, ...]
    keys: tuple[KeyPlan, ...] = ()
    commands: tuple[NodePlan, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    running: str | None = None
    reload: tuple[str, ...] = ()


def preload_plan(ctx: Context, unit: str) -> PreloadPlan:
    """Plan the daemon of a unit or profile; asks the runtime for the fingerprints and changes
    nothing. Raises Usage for a profile that keeps no weights."""
    asked, runtime = asked_of(ctx, unit)
    profile, schema = asked.profile, asked.schema
    arguments = preload_arguments(profile, schema)
    token = profile.preload.seed_token if profile.preload is not None else None
    placed = layout.from_arguments(
        arguments,
        gpus=_gpus(profile.gpus),
        seed_token=spec.token_reference(token) if token is not None else None,
        draft=bool(arguments.get("speculative_config")),
    )
    problems = [reason.line for reason in layout.problems(placed)]
    warnings: list[str] = []
    if asked.features is not None:
        question = refusals.Asked("preload", arguments, env=asked.env)
        for found in refusals.refusals(question, asked.features, placed):
            (problems if found.fatal else warnings).append(found.line)
    commands: tuple[NodePlan, ...] = ()
    if not layout.problems(placed):
        commands = _commands(placed, asked.words, serve_argv(profile, schema))
    sight = sights.sight_of(ctx.store, asked.unit) if ctx.store.exists(asked.unit) else None
    alive = sight if sight is not None and sight.alive else None
    keys: Sequence[RankKey] = ()
    reload: tuple[str, ...] = ()
    try:
        record = daemons.plan(ctx.store, asked, checker(ctx, runtime, asked), replacing=alive)
        keys = record.keys
        if alive is not None:
            reload = reload_needed(alive.record, record.keys, record.content, record.draft)
    except StokerError as error:
        problems.append(str(error).removeprefix(f"{asked.unit}: "))
    warnings += other_daemons(ctx, keys)
    return PreloadPlan(
        unit=asked.unit,
        profile=profile.name,
        nodes=placed.nodes,
        ranks=tuple(_rank(p) for n in range(placed.nodes) for p in _places(placed, n)),
        keys=tuple(KeyPlan(k.role, k.rank, k.socket, k.device, dict(k.fields)) for k in keys),
        commands=commands,
        problems=tuple(dict.fromkeys(problems)),
        warnings=tuple(dict.fromkeys(warnings)),
        running=alive.run.id if alive is not None else None,
        reload=reload,
    )


def reload_reasons(ctx: Context, sight: sights.DaemonSight) -> tuple[str, ...]:
    """Why a daemon may not hold what its profile says now, without asking the runtime: other weight
    files, other arguments (`preload_plan` then says which fields of the fingerprint differ)."""
    if not sight.alive:
        return ()
    lines = content_changed(sight)
    try:
        resolved = ctx.profiles.load(sight.spec.profile_path or sight.spec.profile or sight.unit)
        profile = spec.with_health_port(ctx.concrete(resolved.profile))
        words = spec.preload_words(profile, ctx.schema_for(ctx.runtime_for(resolved)))
    except StokerError as error:
        return (*lines, f"its profile cannot be read: {error}")
    held = sight.spec.argv
    held = held[held.index("preload") :] if "preload" in held else held
    now, then = _without_port(words), _without_port(held)
    if now != then:
        new = " ".join(word for word in now if word not in then)
        gone = " ".join(word for word in then if word not in now)
        what = "; ".join(filter(None, (new and f"now {new}", gone and f"then {gone}")))
        lines += (f"the profile's arguments changed: {what or 'in their order'}",)
    return lines


def _without_port(words: Sequence[str]) -> list[str]:
    """Without the health port, which is chosen at each start."""
    kept: list[str] = []
    for position, word in enumerate(words):
        before = words[position - 1] if position else ""
        if "--weight-cache-health-port" not in (word.partition("=")[0], before):
            kept.append(word)
    return kept


def content_changed(sight: sights.DaemonSight) -> tuple[str, ...]:
    """Weight files that are not what the daemon loaded, by metadata first: files are read only
    where that differs. () when they are the same, or cannot be looked at."""
    if not sight.alive:
        return ()
    lines: tuple[str, ...] = ()
    for record in (sight.record.content, sight.record.draft):
        if record is None:
            continue
        try:
            where = content.model_directory(record.model, None, {**os.environ, **sight.spec.env})
            if where is not None and content.needs_reading(record, where):
                now = content.record(record.model, where, record)
                lines += content.differences(record, now)
        except (StokerError, OSError) as error:
            lines += (f"the weight files cannot be read: {error}",)
    return lines


def _gpus(gpus: Sequence[int | str]) -> tuple[int | str, ...]:
    if gpus:
        return tuple(gpus)
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(int(t) if t.isdecimal() else t for t in filter(None, text.split(",")))


def _places(placed: Layout, node: int) -> tuple[Placement, ...]:
    try:
        return layout.placements(placed, node)
    except (ValueError, ZeroDivisionError):
        return ()


def _rank(place: Placement) -> RankPlan:
    """Local ranks count the node's visible devices, so a profile without `gpus` means that."""
    return RankPlan(
        node=place.node,
        local_rank=place.local_rank,
        global_rank=place.global_rank,
        label=place.label,
        gpu=place.local_rank if place.gpu is None else place.gpu,
    )


def _commands(placed: Layout, preload: Sequence[str], serve: Sequence[str]) -> tuple[NodePlan, ...]:
    return tuple(
        NodePlan(command.node, command.preload, command.serve)
        for command in layout.node_commands(placed, preload, serve)
    )
