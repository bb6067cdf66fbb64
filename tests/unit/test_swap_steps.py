"""The swap around real processes of a stand-in for vLLM: every step said and survived."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.main import run
from engine_ctl.errors import Busy, Failed, NotFound
from engine_ctl.operations import lifecycle, swapping
from engine_ctl.swap import journal
from engine_ctl.swap.forecast import forecast
from engine_ctl.swap.journal import Outcome, Step, SwapRecord
from tests.standin.rig import free_port, until
from tests.standin.serving import Serving, trap


@pytest.fixture(scope="module")
def installation() -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        before = dict(os.environ)
        made = Serving(Path(root))
        os.environ.update(made.env)
        try:
            made.profile("one", 1)
            made.profile("two", 2)
            made.profile("dies", 3, "dies")
            made.profile("late", 4, "late", ready_timeout_s=0.5)
            made.profile("mute", 5, "mute")
            yield made
        finally:
            made.close()
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture
def here(installation: Serving) -> Iterator[Serving]:
    """Unit u serves `one`, whatever the test before has left."""
    ctx = installation.ctx
    swapping_done = journal.read(ctx.store, "u") if ctx.store.exists("u") else None
    if swapping_done is not None and swapping_done.outcome is None:
        swapping.resume(ctx, "u", lambda _: None)
    if not installation.live("u") if ctx.store.exists("u") else True:
        run = lifecycle.start(ctx, "u", "one")
        lifecycle.wait_ready(ctx, run, lambda _: None)
    elif installation.answers("u") != "1":
        swapping.swap_to(ctx, "u", "one", lambda _: None)
    yield installation


def swap(here: Serving, profile: str, rollback: bool = True) -> tuple[SwapRecord, list[str]]:
    """A swap of u, and what was said of it among the events."""
    since = time.time()
    done = swapping.swap_to(here.ctx, "u", profile, lambda _: None, rollback)
    return done, here.said("u", since)


def in_order(texts: list[str], *wanted: str) -> bool:
    rest = iter(texts)
    return all(any(want in text for text in rest) for want in wanted)


KILLED_BEFORE_IT_BEGINS = """
import os, signal
from engine_ctl.operations import lifecycle
lifecycle.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("command", ["start", "restart", "swap"])
def test_a_start_that_was_killed_before_it_began_keeps_no_other_away(
    here: Serving, command: str
) -> None:
    lifecycle.stop(here.ctx, "u")
    assert here.killed(KILLED_BEFORE_IT_BEGINS, "start", "u") == -signal.SIGKILL
    left = here.current("u")
    assert left.identity() is None and left.exit() is None
    words = [command, "u", "one"] if command == "swap" else [command, "u", "--wait"]
    assert run(words) == 0
    until(lambda: here.current("u").ready(), "it serves")
    assert here.live("u") == [here.current("u")] and here.answers("u") == "1"
    assert left.exit() is not None, "nothing can begin in it any more"


def test_a_unit_whose_start_was_killed_before_it_began_can_be_removed(here: Serving) -> None:
    here.profile("alone", 6, port=free_port())
    words = ("start", "v", "--profile", "alone")
    assert here.killed(KILLED_BEFORE_IT_BEGINS, *words) == -signal.SIGKILL
    assert run(["remove", "v", "--yes"]) == 0
    assert not here.ctx.store.exists("v")


