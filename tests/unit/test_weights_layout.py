"""Layouts by computing: ranks, refusals, and the command of each node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_ctl.weights import layout
from engine_ctl.weights.layout import Layout, Seeding

NET: dict[str, Any] = {"master_addr": "10.0.0.1", "dp_address": "10.0.0.1", "cache_port": 29600}


def test_one_gpu() -> None:
    (place,) = layout.placements(Layout())
    assert (place.global_rank, place.label, place.gpu) == (0, "DP0 PP0 TP0", None)


def test_pipeline_before_tensor_and_gpus_in_order() -> None:
    places = layout.placements(Layout(tp=2, pp=2, gpus=(4, 5, 6, 7)))
    assert [(p.pp_rank, p.tp_rank, p.gpu) for p in places] == [
        (0, 0, 4),
        (0, 1, 5),
        (1, 0, 6),
        (1, 1, 7),
    ]


def test_every_rank_once_over_nodes() -> None:
    wide = Layout(tp=8, dp=2, nodes=4, **NET)
    ranks = [p.global_rank for node in range(4) for p in layout.placements(wide, node)]
    assert ranks == list(range(16))
    assert layout.placements(wide, 3)[0].label == "DP1 PP0 TP4"


def test_ranges_of_data_parallel_ranks() -> None:
    fleet = Layout(dp=16, nodes=4, by_nnodes=False, local_dp=4, expert_parallel=True, **NET)
    ranks = [(p.dp_rank, p.expert_rank) for n in range(4) for p in layout.placements(fleet, n)]
    assert ranks == [(rank, rank) for rank in range(16)]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (Layout(tp=0), "below 1"),
        (Layout(tp=4, nodes=3, **NET), "does not divide 4 ranks"),
        (Layout(tp=4, nodes=2, node_rank=2, **NET), "not one of 2 nodes"),
        (Layout(tp=4, nodes=2, **{**NET, "cache_port": None}), "need --weight-cache-master-port"),
        (Layout(tp=2, cache_port=29501), "is the engine's --master-port"),
        (Layout(tp=2, cache_port=29501, master_port=29501), "is the engine's --master-port"),
        (Layout(dp=2, cache_port=13345, dp_rpc_port=13345), "data-parallel-rpc-port"),
        (Layout(tp=4, nodes=2, **{**NET, "master_addr": "localhost"}), "cannot meet at localhost"),
        (
            Layout(dp=4, nodes=2, by_nnodes=False, local_dp=2, cache_port=29600),
            "cannot meet at 127.0.0.1",
        ),
        (Layout(dp=4, by_nnodes=False, local_dp=2, start_rank=3), "not within"),
        (Layout(dp=4, by_nnodes=False, local_dp=2, start_rank=-1), "not within"),
        (Layout(dp=5, by_nnodes=False, local_dp=2), "does not divide 5"),
        (Layout(tp=4, gpus=(0, 1)), "4 ranks on this node, but 2 GPUs"),
        (Layout(tp=4, nodes=2, draft=True, draft_port=29600, **NET), "draft daemons' port 29600"),
        (Layout(tp=4, nodes=2, draft=True, **{**NET, "cache_port": 29500}), "port 29501"),
        (Layout(seeding=Seeding(listen=("h", 1))), "needs a token"),
        (Layout(seeding=Seeding(token='"$T"')), "without --seed-listen"),
        (Layout(seeding=Seeding(token='"$T"', incomplete=("seed-source",))), "together"),
        (Layout(tp=8, seeding=Seeding(listen=("h", 65530), token='"$T"')), "do not exist"),
    ],
)
def test_problems(given: Layout, word: str) -> None:
    found = layout.problems(given)
    assert any(word in reason.line for reason in found), found
    assert all(reason.category == "bad_value" and reason.hint for reason in found)


@pytest.mark.parametrize(
    "given",
    [
        Layout(),
        Layout(tp=16, nodes=2, **NET),
        Layout(tp=8, dp=2, nodes=4, **NET),
        Layout(dp=16, nodes=4, by_nnodes=False, local_dp=4, start_rank=4, node_rank=1, **NET),
        Layout(tp=8, seeding=Seeding(listen=("h", 65528), token='"$T"')),
        Layout(dp=2, local_dp=2, by_nnodes=False),
    ],
)
def test_no_problems(given: Layout) -> None:
    assert layout.problems(given) == ()


def test_from_arguments() -> None:
    given = layout.from_arguments(
        {
            "tensor_parallel_size": "4",
            "data_parallel_size": 8,
            "data_parallel_size_local": 2,
            "data_parallel_start_rank": 4,
            "data_parallel_address": "10.0.0.1",
            "enable_expert_parallel": True,
            "weight_cache_master_port": 29600,
            "seed_listen_host": "0.0.0.0",
            "seed_listen_port": 7000,
        },
        seed_token='"$T"',
    )
    assert (given.nodes, given.node_rank, given.by_nnodes) == (4, 2, False)
    assert given.seeding == Seeding(("0.0.0.0", 7000), None, '"$T"')
    assert [p.dp_rank for p in layout.placements(given)] == [4] * 4 + [5] * 4
    assert layout.problems(given) == ()


def test_commands_of_two_nodes() -> None:
    wide = Layout(tp=16, nodes=2, seeding=Seeding(("0.0.0.0", 7000), None, '"$SEED"'), **NET)
    one, two = layout.node_commands(
        wide,
        ["preload", "--model", "m", "--tensor-parallel-size", "16", "--node-rank=1"],
        ["serve", "m", "--tensor-parallel-size", "16", "--nnodes", "2", "--load-format", "x"],
    )
    where = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1"
    assert " ".join(one.preload) == (
        "vllm preload --model m --tensor-parallel-size 16 "
        + where.format(0)
        + ' --weight-cache-master-port 29600 --seed-token "$SEED"'
    )
    assert " ".join(two.serve) == (
        "vllm serve m --tensor-parallel-size 16 --load-format x " + where.format(1) + " --headless"
    )
    assert "--headless" not in one.serve
    assert [p.tp_rank for p in two.places] == list(range(8, 16))


def test_commands_of_a_data_parallel_fleet() -> None:
    fleet = Layout(dp=4, nodes=2, by_nnodes=False, local_dp=2, draft=True, draft_port=29700, **NET)
    _, two = layout.node_commands(fleet, ["preload", "--model", "m"], ["serve", "m"])
    assert two.preload[4:] == (
        "--data-parallel-size-local",
        "2",
        "--data-parallel-start-rank",
        "2",
        "--data-parallel-address",
        "10.0.0.1",
        "--weight-cache-master-port",
        "29600",
        "--weight-cache-draft-master-port",
        "29700",
    )


def test_no_commands_for_a_layout_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="need --weight-cache-master-port"):
        layout.node_commands(replace(Layout(tp=4, nodes=2, **NET), cache_port=None), [], [])


def test_a_data_parallel_rank_is_a_process_of_its_own() -> None:
    args = {"data_parallel_size": 8, "data_parallel_rank": 3, "tensor_parallel_size": 2}
    places = layout.placements(layout.from_arguments(args))
    assert [(p.dp_rank, p.tp_rank, p.global_rank) for p in places] == [(3, 0, 6), (3, 1, 7)]
