"""Refusals by what a version can do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine_ctl.weights.refusals import (
    Asked,
    CacheFeatures,
    QuantizationSupport,
    budget,
    refusals,
)

NEW = CacheFeatures(
    version="0.33.0",
    platform="cuda",
    preload=True,
    ipc_cache=True,
    seeding=True,
    key_fields=("checkpoint", "pp_rank"),
    pipeline_parallel=True,
    watch=True,
    counts_weights_in_budget=True,
    refuses_eplb=True,
    dense_dp=True,
    platform_supported=True,
)
GIB = 1 << 30


def _with(**changes: Any) -> CacheFeatures:
    return msgspec.structs.replace(NEW, **changes)


def test_nothing_in_the_way() -> None:
    args = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "enable_sleep_mode": False}
    assert refusals(Asked("preload", args), NEW) == ()
    assert refusals(Asked("serve", {"load_format": "ipc_cache", **args}), NEW) == ()


FATAL: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("preload", {"load_format": "ipc_cache"}, {}, "bad_value", "a daemon cannot load"),
    ("serve", {}, {"ipc_cache": False, "version": "0.29"}, "bad_value", "0.29 has no weight cache"),
    ("preload", {}, {"preload": False}, "bad_argument", "no preload command"),
    (
        "preload",
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel": False},
        "bad_value",
        "pipeline",
    ),
    ("serve", {"enable_eplb": True}, {}, "wc_fatal.eplb", "load balancing"),
    ("serve", {"enable_sleep_mode": True}, {}, "lint.wc_sleep_mode", "sleep mode"),
    ("serve", {}, {"platform": "xpu", "platform_supported": False}, "wc_fatal.platform", "on xpu"),
    ("preload", {"seed_token": "x"}, {"seeding": False}, "bad_argument", "seed_token"),
    ("preload", {"weight_cache_master_port": 29501}, {}, "bad_value", "--master-port"),
    ("preload", {"nnodes": 2, "tensor_parallel_size": 2}, {}, "bad_value", "need --weight-cache"),
]


@pytest.mark.parametrize(("kind", "args", "features", "category", "word"), FATAL)
def test_fatal(
    kind: str, args: dict[str, Any], features: dict[str, Any], category: str, word: str
) -> None:
    first = refusals(Asked(kind, args), _with(**features))[0]
    assert first.fatal and first.reason.category == category
    assert word in first.line and "\n" not in first.line


def test_the_versions_word_counts_not_its_number() -> None:
    odd = _with(version="0.31.0", pipeline_parallel=True)
    assert refusals(Asked("preload", {"pipeline_parallel_size": 2}), odd) == ()


def test_sleep_mode_goes_with_copies() -> None:
    asked = Asked("serve", {"enable_sleep_mode": True}, mode="copy")
    assert refusals(asked, NEW) == ()


def test_the_cpu_plugin_left_out_by_the_environment() -> None:
    cpu = _with(platform="cpu")
    (only,) = refusals(Asked("serve", {}, env={"VLLM_PLUGINS": "lora"}), cpu)
    assert only.fatal and "stoker_weight_cache_cpu" in only.line
    env = {"VLLM_PLUGINS": "lora,stoker_weight_cache_cpu"}
    assert refusals(Asked("serve", {}, env=env), cpu) == ()


def test_eplb_where_the_version_does_not_refuse_it() -> None:
    (only,) = refusals(Asked("serve", {"enable_eplb": True}), _with(refuses_eplb=False))
    assert not only.fatal and only.reason.category == "wc_fatal.eplb"


@pytest.mark.parametrize(("support", "count"), [("all", 0), ("unknown", 0), ("some", 1)])
def test_quantization_that_works_or_may(support: str, count: int) -> None:
    asked = Asked("serve", {}, quantization=QuantizationSupport(method="fp8", support=support))
    found = refusals(asked, NEW)
    assert len(found) == count and not any(r.fatal for r in found)


def test_quantization_that_does_not() -> None:
    asked = Asked("serve", {}, quantization=QuantizationSupport(method="awq", support="none"))
    (only,) = refusals(asked, NEW)
    assert only.fatal and only.reason.category == "wc_fatal.quant" and "awq" in only.line


def test_dense_data_parallel_before_033() -> None:
    args = {"data_parallel_size": 2}
    old = _with(dense_dp=False)
    (only,) = refusals(Asked("serve", args, is_moe=False), old)
    assert not only.fatal and "dp_size" in only.line
    assert refusals(Asked("serve", args, is_moe=True), old) == ()
    assert refusals(Asked("serve", args), old) == ()
    assert refusals(Asked("serve", args, is_moe=False), NEW) == ()


def test_fatal_ones_come_first() -> None:
    args = {"data_parallel_size": 2, "load_format": "ipc_cache"}
    found = refusals(Asked("preload", args, is_moe=False), _with(dense_dp=False))
    assert [r.fatal for r in found] == [True, False]


def test_budget_counts_the_weights_from_032() -> None:
    assert budget(NEW, utilization=0.9, total=140 * GIB, free=124 * GIB, weights=15 * GIB) is None
    low = budget(NEW, utilization=0.1, total=140 * GIB, free=124 * GIB, weights=15 * GIB)
    assert low is not None and low.reason.category == "weight_cache_budget"
    assert "above 0.16" in low.line
    busy = budget(NEW, utilization=0.9, total=140 * GIB, free=60 * GIB, weights=15 * GIB)
    assert busy is not None and busy.reason.category == "gpu_memory_busy"
    assert "to 0.53" in busy.line


def test_budget_before_032() -> None:
    old = _with(counts_weights_in_budget=False)
    high = budget(old, utilization=0.9, total=140 * GIB, free=120 * GIB, weights=15 * GIB)
    assert high is not None and "to 0.85" in high.line
    assert budget(old, utilization=0.2, total=140 * GIB, free=120 * GIB, weights=15 * GIB) is None
