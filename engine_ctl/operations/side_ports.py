"""Ports that an engine listens on beside its own: where ranks of other nodes meet it, where
connectors shake hands, where events of the KV cache are published.

By vLLM 0.32 and 0.33. Two engines of one machine that leave them at their defaults collide, and
the second fails only after its weights were loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine_ctl.errors import StokerError
from engine_ctl.operations import ports
from engine_ctl.operations.context import Context
from engine_ctl.state.store import Run
from engine_ctl.supervise import listener
from engine_ctl.supervise.orphans import owners
from profiles.argv import environment, expanded
from profiles.model import Profile, plain
from profiles.rules import as_map

_NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_EVENTS = "tcp://*:5557"
_TCP = re.compile(r"tcp://\[?(.*?)\]?:(\d+)$")


@dataclass(frozen=True, slots=True)
class SidePort:
    """`key` is what of the profile sets it: an argument or a variable. `host`: the address that it
    is bound on, empty for all."""

    port: int
    key: str
    host: str = ""


def side_ports(
    args: Mapping[str, Any], env: Mapping[str, str], port: int | None = None
) -> tuple[SidePort, ...]:
    """The ports of a profile by its arguments (canonical names, values filled in). `port`: the
    engine's own, where it is named. Pure."""
    return tuple(dict.fromkeys(_side_ports(args, env, port)))


def _side_ports(
    args: Mapping[str, Any], env: Mapping[str, str], port: int | None
) -> Iterator[SidePort]:
    replicas = _number(args, "data_parallel_size", 1)
    local = _number(args, "data_parallel_size_local", replicas)
    external = args.get("data_parallel_external_lb") is True or "data_parallel_rank" in args
    rank = _number(args, "data_parallel_rank", _number(args, "data_parallel_start_rank", 0))
    nodes, node = _number(args, "nnodes", 1), _number(args, "node_rank", 0)
    headless = args.get("headless") is True
    ray = args.get("data_parallel_backend") == "ray"
    first = rank == 0 and node == 0 and not headless
    if replicas > 1 and first and not ray and (external or local < replicas):
        yield SidePort(_number(args, "data_parallel_rpc_port", 29550), "data_parallel_rpc_port")
    if nodes > 1 and first:
        yield SidePort(_number(args, "master_port", 29501), "master_port")
    ranks = range(rank, rank + (1 if external else local))
    # Behind balancers of their own the replicas of each node have a bootstrap server, else all one.
    apart = external or args.get("data_parallel_hybrid_lb") is True
    apart = apart or ("data_parallel_start_rank" in args and not headless)
    for config in _connectors(as_map(args.get("kv_transfer_config"))):
        if config.get("kv_connector") in _NIXL:
            name = "VLLM_NIXL_SIDE_CHANNEL_PORT"
            start = _of_text(env.get(name, ""), 5600)
            host = env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
            for index in ranks:
                yield SidePort(start + index, name, host)
        elif _bootstraps(config) and node == 0 and (apart or rank == 0):
            name = "VLLM_MOONCAKE_BOOTSTRAP_PORT"
            yield SidePort(_of_text(env.get(name, ""), 8998), name)
    events = as_map(args.get("kv_events_config"))
    if events.get("enable_kv_cache_events") is True and events.get("publisher") != "null":
        for key, usual in (("endpoint", _EVENTS), ("replay_endpoint", "")):
            endpoint = str(events.get(key) or usual)
            found = _TCP.fullmatch(endpoint)
            # An endpoint with a host is one that the publisher connects to, where others listen.
            bound = key == "replay_endpoint" or "*" in endpoint or "::" in endpoint
            if found is not None and bound and int(found[2]):
                for index in ranks:
                    host = found[1].replace("*", "")
                    yield SidePort(int(found[2]) + index, f"kv_events_config.{key}", host)
    if args.get("data_parallel_multi_port_external_lb") is True:
        key = "data_parallel_supervisor_port"
        yield SidePort(_number(args, key, 9256), key)
        for index in range(1, local if port is not None else 0):
            yield SidePort((port or 0) + index, "port")
    grpc = _number(args, "grpc_port", 0)
    if grpc:
        yield SidePort(grpc, "grpc_port")


def _connectors(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The connector's configuration, and those that a MultiConnector has."""
    yield config
    inner = as_map(config.get("kv_connector_extra_config")).get("connectors")
    for each in inner if isinstance(inner, list) else ():
        yield from _connectors(as_map(each))


def _bootstraps(config: Mapping[str, Any]) -> bool:
    """Whether Mooncake's bootstrap server is part of it: where KV goes out, unless one elsewhere is
    named."""
    return (
        config.get("kv_connector") == "MooncakeConnector"
        and config.get("kv_role") != "kv_consumer"
        and not as_map(config.get("kv_connector_extra_config")).get("bootstrap_server_address")
    )


def _number(args: Mapping[str, Any], name: str, default: int) -> int:
    return _of_text(str(args.get(name, "")), default)


def _of_text(text: str, default: int) -> int:
    return int(text) if text.strip().isdecimal() else default


def side_port_problem(ctx: Context, profile: Profile, live: Run | None = None) -> str | None:
    """The first side port that another process listens on, with its owner; None when all are
    free. `live`: the running engine that is to be replaced."""
    try:
        whole = expanded(profile, os.environ)
    except StokerError:
        return None  # said by whoever fills in the values for the start
    values, _ = environment(whole)
    # Behind a front the engine's own port is another one than the profile's.
    port = None if whole.front else whole.port
    wanted = side_ports(plain(whole.args), {**os.environ, **values}, port)
    if not wanted:
        return None
    mine = [pid for pid, run in owners(ctx.store).items() if run == live.id] if live else []
    for each in wanted:
        pid = listener.stranger(each.host, each.port, mine)
        if pid is not None:
            who = ports.owner_words(pid)
            return (
                f"port {each.port} ({each.key}) is in use by pid {pid} ({who}); "
                f"stop it or set another {each.key}"
            )
    return None
