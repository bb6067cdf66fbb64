"""What every vLLM process of ours gets unless the profile or the operator says otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from engine_ctl.runtimes.store import Runtime

PLAN = "VLLM_ENABLE_STARTUP_PLAN"
# The first minor version whose workers keep and check a startup plan.
PLAN_SINCE = (0, 32)


def process_defaults(runtime: Runtime, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Unbuffered output, so that what is printed reaches the log; and on GPUs vLLM's startup plan:
    the memory profile of the last start with the same configuration, which vLLM itself applies
    only when version, configuration, device and free memory allow it (saves 7 s of 20 on an H200).
    """
    base = os.environ if base is None else base
    found = {"PYTHONUNBUFFERED": "1"}
    numbers = tuple(int(n) for n in re.findall(r"\d+", runtime.version)[:2])
    if runtime.platform in ("cuda", "rocm") and numbers >= PLAN_SINCE and PLAN not in base:
        found[PLAN] = "1"
    return found
