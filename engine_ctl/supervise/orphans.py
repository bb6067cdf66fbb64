"""Processes whose run has ended: finding them, and ending them after a check.

Also `owners`: which live run each process belongs to, for the memory ledger."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.errors import StokerError
from engine_ctl.state.store import Run, Store, is_locked
from engine_ctl.supervise import disk, liveness, procs, remains
from engine_ctl.supervise.copies import other_state
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


@dataclass(frozen=True, slots=True)
class _Owner:
    """The live run that a process belongs to. `loose`: it is below the run's shim, but not below
    its leader nor in its session."""

    run: str
    directory: str
    loose: bool


def owners(store: Store) -> dict[int, str]:
    """Run id by pid, of every process of every live run (shims, leaders and all below)."""
    return {pid: owner.run for pid, owner in _live(store, procs.table()).items()}


def find(store: Store) -> list[Orphan]:
    """Processes that carry the mark of a run of this state directory which has ended (or was
    deleted), or that are left in the session of such a run. One look at /proc."""
    processes = procs.table()
    live = _live(store, processes)
    units = str(store.units_dir)
    running = {owner.directory for owner in live.values()}
    me = os.geteuid()
    ours = _ancestors(os.getpid(), processes)
    found = []
    for proc in processes.values():
        owner = live.get(proc.pid)
        if proc.uid != me or proc.pid in ours or proc.state in "ZX":
            continue
        if owner is not None and not owner.loose:
            continue
        mark = procs.run_dir_of(proc.pid)
        if mark is None or not mark.startswith(units + "/"):
            continue
        directory: str | None = mark
        if mark in running:
            # The run with this mark will sweep it, unless it is what is left of an engine that
            # the run, a standby, has forked.
            directory = _session_owner(units, proc)
        if directory is None or directory in running or _held(directory):
            continue
        if not any(_writes_elsewhere(pid, units) for pid in _ancestors(proc.pid, processes)):
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


def tidy(store: Store) -> list[str]:
    """Remove what runs left that nobody has settled: their shim was killed, or something of them
    was alive. The ids of those runs."""
    held = [
        Run(unit.name, int(path.name), path)
        for unit in store.units_dir.glob("[!.]*")
        for path in (unit / "runs").glob("[1-9]*")
        if path.name.isdecimal() and remains.noted(str(path))
    ]
    return [run.id for run in held if _is_gone(run) and remains.remove(str(run.dir))]


def _is_gone(run: Run) -> bool:
    """True when the run has ended and nothing of it lives, here or in the original of a copy."""
    try:
        life = liveness.look(run)
    except (StokerError, OSError):
        return False
    facts = life.facts
    if not life.ended or facts.shim_holds or facts.leader_alive or facts.original:
        return False
    who = msgspec.to_builtins(facts.identity) if facts.identity is not None else {}
    return not procs.members(str(run.dir), who, strict=True)


def _live(store: Store, processes: dict[int, Proc]) -> dict[int, _Owner]:
    """Owner by pid: by the leader's session, else the nearest leader or shim above it."""
    boot = procs.boot_id()
    roots: dict[int, _Owner] = {}
    sessions: dict[int, _Owner | None] = {}
    for record in procs.open_runs(str(store.units_dir)):
        run = str(record.get("run", ""))
        unit, _, number = run.rpartition("/")
        directory = f"{store.units_dir}/{unit}/runs/{number}"
        if other_state(str(record.get("dir") or ""), directory):
            continue
        for role in ("shim", "leader"):
            proc = procs.find(record.get(role), processes, boot)
            if proc is None:
                continue
            roots[proc.pid] = _Owner(run, directory, loose=role == "shim")
            if role == "leader":
                shared = proc.sid in sessions
                sessions[proc.sid] = None if shared else _Owner(run, directory, loose=False)
    owned: dict[int, _Owner] = {}
    for pid, proc in processes.items():
        line = _ancestors(pid, processes)
        nearest = next((roots[above] for above in line if above in roots), None)
        if pid in roots:
            owned[pid] = replace(roots[pid], loose=False)
            continue
        owner = sessions.get(proc.sid) or nearest
        if owner is not None:
            owned[pid] = owner
    return owned


def _ancestors(pid: int, processes: dict[int, Proc]) -> list[int]:
    """The process itself and those above it, nearest first."""
    line: list[int] = []
    while pid in processes and pid not in line:
        line.append(pid)
        pid = processes[pid].ppid
    return line


def _session_owner(units: str, proc: Proc) -> str | None:
    """The run of this boot in whose session a process is, and that it cannot have come after."""
    boot = procs.boot_id()
    for path in Path(units).glob("*/runs/*/identity.json"):
        record: dict[str, Any] = disk.read_json(str(path)) or {}
        leader = record.get("leader") or {}
        if record.get("session") != proc.sid or leader.get("boot") != boot:
            continue
        ended = disk.read_json(str(path.with_name("exit.json")))
        if ended is None or proc.start <= (ended.get("ended_ticks") or 0):
            return str(path.parent)
    return None


def _writes_elsewhere(pid: int, units: str) -> bool:
    """Whether its output goes into a run's directory that is there and is none of these units': the
    state was moved, and this one made in its place. The kernel follows an open file."""
    for number in (1, 2):
        try:
            directory, name = os.path.split(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue
        theirs = procs.units_of(directory)
        known = name in ("log", "shim.err") and os.path.isfile(f"{directory}/spec.json")
        if known and theirs != units and os.path.basename(os.path.dirname(directory)) == "runs":
            return True
    return False


def _held(directory: str) -> bool:
    """True while a shim is about to start the run, or to sweep it."""
    lock = is_locked(Path(directory, "shim.lock"))
    return lock and not os.path.exists(f"{directory}/exit.json")


def _run_id(directory: str) -> str:
    parts = directory.split("/")
    return f"{parts[-3]}/{parts[-1]}"


def _command(proc: Proc) -> str:
    text = b" ".join(procs.command_line(proc.pid)).decode(errors="replace").strip()
    return text or f"[{proc.comm}]"
