"""SIGKILL to everything that can die, in each phase of a run, with real processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine_ctl import identity
from engine_ctl.model import Phase
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import adopt_orphans
from engine_ctl.state import events
from engine_ctl.state.event_filter import kind_of
from engine_ctl.state.store import Run
from engine_ctl.supervise import launch, liveness, orphans, procs
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import Step, Stop, stop
from tests.standin.rig import QUICK, Rig, free_port, restart, rig, until

__all__ = ["rig"]

STUBBORN = ("--ignore-term", "--children-ignore-term")


def nothing_left(rig: Rig, run: Run) -> bool:
    return not any(
        (proc := procs.look(pid)) is not None and proc.state not in "ZX"
        for pid in rig.pids(run).values()
    )


def leader(rig: Rig, run: Run) -> int:
    return rig.pids(run)["leader"]


class Stopping:
    """A stop that goes on in a thread while something is killed."""

    def __init__(
        self, run: Run, ladder: Stop = QUICK, on_ask: Callable[[], object] = lambda: None
    ) -> None:
        """`on_ask` is called by the stop itself, at its first step."""
        self.asked = threading.Event()
        self.on_ask = on_ask
        self.result: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._stop, args=(run, ladder), daemon=True)
        self._thread.start()
        assert self.asked.wait(100)

    def _stop(self, run: Run, ladder: Stop) -> None:
        try:
            self.result = stop(run, by="test", ladder=ladder, on_step=self._stepped)
        except Exception as error:
            self.error = error

    def _stepped(self, step: Step) -> None:
        if not self.asked.is_set():
            self.on_ask()
            self.asked.set()

    def join(self) -> Any:
        self._thread.join(120)
        assert not self._thread.is_alive() and self.error is None
        return self.result


# The console


@pytest.mark.parametrize("phase", ["before ready", "ready"])
def test_console_killed_leaves_the_run_alone(rig: Rig, phase: str) -> None:
    port = free_port()
    after = "0" if phase == "ready" else "1000"
    wait = "until(run.ready)" if phase == "ready" else ""
    with rig.console(
        "from tests.standin.rig import until\n"
        f"run = rig.start('--ready-after', {after!r}, port={port}, children=1)\n"
        f"{wait}\n"
        "print(run.id, flush=True); time.sleep(1000)\n"
    ) as console:
        assert console.stdout is not None
        run = rig.store.run(console.stdout.readline().strip())
        console.kill()
    life = liveness.look(run)
    assert life.life is Life.RUNNING
    assert life.ready == (phase == "ready")
    assert [record.unit for record in rig.store.list_units().units] == ["demo"]
    assert rig.store.current("demo") == run
    assert stop(run).how == "ask"
    assert nothing_left(rig, run)


def test_console_killed_while_stopping_another_goes_on(rig: Rig) -> None:
    run = rig.ready(*STUBBORN, children=1, stop=QUICK)
    with rig.console(
        f"run = store.run({run.id!r})\n"
        "long = stop.Stop(ask_s=1000, ask_again_s=1000)\n"
        "stop.stop(run, ladder=long, on_step=lambda step: print(step.name, flush=True))\n"
    ) as console:
        assert console.stdout is not None
        assert console.stdout.readline() == "ask\n"
        console.kill()
    assert rig.life(run) is Life.STOPPING
    assert stop(run, ladder=QUICK).how == "kill"
    assert rig.life(run) is Life.EXITED
    assert nothing_left(rig, run)


def test_console_killed_while_stopping_the_shim_goes_on(rig: Rig) -> None:
    run = rig.ready(*STUBBORN, children=1, stop=QUICK)
    with rig.console(
        f"run = store.run({run.id!r})\n"
        "stop.stop(run, ladder=QUICK, on_step=lambda step: os.kill(os.getpid(), signal.SIGKILL))\n"
    ) as console:
        assert console.wait() == -signal.SIGKILL
    record = rig.ended(run)  # after the ladder and a margin of five seconds
    assert record.requested and record.signal == signal.SIGKILL
    assert nothing_left(rig, run)


def test_console_killed_in_backoff(rig: Rig) -> None:
    with rig.console(
        "from tests.standin.rig import restart\n"
        "run = rig.start('--exit-after', '0', '--code', '3', restart=restart(backoff_s=0.5))\n"
        "rig.ended(run); print(run.id, flush=True); time.sleep(1000)\n"
    ) as console:
        assert console.stdout is not None
        run = rig.store.run(console.stdout.readline().strip())
        console.kill()
    second = rig.next_run(run)
    assert second.spec().predecessor == run.id


# The shim


@pytest.mark.parametrize("phase", ["before ready", "ready"])
def test_shim_killed_is_orphaned_then_adopted(rig: Rig, phase: str) -> None:
    if phase == "ready":
        run = rig.ready(children=1)
    else:
        run = rig.start("--ready-after", "0.8", children=1, port=free_port())
    rig.kill_shim(run)
    life = liveness.look(run)
    assert (life.life, life.phase) == (Life.ORPHANED, Phase.ORPHANED)
    before = run.identity()
    assert launch.adopt(run)
    assert not launch.adopt(run)
    after = run.identity()
    assert before is not None and after is not None and after.adopted
    assert (after.leader, after.started) == (before.leader, before.started)
    assert rig.life(run) is Life.RUNNING
    until(run.ready, "the new shim asks for readiness")
    rig.kill(leader(rig, run))
    record = rig.ended(run)
    assert (record.code, record.signal, record.requested) == (None, None, False)
    assert rig.life(run) is Life.FAILED
    assert nothing_left(rig, run)


def test_shim_killed_before_ready_the_run_can_be_stopped(rig: Rig) -> None:
    run = rig.start("--ready-after", "1000", "--setsid", children=2, port=free_port())
    rig.kill_shim(run)
    done = stop(run, by="test")
    assert done.how == "ask"
    assert rig.life(run) is Life.EXITED
    assert nothing_left(rig, run)


def test_shim_killed_while_stopping(rig: Rig) -> None:
    run = rig.ready(*STUBBORN, "--setsid", children=1, stop=QUICK)
    # By the stop itself: beside it the ladder could be over before.
    going = Stopping(run, on_ask=lambda: rig.kill_shim(run))
    assert going.join().how == "kill"
    record = rig.ended(run)
    assert record.requested and record.remaining == []
    assert rig.life(run) is Life.EXITED
    assert nothing_left(rig, run)


def test_shim_killed_in_backoff_ends_the_series(rig: Rig) -> None:
    run = rig.start("--exit-after", "0", "--code", "3", restart=restart(backoff_s=1000))
    assert rig.ended(run).restart_in_s == 60  # the default of backoff_max_s
    assert liveness.look(run).restarting
    rig.kill_shim(run)
    life = liveness.look(run)
    assert life.life is Life.FAILED and not life.restarting
    assert stop(run).how == "already"
    assert rig.store.current("demo") == run


def test_shim_and_leader_killed_is_lost(rig: Rig) -> None:
    run = rig.ready("--setsid", "--children-ignore-term", children=2, stop=QUICK)
    rig.kill_shim(run)
    who = run.identity()
    assert who is not None
    rig.kill(who.leader.pid)
    assert identity.wait_gone(who.leader, 100)
    assert rig.life(run) is Life.LOST
    assert not launch.adopt(run)
    found = orphans.find(rig.store)
    children = {rig.pids(run)["child0"], rig.pids(run)["child1"]}
    assert {orphan.pid for orphan in found} == children
    assert {orphan.run for orphan in found} == {run.id}
    assert "tree.py" in found[0].command
    done = orphans.reap(found)
    assert set(done.ended) == children and done.remaining == ()
    assert orphans.find(rig.store) == []
    assert rig.life(run) is Life.LOST


def test_everything_killed_at_once(rig: Rig) -> None:
    run = rig.ready("--setsid", "--depth", "2", children=2)
    rig.kill_shim(run)
    for pid in rig.pids(run).values():
        rig.kill(pid)
    until(lambda: nothing_left(rig, run))
    assert rig.life(run) is Life.LOST
    for _ in range(2):
        assert adopt_orphans(Context(rig.dirs, by="test")) == []
    told = [event for event in events.last(rig.dirs, 10, unit="demo") if "lost" in event.text]
    assert [event.text for event in told] == [
        "demo/1 is lost: shim and process are gone; nobody saw the end"
    ]
    assert told[0].severity == "error" and kind_of(told[0]) == "failure"
    assert stop(run).how == "already"
    assert orphans.find(rig.store) == []


# The leader


@pytest.mark.parametrize("phase", ["before ready", "ready"])
@pytest.mark.parametrize("children", ["plain", "stubborn", "own session"])
def test_leader_killed_is_failed_and_swept(rig: Rig, phase: str, children: str) -> None:
    options = {
        "plain": (),
        "stubborn": ("--children-ignore-term", "--rename", "VLLM::EngineCor"),
        "own session": ("--setsid", "--depth", "2"),
    }[children]
    if phase == "ready":
        run = rig.ready(*options, children=2, stop=QUICK)
    else:
        port = free_port()
        run = rig.start(*options, "--ready-after", "1000", children=2, port=port, stop=QUICK)
    rig.kill(leader(rig, run))
    record = rig.ended(run)
    assert record.signal == signal.SIGKILL and not record.requested
    below = {pid for name, pid in rig.pids(run).items() if name != "leader"}
    assert set(record.swept) == below
    assert nothing_left(rig, run)
    assert rig.life(run) is Life.FAILED
    assert (run.ready() is not None) == (phase == "ready")


def test_leader_killed_while_stopping_has_exited(rig: Rig) -> None:
    run = rig.ready(*STUBBORN, children=1, stop=QUICK)
    going = Stopping(run, Stop(ask_s=1000, ask_again_s=1000))
    rig.kill(leader(rig, run))
    assert going.join().how == "ask"
    assert rig.life(run) is Life.EXITED
    assert nothing_left(rig, run)


# A child


@pytest.mark.parametrize("phase", ["before ready", "ready"])
def test_child_killed_ends_with_status_0_and_has_failed(rig: Rig, phase: str) -> None:
    # vLLM's API server ends with status 0 after its EngineCore was killed.
    run = rig.start("--exit-0-with-child", "--children-ignore-term", children=2, stop=QUICK)
    if phase == "ready":
        (run.dir / "ready.json").write_text('{"wall": 0, "seconds": 1}')
    rig.kill(rig.pids(run)["child0"])
    record = rig.ended(run)
    assert (record.code, record.requested) == (0, False)
    assert rig.life(run) is Life.FAILED
    assert nothing_left(rig, run)


def test_child_killed_while_stopping_has_exited(rig: Rig) -> None:
    run = rig.start("--exit-0-with-child", "--ignore-term", children=1)
    going = Stopping(run, Stop(ask_s=1000, ask_again_s=1000))
    rig.kill(rig.pids(run)["child0"])
    assert going.join().exit.code == 0
    assert rig.life(run) is Life.EXITED


def test_child_killed_when_the_leader_does_not_mind(rig: Rig) -> None:
    run = rig.ready(children=2)
    rig.kill(rig.pids(run)["child0"])
    until(lambda: (procs.look(rig.pids(run)["child0"]) or procs.look(1)).state, "a zombie at most")
    assert rig.life(run) is Life.RUNNING
    assert stop(run).how == "ask"
