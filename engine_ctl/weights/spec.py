"""The run of `vllm preload` that a profile means: one launcher, one daemon a rank and role."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

import engine_ctl.inside
from engine_ctl.errors import Usage
from engine_ctl.model import Kind
from engine_ctl.runtimes.defaults import PROCESS
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.records import RunSpec
from engine_ctl.weights import client
from engine_ctl.weights.cpu_plugin import DEVICES_ENV
from profiles.argv import environment, preload_argv
from profiles.model import EnvRef, Profile
from profiles.schema import ArgumentSchema

CLI = ("-m", "vllm.entrypoints.cli.main")
WITH_TOKEN = Path(engine_ctl.inside.__file__).parent / "weight_cache_preload.py"
TOKEN_ENV = "STOKER_SEED_TOKEN"
HEALTH_HOST = "127.0.0.1"


def with_health_port(profile: Profile) -> Profile:
    """The profile with a health port: its own, or a free one of this moment.

    Raises Usage when it has no preload section."""
    if profile.preload is None:
        raise Usage(f"profile {profile.name} has no preload section; add `preload: true`")
    if profile.preload.health_port is not None:
        return profile
    section = msgspec.structs.replace(profile.preload, health_port=free_port())
    return msgspec.structs.replace(profile, preload=section)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HEALTH_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def device_environment(profile: Profile, platform: str) -> dict[str, str]:
    """What tells a CPU process which device number it is, from the profile's `gpus`. Daemon and
    engine both need it. Empty on other platforms."""
    if platform != "cpu" or not profile.gpus:
        return {}
    return {DEVICES_ENV: ",".join(map(str, profile.gpus))}


def preload_words(profile: Profile, schema: ArgumentSchema | None) -> list[str]:
    """Arguments of `vllm preload`, the word preload first, without a seed token.

    Raises Usage, as `preload_argv` does."""
    return preload_argv(profile, schema)


def preload_spec(
    unit: str,
    profile: Profile,
    runtime: Runtime,
    schema: ArgumentSchema | None,
    *,
    by: str = "",
    predecessor: str | None = None,
    sockets: Sequence[str] = (),
) -> RunSpec:
    """The spec of a daemon run. The profile must have a health port (`with_health_port`).

    Ready when the launcher's /health says 200 and the daemon behind each of `sockets` answers; the
    runtime's own interpreter asks them (the protocol is pickle). A seed token stays a reference:
    the shim resolves it into the environment of the process alone."""
    if profile.preload is None or profile.preload.health_port is None:
        raise Usage(f"profile {profile.name} has no preload section with a health port")
    words = preload_words(profile, schema)
    values, references = environment(profile)
    refs: dict[str, EnvRef] = dict(references)
    start: tuple[str, ...] = CLI
    shown = ["vllm", *words]
    if profile.preload.seed_token is not None:
        refs[TOKEN_ENV] = profile.preload.seed_token
        start = (str(WITH_TOKEN),)
        shown += ["--seed-token", token_reference(profile.preload.seed_token)]
    env = {
        **runtime.environment(),
        **PROCESS,
        **values,
        **device_environment(profile, runtime.platform),
    }
    return RunSpec(
        unit=unit,
        kind=Kind.PRELOAD,
        argv=[runtime.python, *start, *words],
        display_argv=shown,
        env=env,
        env_refs=refs,
        env_unset=["PYTHONDONTWRITEBYTECODE"],
        runtime=runtime.name,
        python=runtime.python,
        runtime_version=runtime.version,
        platform=runtime.platform,
        profile=profile.name,
        profile_path=profile.path,
        model=profile.model,
        host=HEALTH_HOST,
        port=profile.preload.health_port,
        gpus=list(profile.gpus),
        ready_url=f"http://{HEALTH_HOST}:{profile.preload.health_port}/health",
        ready_argv=client.ready_argv(runtime.python, sockets),
        ready_timeout_s=profile.ready_timeout_s,
        restart=profile.restart,
        stop=msgspec.structs.replace(profile.stop, drain_s=0.0),
        predecessor=predecessor,
        by=by,
    )


def token_reference(reference: EnvRef) -> str:
    """How a shell would say a secret without showing it: `"$NAME"` or `"$(cat FILE)"`."""
    if reference.from_env is not None:
        return f'"${reference.from_env}"'
    return f'"$(cat {reference.from_file})"'