def test_without_room_to_record_a_start_nothing_is_stopped(
    here: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = here.current("u").id
    monkeypatch.setattr("engine_ctl.operations.local_files.START_BYTES", 1 << 60)
    with pytest.raises(Failed, match="too little for a start's records"):
        swap(here, "two")
    assert here.current("u").id == old and here.answers("u") == "1"
    assert any("too little for a start" in error for error in forecast(here.ctx, "u", "two").errors)


# Every step is an event


def test_each_step_of_a_swap_is_said(here: Serving) -> None:
    old = here.current("u").id
    done, said = swap(here, "two")
    new = here.current("u").id
    assert (done.outcome, done.proof) == (Outcome.COMMITTED, "completion")
    assert said == [
        "swap to two: checked",
        f"swap to two: stopping {old}",
        "swap to two: starting the new engine",
        f"swap to two: waiting for {new} to serve",
        f"swap: one → two in {done.seconds:.1f} s, proven by a completion",
    ]
    assert here.answers("u") == "2"


@pytest.mark.parametrize("profile", ["dies", "late", "mute"])
def test_each_step_of_a_rollback_is_said(here: Serving, profile: str) -> None:
    done, said = swap(here, profile)
    assert done.outcome is Outcome.ROLLED_BACK and done.reason
    assert in_order(
        said,
        f"swap to {profile}: stopping",
        f"swap to {profile}: starting",
        f"swap to {profile}: waiting for {done.new_run} to serve",
        f"swap to {profile}: going back",
        f"swap failed: {done.reason}",
        f"swap to {profile}: waiting for the last good engine",
        "went back to one in",
    )
    assert here.answers("u") == "1"
    assert [run.id for run in here.live("u")] == [done.old_run]


def test_why_tells_of_the_swap_that_went_back(
    here: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine that it gave up was stopped, and has not failed."""
    swap(here, "mute")
    assert run(["why", "u"]) == 0
    said = capsys.readouterr().out
    current = here.current("u").id
    assert said.startswith(f"the swap to mute went back to {current}: ")
    assert "EngineDeadError" in said
    assert run(["why", "u", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["category"] == "went_back"
    swap(here, "two")
    assert run(["why", "u"]) == 0
    assert "went back" not in capsys.readouterr().out


def test_a_swap_that_is_given_up_is_said(here: Serving) -> None:
    done, said = swap(here, "dies", rollback=False)
    assert done.outcome is Outcome.FAILED
    assert here.live("u") == [] and not here.engines()
    assert "told not to" in said[-1]


# SIGKILL in every step

# (profile, step, when): killed as soon as the step is journalled, or just before that, when all
# of the step before it is done.
MOMENTS = [
    ("two", Step.CHECKED, "after"),
    ("two", Step.STOPPING, "after"),
    ("two", Step.STARTING, "before"),
    ("two", Step.STARTING, "after"),
    ("two", Step.PROVING, "before"),
    ("two", Step.PROVING, "after"),
    ("two", Step.DONE, "before"),
    ("dies", Step.ROLLING_BACK, "before"),
    ("dies", Step.ROLLING_BACK, "after"),
    ("late", Step.ROLLING_BACK, "after"),
    ("mute", Step.ROLLING_BACK, "after"),
    ("dies", Step.PROVING_OLD, "before"),
    ("dies", Step.PROVING_OLD, "after"),
    ("dies", Step.DONE, "before"),
]


def settled(here: Serving, profile: str) -> SwapRecord:
    """Exactly one engine, the new or the last good one, and it serves."""
    record = journal.read(here.ctx.store, "u")
    assert record is not None and record.outcome is not None
    new = record.outcome is Outcome.COMMITTED
    assert here.answers("u") == {"two": "2"}.get(profile if new else "", "1")
    (run,) = here.live("u")
    assert here.current("u").id == run.id and run.ready() is not None
    assert len(here.engines()) == 1
    return record


@pytest.mark.parametrize(("profile", "step", "when"), MOMENTS)
def test_a_stoker_killed_in_any_step_is_gone_on_with(
    here: Serving, profile: str, step: Step, when: str
) -> None:
    since = time.time()
    assert here.killed(trap(step, when), "swap", "u", profile) == -signal.SIGKILL
    swapping.resume(here.ctx, "u", lambda _: None)
    record = settled(here, profile)
    if step is Step.CHECKED:
        assert record.outcome is Outcome.ABANDONED
        assert "given up: interrupted before anything was touched" in here.said("u")[-1]
        return
    assert record.outcome is (Outcome.COMMITTED if profile == "two" else Outcome.ROLLED_BACK)
    assert any("going on with an interrupted swap" in text for text in here.said("u", since))
    # Nothing was started twice.
    mine = [run for run in here.ctx.store.runs("u") if run.spec().created >= since]
    assert sum(run.identity() is not None for run in mine) == (1 if profile == "two" else 2)


def test_killed_between_making_a_run_and_starting_it(here: Serving) -> None:
    assert here.killed(trap("never", "made"), "swap", "u", "two") == -signal.SIGKILL
    swapping.resume(here.ctx, "u", lambda _: None)
    assert settled(here, "two").outcome is Outcome.COMMITTED


def test_killed_again_while_going_on(here: Serving) -> None:
    assert here.killed(trap(Step.STOPPING, "after"), "swap", "u", "dies") == -signal.SIGKILL
    code = trap(Step.PROVING, "before")
    assert here.killed(code, "swap", "u", "--resume") == -signal.SIGKILL
    code = trap(Step.PROVING_OLD, "before")
    assert here.killed(code, "swap", "u", "--resume") == -signal.SIGKILL
    swapping.resume(here.ctx, "u", lambda _: None)
    assert settled(here, "dies").outcome is Outcome.ROLLED_BACK


def test_the_next_swap_finishes_an_interrupted_one_first(here: Serving) -> None:
    assert here.killed(trap(Step.STARTING, "after"), "swap", "u", "dies") == -signal.SIGKILL
    done, said = swap(here, "two")
    assert done.outcome is Outcome.COMMITTED and here.answers("u") == "2"
    assert in_order(said, "went back to one", "swap to two: checked")
    assert len(here.engines()) == 1


# What changes between the check and the start


class WhenStopping:
    """Something happens as soon as the old engine is asked to stop: the check is long over."""

    def __init__(self) -> None:
        self.done = False

    def happen(self) -> None:
        raise NotImplementedError

    def __call__(self, text: str) -> None:
        if not self.done and "ask" in text:
            self.done = True
            self.happen()


class Takes(WhenStopping):
    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.server: socket.socket | None = None

    def happen(self) -> None:
        self.server = socket.create_server(("127.0.0.1", self.port))


def test_a_port_taken_between_check_and_start_is_rolled_back(here: Serving) -> None:
    port = free_port()
    here.profile("elsewhere", 6, port=port)
    takes = Takes(port)
    done = swapping.swap_to(here.ctx, "u", "elsewhere", takes)
    assert takes.server is not None
    takes.server.close()
    assert done.outcome is Outcome.ROLLED_BACK
    assert f"port {port} is in use by pid {os.getpid()}" in done.reason
    assert here.answers("u") == "1" and len(here.engines()) == 1


def test_a_port_that_is_taken_already_touches_nothing(here: Serving) -> None:
    before = here.current("u").id
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        here.profile("elsewhere", 6, port=port)
        with pytest.raises(Busy, match=f"port {port} is in use"):
            swapping.swap_to(here.ctx, "u", "elsewhere", lambda _: None)
    assert here.current("u").id == before and here.answers("u") == "1"


def test_an_adapter_that_is_not_there_touches_nothing(here: Serving) -> None:
    before = here.current("u").id
    missing = "the LoRA adapter x: /nope/lora does not exist"
    here.profile("adapted", 1, args={"max_num_seqs": 7, "lora_modules": ["x=/nope/lora"]})
    assert f"profile adapted: {missing}" in forecast(here.ctx, "u", "adapted").errors
    with pytest.raises(Failed, match=missing):
        swapping.swap_to(here.ctx, "u", "adapted", lambda _: None)
    with pytest.raises(Failed, match=missing):
        lifecycle.start(here.ctx, "v", "adapted")
    assert here.current("u").id == before and here.answers("u") == "1"
    here.ctx.store.remove("v")


def test_a_secret_that_is_not_set_touches_nothing(here: Serving) -> None:
    here.profile("secret", 7, env={"HF_TOKEN": {"from_env": "STOKER_TEST_TOKEN"}})
    before = here.current("u")
    with pytest.raises(Failed, match="STOKER_TEST_TOKEN, which is not set"):
        swapping.swap_to(here.ctx, "u", "secret", lambda _: None)
    assert any("is not set" in text for text in forecast(here.ctx, "u", "secret").errors)
    assert here.current("u") == before and here.answers("u") == "1"


def test_that_it_could_not_go_back_is_said_before(
    here: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.profile("secret", 7, env={"HF_TOKEN": {"from_env": "STOKER_TEST_TOKEN"}})
    monkeypatch.setenv("STOKER_TEST_TOKEN", "x")
    swap(here, "secret")
    assert not any("go back" in text for text in forecast(here.ctx, "u", "two").warnings)
    monkeypatch.delenv("STOKER_TEST_TOKEN")
    (said,) = [text for text in forecast(here.ctx, "u", "two").warnings if "go back" in text]
    assert said.endswith("HF_TOKEN comes from the variable STOKER_TEST_TOKEN, which is not set")
    told: list[str] = []
    swapping.swap_to(here.ctx, "u", "two", told.append)
    assert f"u: {said}" in told and here.answers("u") == "2"


def test_a_model_removed_after_the_check_is_rolled_back(here: Serving) -> None:
    copy = here.new_model("copy")
    here.profile("moves", 7, model=str(copy))

    class Removes(WhenStopping):
        def happen(self) -> None:
            shutil.rmtree(copy)

    done = swapping.swap_to(here.ctx, "u", "moves", Removes())
    assert done.outcome is Outcome.ROLLED_BACK and "\n" not in done.reason
    assert here.answers("u") == "1"
    before = here.current("u").id
    with pytest.raises(Failed, match="does not exist"):
        swapping.swap_to(here.ctx, "u", "moves", lambda _: None)
    assert here.current("u").id == before


@pytest.mark.parametrize("wanted", ["cuda", "0.99.0", "another"])
def test_a_profile_for_another_runtime_touches_nothing(here: Serving, wanted: str) -> None:
    here.profile("foreign", 8, runtime=wanted)
    before = here.current("u").id
    with pytest.raises(NotFound, match="no runtime fits") as caught:
        swapping.swap_to(here.ctx, "u", "foreign", lambda _: None)
    assert "\n" not in str(caught.value)
    assert here.current("u").id == before and here.answers("u") == "1"


def test_a_second_swap_at_the_same_time_is_refused(here: Serving) -> None:
    class Asks(WhenStopping):
        said = ""

        def happen(self) -> None:
            with pytest.raises(Busy) as caught:
                swapping.swap_to(here.ctx, "u", "one", lambda _: None)
            self.said = str(caught.value)

    asks = Asks()
    assert swapping.swap_to(here.ctx, "u", "two", asks).outcome is Outcome.COMMITTED
    assert "unit u is busy" in asks.said
    assert here.answers("u") == "2" and len(here.engines()) == 1


def test_an_engine_whose_end_nobody_saw_can_be_swapped(here: Serving) -> None:
    who = here.current("u").identity()
    assert who is not None
    os.kill(who.shim.pid, signal.SIGKILL)
    os.kill(who.leader.pid, signal.SIGKILL)
    until(lambda: not here.engines(), "both are gone")
    assert swap(here, "two")[0].outcome is Outcome.COMMITTED
