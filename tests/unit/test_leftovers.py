"""A run whose shim and leader were both killed leaves processes: ps, why and the deck say which,
what they hold, and the remedy."""

from __future__ import annotations

import json

import pytest

from console.main import run as command
from engine_ctl import identity
from engine_ctl.hardware.readings import NoGpus
from engine_ctl.observe.sampler import Sampler
from engine_ctl.operations.context import Context
from engine_ctl.operations.explain import why
from engine_ctl.operations.leftovers import Leftover, grouped, leftovers, words
from engine_ctl.operations.listing import ps
from engine_ctl.paths import Dirs
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.orphans import Orphan
from tests.standin.rig import Rig, rig, until

__all__ = ["rig"]

GIB = 1 << 30


def test_what_is_left_is_said_everywhere_until_it_is_reaped(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rig.start(children=1)
    ctx = Context(rig.dirs, by="test")
    assert leftovers(ctx) == () and ps(ctx)["problems"] == []
    who = run.identity()
    assert who is not None
    rig.kill_shim(run)
    rig.kill(who.leader.pid)
    assert identity.wait_gone(who.leader, 100)
    assert rig.life(run) is Life.LOST
    (child,) = [pid for name, pid in rig.pids(run).items() if name != "leader"]

    found = ps(ctx)
    (problem,) = found["problems"]
    assert problem.startswith(f"demo/1 has ended, but pid {child} (")
    assert problem.endswith("of host memory; run: stoker reap")
    (left,) = found["leftovers"]
    assert (left.unit, left.pids) == ("demo", (child,)) and left.host_bytes
    assert ps(ctx, ("demo",))["problems"] == [problem]

    card = why(ctx, "demo")
    assert card is not None and card.cause is not None and card.cause.category == "unknown"
    assert card.outcome.startswith("lost, shim and process are gone")
    assert card.leftovers == (problem,)

    sampler = Sampler(rig.dirs, NoGpus())
    try:
        (alert,) = sampler.sample_once().alerts
    finally:
        sampler.stop()
    assert alert.action == "reap" and alert.pids == (child,)
    assert "still there, though the run has ended, 0." in alert.text

    monkeypatch.setattr(Dirs, "from_env", lambda: rig.dirs)
    assert command(["why", "demo"]) == 0
    assert f"left over: {problem}" in capsys.readouterr().out
    assert command(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leftovers"][0]["pids"] == [child]
    assert command(["reap", "--yes"]) == 0
    until(lambda: ps(ctx)["leftovers"] == [], "reaped")
    assert ps(ctx)["problems"] == []


def test_gpus_and_host_are_summed_by_run() -> None:
    found = [
        Orphan(12, 1, "chat/3", "chat", "VLLM::EngineCore"),
        Orphan(13, 1, "chat/3", "chat", "VLLM::Worker_TP1"),
        Orphan(14, 1, "code/1", "code", ""),
    ]
    gpus = {12: [(0, 70 * GIB), (1, None)], 13: [(0, GIB)]}
    chat, code = grouped(found, {12: GIB, 13: None}, gpus)
    assert chat.gpus == ((0, 71 * GIB), (1, None)) and chat.host_bytes == GIB
    assert words(chat) == (
        "chat/3 has ended, but pids 12, 13 (VLLM::EngineCore, VLLM::Worker_TP1) still hold 71.0 "
        "GiB of GPU 0 and memory of GPU 1 and 1.0 GiB of host memory; run: stoker reap"
    )
    assert code == Leftover("code/1", "code", (14,), ("",))
    (titled,) = grouped([Orphan(15, 1, "w/1", "w", "stoker: forker of w/1")], {}, {})
    assert "pid 15 (stoker: forker) still" in words(titled)
    assert words(code) == "code/1 has ended, but pid 14 (process) still is there; run: stoker reap"
