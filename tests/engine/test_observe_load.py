"""The sampler beside a real engine under load: what waits is seen, and a restart is a reset."""

from __future__ import annotations

import threading

import pytest

from engine_ctl.hardware.readings import NoGpus
from engine_ctl.model import EngineLoad, Phase, UnitView
from engine_ctl.observe.sampler import Sampler
from engine_ctl.operations import lifecycle
from tests.engine.world import World, complete, free_port, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CLIENTS = 6
TOKENS = 200


@pytest.fixture(scope="module")
def here(installation: World) -> World:
    return installation


def test_what_waits_is_seen_and_a_restart_is_a_reset(here: World) -> None:
    port = free_port()
    here.profile("narrow", args={"max_num_seqs": 1}, port=port)
    here.wait_ready(lifecycle.start(here.ctx, "a", "narrow"))
    sampler = Sampler(here.dirs, NoGpus())
    seen: list[EngineLoad] = []

    def look() -> UnitView:
        (view,) = (unit for unit in sampler.sample_once().units if unit.unit == "a")
        if view.load is not None:
            seen.append(view.load)
        return view

    enough = threading.Event()

    def ask() -> None:
        complete(port, str(here.model), TOKENS, 120.0)

    def keep_asking() -> None:
        while not enough.is_set():
            ask()

    def queued() -> bool:
        load = look().load
        return load is not None and (load.waiting or 0) > 0 and load.running == 1

    def answered() -> bool:
        load = look().load
        return load is not None and load.running == 0 and load.waiting == 0

    clients = [threading.Thread(target=keep_asking, daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        until(queued)
        waiting = seen[-1]
        assert waiting.waiting is not None and waiting.waiting <= CLIENTS - 1
        assert [rank.running for rank in waiting.ranks] == [1]
        until(lambda: (look().load or waiting).tokens_per_second not in (None, 0.0))
        enough.set()
        for client in clients:
            client.join(120)
        until(answered)
        assert any((load.tokens_per_second or 0) > 0 for load in seen)

        lifecycle.restart(here.ctx, "a", lambda _: None, wait=True)
        seen.clear()
        until(lambda: look().phase is Phase.READY and bool(seen))
        ask()
        until(answered)
        rates = [load.tokens_per_second for load in seen if load.tokens_per_second is not None]
        assert all(rate >= 0 for rate in rates), rates
    finally:
        enough.set()
        for client in clients:
            client.join(120)
        sampler.stop()
