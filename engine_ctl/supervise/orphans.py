"""Processes whose run has ended: finding them, and ending them after a check.

Also `owners`: which live run each process belongs to, for the memory ledger."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_ctl.state.store import Store, is_locked
from engine_ctl.supervise import disk, procs
from engine_ctl.supervise.procs import Proc
from engine_ctl.supervise.sweep import sweep


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that belongs to a run that has ended. `run` is "<unit>/<n>"."""

    pid: int
    start_ticks: int
    run: str
    unit: str
    command: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """Pids that are gone now, and those that would not go."""

    ended: tuple[int, ...]
    remaining: tuple[int, ...]


def owners(store: Store) -> dict[int, str]:
    """Run id by pid, of every process of every live run (shims, leaders and all below)."""
    processes = procs.table()
    return {pid: run for pid, (run, _) in _live(store, processes).items()}


def find(store: Store) -> list[Orphan]:
    """Processes that carry the mark of a run of this state directory which has ended (or was
    deleted), or that are left in the session of such a run. One look at /proc."""
    processes = procs.table()
    live = _live(store, processes)
    units = os.path.realpath(store.units_dir) + "/"
    running = {directory for _, directory in live.values()}
    me = os.geteuid()
    ours = _ancestors(os.getpid(), processes)
    found = []
    for proc in processes.values():
        if proc.uid != me or proc.pid in live or proc.pid in ours or proc.state in "ZX":
            continue
        mark = procs.run_dir_of(proc.pid)
        if mark is None or not mark.startswith(units):
            continue
        directory: str | None = mark
        if mark in running:
            # Marked by a live run that it does not descend from: that run will sweep it, unless
            # it is what is left of an engine that a standby forked.
            directory = _session_owner(units, proc)
        if directory is not None and directory not in running and not _beginning(directory):
            run = _run_id(directory)
            unit = run.rpartition("/")[0]
            found.append(Orphan(proc.pid, proc.start, run, unit, _command(proc)))
    return found


def reap(orphans: list[Orphan]) -> Reaped:
    """SIGTERM, then SIGKILL, each checked to be the very process that was found; blocks for
    seconds."""
    wanted = {orphan.pid: orphan.start_ticks for orphan in orphans}

    def left() -> list[Proc]:
        now = (procs.look(pid) for pid in wanted)
        return [
            proc
            for proc in now
            if proc is not None and proc.start == wanted[proc.pid] and proc.state not in "ZX"
        ]

    _, remaining = sweep(left, grace_s=0.0)
    return Reaped(tuple(pid for pid in wanted if pid not in remaining), tuple(remaining))


def _live(store: Store, processes: dict[int, Proc]) -> dict[int, tuple[str, str]]:
    """(run id, run directory) by pid. The nearest run above a process owns it."""
    boot = procs.boot_id()
    units = os.path.realpath(store.units_dir)
    roots: dict[int, tuple[str, str]] = {}
    sessions: dict[int, tuple[str, str]] = {}
    for record in procs.open_runs(units):
        run = str(record.get("run", ""))
        unit, _, number = run.rpartition("/")
        who = (run, f"{units}/{unit}/runs/{number}")
        for role in ("shim", "leader"):
            proc = procs.find(record.get(role), processes, boot)
            if proc is not None:
                roots[proc.pid] = who
                if role == "leader":
                    sessions[proc.sid] = who
    owned: dict[int, tuple[str, str]] = {}
    for pid in processes:
        owner = _nearest(pid, processes, roots)
        if owner is None:
            owner = sessions.get(processes[pid].sid)
        if owner is not None:
            owned[pid] = owner
    return owned


def _nearest(
    pid: int, processes: dict[int, Proc], roots: dict[int, tuple[str, str]]
) -> tuple[str, str] | None:
    for ancestor in _ancestors(pid, processes):
        if ancestor in roots:
            return roots[ancestor]
    return None


def _ancestors(pid: int, processes: dict[int, Proc]) -> list[int]:
    """The process itself and those above it, nearest first."""
    line: list[int] = []
    while pid in processes and pid not in line:
        line.append(pid)
        pid = processes[pid].ppid
    return line


def _session_owner(units: str, proc: Proc) -> str | None:
    for path in Path(units).glob("*/runs/*/exit.json"):
        record: dict[str, Any] = disk.read_json(str(path.with_name("identity.json"))) or {}
        if record.get("session") != proc.sid:
            continue
        ended = disk.read_json(str(path)) or {}
        if ended.get("boot") == procs.boot_id() and proc.start <= (ended.get("ended_ticks") or 0):
            return str(path.parent)
    return None


def _beginning(directory: str) -> bool:
    """True while a shim holds a run: it is starting it, or about to sweep."""
    lock = is_locked(Path(directory, "shim.lock"))
    return lock and not os.path.exists(f"{directory}/exit.json")


def _run_id(directory: str) -> str:
    parts = directory.split("/")
    return f"{parts[-3]}/{parts[-1]}"


def _command(proc: Proc) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{proc.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        text = b" ".join(words).decode(errors="replace").strip()
        if text:
            return text
    return f"[{proc.comm}]"
