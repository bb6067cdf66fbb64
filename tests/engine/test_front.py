"""Fronts before real engines: the port stays, requests wait, a killed front comes back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from engine_ctl.errors import Usage
from engine_ctl.front import lifecycle as fronts
from engine_ctl.operations import lifecycle, swapping
from engine_ctl.swap import journal
from engine_ctl.swap.forecast import forecast
from engine_ctl.swap.journal import Outcome
from tests.engine.steady_client import SteadyClient
from tests.engine.world import World, complete, free_port, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def here(installation: World) -> World:
    port, made = free_port(), installation
    # As long as the old engine needs on a slow machine: the default cuts a long answer off.
    (made.dirs.config / "front.yaml").write_text("drain_s: 100\n")
    made.profile("fa", front=True, port=port)
    made.profile("fb", front=True, port=port, args={"max_num_seqs": 4})
    made.profile("plain", port=port)
    return made


@pytest.fixture
def unit(here: World) -> Iterator[str]:
    """A unit that serves behind its front."""
    name = "u"
    if not here.ctx.store.exists(name) or not here.live_runs(name):
        here.wait_ready(lifecycle.start(here.ctx, name, "fa"))
    yield name
    assert len(here.live_runs(name)) <= 1
    assert len(here.live_runs(f"{name}-front")) <= 1


def other(here: World, unit: str) -> str:
    """A profile behind the front that the unit does not serve now."""
    return "fa" if here.ctx.store.load(unit).profile == "fb" else "fb"


def port_of(here: World, unit: str) -> int:
    port = here.current(unit).spec().client_port
    assert port is not None
    return port


def test_clients_see_the_public_port(here: World, unit: str) -> None:
    spec = here.current(unit).spec()
    assert spec.host == "127.0.0.1" and spec.port != spec.public_port
    rows = {row["unit"]: row for row in here.document("ps")["units"]}
    assert rows[unit]["port"] == spec.public_port == rows[f"{unit}-front"]["port"]
    assert rows[f"{unit}-front"]["kind"] == "front"
    until(lambda: here.document("ps", f"{unit}-front")["units"][0]["phase"] == "ready")
    assert complete(spec.public_port, str(here.model)) == complete(spec.port, str(here.model))
    with pytest.raises(Usage, match="stoker restart u"):
        lifecycle.start(here.ctx, f"{unit}-front")


def test_no_request_fails_during_swaps(here: World, unit: str) -> None:
    front = here.current(f"{unit}-front").id
    with SteadyClient(port_of(here, unit), str(here.model)) as client:
        until(lambda: len(client.outcomes) > 5)
        for _ in range(2):
            profile = other(here, unit)
            assert "stays with the front" in forecast(here.ctx, unit, profile).port_note
            done = swapping.swap_to(here.ctx, unit, profile, quiet)
            assert done.outcome is Outcome.COMMITTED
            answered = len(client.outcomes)
            until(lambda n=answered: len(client.outcomes) > n + 5)
    assert client.failed == []
    assert {outcome.stream for outcome in client.outcomes} == {True, False}
    assert here.current(f"{unit}-front").id == front


def test_long_requests_finish_on_the_old_engine(here: World, unit: str) -> None:
    client = SteadyClient(port_of(here, unit), str(here.model), rate=1.0, tokens=150)
    with client:
        until(lambda: (forecast(here.ctx, unit).in_flight or 0) > 0)
        done = swapping.swap_to(here.ctx, unit, other(here, unit), quiet)
    assert done.outcome is Outcome.COMMITTED
    assert client.failed == [] and len(client.outcomes) > 0


def test_a_killed_front_comes_back(here: World, unit: str) -> None:
    port, front = port_of(here, unit), here.current(f"{unit}-front")
    who = front.identity()
    assert who is not None
    os.kill(who.leader.pid, signal.SIGKILL)

    def answers() -> bool:
        try:
            return bool(complete(port, str(here.model)))
        except OSError:
            return False

    until(answers)
    assert here.current(f"{unit}-front").id != front.id
    done = swapping.swap_to(here.ctx, unit, other(here, unit), quiet)
    assert done.outcome is Outcome.COMMITTED
    assert complete(port, str(here.model))


def test_a_killed_engine_is_waited_for(here: World, unit: str) -> None:
    port = port_of(here, unit)
    restart = {"policy": "on-failure", "backoff_s": 0.1}
    here.profile("again", front=True, port=port, restart=restart)
    swapping.swap_to(here.ctx, unit, "again", quiet)
    run = here.current(unit)
    who = run.identity()
    assert who is not None
    os.kill(who.leader.pid, signal.SIGKILL)
    until(lambda: run.exit() is not None)
    assert complete(port, str(here.model), timeout=120.0)
    assert here.current(unit).id != run.id
    assert port_of(here, unit) == port


def test_a_swap_whose_stoker_is_killed_ends_the_waiting(here: World, unit: str) -> None:
    port, texts = port_of(here, unit), []
    process = here.command("swap", unit, other(here, unit), wait=False)

    def gone_on() -> bool:
        record = journal.read(here.ctx.store, unit)
        return record is not None and record.outcome is None and record.step != "checked"

    until(lambda: gone_on() or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(120)
    asker = threading.Thread(
        target=lambda: texts.append(complete(port, str(here.model), timeout=120.0))
    )
    asker.start()
    here.document("ps")
    asker.join(120)
    assert len(texts) == 1

    def gone_on_with() -> bool:
        record = journal.read(here.ctx.store, unit)
        return bool(record and record.outcome) and not here.ctx.store.locked(unit)

    until(gone_on_with)


def test_damaged_state_does_not_end_service(here: World, unit: str) -> None:
    port = port_of(here, unit)
    current = here.ctx.store.unit_dir(unit) / "current.json"
    good = current.read_bytes()
    try:
        current.write_bytes(b'{"run": ')
        time.sleep(0.3)
        assert complete(port, str(here.model))
    finally:
        current.write_bytes(good)
    assert complete(port, str(here.model))


def test_the_port_moves_between_front_and_engine(here: World, unit: str) -> None:
    port = port_of(here, unit)
    assert "moves from the front" in forecast(here.ctx, unit, "plain").port_note
    assert swapping.swap_to(here.ctx, unit, "plain", quiet).outcome is Outcome.COMMITTED
    assert here.current(unit).spec().port == port
    assert fronts.live(here.ctx.store, unit) is None
    assert complete(port, str(here.model))
    assert "to a front" in forecast(here.ctx, unit, "fa").port_note
    assert swapping.swap_to(here.ctx, unit, "fa", quiet).outcome is Outcome.COMMITTED
    assert fronts.live(here.ctx.store, unit) is not None
    assert complete(port, str(here.model))


def test_stop_ends_the_front_and_start_brings_it_back(here: World, unit: str) -> None:
    port = port_of(here, unit)
    told: list[str] = []
    lifecycle.stop(here.ctx, f"{unit}-front", told.append)
    assert here.live_runs(unit) and told[-1].endswith(f"to go on: stoker restart {unit}")
    lifecycle.stop(here.ctx, unit)
    assert here.live_runs(unit) == [] and here.live_runs(f"{unit}-front") == []
    run = lifecycle.start(here.ctx, unit)
    # The front is there before the engine is: the request waits for it.
    assert complete(port, str(here.model), timeout=120.0)
    here.wait_ready(run)
    lifecycle.stop(here.ctx, unit)
    lifecycle.remove(here.ctx, unit)
    assert not here.ctx.store.exists(f"{unit}-front")
