"""Weights that surely find no room are refused before their daemon is started, with figures."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Failed
from engine_ctl.hardware.readings import GpuProcess, GpuReading, GpuReadings
from engine_ctl.operations import weights_ready, weights_room
from engine_ctl.operations.context import Context
from engine_ctl.operations.weights_ready import Way, daemon_ahead
from engine_ctl.operations.weights_room import (
    GIB,
    lacking,
    room_problem_for,
    surely_needed,
)
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.store import Store
from engine_ctl.swap import room
from engine_ctl.weights import daemons
from engine_ctl.weights.checkpoint import Checkpoint, measure
from engine_ctl.weights.records import RankKey, WeightsRecord
from profiles.loading import Resolved
from profiles.model import Preload, Profile
from tests.standin.ranks import serving
from tests.standin.rig import dirs_in

CUDA = Runtime(name="gpu", python="/v/bin/python", version="0.33.0", platform="cuda")
GPU = GpuReading(0, "GPU-0", "H200", total=140 * GIB, free=12 * GIB, used=128 * GIB)


class Source:
    def __init__(self, *gpus: GpuReading) -> None:
        self.gpus = gpus

    def read(self) -> GpuReadings:
        return GpuReadings(self.gpus)

    def close(self) -> None:
        pass


def checkpoint(where: Path, gib: float, dtype: str = "bfloat16", parts: int = 1) -> Path:
    """Weight files of that size, which take no space."""
    where.mkdir()
    (where / "config.json").write_text(json.dumps({"torch_dtype": dtype}))
    names = [f"model-{part}.safetensors" for part in range(parts)]
    for name in names:
        with (where / name).open("wb") as file:
            file.truncate(int(gib * GIB / parts))
    if parts > 1:
        index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
        (where / "model.safetensors.index.json").write_text(json.dumps(index))
    return where


def asked(model: Path, **args: Any) -> daemons.Asked:
    return daemons.Asked(
        "chat-weights",
        Profile(name="chat", model=str(model), args=args, preload=Preload(health_port=9000)),
        CUDA,
    )


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(dirs_in(tmp_path), by="test")


def test_what_a_checkpoint_takes(tmp_path: Path) -> None:
    sharded = checkpoint(tmp_path / "a", 40, parts=4)
    sure = Checkpoint(40 * GIB, once=True, as_they_are=True)
    assert measure(sharded) == sure
    with (sharded / "consolidated.safetensors").open("wb") as file:
        file.truncate(40 * GIB)
    assert measure(sharded) == sure, "the same weights in another form"
    assert weights_ready.weights_on_disk(asked(sharded)) == 40 * GIB
    (sharded / "model.safetensors.index.json").unlink()
    assert measure(sharded) == Checkpoint(80 * GIB, once=False, as_they_are=True)
    assert surely_needed(asked(sharded)) is None
    wide = checkpoint(tmp_path / "b", 40, dtype="float32")
    assert measure(wide) == Checkpoint(40 * GIB, once=True, as_they_are=False)
    assert surely_needed(asked(wide)) is None
    assert weights_ready.weights_on_disk(asked(wide)) == 40 * GIB
    assert measure(tmp_path / "none") is None and measure(tmp_path) is None


@pytest.mark.parametrize(
    ("args", "needed"),
    [
        ({}, 36 * GIB),
        ({"dtype": "auto", "load_format": "safetensors"}, 36 * GIB),
        ({"tensor_parallel_size": 2}, 18 * GIB),
        ({"data_parallel_size": 2}, 36 * GIB),
        # Smaller in memory, or lying elsewhere: nobody knows for sure.
        ({"quantization": "fp8"}, None),
        ({"dtype": "half"}, None),
        ({"load_format": "dummy"}, None),
        ({"limit_mm_per_prompt": {"image": 0}}, None),
        ({"offload_group_size": 4}, None),
        ({"pipeline_parallel_size": 2}, None),
        ({"data_parallel_size": 2, "enable_expert_parallel": True}, None),
    ],
)
def test_what_a_rank_surely_needs(tmp_path: Path, args: dict[str, Any], needed: int | None) -> None:
    assert surely_needed(asked(checkpoint(tmp_path / "m", 40), **args)) == needed


def test_what_lacks() -> None:
    held = replace(GPU, processes=(GpuProcess(7, 30 * GIB), GpuProcess(8, None)))
    assert lacking(13 * GIB, [GPU]) == (GPU, 12 * GIB)
    assert lacking(12 * GIB, [GPU]) is None
    assert lacking(13 * GIB, [replace(GPU, free=None), replace(GPU, unified=True)]) is None
    # The daemon that makes place gives back what it holds; where that is not told, it may be all.
    assert lacking(42 * GIB, [held], {7}) is None
    assert lacking(43 * GIB, [held], {7}) == (held, 42 * GIB)
    assert lacking(43 * GIB, [held], {8}) is None and lacking(43 * GIB, [held], {9}) is None


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        yield Path(root)


def test_another_stokers_daemon_takes_the_room(
    ctx: Context, directory: Path, tmp_path: Path
) -> None:
    model = checkpoint(tmp_path / "m", 40)
    name = hashlib.md5(b"GPU-0", usedforsecurity=False).hexdigest()
    theirs = Store(dirs_in(tmp_path / "theirs")).units_dir / "big-weights" / "runs" / "1"
    theirs.mkdir(parents=True)
    path = directory / f"vllm_weight_cache_{name}.sock"
    with serving(str(path), STOKER_RUN_DIR=str(theirs)) as pid:
        gpu = replace(GPU, processes=(GpuProcess(pid, 100 * GIB),))
        problem = room_problem_for(ctx, asked(model), {"GPU-0"}, source=Source(gpu))
        assert room.strange_daemon(
            WeightsRecord(keys=[RankKey(socket=str(path), device="GPU-0")])
        ) == {pid}
    assert problem is not None
    assert problem.startswith(
        f"GPU 0: the weights of {model} need at least 36.0 GiB, 12.0 GiB are free beside a daemon "
        f"that is not this Stoker's: another Stoker's (big-weights/1), pid {pid}"
    )
    assert "holds 100.0 GiB" in problem and "\n" not in problem
    roomy = replace(GPU, free=37 * GIB)
    assert room_problem_for(ctx, asked(model), {"GPU-0"}, source=Source(roomy)) is None
    assert room_problem_for(ctx, asked(model), {"GPU-9"}, source=Source(gpu)) is None
    assert room_problem_for(ctx, asked(model), {"GPU-0"}, source=Source()) is None


def test_nothing_is_started_that_has_no_room(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_room, "open_source", lambda: Source(GPU))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    model = checkpoint(tmp_path / "m", 40)
    made = asked(model)

    def ask(words: list[str], env: Any) -> Any:
        key = {"role": "target", "rank": 0, "socket": None, "device": "GPU-0", "fields": {}}
        return {"ok": True, "keys": [key]}

    def look(record: WeightsRecord, replacing: str | None) -> str | None:
        return room_problem_for(ctx, made, {k.device for k in record.keys if k.device}, replacing)

    begun: list[Any] = []
    with pytest.raises(Failed, match=r"chat-weights: GPU 0: .* 36.0 GiB, 12.0 GiB are free"):
        daemons.start(ctx.store, replace(made, room=look), ask, begun.append)
    assert begun == [] and not ctx.store.exists("chat-weights")
    # An engine's start says it ahead, and takes the weights from disk or is refused.
    monkeypatch.setattr(weights_ready, "asked_of", lambda *_, **__: (made, CUDA))
    ahead = daemon_ahead(ctx, "chat", Resolved(made.profile, {}, ()), None)
    assert ahead.way is Way.NO_ROOM and "12.0 GiB are free" in ahead.why
    monkeypatch.setattr(weights_room, "open_source", lambda: Source(replace(GPU, free=99 * GIB)))
    ahead = daemon_ahead(ctx, "chat", Resolved(made.profile, {}, ()), None)
    assert ahead.way is Way.MADE
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    # What it needs goes with its run: the shim looks for room before it starts it again.
    sized = replace(made, room=look, needs=lambda: 36 * GIB)
    run = daemons.start(ctx.store, sized, ask, begun.append)
    assert begun == [run] and run.spec().room == {"GPU-0": 36 * GIB}
