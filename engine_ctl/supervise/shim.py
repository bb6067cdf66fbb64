"""The shim: one small process that watches one run from its start to its exit record.

    python -I -S shim.py RUN_DIR [--child PID | --watch | --again] [--lock FD] [--report FD]
                                 [--detach]

`--child` takes over a child that this process has already (a standby's fork), `--watch` a process
that is nobody's child any more (adoption: its exit status stays unknown), `--again` starts the next
run of one that has ended, for a shim that is gone. `--lock` is an open
shim.lock that is held already, `--report` gets one line: `ok`, or `error` and why.

It asks little of the machine: after the run is ready it wakes up every five seconds. It never
talks to anybody: SIGUSR1 means "look at request.json again", SIGTERM "end your run". Standard
library only: it also runs under a runtime's interpreter (Python 3.10 and newer).
"""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import ctypes
import os
import sys
import time

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# This file is compiled at every start (scripts have no bytecode cache), so it is kept short.
from engine_ctl.supervise import disk
from engine_ctl.supervise.again import start_again
from engine_ctl.supervise.spawn import SpawnError
from engine_ctl.supervise.watcher import Watcher

LOCK_PATIENCE_S = 3.0
_SUBREAPER = 36


def _hold_lock(run_dir: str) -> bool:
    # Observers hold it shared for a moment when they look.
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while disk.try_lock(f"{run_dir}/shim.lock") is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _streams(run_dir: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        os.dup2(os.open(f"{run_dir}/shim.err", disk.APPEND, 0o600), 2)
    except OSError:
        os.dup2(null, 2)
    os.chdir("/")


def main(arguments: list[str]) -> int:
    run_dir = os.path.realpath(arguments[0])
    option: dict[str, int] = {}
    flags = set()
    rest = iter(arguments[1:])
    for name in rest:
        if name in ("--watch", "--again", "--detach"):
            flags.add(name)
        elif name in ("--child", "--lock", "--report"):
            option[name] = int(next(rest))
        else:
            sys.stderr.write(f"unknown argument {name}\n")
            return 2
    for name in ("--lock", "--report"):
        if name in option:
            os.set_inheritable(option[name], False)
    if "--detach" in flags and os.fork() != 0:
        os._exit(0)
    try:
        os.setsid()
    except PermissionError:
        pass  # a session leader already
    _streams(run_dir)
    _become_subreaper()
    watcher = Watcher(run_dir, option.get("--report"))
    if "--lock" not in option and not _hold_lock(run_dir):
        watcher.report(f"error another shim watches {run_dir}")
        return 1
    if "--again" in flags:
        owed = watcher.owed()
        watcher.report("ok")
        if owed.delay_s is not None:
            start_again(watcher, owed.delay_s, owed.attempt, os.path.abspath(__file__))
        return 0
    if "--child" in option and os.path.exists(f"{run_dir}/exit.json"):
        watcher.report("error the run was given up meanwhile")
        return 1
    try:
        watcher.begin(option.get("--child"), "--watch" in flags)
    except SpawnError as error:
        if "--watch" not in flags:
            watcher.error, watcher.leader = str(error), 0
            try:
                watcher.end()
            except OSError:
                pass  # a full disk: the launcher hears it all the same
        if "--lock" in option:
            os.close(option["--lock"])  # before the launcher goes on
        watcher.report(f"error {error}")
        return 1
    watcher.report("ok")
    watcher.run()
    if watcher.abandoned:
        return 0  # nothing can be recorded any more, and the process is not ours to end
    decision = watcher.end()
    if decision.delay_s is not None:
        start_again(watcher, decision.delay_s, decision.attempt, os.path.abspath(__file__))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
