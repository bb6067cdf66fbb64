"""A restart by the policy whose shim was killed before it was made, or in the middle of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_ctl import atomic, identity
from engine_ctl.model import Phase
from engine_ctl.observe.once import snapshot_once
from engine_ctl.operations import lifecycle
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import adopt_orphans
from engine_ctl.state import events
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness, owed, procs
from engine_ctl.supervise.launch import SHIM
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import stop
from engine_ctl.swap import past
from profiles.model import EnvRef
from tests.standin.rig import TREE, Rig, restart, rig, until

__all__ = ["rig"]

DIES = ("--exit-after", "0", "--code", "3")


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """Listens where the run's standby should, and never says anything."""
    directory = Path(tempfile.mkdtemp(prefix="st-"))  # a short path
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s"))
        server.listen()
        server.settimeout(100)
        yield server
    shutil.rmtree(directory)


def wanted(rig: Rig, unit: str = "demo", desired: str = "running") -> None:
    with rig.store.lock(unit):
        record = rig.store.load(unit)
        rig.store.save(msgspec.structs.replace(record, desired=desired))


def look(rig: Rig) -> None:
    adopt_orphans(Context(rig.dirs, by="test"))


def told(rig: Rig) -> list[str]:
    return [event.text for event in events.last(rig.dirs, 50, unit="demo")]


def cut_off(rig: Rig, mute: socket.socket) -> tuple[Run, Run]:
    """The run that failed, and the next one, whose shim was killed as it asked the standby."""
    words = [sys.executable, "-I", "-S", str(TREE), *DIES]
    first = rig.start(
        argv=["/bin/sh", "-c", 'exec "$@"', "serve", *words],
        restart=restart(backoff_s=0.05, max=2),
        standby_socket=mute.getsockname(),
        standby_identity="x",
    )
    who = first.identity()
    assert who is not None
    connection, _ = mute.accept()
    with connection:
        rig.kill(who.shim.pid)
        assert identity.wait_gone(who.shim, 100)
    mute.close()
    second = rig.store.current("demo")
    assert second is not None and second.number == 2 and second.identity() is None
    return first, second


def test_cut_off_between_making_and_starting_it_goes_on(rig: Rig, mute: socket.socket) -> None:
    _, second = cut_off(rig, mute)
    assert rig.life(second) is Life.LOST
    look(rig)
    assert rig.store.current("demo") == second, "nobody wants it to run"
    wanted(rig)
    look(rig)
    third = rig.next_run(second)
    assert (third.spec().predecessor, third.spec().attempt) == (second.id, 3)
    record = second.exit()
    assert record is not None and record.error == owed.CUT_OFF
    assert rig.life(second) is Life.FAILED
    # It ends with the same status, and the maximum of the policy holds over the gap.
    assert rig.ended(third).gave_up
    assert "demo/2: the shim that was to start it again is gone; the restart goes on" in told(rig)
    look(rig)
    assert rig.store.current("demo") == third


def test_a_standby_that_comes_late_begins_nothing(rig: Rig, mute: socket.socket) -> None:
    _, second = cut_off(rig, mute)
    wanted(rig)
    look(rig)
    third = rig.next_run(second)
    rig.ended(third)
    kept = (second.dir / "exit.json").read_bytes()
    until(lambda: not liveness.look(second).facts.shim_holds, "its lock is free")
    command = [sys.executable, "-I", "-S", str(SHIM), str(second.dir), "--child", str(os.getpid())]
    assert subprocess.run(command, timeout=100).returncode == 1
    assert (second.dir / "exit.json").read_bytes() == kept and second.identity() is None


