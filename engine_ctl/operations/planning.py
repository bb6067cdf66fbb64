"""From a profile to what is started: pure, but for the port and the files that are looked at."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from engine_ctl.errors import Failed
from engine_ctl.model import Kind
from engine_ctl.runtimes.defaults import PROCESS, plan_key, serve_defaults
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.records import RunSpec
from engine_ctl.weights.spec import device_environment
from profiles.argv import argument_words, environment, expanded, serve_argv
from profiles.compile_key import is_compiled
from profiles.model import Profile, Stop, plain
from profiles.rules import as_map
from profiles.schema import ArgumentSchema

CLI = ("-m", "vllm.entrypoints.cli.main")
DEFAULT_PORT = 8000
# ssl.CERT_REQUIRED, as --ssl-cert-reqs takes it.
CERT_REQUIRED = "2"
_OF_ADDRESS = ("uds", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
# Unset so that imports are compiled once (13 s a start otherwise).
UNSET = ["PYTHONDONTWRITEBYTECODE"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens; with a front, and where clients go then. `uds`: the path of a Unix
    socket, in place of host and port. `certificates`: clients must show one; Stoker has none.
    `headless`: a node that computes for another one and listens nowhere. `grpc`: it speaks gRPC
    in place of HTTP."""

    host: str
    port: int
    public_host: str | None = None
    public_port: int | None = None
    tls: bool = False
    certificates: bool = False
    uds: str | None = None
    headless: bool = False
    grpc: bool = False

    @property
    def addressed(self) -> bool:
        """Whether it has a host and a port at all."""
        return self.uds is None and not self.headless

    @property
    def probe_host(self) -> str:
        """The address to ask from this machine when it listens on all of them."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

    @property
    def base_url(self) -> str:
        """As `operations.opening` takes it."""
        scheme = "https" if self.tls else "http"
        if self.uds is not None:
            return f"{scheme}unix://{quote(self.uds, safe='')}"
        host = f"[{self.probe_host}]" if ":" in self.probe_host else self.probe_host
        return f"{scheme}://{host}:{self.port}"

    @property
    def ready_url(self) -> str | None:
        """What the shim asks: /health, or where that takes a certificate, and of a gRPC server,
        which listens when its engine is there, a connection alone."""
        if self.headless:
            return None
        if not (self.certificates or self.grpc):
            return f"{self.base_url}/health"
        place = self.base_url.partition("://")[2]
        return f"tcp://{place}" if self.uds is None else f"unix:{self.uds}"


def endpoint_of(profile: Profile, host: str, port: int) -> Endpoint:
    """The engine's own address at (host, port) as the profile's arguments make it: with TLS, or a
    Unix socket instead."""
    named = plain(profile.args)
    given = {name: named[name] for name in _OF_ADDRESS if name in named}
    # Nothing else of it: a profile whose values are filled in may have a `$` of its own.
    if any("$" in str(value) for value in given.values()):
        given = expanded(Profile(name=profile.name, args=given), os.environ).args
    uds = given.get("uds")
    return Endpoint(
        host,
        port,
        tls=bool(given.get("ssl_certfile") or given.get("ssl_keyfile")),
        certificates=str(given.get("ssl_cert_reqs")) == CERT_REQUIRED,
        uds=str(uds) if uds else None,
        headless=named.get("headless") is True,
        grpc=named.get("grpc") is True,
    )


def engine_environment(runtime: Runtime, profile: Profile) -> dict[str, str]:
    """Everything that is set for an engine over the operator's own environment (no secrets)."""
    values, _ = environment(profile)
    devices = device_environment(profile, runtime.platform)
    return {**runtime.environment(), **PROCESS, **values, **devices}


