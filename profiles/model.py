"""The profile: how to run one model, as typed, immutable data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class EnvRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment value by reference, so that no secret is stored: exactly one is set."""

    from_env: str | None = None
    from_file: str | None = None


class Preload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `preload:` section: a `vllm preload` daemon for this profile's weights.

    `mode` is zero_copy or copy; `args` are arguments that differ from the engine's;
    times are seconds."""

    mode: str = "zero_copy"
    fallback: bool = True
    socket_dir: str | None = None
    health_port: int | None = None
    connect_timeout_s: float | None = None
    state_timeout_s: float | None = None
    seed_token: EnvRef | None = None
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class Restart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the shim starts the process again. `policy`: never, on-failure, always. Seconds."""

    policy: str = "never"
    max: int = 5
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    reset_s: float = 300.0


class Stop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stop ladder: drain, ask (SIGTERM), ask again, kill the group. Seconds."""

    drain_s: float = 0.0
    ask_s: float = 10.0
    ask_again_s: float = 10.0
    kill_s: float = 5.0


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One resolved profile (parents merged). `name` and `path` say where it came from.

    `args` keeps vLLM's names with underscores, in the author's order. `env` values are strings
    or references. `origin` keeps what an import found and a profile has no word for (image,
    volumes, launcher, unit directives): written back by an export, never used to run.

    `host` is always explicit here; vLLM's own default (all interfaces) is "0.0.0.0".
    A text value may hold references to the environment, written as shells write them:
    `${NAME}`, `${NAME:-default}`, `${NAME:?message}`, `$(command)`; `$${` and `$$(` are literal."""

    name: str
    path: str | None = None
    schema: int = 1
    runtime: str | None = None
    model: str = ""
    served_name: tuple[str, ...] = ()
    gpus: tuple[int | str, ...] = ()
    host: str = "127.0.0.1"
    port: int | None = None
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    env: dict[str, str | EnvRef] = msgspec.field(default_factory=dict)
    preload: Preload | None = None
    standby: bool = True
    front: bool = False
    restart: Restart = msgspec.field(default_factory=Restart)
    stop: Stop = msgspec.field(default_factory=Stop)
    ready_timeout_s: float = 1800.0
    bench: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: str = ""
    tags: tuple[str, ...] = ()
    origin: dict[str, Any] = msgspec.field(default_factory=dict)


def plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with one spelling of their names."""
    return {name.replace("-", "_"): value for name, value in args.items()}