def test_killed_in_the_backoff_it_goes_on_and_can_be_stopped(rig: Rig) -> None:
    run = rig.start(*DIES, restart=restart(backoff_s=1000, backoff_max_s=1000))
    rig.ended(run)
    rig.kill_shim(run)
    wanted(rig)
    assert liveness.look(run).forsaken
    view = snapshot_once(rig.dirs, ["demo"]).units[0]
    assert view.owed and view.note == "its restart was lost with its shim; start it again"
    look(rig)
    assert liveness.look(run).restarting
    view = snapshot_once(rig.dirs, ["demo"]).units[0]
    assert (view.owed, view.phase) == (False, Phase.FAILED) and "restarts soon" in view.note
    look(rig)
    assert told(rig).count(
        "demo/1: the shim that was to start it again is gone; the restart goes on"
    ) == 1  # fmt: skip
    stop(run)
    life = liveness.look(run)
    assert not life.restarting and not life.forsaken
    assert rig.store.current("demo") == run
    assert run.request() is not None and past._stop_s(run) is None, "it took no time to stop"


def test_a_shim_that_is_asked_to_end_in_the_backoff_owes_nothing(rig: Rig) -> None:
    run = rig.start(*DIES, restart=restart(backoff_s=1000, backoff_max_s=1000))
    rig.ended(run)
    wanted(rig)
    who = run.identity()
    assert who is not None
    os.kill(who.shim.pid, signal.SIGTERM)
    assert identity.wait_gone(who.shim, 100)
    look(rig)
    life = liveness.look(run)
    assert not life.restarting and not life.forsaken
    assert rig.store.current("demo") == run


def test_what_never_began_is_stopped_and_begins_no_more(rig: Rig, mute: socket.socket) -> None:
    _, second = cut_off(rig, mute)
    wanted(rig)
    assert lifecycle.stop(Context(rig.dirs, by="test"), "demo")["how"] == "already"
    assert rig.life(second) is Life.EXITED
    command = [sys.executable, "-I", "-S", str(SHIM), str(second.dir), "--child", str(os.getpid())]
    assert subprocess.run(command, timeout=100).returncode == 1
    assert second.identity() is None


def test_after_a_long_time_it_is_said_to_be_lost_once(rig: Rig) -> None:
    run = rig.start(*DIES, restart=restart(backoff_s=1000))
    record = rig.ended(run)
    rig.kill_shim(run)
    wanted(rig)
    long_ago = msgspec.structs.replace(record, ended=time.time() - 3600)
    atomic.write_record(run.dir / "exit.json", long_ago)
    for _ in range(2):
        look(rig)
    assert not liveness.look(run).restarting
    text = "the restart of demo/1 was lost with its shim, to start it: stoker start demo"
    assert told(rig).count(text) == 1
    wanted(rig, desired="stopped")
    assert snapshot_once(rig.dirs, ["demo"]).units[0].owed is False


def test_many_look_at_once_and_one_goes_on(rig: Rig, mute: socket.socket) -> None:
    _, second = cut_off(rig, mute)
    wanted(rig)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(
                rig.console(
                    "from engine_ctl.operations.context import Context\n"
                    "from engine_ctl.operations.runs import adopt_orphans\n"
                    "adopt_orphans(Context(rig.dirs, by='test'))\n"
                )
            )
    third = rig.next_run(second)
    rig.ended(third)
    assert [run.number for run in rig.store.runs("demo")] == [1, 2, 3]
    assert not [p for p in procs.table() if procs.run_dir_of(p) == str(second.dir)]


def test_it_waits_for_a_look_that_has_the_secret(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "secret")
    refs = {"KEPT": EnvRef(from_env="MINE")}
    first = rig.start(*DIES, restart=restart(backoff_s=600.0, max=2), env_refs=refs)
    rig.ended(first)
    wanted(rig)
    rig.kill_shim(first)
    record = first.exit()
    assert record is not None
    atomic.write_record(first.dir / "exit.json", msgspec.structs.replace(record, restart_in_s=0.01))
    monkeypatch.delenv("MINE")
    look(rig)
    assert rig.store.current("demo") == first and not any("goes on" in text for text in told(rig))
    monkeypatch.setenv("MINE", "secret")
    look(rig)
    assert rig.next_run(first).number == 2
    assert any("the restart goes on" in text for text in told(rig))
