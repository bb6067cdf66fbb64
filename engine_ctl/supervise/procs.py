"""Which processes belong to a run: one look at /proc, and rules over it.

A process belongs to a run when it descends from the run's leader or from its shim, is in the
leader's session, or carries the run's directory in its environment. What descends from another
live run (a shim that was started from within this one) does not.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import signal
from collections import namedtuple

from engine_ctl.supervise import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import Any

RUN_VARIABLE = b"STOKER_RUN_DIR="

# `start` is clock ticks since boot: with the pid, it names a process for the time of this boot.
Proc = namedtuple("Proc", "pid ppid pgid sid start state uid comm")


def look(pid: int) -> Proc | None:
    """One process, None when there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        uid = os.fstat(fd).st_uid
        text = os.read(fd, 4096).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    head, _, tail = text.rpartition(")")
    field = tail.split()
    return Proc(
        pid,
        int(field[1]),
        int(field[2]),
        int(field[3]),
        int(field[19]),
        field[0],
        uid,
        head.partition("(")[2],
    )


def table() -> dict[int, Proc]:
    """Every process of this moment by pid, zombies too."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {proc.pid: proc for proc in found if proc is not None}


def command_line(pid: int) -> list[bytes]:
    """The words that a process was started with, or its title; [] when it has none (a kernel
    thread) or cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read().rstrip(b"\0")
    except OSError:
        return []
    return data.split(b"\0") if data else []


def shim_dir(words: Sequence[bytes]) -> str:
    """The run directory in the command line of a shim, "" when it is none of a shim."""
    for at, word in enumerate(words[:-1]):
        if os.path.basename(word) == b"shim.py":
            return os.fsdecode(words[at + 1])
    return ""


def run_dir_of(pid: int) -> str | None:
    """The run directory in the environment that the process was executed with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(RUN_VARIABLE):
            return os.fsdecode(entry[len(RUN_VARIABLE) :])
    return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identity(pid: int) -> dict[str, Any] | None:
    """As engine_ctl.identity.Identity, for a record."""
    proc = look(pid)
    return proc and {"boot": boot_id(), "pid": pid, "start_ticks": proc.start}


def find(record: dict[str, Any] | None, processes: dict[int, Proc], boot: str) -> Proc | None:
    """The live process that an identity record names, None when it is gone."""
    if not isinstance(record, dict) or record.get("boot") != boot:
        return None  # a damaged record may hold anything
    pid = record.get("pid")
    proc = processes.get(pid) if isinstance(pid, int) else None
    if proc is None or proc.start != record.get("start_ticks") or proc.state in "ZX":
        return None
    return proc


def descendants(
    roots: Iterable[int], processes: dict[int, Proc], stop: Collection[int]
) -> set[int]:
    """Pids below `roots` (not the roots themselves), not going into those in `stop`."""
    children: dict[int, list[int]] = {}
    for proc in processes.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found and child not in stop:
                found.add(child)
                queue.append(child)
    return found


def foreign(run_dir: str, processes: dict[int, Proc], boot: str) -> set[int]:
    """Pids of the shims and leaders of other runs that have not ended."""
    roots = set()
    for record in open_runs(units_of(run_dir), run_dir):
        for role in ("shim", "leader"):
            proc = find(record.get(role), processes, boot)
            if proc is not None:
                roots.add(proc.pid)
    return roots


def members(
    run_dir: str,
    identity_record: dict[str, Any],
    *,
    exclude: Collection[int] = (),
    known: Collection[tuple[int, int]] = (),
    strict: bool = False,
) -> list[Proc]:
    """The processes of a run that are alive now, without its shim and those in `exclude`.

    `known` are (pid, start) of processes that were seen to descend from the leader earlier.
    `strict`: for a run that nobody has watched to its end. Its session's number may have been
    given to others since, so a member must carry a mark of this state directory as well."""
    processes = table()
    boot = boot_id()
    leader = identity_record.get("leader") or {}
    same_boot = leader.get("boot") == boot
    shim = find(identity_record.get("shim"), processes, boot)
    head = find(leader, processes, boot)
    roots = [proc.pid for proc in (shim, head) if proc is not None]
    strangers = foreign(run_dir, processes, boot)
    # A standby is above the engines that it has forked: not into what is below this run.
    others = strangers | descendants(strangers, processes, roots)
    found = descendants(roots, processes, others)
    if head is not None:
        found.add(head.pid)
    found.update(pid for pid, start in known if pid in processes and processes[pid].start == start)
    session = _session(identity_record, processes) if same_boot else None
    if session in {processes[pid].sid for pid in strangers}:
        session = None
    state = units_of(run_dir) + "/"
    me = os.geteuid()
    for proc in processes.values():
        if proc.uid != me or proc.pid in found or proc.pid in strangers:
            continue
        mark = run_dir_of(proc.pid) or ""
        # The session first: what an engine leaves behind may have become a child of the shim of
        # the standby that forked it, and carries the standby's mark.
        if session is not None and proc.sid == session:
            if not strict or mark.startswith(state):
                found.add(proc.pid)
        elif mark == run_dir and proc.pid not in others:
            found.add(proc.pid)
    found -= {os.getpid(), *exclude}
    if shim is not None:
        found.discard(shim.pid)
    return [processes[pid] for pid in sorted(found) if processes[pid].state not in "ZX"]


def send(proc: Proc, signum: signal.Signals) -> bool:
    """Signal exactly this process through a pidfd. False when it is gone, or not ours to end."""
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError:
        return False
    try:
        now = look(proc.pid)
        if now is None or now.start != proc.start:
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _session(record: dict[str, Any], processes: dict[int, Proc]) -> int | None:
    # A session's number is not given out again while the session has members, but may be after.
    number = record.get("session")
    for role in ("leader", "shim"):
        owner = record.get(role) or {}
        if number and owner.get("pid") == number:
            now = processes.get(number)
            return number if now is None or now.start == owner.get("start_ticks") else None
    return None


def units_of(run_dir: str) -> str:
    """The directory of units that a run directory is in."""
    return os.path.dirname(os.path.dirname(os.path.dirname(run_dir)))


def open_runs(units: str, except_dir: str = "") -> Iterator[dict[str, Any]]:
    """identity.json of every run that has no exit record yet, and of every current run: one that
    has ended may still have a shim that waits to start the next."""
    for unit in _names(units):
        current = (disk.read_json(f"{units}/{unit}/current.json") or {}).get("run", "")
        for number in _names(f"{units}/{unit}/runs"):
            directory = f"{units}/{unit}/runs/{number}"
            ended = os.path.exists(f"{directory}/exit.json") and current != f"{unit}/{number}"
            if directory != except_dir and not ended:
                record = disk.read_json(f"{directory}/identity.json")
                if record is not None:
                    yield record


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
