"""Rank tables for 1 to 16 GPUs over 1, 2 and 4 nodes against vLLM's own planning functions."""

from __future__ import annotations

from typing import Any

import pytest

from engine_ctl.weights import client, layout
from engine_ctl.weights.layout import Layout
from tests.engine.preload_bench import shared_harness

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def _factors(world: int) -> list[tuple[int, int, int]]:
    return [
        (tp, pp, world // (tp * pp))
        for tp in range(1, world + 1)
        for pp in range(1, world // tp + 1)
        if world % (tp * pp) == 0
    ]


def _layouts() -> list[Layout]:
    found = []
    for world in (1, 2, 4, 8, 16):
        for nodes in (1, 2, 4):
            for tp, pp, dp in _factors(world):
                sizes: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "expert_parallel": dp > 1}
                net = {"master_addr": "10.0.0.1", "dp_address": "10.0.0.1", "cache_port": 29600}
                for node in range(nodes):
                    found.append(Layout(nodes=nodes, node_rank=node, **sizes, **net))
                if dp > 1:
                    for local in {dp, dp // nodes or 1, 3}:
                        for start in range(0, dp, local):
                            found.append(
                                Layout(
                                    nodes=max(1, dp // local),
                                    node_rank=start // local,
                                    by_nnodes=False,
                                    local_dp=local,
                                    start_rank=start,
                                    **sizes,
                                    **net,
                                )
                            )
    return found


def _sizes(given: Layout) -> dict[str, int]:
    return {
        "tensor_parallel_size": given.tp,
        "pipeline_parallel_size": given.pp,
        "data_parallel_size": given.dp,
        "nnodes": given.nodes if given.by_nnodes else 1,
        "node_rank": given.node_rank if given.by_nnodes else 0,
        "data_parallel_size_local": given.local_dp or given.dp,
        "data_parallel_rank": given.start_rank or 0,
    }


def test_rank_tables(cpu_runtime: Any) -> None:
    harness = shared_harness(cpu_runtime.runtime.python, cpu_runtime.full_env())
    given = _layouts()
    plans = harness.run(plans=[_sizes(one) for one in given])["plans"]
    refused = 0
    for one, plan in zip(given, plans, strict=True):
        if plan["error"]:
            refused += 1
            assert layout.problems(one), f"{one}: vLLM says {plan['error']}"
            continue
        ours = [
            [place.local_rank, place.dp_rank, place.pp_rank, place.tp_rank]
            for place in layout.placements(one)
        ]
        assert ours == plan["ranks"], one
    assert len(given) > 300 and refused > 10


def test_features_are_the_runtimes_own(cpu_runtime: Any) -> None:
    found = client.features(str(cpu_runtime.python), cpu_runtime.full_env())
    assert found.version.startswith("0.32") and found.platform == "cpu"
    assert found.preload and found.ipc_cache and found.platform_supported
    assert found.pipeline_parallel and not found.seeding and not found.dense_dp
    assert {"checkpoint", "dtype", "tp_size", "vllm_version"} <= set(found.key_fields)


def test_quantization_support_is_the_runtimes_own(cpu_runtime: Any) -> None:
    harness = shared_harness(cpu_runtime.runtime.python, cpu_runtime.full_env())
    answers = harness.run(quantizations=["fp8", "gptq_marlin", "no_such_method"])["quantizations"]
    assert [a["support"] for a in answers] == ["all", "none", "unknown"], answers
