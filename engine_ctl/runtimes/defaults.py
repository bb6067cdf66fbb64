"""What every vLLM process of ours gets unless the profile or the operator says otherwise."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from engine_ctl.inside import standby_plan
from engine_ctl.runtimes.store import Runtime
from profiles.model import Profile, plain
from profiles.schema import ArgumentSchema, canonical

PLAN, PLAN_KEY = standby_plan.ENABLE, standby_plan.KEY
# The first minor version whose workers keep and check a startup plan.
PLAN_SINCE = (0, 32)
# What Stoker asks a running engine once a second: two access lines each time, unless left out.
POLLED = "/health,/metrics"
QUIET = "disable_access_log_for_endpoints"
# An access log that the profile has decided about itself.
_ACCESS_LOG = (QUIET, "disable_uvicorn_access_log", "uvicorn_log_level", "log_config_file")

# Arguments of the HTTP server alone: another value of these is no other memory.
_FRONT_END = (
    *("api_key", "host", "port", "root_path", "ssl_", "uvicorn_", "allowed_", "middleware"),
    *("served_model_name", "chat_template", "tool_", "reasoning_parser", "response_role"),
    *("enable_auto_tool_choice", "disable_access_log", "disable_uvicorn", "log_", "enable_log"),
)
_OF_MEMORY = ("VLLM_", "PYTORCH_", "TORCH", "NCCL_", "CUDA_VISIBLE_DEVICES")

# Unbuffered output, so that what is printed reaches the log.
PROCESS: Mapping[str, str] = {"PYTHONUNBUFFERED": "1"}


def plan_key(profile: Profile, runtime: Runtime, env: Mapping[str, str]) -> dict[str, str]:
    """The variable that lets a standby turn on vLLM's startup plan: the memory profile of the last
    start with the same configuration, which vLLM applies only when version, device and free memory
    allow it (saves 7 s of 20 on an H200). What vLLM does not compare and memory depends on, such
    as gpu_memory_utilization, is in the key; see inside/standby_plan.py.

    `env` is the engine's whole environment. Nothing where vLLM keeps no plan, or it is off."""
    if runtime.platform not in ("cuda", "rocm") or _minor(runtime.version) < PLAN_SINCE:
        return {}
    if env.get(PLAN) not in (None, "1"):
        return {}
    args = plain(profile.args)
    config = args.get("config")
    try:
        said_there = Path(str(config)).read_bytes() if config else b""
    except OSError:
        return {}
    facts = {
        "model": profile.model,
        "config": hashlib.sha256(said_there).hexdigest() if config else "",
        "args": {name: args[name] for name in args if not name.startswith(_FRONT_END)},
        "env": {name: env[name] for name in env if name.startswith(_OF_MEMORY) and name != PLAN},
    }
    said = json.dumps(facts, sort_keys=True, default=str)
    return {PLAN_KEY: hashlib.sha256(said.encode()).hexdigest()[:16]}


def serve_defaults(
    profile: Profile, runtime: Runtime, schema: ArgumentSchema | None
) -> dict[str, str]:
    """Arguments that `vllm serve` gets beside the profile's own: access lines of what Stoker polls
    are left out, unless the profile says anything about the access log. Nothing where it is not
    known that this version has the argument."""
    if schema is None or schema.find(QUIET) is None:
        return {}
    if _minor(schema.version) != _minor(runtime.version):
        return {}
    given = {canonical(name, value, schema)[0] for name, value in profile.args.items()}
    if any(name in _ACCESS_LOG or name.startswith("logging_config") for name in given):
        return {}
    return {QUIET: POLLED}


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])
