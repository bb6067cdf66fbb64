"""Rules about chips and numbers of GPUs know this machine; a forecast tells what will fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.operations.machine_facts import machine_facts
from engine_ctl.runtimes.store import Runtime
from engine_ctl.swap.forecast import forecast
from profiles.lint import lint
from profiles.model import Profile
from profiles.rules import Facts
from profiles.schema import Argument, ArgumentSchema, shipped
from tests.standin.nvml import RecordedNvml
from tests.standin.serving import installed

NVML = Path(__file__).parent.parent / "data" / "nvml"
CUDA = Runtime(name="r", python="/r/bin/python", version="0.33.0", platform="cuda")


def seen(recording: str, **fields: Any) -> Facts:
    source = NvmlSource(RecordedNvml(json.loads((NVML / f"{recording}.json").read_text())))
    try:
        return machine_facts(Profile(name="p", model="m", **fields), CUDA, source)
    finally:
        source.close()


def test_what_is_known_of_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = seen("load")
    assert (facts.platform, facts.capability) == ("cuda", (9, 0))
    assert facts.gpu_count == len(json.loads((NVML / "load.json").read_text())["devices"])
    assert facts.gpu_total is not None and facts.gpu_total > 130 << 30
    assert seen("load", gpus=(0,)).gpu_count == 1
    assert seen("unified").gpu_total is None
    wanted = {"args": {"kv_cache_dtype": "nvfp4"}}
    found = lint(Profile(name="p", model="m", **wanted), "0.33", facts=facts)
    assert "no-kernel-for-chip" in {finding.rule for finding in found}


def test_nothing_is_known_without_a_runtime_and_little_on_a_cpu() -> None:
    profile = Profile(name="p", model="m")
    assert machine_facts(profile, None) == Facts()
    cpu = Runtime(name="r", python="/r/bin/python", version="0.32.0", platform="cpu")
    assert machine_facts(profile, cpu) == Facts(platform="cpu")


def test_an_argument_that_a_later_vllm_has_again_is_no_error() -> None:
    profile = Profile(name="p", model="m", args={"task": "embed", "swap_space": 4})
    arguments = [*shipped().arguments.values(), Argument(name="task", options=("--task",))]
    rules = {f.rule for f in lint(profile, None, ArgumentSchema("0.34.0", arguments))}
    assert "gone-swap-space" in rules and "gone-task" not in rules
    assert "gone-task" in {f.rule for f in lint(profile, "0.33")}


def test_a_forecast_says_what_servers_and_workers_will_refuse() -> None:
    with installed() as here:
        args = {"headless": True, "api_server_count": 2}
        here.profile("p", 4, args=args)
        found = forecast(here.ctx, "u", "p")
        assert not found.errors
        assert any(
            "headless node" in text and "instead: leave it" in text for text in found.warnings
        )
