"""GPU memory after a stop: the driver gives it back a moment after the process has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuSource
from engine_ctl.operations.context import Context
from engine_ctl.state.store import Run
from engine_ctl.supervise.orphans import owners

LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Held:
    """Processes of a run that held GPU memory before it was stopped."""

    source: GpuSource | None
    pids: frozenset[int]


def used_by(ctx: Context, run: Run) -> Held:
    """Which of the run's processes hold GPU memory now; nothing on a machine without NVML."""
    spec = run.spec()
    if spec.platform == "cpu":
        return Held(None, frozenset())
    source = open_source()
    mine = {pid for pid, owner in owners(ctx.store).items() if owner == run.id}
    held = {
        process.pid
        for gpu in source.read().gpus
        for process in gpu.processes or ()
        if process.pid in mine
    }
    return Held(source, frozenset(held))


def wait_back(held: Held, limit_s: float = LIMIT_S) -> str:
    """Wait until NVML no longer lists any of them; a line when the limit ran out."""
    if held.source is None or not held.pids:
        return ""
    deadline = time.monotonic() + limit_s
    while True:
        left = {
            process.pid
            for gpu in held.source.read().gpus
            for process in gpu.processes or ()
            if process.pid in held.pids
        }
        if not left:
            return ""
        if time.monotonic() > deadline:
            return f"the driver still counts memory for pids {sorted(left)} after {limit_s:.0f} s"
        time.sleep(0.05)
