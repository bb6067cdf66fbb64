"""What an engine must have been started with so that it can be changed while it runs. Pure.

Source: vLLM 0.32 and 0.33. The adapter routes exist with VLLM_ALLOW_RUNTIME_LORA_UPDATING only,
those for sleep, wake and the prefix cache with VLLM_SERVER_DEV_MODE only; the latter also bring
`/collective_rpc`, which runs methods inside the engine for anybody who can reach the port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine_ctl.state.records import RunSpec
from profiles.model import EnvRef, Profile, plain

DEV_MODE = "VLLM_SERVER_DEV_MODE"
LORA_UPDATES = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


class Action(StrEnum):
    LORA_LOAD = "lora load"
    LORA_UNLOAD = "lora unload"
    RESET_PREFIX_CACHE = "reset-prefix-cache"
    SLEEP = "sleep"
    WAKE = "wake"


_LORA = (Action.LORA_LOAD, Action.LORA_UNLOAD)
_SLEEP = (Action.SLEEP, Action.WAKE)


@dataclass(frozen=True, slots=True)
class Features:
    """What a running engine can do without a restart."""

    platform: str | None = None
    lora: bool = False
    lora_updates: bool = False
    dev_mode: bool = False
    sleep_mode: bool = False
    api_servers: int = 1


def features_of(spec: RunSpec, profile: Profile | None) -> Features:
    """Out of the environment and the arguments that a run was started with."""
    args = plain(profile.args) if profile is not None else {}
    return Features(
        platform=spec.platform,
        lora=is_set(args.get("enable_lora")),
        lora_updates=_env(spec.env, LORA_UPDATES),
        dev_mode=_env(spec.env, DEV_MODE),
        sleep_mode=is_set(args.get("enable_sleep_mode")),
        api_servers=_api_servers(args),
    )


def problem(action: Action, found: Features, profile: str) -> str | None:
    """Why the engine cannot do that, in one line that says what the profile must have."""
    if action in _LORA:
        if not found.lora:
            return f"profile {profile} starts no adapters; add to its args: enable_lora: true"
        if not found.lora_updates:
            return _needs(profile, LORA_UPDATES, "change adapters")
        if found.api_servers > 1:
            return (
                f"profile {profile} runs {found.api_servers} API servers, each with its own list "
                "of adapters; set api_server_count: 1"
            )
        return None
    if action in _SLEEP:
        if found.platform == "cpu":
            return "sleep mode needs a GPU: on the CPU vLLM accepts it and frees nothing"
        if not found.sleep_mode:
            return f"profile {profile} has no sleep mode; add to its args: enable_sleep_mode: true"
    if not found.dev_mode:
        return _needs(profile, DEV_MODE, action.value)
    return None


def refusals(spec: RunSpec, profile: Profile | None) -> dict[str, str]:
    """Each change by name with what stands against it, "" where nothing does."""
    found = features_of(spec, profile)
    name = profile.name if profile is not None else spec.profile or "?"
    return {action.value: problem(action, found, name) or "" for action in Action}


def _needs(profile: str, name: str, what: str) -> str:
    extra = ", with a loopback host" if name == DEV_MODE else ""
    return f'to {what}, profile {profile} must have env: {{{name}: "1"}}{extra}; then restart'


def dev_mode_problem(profile: Profile) -> str | None:
    """Why the profile must not be started: development endpoints that others can reach.

    The address that clients use counts, so a front before the engine changes nothing."""
    if not _env(profile.env, DEV_MODE) or is_loopback(profile.host):
        return None
    return (
        f"profile {profile.name}: {DEV_MODE} lets anybody who reaches {profile.host} run methods "
        "inside the engine; set host: 127.0.0.1, or remove it from env"
    )


def is_loopback(host: str) -> bool:
    """True for addresses and names of this machine alone. "" and 0.0.0.0 are everybody."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_set(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1"))


def _env(env: Mapping[str, str | EnvRef], name: str) -> bool:
    value = env.get(name)
    if isinstance(value, EnvRef):
        return True  # its value is not ours to read: taken for given
    return value is not None and value.strip().lower() not in ("", "0", "false")


def _api_servers(args: Mapping[str, Any]) -> int:
    """As `vllm serve` chooses: one for each data-parallel rank that it balances between."""

    def number(name: str) -> int | None:
        value = args.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    if (given := number("api_server_count")) is not None:
        return max(given, 1)
    modes = ("data_parallel_external_lb", "data_parallel_multi_port_external_lb")
    if "data_parallel_rank" in args or any(is_set(args.get(name)) for name in modes):
        return 1
    hybrid = is_set(args.get("data_parallel_hybrid_lb")) or "data_parallel_start_rank" in args
    servers = number("data_parallel_size_local" if hybrid else "data_parallel_size")
    return max(servers or 1, 1)
