"""Swaps with real vLLM: committed, refused, rolled back, interrupted at every step."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.errors import Failed
from engine_ctl.logs.verdict import verdict_of
from engine_ctl.model import Verdict
from engine_ctl.operations import lifecycle, swapping, weights_ready
from engine_ctl.operations.weights import preload_stop
from engine_ctl.state.store import Run
from engine_ctl.swap import journal
from engine_ctl.swap.forecast import forecast
from engine_ctl.swap.journal import Outcome
from tests.engine.world import World, complete, free_port, until
from tests.standin.serving import trap

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


UNIT = "u"


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def here(installation: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = installation
    # Not the first free one from 8000 up: while no engine holds it, others would take it.
    made.profile("one", port=free_port())
    made.profile("two", args={"max_num_seqs": 4})
    made.profile("refused", args={"max_model_len": 99999999})
    empty = tmp_path_factory.mktemp("no-adapter")
    made.profile("dies", args={"enable_lora": True, "lora_modules": [f"x={empty}"]})
    return made


def serve(here: World, profile: str) -> str:
    """The unit of these tests, serving that profile."""
    if not here.ctx.store.exists(UNIT) or not here.live_runs(UNIT):
        here.wait_ready(lifecycle.start(here.ctx, UNIT, profile))
    elif here.ctx.store.load(UNIT).profile != profile:
        swapping.swap_to(here.ctx, UNIT, profile, quiet)
    return UNIT


@pytest.fixture
def serving(here: World) -> Iterator[str]:
    """A unit that serves, whichever profile."""
    if not here.ctx.store.exists(UNIT) or not here.live_runs(UNIT):
        serve(here, "one")
    yield UNIT
    assert len(here.live_runs(UNIT)) <= 1


@pytest.fixture
def unit(here: World, serving: str) -> str:
    """A unit that serves `one`."""
    return serve(here, "one")


def port_of(here: World, unit: str) -> int:
    port = here.current(unit).spec().port
    assert port is not None
    return port


def test_swap_and_undo_keep_the_port(here: World, unit: str) -> None:
    port = port_of(here, unit)
    done = swapping.swap_to(here.ctx, unit, "two", quiet)
    assert (done.outcome, done.proof) == (Outcome.COMMITTED, "completion")
    assert here.ctx.store.load(unit).profile == "two"
    assert port_of(here, unit) == port and complete(port, str(here.model))
    back = swapping.undo(here.ctx, unit, quiet)
    assert back.outcome is Outcome.COMMITTED
    assert here.ctx.store.load(unit).profile == "one"
    assert complete(port, str(here.model))


def test_what_vllm_refuses_touches_nothing(here: World, serving: str) -> None:
    before = here.current(serving)
    found = forecast(here.ctx, serving, "refused")
    assert any("max_model_len" in error for error in found.errors)
    with pytest.raises(Failed, match="refuses it"):
        swapping.swap_to(here.ctx, serving, "refused", quiet)
    assert here.current(serving).id == before.id
    assert complete(port_of(here, serving), str(here.model))


def test_a_model_removed_after_the_check(here: World, serving: str, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(here.model, copy)
    here.profile("moves", model=str(copy))
    assert not forecast(here.ctx, serving, "moves").errors
    shutil.rmtree(copy)
    before = here.current(serving)
    with pytest.raises(Failed, match="does not exist"):
        swapping.swap_to(here.ctx, serving, "moves", quiet)
    assert here.current(serving).id == before.id


def test_what_fails_later_is_rolled_back(here: World, unit: str) -> None:
    port = port_of(here, unit)
    done = swapping.swap_to(here.ctx, unit, "dies", quiet)
    assert done.outcome is Outcome.ROLLED_BACK and done.reason
    assert here.ctx.store.load(unit).profile == "one"
    assert complete(port, str(here.model))


def test_a_port_taken_between_check_and_start_is_rolled_back(here: World, unit: str) -> None:
    port, servers = free_port(), []
    here.profile("elsewhere", port=port)

    def take(text: str) -> None:
        """The old engine has been asked to stop: the check is over."""
        if " ask: " in text and not servers:
            servers.append(socket.create_server(("127.0.0.1", port)))

    done = swapping.swap_to(here.ctx, unit, "elsewhere", take)
    servers[0].close()
    assert done.outcome is Outcome.ROLLED_BACK
    assert f"port {port} is in use by pid {os.getpid()}" in done.reason
    assert complete(port_of(here, unit), str(here.model))


def test_told_not_to_roll_back_it_stays_down(here: World, unit: str) -> None:
    done = swapping.swap_to(here.ctx, unit, "dies", quiet, rollback=False)
    assert done.outcome is Outcome.FAILED
    assert here.live_runs(unit) == []


def test_a_request_in_flight_is_finished_first(here: World) -> None:
    here.profile("drains", stop={"drain_s": 100, "ask_s": 60})
    unit = serve(here, "drains")
    run = here.current(unit)
    port, texts, begun = port_of(here, unit), [], threading.Event()
    asker = threading.Thread(
        target=lambda: texts.append(complete(port, str(here.model), 400, 120.0, begun))
    )
    asker.start()
    until(lambda: begun.is_set() or not asker.is_alive())
    done = swapping.swap_to(here.ctx, unit, "two", quiet)
    asker.join(120)
    assert texts == [complete(port, str(here.model), 400, 120.0)]
    assert b"mode=drain" in run.log.read_bytes()
    assert done.outcome is Outcome.COMMITTED


def test_two_swaps_at_once_one_is_busy(here: World, serving: str) -> None:
    first = here.command("swap", serving, "one", wait=False)
    until(lambda: here.ctx.store.locked(serving))
    second = here.command("swap", serving, "two")
    assert second.returncode == 4
    assert first.wait(120) == 0
    assert here.ctx.store.load(serving).profile == "one"
    assert len(here.live_runs(serving)) == 1


@pytest.mark.parametrize(
    ("profile", "step"),
    [
        ("two", "checked"),
        ("two", "starting"),
        ("dies", "proving the old one"),
    ],
)
def test_a_killed_stoker_is_gone_on_with(here: World, unit: str, profile: str, step: str) -> None:
    """Killed as the step begins; the next command that looks lets somebody go on. Every step of
    every kind of swap, before and after it is written: tests/unit/test_swap_steps.py."""
    port = port_of(here, unit)
    assert here.killed(trap(step, "after"), "swap", unit, profile) == -signal.SIGKILL
    here.document("ps")

    def settled() -> bool:
        record = journal.read(here.ctx.store, unit)
        return record is not None and record.outcome is not None and not here.ctx.store.locked(unit)

    until(settled)
    record = journal.read(here.ctx.store, unit)
    assert record is not None
    wanted = Outcome.COMMITTED if profile == "two" else Outcome.ROLLED_BACK
    assert record.outcome is (Outcome.ABANDONED if step == "checked" else wanted)
    assert len(here.live_runs(unit)) == 1
    assert complete(port, str(here.model))
    now = here.ctx.store.load(unit).profile
    assert now == ("two" if record.outcome is Outcome.COMMITTED else "one")


def test_a_daemon_is_made_before_the_old_engine_is_touched(
    here: World, serving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = serving
    here.profile("warm", preload={})
    ahead = forecast(here.ctx, unit, "warm")
    assert ahead.verdict is Verdict.MAPPED and not ahead.errors, ahead
    assert ahead.weights_note.startswith("a daemon is loaded first, 14 of 14 fields agree")
    old = here.current(unit)
    assert swapping.swap_to(here.ctx, unit, "warm", quiet).outcome is Outcome.COMMITTED
    assert _verdict(here.current(unit)) is Verdict.MAPPED
    daemon, ended = here.current(f"{unit}-weights").ready(), old.exit()
    assert daemon is not None and ended is not None and daemon.wall < ended.ended

    # A restart makes none where it does not fit, and says so before and then.
    preload_stop(here.ctx, unit, confirmed=True)
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(weights_ready, "weights_on_disk", lambda _: 1 << 60)
        ahead = forecast(here.ctx, unit)
        assert ahead.verdict is Verdict.FALLBACK
        (why,) = [line for line in ahead.warnings if line.startswith("no daemon is made: ")]
        lifecycle.restart(here.ctx, unit, said.append, wait=True)
    # What the host has free differs by then.
    needs = why.removeprefix("no daemon is made: ").partition(", the host has ")[0]
    assert needs.startswith("its weights need ") and any(needs in line for line in said), said
    assert _verdict(here.current(unit)) is Verdict.FALLBACK
    lifecycle.restart(here.ctx, unit, quiet, wait=True)
    assert _verdict(here.current(unit)) is Verdict.MAPPED
    preload_stop(here.ctx, unit, confirmed=True)


def _verdict(run: Run) -> Verdict | None:
    return verdict_of(run.log.read_bytes())[0]


def test_a_pooling_model_is_proven_by_an_embedding(here: World, serving: str) -> None:
    here.profile("pooled", args={"runner": "pooling", "convert": "embed"})
    done = swapping.swap_to(here.ctx, serving, "pooled", quiet)
    assert (done.outcome, done.proof) == (Outcome.COMMITTED, "embedding"), done.reason


def test_a_killed_standby_does_not_stand_in_the_way(here: World, unit: str) -> None:
    from engine_ctl.standby.lifecycle import listing

    for standing in listing(here.ctx.store):
        assert standing.hello is not None
        os.kill(standing.hello.pid, signal.SIGKILL)
    assert complete(port_of(here, unit), str(here.model))
    done = swapping.swap_to(here.ctx, unit, "two", quiet)
    assert done.outcome is Outcome.COMMITTED
