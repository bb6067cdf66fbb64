"""Ports that an engine listens on beside its own: known before a start, and refused when taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engine_ctl.errors import Failed
from engine_ctl.operations import lifecycle, swapping
from engine_ctl.operations.side_ports import side_port_problem, side_ports
from engine_ctl.swap.forecast import forecast
from engine_ctl.swap.journal import Outcome
from profiles.model import Profile
from tests.standin.rig import free_port
from tests.standin.serving import Serving, installed

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
MOONCAKE = {"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"}
EVENTS = {"enable_kv_cache_events": True}


@pytest.fixture
def here() -> Iterator[Serving]:
    with installed() as made:
        yield made


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ({}, {}, []),
        ({"data_parallel_size": 4}, {}, []),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, {}, [29550]),
        (
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 2,
                "headless": True,
            },
            {},
            [],
        ),
        ({"data_parallel_size": 4, "data_parallel_rank": 0, "data_parallel_rpc_port": 7}, {}, [7]),
        ({"nnodes": 2}, {}, [29501]),
        ({"nnodes": 2, "node_rank": 1}, {}, []),
        ({"kv_transfer_config": NIXL}, {}, [5600]),
        ({"kv_transfer_config": '{"kv_connector": "NixlConnector"}'}, {}, [5600]),
        (
            {"kv_transfer_config": NIXL, "data_parallel_size": 2},
            {"VLLM_NIXL_SIDE_CHANNEL_PORT": "6000"},
            [6000, 6001],
        ),
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "MultiConnector",
                    "kv_connector_extra_config": {"connectors": [NIXL, {"kv_connector": "X"}]},
                }
            },
            {},
            [5600],
        ),
        ({"kv_transfer_config": MOONCAKE}, {}, [8998]),
        ({"kv_transfer_config": MOONCAKE, "data_parallel_size": 2}, {}, [8998]),
        (
            {
                "kv_transfer_config": MOONCAKE,
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 2,
                "headless": True,
            },
            {},
            [],
        ),
        (
            {"kv_transfer_config": MOONCAKE, "data_parallel_size": 4, "data_parallel_rank": 3},
            {},
            [8998],
        ),
        # The decode side asks for the KV and listens for nobody; both sides share a machine.
        ({"kv_transfer_config": {**MOONCAKE, "kv_role": "kv_consumer"}}, {}, []),
        (
            {
                "kv_transfer_config": {
                    **MOONCAKE,
                    "kv_connector_extra_config": {"bootstrap_server_address": "10.0.0.1:8998"},
                }
            },
            {},
            [],
        ),
        (
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_backend": "ray",
            },
            {},
            [],
        ),
        ({"kv_events_config": EVENTS}, {}, [5557]),
        # A publisher connects to an endpoint with a host: whoever reads the events listens there.
        ({"kv_events_config": {**EVENTS, "endpoint": "tcp://localhost:5557"}}, {}, []),
        ({"kv_events_config": {**EVENTS, "endpoint": "tcp://[::]:5560"}}, {}, [5560]),
        (
            {"kv_events_config": {**EVENTS, "replay_endpoint": "tcp://127.0.0.1:5558"}},
            {},
            [5557, 5558],
        ),
        ({"kv_events_config": {**EVENTS, "endpoint": "tcp://*:0"}}, {}, []),
        ({"kv_events_config": {**EVENTS, "publisher": "null"}}, {}, []),
        ({"kv_events_config": {**EVENTS, "endpoint": "inproc://x"}}, {}, []),
        ({"data_parallel_multi_port_external_lb": True}, {}, [9256]),
        ({"grpc_port": 50051}, {}, [50051]),
    ],
)
def test_ports_by_arguments(args: dict[str, Any], env: dict[str, str], expected: list[int]) -> None:
    assert [each.port for each in side_ports(args, env)] == expected


def test_replicas_with_ports_of_their_own() -> None:
    args = {"data_parallel_multi_port_external_lb": True, "data_parallel_size_local": 3}
    found = side_ports({**args, "data_parallel_size": 3}, {}, 8000)
    assert [each.port for each in found] == [9256, 8001, 8002]


def test_a_side_port_that_is_taken_is_said_before_anything_is_stopped(here: Serving) -> None:
    args = {"kv_transfer_config": NIXL}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        env = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port), "STANDIN": ""}
        here.profile("p", 4, args={"max_num_seqs": 4, **args}, env=env)
        with pytest.raises(Failed, match=rf"port {port} \(VLLM_NIXL_SIDE_CHANNEL_PORT\) is in use"):
            lifecycle.start(here.ctx, "u", "p")
        lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", here.profile("q", 2)), print)
        with pytest.raises(Failed, match=f"port {port} "):
            swapping.swap_to(here.ctx, "u", "p", print)
        assert any(f"port {port} " in error for error in forecast(here.ctx, "u", "p").errors)
        assert here.answers("u") == "2"


def test_a_port_of_the_engine_that_is_replaced_is_its_own(here: Serving) -> None:
    # The stand-in listens on its own port only: that one is named as if it were the side port.
    args = {"data_parallel_size": 2, "data_parallel_rank": 0, "data_parallel_rpc_port": here.port}
    here.profile("p", 4)
    lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "p"), print)
    here.profile("q", 8, args={"max_num_seqs": 8, **args})
    with pytest.raises(Failed, match=f"port {here.port} "):
        here.profile("r", 8, args={"max_num_seqs": 8, **args}, port=free_port())
        lifecycle.start(here.ctx, "other", "r")
    done = swapping.swap_to(here.ctx, "u", "q", print)
    assert done.outcome is Outcome.COMMITTED and here.answers("u") == "8"


def test_behind_a_front_replicas_are_not_beside_the_port_of_clients(here: Serving) -> None:
    args = {
        "data_parallel_multi_port_external_lb": True,
        "data_parallel_size_local": 2,
        "data_parallel_size": 2,
        "data_parallel_supervisor_port": free_port(),
    }
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] - 1
        own = Profile(name="p", model="m", port=port, args=args)
        assert f"port {port + 1} " in (side_port_problem(here.ctx, own) or "")
        fronted = Profile(name="p", model="m", port=port, args=args, front=True)
        assert side_port_problem(here.ctx, fronted) is None
