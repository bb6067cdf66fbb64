"""Starting a run again after a delay: the shim makes the next run and lets its standby start it,
or becomes the next run's shim.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import os
import select
import signal
import sys
import time

from engine_ctl.supervise import disk, from_standby, room
from engine_ctl.supervise.sweep import reap
from engine_ctl.supervise.watcher import SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from engine_ctl.supervise.watcher import Watcher

LOOK_S = 0.5
FULL_DISK_S = 1.0
ROOM_S = 10.0
STANDS_S = 2.0  # so long an answer about room stands while somebody else holds the unit's lock
BY = "restart policy"
WAITS = "waits.json"


def start_again(ended: Watcher, delay_s: float, attempt: int, script: str) -> None:
    """Wait, make the next run and become its shim (`script`).

    Returns when that is not wanted any more: a stop was asked for, or the unit has gone on to
    another run. On a full disk it tries again and again, and so while its GPUs have no room."""
    due = time.monotonic() + delay_s
    said, roomy = False, -ROOM_S
    poll = select.poll()
    poll.register(ended.wake, select.POLLIN)
    while _still_wanted(ended):
        left = due - time.monotonic()
        why = None
        if left <= 0 and time.monotonic() - roomy > STANDS_S:
            why = room.short(ended.spec.get("room") or {})
            roomy = time.monotonic()
        if why:
            roomy = -ROOM_S
            _say_waiting(ended, why)
            if not said:
                ended.tell(f"waits for room before it is started again: {why}", "warning")
            said = True
            limit = (ended.spec.get("restart") or {}).get("backoff_max_s", ROOM_S)
            due = time.monotonic() + min(ROOM_S, limit)
            left = 0.1
        elif left <= 0:
            disk.remove(ended.path(WAITS))
            lock = disk.try_lock(f"{ended.unit_dir}/lock", f"restart of {ended.spec['run']}")
            if lock is not None:
                try:
                    if _still_wanted(ended) and _start_next(ended, attempt, script):
                        os.close(lock)
                        return
                except OSError as error:
                    disk.complain(f"cannot start again: {error}")
                    due = time.monotonic() + FULL_DISK_S
                os.close(lock)
            left = 0.1
        poll.poll(int(min(left, LOOK_S) * 1000) + 1)
        ended.drain()
        reap()  # who asked for room, and what the run left to us
    disk.remove(ended.path(WAITS))
    if ended.asked_by_signal:
        ended.request("a signal to the shim")


def _say_waiting(ended: Watcher, why: str) -> None:
    try:
        disk.write_json(ended.path(WAITS), {"schema": 1, "why": why})
    except OSError:
        pass  # a full disk


def _still_wanted(ended: Watcher) -> bool:
    current = disk.read_json(f"{ended.unit_dir}/current.json") or {}
    return (
        not ended.asked_by_signal
        and not os.path.exists(ended.path("request.json"))
        and current.get("run") == ended.spec["run"]
    )


def _start_next(ended: Watcher, attempt: int, script: str) -> bool:
    """Start the next run: from its standby, under a shim of the standby's (True), else by replacing
    this process by the run's shim. Raises OSError, with nothing left behind."""
    if not os.access(sys.executable, os.X_OK):
        raise FileNotFoundError(2, "the interpreter has gone", sys.executable)
    number, directory = _next_directory(f"{ended.unit_dir}/runs")
    run = f"{ended.spec['unit']}/{number}"
    forked = from_standby.named(ended.spec)
    spec = {
        **ended.spec,
        "run": run,
        "attempt": attempt,
        "created": time.time(),
        "via": "standby" if forked else "spawn",
        "standby": ended.spec.get("standby") if forked else None,
        "predecessor": ended.spec["run"],
        "by": BY,
    }
    try:
        lock = disk.try_lock(f"{directory}/shim.lock")
        assert lock is not None
        disk.write_json(f"{directory}/spec.json", spec)
        current = {"schema": 1, "run": run, "since": time.time()}
        disk.write_json(f"{ended.unit_dir}/current.json", current)
    except OSError:
        for name in ("shim.lock", "spec.json"):
            disk.remove(f"{directory}/{name}")
        os.rmdir(directory)
        raise
    how = ""
    if forked:
        os.close(lock)
        answer = from_standby.ask(spec, directory, script)
        lock = None if answer.shim is not None else from_standby.take_back(directory)
        if lock is None:
            ended.tell(f"is started again as {run}, from the standby")
            if answer.shim is not None and ended.asked_by_signal:
                os.kill(answer.shim, signal.SIGTERM)
            return True
        how = f", importing anew: {answer.why}"
        try:
            spec = {**spec, "via": "spawn", "standby": None}
            disk.write_json(f"{directory}/spec.json", spec)
        except OSError:
            pass  # a full disk: how it was started is not known then
    ended.tell(f"is started again as {run}{how}")
    # A signal for the next run's shim waits until that one has its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.set_inheritable(lock, True)
    command = [sys.executable, "-I", "-S", script, directory, "--lock", str(lock)]
    os.execv(command[0], command)


def _next_directory(runs: str) -> tuple[int, str]:
    number = max((int(name) for name in os.listdir(runs) if name.isdecimal()), default=0)
    while True:
        number += 1
        try:
            os.mkdir(f"{runs}/{number}", 0o700)
            return number, f"{runs}/{number}"
        except FileExistsError:
            pass
