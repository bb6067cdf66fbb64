"""A stop interrupts the swap or start that waits for an engine, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from console.main import run
from engine_ctl import identity
from engine_ctl.errors import Busy
from engine_ctl.operations import interrupting, lifecycle
from engine_ctl.operations import swapping as swapping_
from engine_ctl.state.store import Holder
from engine_ctl.supervise import liveness
from engine_ctl.supervise.stop import stop
from engine_ctl.swap import journal
from tests.standin.rig import until
from tests.standin.serving import Serving, installed

ROOT = Path(__file__).parents[2]
STOKER = [sys.executable, "-c", "from console.main import main; main()"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    with installed() as made:
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def swapping(here: Serving) -> Iterator[subprocess.Popen[bytes]]:
    """A swap of u to an engine that never listens, at its wait for that."""
    here.profile("good", 4)
    here.profile("never", 8, "late")
    lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "good"), print)
    command = subprocess.Popen(
        [*STOKER, "swap", "u", "never"],
        cwd=ROOT,
        env={**os.environ, **here.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: any("waiting for u/2" in text for text in here.said("u")), "it waits")
        yield command
    finally:
        command.kill()
        command.wait()


@pytest.mark.parametrize("suspended", [False, True])
def test_a_stop_interrupts_a_swap_that_waits(
    here: Serving,
    swapping: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    suspended: bool,
) -> None:
    if suspended:
        swapping.send_signal(signal.SIGSTOP)
    found = here.ctx.store.holder("u")
    assert found is not None and found.who.pid == swapping.pid
    assert found.command == "stoker swap u never"
    assert run(["stop", "u"]) == 4
    assert f"pid {swapping.pid} (stoker swap u never); to interrupt that" in capsys.readouterr().err
    assert liveness.look(here.current("u")).life is liveness.Life.RUNNING
    assert run(["stop", "u", "--yes"]) == 0
    assert swapping.wait(100) in (130, -15)
    assert here.live("u") == [] and here.ctx.store.holder("u") is None
    assert any("interrupted to be stopped: stoker swap u never" in text for text in here.said("u"))
    assert here.ctx.store.load("u").desired == "stopped"
    nobody_goes_on(here)
    assert [made.id for made in here.ctx.store.runs("u")] == ["u/1", "u/2"]


@pytest.mark.parametrize("then", ["stop", "start"])
def test_a_killed_swap_is_not_gone_on_with_after_a_stop_or_start(
    here: Serving, swapping: subprocess.Popen[bytes], then: str
) -> None:
    swapping.kill()
    swapping.wait()
    assert journal.unfinished(here.ctx.store) != []
    if then == "stop":
        lifecycle.stop(here.ctx, "u")
        assert here.live("u") == []
    else:
        # The engine that never listens was killed as well, and nobody has looked.
        stop(here.current("u"))
        here.profile("never", 8)
        lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "good"), print)
        assert here.answers("u") == "4"
    nobody_goes_on(here)


def nobody_goes_on(here: Serving) -> None:
    before = [made.id for made in here.live("u")]
    assert journal.unfinished(here.ctx.store) == []
    last = journal.read(here.ctx.store, "u")
    assert last is not None and last.outcome is journal.Outcome.ABANDONED
    assert swapping_.resume(here.ctx, "u", print) is None
    assert any("given up: u was st" in text for text in here.said("u"))
    assert [made.id for made in here.live("u")] == before


def test_only_what_may_be_interrupted_is(here: Serving) -> None:
    here.profile("good", 4)
    lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "good"), print)
    assert here.ctx.store.holder("u") is None
    for command in ("stoker stop u", "stoker sweep u --set a=1,2", "swap u good", "stoker"):
        with here.ctx.store.lock("u", command):
            found = here.ctx.store.holder("u")
            assert found is not None and found.who.pid == os.getpid()
            assert interrupting.holder(here.ctx, "u") is None
            assert run(["stop", "u", "--yes"]) == 4
    assert liveness.look(here.current("u")).life is liveness.Life.RUNNING


def test_a_name_that_a_killed_holder_left_is_nobody(here: Serving) -> None:
    here.profile("good", 4)
    lifecycle.unit_for(here.ctx, "u", "good")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        who = identity.identify(child.pid)
        child.kill()
    left = {**msgspec.to_builtins(who), "command": "stoker swap u good"}
    lock = here.ctx.store.unit_dir("u") / "lock"
    with here.ctx.store.lock("u", "stoker swap u good"):
        for text in (json.dumps(left), "", "[]", "\0"):
            lock.write_text(text)
            assert here.ctx.store.holder("u") is None


def test_one_that_does_not_end_is_said(here: Serving) -> None:
    here.profile("good", 4)
    lifecycle.unit_for(here.ctx, "u", "good")
    deaf = (
        "import signal\n"
        "for number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        who = identity.identify(child.pid)
        assert who is not None
        found = Holder(who, "stoker swap u x")
        with here.ctx.store.lock("u"):
            text = json.dumps({**msgspec.to_builtins(who), "command": found.command})
            (here.ctx.store.unit_dir("u") / "lock").write_text(text)
            with pytest.raises(Busy, match="does not end"):
                interrupting.interrupt(here.ctx, "u", found, print, 0.05)
        child.kill()


def test_one_that_went_on_to_another_unit_is_left_alone(here: Serving) -> None:
    here.profile("good", 4)
    lifecycle.unit_for(here.ctx, "u", "good")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        who = identity.identify(child.pid)
        assert who is not None
        interrupting.interrupt(here.ctx, "u", Holder(who, "stoker restart u v"), print)
        assert identity.alive(who) and here.said("u") == []
        child.communicate(b"\n")
    assert child.returncode == 0
