"""Weights that surely find no room on a GPU, before their daemon is started: whoever holds the
memory, another Stoker's daemon as well. What cannot be said for sure is left to vLLM."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuReading, GpuSource
from engine_ctl.hardware.visible import visible
from engine_ctl.operations.context import Context
from engine_ctl.supervise.orphans import owners
from engine_ctl.weights import checkpoint, daemons, layout, sights, strangers
from engine_ctl.weights.strangers import Stranger
from profiles.argv import preload_arguments

GIB = 1 << 30
# Parts of a checkpoint that vLLM may leave out: a head for multi-token prediction, tied weights.
LOADED_SHARE = 0.9
# With any of these the weights in memory may be smaller than the checkpoint, or in other places.
_OTHERWISE = (
    *("quantization", "dtype", "hf_overrides", "cpu_offload_gb", "language_model_only"),
    *("hf_config_path", "model_impl", "convert", "runner", "offload_group_size"),
    # A limit of 0 leaves out what reads images; an encoder alone has no language model.
    *("limit_mm_per_prompt", "mm_encoder_only"),
)


def room_problem_for(
    ctx: Context,
    asked: daemons.Asked,
    devices: Collection[str] | None = None,
    replacing: str | None = None,
    source: GpuSource | None = None,
) -> str | None:
    """Why the daemon's weights surely do not fit where they are to lie, with figures; None when
    they may. `devices` are the ranks' GPUs by UUID (None: the first that the profile sees),
    `replacing` the run of the daemon that is ended first."""
    needed = surely_needed(asked)
    if needed is None:
        return None
    readings = (source or open_source()).read().gpus
    if devices is None:
        seen = visible(readings, {**os.environ, **asked.env}).uuids or ()
        placed = layout.from_arguments(preload_arguments(asked.profile, asked.schema))
        devices = seen[: len(layout.placements(placed))]
    gpus = [gpu for gpu in readings if gpu.uuid in devices]
    whose = owners(ctx.store) if replacing is not None else {}
    found = lacking(needed, gpus, {pid for pid, run in whose.items() if run == replacing})
    if found is None:
        return None
    gpu, free = found
    ours = {s for d in sights.daemons(ctx.store) if d.alive for s in d.record.sockets}
    others = strangers.strangers(ours, [gpu.uuid], ctx.store.units_dir)
    return (
        f"GPU {gpu.index}: the weights of {asked.profile.model} need at least "
        f"{needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free{_beside(gpu, others)}; "
        "stop something there (stoker memory)"
    )


def lacking(
    needed: int, gpus: Sequence[GpuReading], returned_by: Collection[int] = ()
) -> tuple[GpuReading, int] | None:
    """The first GPU with less room than a rank's weights need, and what it has; the processes
    `returned_by` give theirs back. A GPU that does not tell is not counted. Pure."""
    for gpu in gpus:
        returned = [p.bytes for p in gpu.processes or () if p.pid in returned_by]
        if gpu.free is None or gpu.unified or None in returned:
            continue
        if returned_by and not returned:
            continue  # it may be among those that the driver does not name here
        free = gpu.free + sum(size or 0 for size in returned)
        if free < needed:
            return gpu, free
    return None


def surely_needed(asked: daemons.Asked) -> int | None:
    """Bytes that the weights of one rank take at least; None where the checkpoint does not tell:
    it is not here, or is loaded as something smaller, or is spread in another way; or there are no
    GPUs that it must fit."""
    if asked.runtime.platform == "cpu":
        return None
    args = preload_arguments(asked.profile, asked.schema)
    if any(args.get(name) not in (None, "auto", False, 0) for name in _OTHERWISE):
        return None
    if args.get("load_format") not in (None, "auto", "safetensors"):
        return None
    placed = layout.from_arguments(args)
    if placed.pp > 1 or placed.expert_parallel:
        return None
    found = checkpoint.of(asked.profile.model, args, {**os.environ, **asked.env})
    if found is None or not (found.once and found.as_they_are):
        return None
    return int(found.bytes * LOADED_SHARE / placed.tp)


def _beside(gpu: GpuReading, others: Sequence[Stranger]) -> str:
    held = {p.pid: p.bytes for p in gpu.processes or ()}
    words = []
    for other in others:
        if other.device == gpu.uuid:
            size = held.get(other.pid or 0)
            words.append(other.words + (f", holds {size / GIB:.1f} GiB" if size else ""))
    return f" beside a daemon that is {'; '.join(words)}" if words else ""