def engine_spec(
    unit: str,
    profile: Profile,
    runtime: Runtime,
    schema: ArgumentSchema | None,
    endpoint: Endpoint,
    by: str,
    predecessor: str | None = None,
    operation: str = "",
) -> RunSpec:
    """The run of `vllm serve` for this profile."""
    own = endpoint_of(profile, endpoint.host, endpoint.port)
    port = None if own.headless else endpoint.port
    placed = msgspec.structs.replace(profile, host=endpoint.host, port=port)
    arguments = [*serve_argv(placed, schema), *added_words(profile, runtime, schema)]
    _, references = environment(profile)
    env = engine_environment(runtime, profile)
    return RunSpec(
        unit=unit,
        kind=Kind.ENGINE,
        argv=[runtime.python, *CLI, *arguments],
        display_argv=["vllm", *arguments],
        env={**env, **plan_key(profile, runtime, {**os.environ, **env})},
        env_refs=dict(references),
        env_unset=UNSET,
        runtime=runtime.name,
        python=runtime.python,
        runtime_version=runtime.version,
        platform=runtime.platform,
        profile=profile.name,
        profile_path=profile.path,
        model=profile.model,
        served_name=profile.served_name[0] if profile.served_name else profile.model,
        host=endpoint.host if own.addressed else None,
        port=endpoint.port if own.addressed else None,
        tls=own.tls,
        uds=own.uds,
        public_host=endpoint.public_host,
        public_port=endpoint.public_port,
        gpus=list(profile.gpus),
        ready_url=own.ready_url,
        ready_log=headless_texts(profile) if own.headless else [],
        # How long a node waits for the others is not its own doing.
        ready_timeout_s=0.0 if own.headless else profile.ready_timeout_s,
        restart=profile.restart,
        stop=_ladder(profile, schema),
        predecessor=predecessor,
        operation=operation,
        by=by,
    )


def headless_texts(profile: Profile) -> list[str]:
    """What the log of a headless node says last before the node is ready. One with engine cores
    says that they are initialised; workers of another node's core have captured their graphs, or,
    without any, have measured what is left for the KV cache."""
    args = plain(profile.args)
    texts = ["init engine (profile"]
    if _number(args.get("nnodes")) > _number(args.get("data_parallel_size")):
        captures = is_compiled(args) and not _without_graphs(args)
        texts += (
            ["Graph capturing finished"]
            if captures
            else ["Available KV cache memory", "Initial free memory"]
        )
    return texts


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 1


def _without_graphs(args: Mapping[str, Any]) -> bool:
    mode = as_map(args.get("compilation_config")).get("cudagraph_mode")
    mode = args.get("compilation_config.cudagraph_mode", mode)
    return mode is not None and str(mode).upper() in ("NONE", "0")


def added_words(profile: Profile, runtime: Runtime, schema: ArgumentSchema | None) -> list[str]:
    """What Stoker adds to the profile's own arguments of `vllm serve`."""
    own = argument_words(serve_defaults(profile, runtime, schema), schema)
    return [*_drain_words(profile, schema), *own]


def _drains_itself(profile: Profile, schema: ArgumentSchema | None) -> bool:
    """vLLM finishes running requests and refuses new ones for --shutdown-timeout seconds."""
    known = schema is not None and schema.find("shutdown_timeout") is not None
    return known and profile.stop.drain_s > 0 and "shutdown_timeout" not in profile.args


def _drain_words(profile: Profile, schema: ArgumentSchema | None) -> list[str]:
    if not _drains_itself(profile, schema):
        return []
    return ["--shutdown-timeout", str(math.ceil(profile.stop.drain_s))]


def _ladder(profile: Profile, schema: ArgumentSchema | None) -> Stop:
    """The stop ladder: where vLLM drains by itself, the first ask waits for it."""
    given = profile.args.get("shutdown_timeout")
    own = profile.stop.drain_s if _drains_itself(profile, schema) else given
    if not isinstance(own, (int, float)) or isinstance(own, bool) or own <= 0:
        return profile.stop
    return msgspec.structs.replace(profile.stop, drain_s=0.0, ask_s=profile.stop.ask_s + own)


def model_problem(profile: Profile) -> str | None:
    """Why the model cannot be loaded, as far as a look at the file system tells; None: go on.

    A name that is no path may be a hub's: vLLM finds out.
    """
    if not profile.model:
        return f"profile {profile.name} names no model; add: model: /path/or/name"
    if "$" in profile.model:
        profile = expanded(profile, os.environ)
    path = Path(profile.model).expanduser()
    if not (profile.model.startswith(("/", "./", "../", "~")) or path.exists()):
        return None
    if not path.exists():
        return f"profile {profile.name}: model directory {profile.model} does not exist"
    if path.is_dir() and not any(path.iterdir()):
        return f"profile {profile.name}: model directory {profile.model} is empty"
    if path.is_dir() and not ((path / "config.json").exists() or (path / "params.json").exists()):
        return f"profile {profile.name}: {profile.model} holds no config.json"
    return None


def refuse_if(problems: Sequence[str | None]) -> None:
    """Raise Failed with the first problem there is."""
    for problem in problems:
        if problem:
            raise Failed(problem)
