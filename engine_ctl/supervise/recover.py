"""Damaged records of a run that is to be stopped; who its processes are, from themselves."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine_ctl import atomic, identity
from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Failed
from engine_ctl.identity import Identity
from engine_ctl.state.records import RunIdentity
from engine_ctl.state.store import Run
from engine_ctl.supervise import procs
from engine_ctl.supervise.procs import Proc


def mend(run: Run) -> None:
    """Make a run with damaged records one that can be judged, for its stop: they are set aside as
    NAME.damaged, and identity.json is written anew. Does nothing to whole or absent records. Hold
    the unit's lock.

    Raises Failed when identity.json is damaged, no process of the run can be found and its end is
    not recorded, and when the directory cannot be written to."""
    for name, read in (
        ("ready.json", run.ready),
        ("request.json", run.request),
        ("exit.json", run.exit),
    ):
        if _damaged(read):
            _set_aside(run.dir / name)
    if not _damaged(run.identity):
        return
    path = run.dir / "identity.json"
    found = find(run)
    if found is None and run.exit() is None:
        raise Failed(
            f"{path} is damaged and no process of {run.id} is found; move it away to go on"
        )
    aside = _set_aside(path)
    if found is None:
        return
    try:
        atomic.write_record(path, found)
    except OSError as error:
        with suppress(OSError):
            aside.replace(path)
        raise Failed(f"cannot write {path}: {error.strerror or error}") from error


def _damaged(read: Callable[[], object]) -> bool:
    try:
        read()
    except CorruptRecord:
        return True
    return False


def _set_aside(path: Path) -> Path:
    try:
        return path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError as error:
        raise Failed(f"cannot move {path} aside: {error.strerror or error}") from error


def find(run: Run) -> RunIdentity | None:
    """The run's shim and leader among the processes: the shim by its command line, the leader as
    its child, by the run's mark, or as one that writes its output into the run's log (an engine may
    have overwritten its environment, and a standby's fork has another mark). None when there is no
    leader. Without a shim, the leader stands in its place with a start time that no process has."""
    processes = {
        pid: proc
        for pid, proc in procs.table().items()
        if proc.uid == os.geteuid() and proc.state not in "ZX"
    }
    directory = str(run.dir)
    shims = {pid: words for pid in processes if (words := _words_of_shim(pid, directory))}
    shim = next((processes[pid] for pid in shims), None)
    log = _log_of(run)
    marked = [
        proc
        for proc in processes.values()
        if _is_marked(proc.pid, directory) or (log is not None and _writes(proc.pid, log))
    ]
    pids = {proc.pid for proc in marked}
    heads = [proc for proc in marked if proc.ppid not in pids]
    if shim is not None and b"--watch" not in shims[shim.pid]:
        children = [proc for proc in processes.values() if proc.ppid == shim.pid]
        heads = [proc for proc in children if proc.pid in pids] or children or heads
    leader = min(heads, key=_age, default=None)
    if leader is None:
        return None
    boot = identity.boot_id()
    ticks = os.sysconf("SC_CLK_TCK")
    lived = time.clock_gettime(time.CLOCK_BOOTTIME) - leader.start / ticks
    return RunIdentity(
        run=run.id,
        shim=Identity(boot, shim.pid, shim.start) if shim else Identity(boot, leader.pid, -1),
        leader=Identity(boot, leader.pid, leader.start),
        session=leader.sid,
        started=time.time() - lived,
        monotonic=time.monotonic() - lived,
        dir=directory,
    )


def _age(proc: Proc) -> tuple[int, int]:
    return proc.start, proc.pid


def _is_marked(pid: int, directory: str) -> bool:
    mark = procs.run_dir_of(pid)
    # The state directory may have been moved, with a link in its old place.
    return mark is not None and directory in (mark, os.path.realpath(mark))


def _log_of(run: Run) -> os.stat_result | None:
    try:
        info = run.log.stat()
    except OSError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def _writes(pid: int, log: os.stat_result) -> bool:
    """Whether the process has the very file as its standard output or error, to append to."""
    for number in (1, 2):
        try:
            if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), log):
                continue
            info = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
        except OSError:
            continue
        flags = next((x.split()[1] for x in info.splitlines() if x.startswith("flags:")), "0")
        if int(flags, 8) & os.O_APPEND and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
            return True
    return False


def _words_of_shim(pid: int, directory: str) -> list[bytes]:
    """The command line of the run's shim, [] for any other process."""
    words = procs.command_line(pid)
    return words if procs.shim_dir(words) == directory else []
