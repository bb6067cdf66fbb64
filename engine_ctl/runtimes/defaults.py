"""What every vLLM process of ours gets unless the profile or the operator says otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from engine_ctl.runtimes.store import Runtime
from profiles.model import Profile
from profiles.schema import ArgumentSchema, canonical

PLAN = "VLLM_ENABLE_STARTUP_PLAN"
# The first minor version whose workers keep and check a startup plan.
PLAN_SINCE = (0, 32)
# What Stoker asks a running engine once a second: two access lines each time, unless left out.
POLLED = "/health,/metrics"
QUIET = "disable_access_log_for_endpoints"
# An access log that the profile has decided about itself.
_ACCESS_LOG = (QUIET, "disable_uvicorn_access_log", "uvicorn_log_level", "log_config_file")


def process_defaults(runtime: Runtime, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Unbuffered output, so that what is printed reaches the log; and on GPUs vLLM's startup plan:
    the memory profile of the last start with the same configuration, which vLLM itself applies
    only when version, configuration, device and free memory allow it (saves 7 s of 20 on an H200).
    """
    base = os.environ if base is None else base
    found = {"PYTHONUNBUFFERED": "1"}
    if (
        runtime.platform in ("cuda", "rocm")
        and _minor(runtime.version) >= PLAN_SINCE
        and PLAN not in base
    ):
        found[PLAN] = "1"
    return found


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
