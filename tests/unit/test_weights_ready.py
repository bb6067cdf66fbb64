"""A daemon for an engine that is about to start: what is done first, and where there is no room."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_ctl.errors import Busy, Failed
from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.hardware.readings import NoGpus
from engine_ctl.model import Reason, Verdict
from engine_ctl.operations import weights_ready
from engine_ctl.operations.weights_ready import GIB, DaemonAhead, Way, room_problem
from engine_ctl.weights import daemons
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.forecast import DaemonBehind, EngineAsks, forecast_weights
from engine_ctl.weights.records import RankKey
from engine_ctl.weights.sockets import SocketJudgement
from profiles.loading import Resolved
from profiles.model import Preload, Profile
from tests.standin.nvml import RecordedNvml

NVML = Path(__file__).parent.parent / "data" / "nvml"
KEY = RankKey(socket="/d/0.sock", device="GPU-0", fields={"dtype": "bf16", "tp_size": "1"})


@pytest.mark.parametrize(
    ("needed", "free", "said"),
    [
        (16 * GIB, {"GPU 0": 20 * GIB, "GPU 1": 17 * GIB}, None),
        (16 * GIB, {"GPU 0": 20 * GIB, "GPU 1": 5 * GIB}, "GPU 1 has 5.0 GiB free"),
        (None, {"GPU 0": 20 * GIB}, "how much room its weights need"),
        (16 * GIB, {}, "how much memory is free"),
        (16 * GIB, {"GPU 0": None}, "GPU 0 does not tell"),
    ],
)
def test_room_beside_the_running_engine(
    needed: int | None, free: dict[str, int | None], said: str | None
) -> None:
    problem = room_problem(needed, free)
    assert (problem is None) == (said is None) and (said or "") in (problem or "")


def test_the_gpus_of_the_daemon_count() -> None:
    source = NvmlSource(RecordedNvml(json.loads((NVML / "nvlink.json").read_text())))
    every = weights_ready.free_of({}, 64, source)
    assert every and all(name.startswith("GPU ") for name in every)
    assert len(weights_ready.free_of({}, 1, source)) == 1
    assert weights_ready.free_of({"CUDA_VISIBLE_DEVICES": ""}, 1, source) == {}
    assert weights_ready.free_of({}, 1, NoGpus("none")) == {}


def _behind(category: str | None) -> DaemonBehind:
    reason = None if category is None else Reason(f"wc_fallback.{category}", "", "")
    return DaemonBehind(SocketJudgement(reason))


@pytest.mark.parametrize(
    ("category", "planned", "verdict"),
    [
        ("socket_missing", (KEY,), Verdict.MAPPED),
        ("stale_socket", (KEY,), Verdict.MAPPED),
        ("not_ready", (KEY,), Verdict.MAPPED),
        ("socket_missing", (), Verdict.FALLBACK),
        # What a new daemon does not mend.
        ("permissions", (KEY,), Verdict.FALLBACK),
    ],
)
def test_the_verdict_after_the_daemon_is_there(
    category: str, planned: tuple[RankKey, ...], verdict: Verdict
) -> None:
    behind = daemons.with_planned({"/d/0.sock": _behind(category)}, planned)
    found = forecast_weights(EngineAsks(True, (KEY,)), behind)
    assert found.verdict is verdict
    assert bool(found.ranks[0].rows) == (verdict is Verdict.MAPPED)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("missing", Verdict.MAPPED),
        ("stale", Verdict.MAPPED),  # killed: its socket is there and refuses
        ("silent", Verdict.FALLBACK),
        ("garbage", Verdict.FALLBACK),
    ],
)
def test_a_new_daemon_takes_the_place_of_one_that_is_gone_only(
    state: str, verdict: Verdict
) -> None:
    status = DaemonStatus(socket="/d/0.sock", state=state)
    asked = DaemonBehind(SocketJudgement(None, may_connect=True), status)
    behind = daemons.with_planned({"/d/0.sock": asked}, (KEY,))
    assert forecast_weights(EngineAsks(True, (KEY,)), behind).verdict is verdict


def test_a_daemon_with_other_arguments_is_not_what_the_engine_asks_for() -> None:
    planned = RankKey(socket="/d/0.sock", fields={"dtype": "fp32", "tp_size": "1"})
    behind = daemons.with_planned({"/d/0.sock": _behind("socket_missing")}, (planned,))
    found = forecast_weights(EngineAsks(True, (KEY,)), behind)
    assert found.verdict is Verdict.FALLBACK and found.differing == ("dtype",)


class Steps:
    """The decisions around a daemon, with the steps written down instead of taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead: DaemonAhead) -> None:
        self.said: list[str] = []
        self.events: list[tuple[str, ...]] = []
        self.waited: list[Any] = []
        self.made = SimpleNamespace(id="u-weights/2")
        self.failure: Exception | None = None
        monkeypatch.setattr(weights_ready, "daemon_ahead", lambda *_: ahead)
        monkeypatch.setattr(weights_ready, "_made", self._make)
        monkeypatch.setattr(
            weights_ready, "wait_ready", lambda _c, run, _t: self.waited.append(run)
        )

    def _make(self, *_: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.made

    def ensure(self, **preload: Any) -> Any:
        profile = Profile(name="p", model="m", preload=Preload(**preload))
        resolved = Resolved(profile, {}, ())
        ctx: Any = SimpleNamespace(event=lambda *event: self.events.append(event))
        return weights_ready.ensure_daemon(ctx, "u", resolved, self.said.append)


def test_what_is_done_about_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    sight: Any = SimpleNamespace(run=SimpleNamespace(id="u-weights/1"))
    shared = Steps(monkeypatch, DaemonAhead(Way.SHARED, sight=sight))
    assert shared.ensure() is sight.run and shared.waited == []
    loading = Steps(monkeypatch, DaemonAhead(Way.WAITED_FOR, sight=sight))
    assert loading.ensure() is sight.run and loading.waited == [sight.run]
    missing = Steps(monkeypatch, DaemonAhead(Way.MADE))
    assert missing.ensure() is missing.made and missing.waited == [missing.made]


def test_a_daemon_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Steps(monkeypatch, DaemonAhead(Way.NO_ROOM, "GPU 0 has 1.0 GiB free"))
    assert full.ensure() is None
    assert full.said == ["u: no weights daemon of its own: GPU 0 has 1.0 GiB free"]
    assert full.events == [(*full.said[0].split(": ", 1), "warning")]
    with pytest.raises(Failed, match="GiB free"):
        full.ensure(fallback=False)
    busy = Steps(monkeypatch, DaemonAhead(Way.MADE))
    busy.failure = Busy("pid 7 serves weights there already")
    assert busy.ensure() is None and "pid 7" in busy.said[0]


def test_notes_for_a_forecast() -> None:
    assert DaemonAhead(Way.MADE).note == "a daemon is loaded first"
    assert DaemonAhead(Way.WAITED_FOR).note and not DaemonAhead(Way.SHARED).note
    assert replace(DaemonAhead(Way.NO_ROOM), why="x").note == ""
