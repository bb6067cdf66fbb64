"""Whose a run is: that of the state directory that it lies in, or of one that this is a copy of.

A copy (`cp -r`, a restored backup) has the records of processes that belong to the original, whose
shims work with the original's paths: a stop here would end an engine of there."""

from __future__ import annotations

import os
from pathlib import Path

from engine_ctl.errors import Failed
from engine_ctl.identity import alive
from engine_ctl.state.records import RunIdentity
from engine_ctl.state.store import Run
from engine_ctl.supervise import procs


def original(run: Run, who: RunIdentity | None) -> str:
    """The state directory that the run's live processes belong to, where it is another than the
    run's own; "" where it is its own, nothing lives, or nobody can tell.

    A directory that is no longer where it was was moved, whatever may be in its place now."""
    if who is None:
        return ""
    directory = who.dir if alive(who.leader) or alive(who.shim) else ""
    if not directory and alive(who.shim):
        directory = procs.shim_dir(procs.command_line(who.shim.pid))
    if directory and not os.path.isdir(directory):
        return ""
    if not directory and alive(who.leader):
        # A standby's fork carries the mark of the standby, which is another run of the same state.
        directory = procs.run_dir_of(who.leader.pid) or ""
    return other_state(directory, str(run.dir))


def other_state(recorded: str, run_dir: str) -> str:
    """The state directory of the run directory `recorded`, where it is there and is another than
    that of `run_dir`; else ""."""
    theirs, ours = procs.units_of(recorded), procs.units_of(run_dir)
    if not theirs or theirs == ours or not os.path.isdir(theirs) or os.path.samefile(theirs, ours):
        return ""
    return os.path.dirname(theirs)


def refusal(run: Run, state: str, command: str) -> str:
    """One line: whose the run is, and where to give the `command`."""
    where = Path(state)
    there = f"XDG_STATE_HOME={where.parent} {command}" if where.name == "stoker" else command
    return (
        f"{run.id} runs for {state}, of which this state directory is a copy; "
        f"nothing was touched, there it is: {there}"
    )


def refuse(run: Run, command: str) -> None:
    """Raise Failed, with the place for `command`, when the run's processes are another state
    directory's."""
    state = original(run, run.identity())
    if state:
        raise Failed(refusal(run, state, command))
