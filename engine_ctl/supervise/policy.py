"""Whether and when a run that has ended is started again. Pure.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# `delay_s` None: not again. `attempt` is the next run's. `gave_up`: the maximum is used up.
Decision = namedtuple("Decision", "delay_s attempt gave_up")
NO = Decision(None, 0, False)

# Kinds of which an end with status 0 is a success; a server that ends unasked has failed.
TASKS = ("bench",)


def failed(kind: str, requested: bool, code: int | None) -> bool:
    """True when an ended run has failed: it ended without being asked to.

    vLLM's API server ends with status 0 after its EngineCore was killed, so a status of 0 means
    success for tasks only."""
    return not requested and not (kind in TASKS and code == 0)


def again(
    restart: dict[str, Any],
    *,
    kind: str,
    requested: bool,
    code: int | None,
    uptime_s: float,
    attempt: int,
) -> Decision:
    """What the restart policy (profiles.model.Restart) says after an end.

    The delay doubles with each restart of a series; `reset_s` of uptime begins a new series."""
    policy = restart.get("policy", "never")
    if requested or policy not in ("on-failure", "always"):
        return NO
    if policy == "on-failure" and not failed(kind, requested, code):
        return NO
    done = 0 if uptime_s >= restart.get("reset_s", 300.0) else attempt - 1
    if done >= restart.get("max", 5):
        return Decision(None, 0, True)
    delay = restart.get("backoff_s", 1.0) * 2.0 ** min(done, 32)
    return Decision(min(delay, restart.get("backoff_max_s", 60.0)), done + 2, False)
