"""vLLM's startup plan, kept apart for each configuration of ours.

vLLM finds the plan of a start (the bytes of its KV cache) by a fingerprint that leaves out what
changes no compiled code: gpu_memory_utilization, the multimodal limits, speculative tokens. A
start with another of these would silently get the memory of the one before. An engine that a
standby makes therefore mixes a key of ours into the fingerprint; all its processes are copies of
this one and so agree. Where that cannot be done, no plan is used: memory is profiled."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, MutableMapping

KEY = "STOKER_STARTUP_PLAN"
ENABLE = "VLLM_ENABLE_STARTUP_PLAN"
_MODULE, _FUNCTION = "vllm.v1.worker.startup_plan", "compute_plan_fingerprint"


def keep_apart(environment: MutableMapping[str, str], copies: bool) -> bool:
    """Turn the plan on under the key in `environment`; False where it stays as it is.

    `copies`: the engine's processes are forked from this one, not started afresh."""
    key = environment.get(KEY)
    if not key or not copies:
        return False
    try:
        module = importlib.import_module(_MODULE)
    except ImportError:
        return False
    fingerprint: Callable[..., str] | None = getattr(module, _FUNCTION, None)
    if fingerprint is None:
        return False
    setattr(module, _FUNCTION, _mixed(fingerprint, key))
    environment[ENABLE] = "1"
    return True


def give_up() -> None:
    """No plan for processes that are started afresh after all: they know nothing of the key."""
    os.environ.pop(ENABLE, None)


def _mixed(fingerprint: Callable[..., str], key: str) -> Callable[..., str]:
    def mixed(*args: object, **kwargs: object) -> str:
        plain = fingerprint(*args, **kwargs)
        return hashlib.sha256(f"{plain} {key}".encode()).hexdigest()[: len(plain)]

    return mixed
