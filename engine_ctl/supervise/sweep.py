"""Ending what is left of a run's tree: a moment of grace, SIGTERM, SIGKILL, until it is empty.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import signal
import time

from engine_ctl.supervise import procs, segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from engine_ctl.supervise.procs import Proc

# Children that end by themselves right after their parent are not called swept.
GRACE_S = 0.25
TERM_S = 3.0
# A process that outlives SIGKILL for so long hangs in the kernel (a driver): said, not waited for.
STUCK_S = 30.0


def reap() -> dict[int, int]:
    """Wait status by pid of every child that has ended. Never blocks."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def sweep(
    left: Callable[[], list[Proc]], *, grace_s: float = GRACE_S, term_s: float = TERM_S
) -> tuple[list[int], list[int]]:
    """End every process that `left()` names until it names none: (swept, remaining) pids.

    Shared memory that they leave behind, and nobody else maps, is removed."""
    begin = time.monotonic()
    swept: dict[int, bool] = {}
    seen: set[int] = set()
    shared: dict[str, int] = {}
    pause = 0.01
    while True:
        reap()
        processes = left()
        seconds = time.monotonic() - begin
        if not processes:
            segments.remove_abandoned(shared)
            return list(swept), []
        segments.note(shared, {proc.pid for proc in processes} - seen)
        seen |= {proc.pid for proc in processes}
        if seconds > grace_s + term_s + STUCK_S:
            return list(swept), [proc.pid for proc in processes]
        for proc in processes:
            if seconds >= grace_s + term_s:
                procs.send(proc, signal.SIGKILL)
                swept[proc.pid] = True
            elif seconds >= grace_s and proc.pid not in swept:
                procs.send(proc, signal.SIGTERM)
                swept[proc.pid] = False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
