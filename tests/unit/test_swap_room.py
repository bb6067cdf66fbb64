"""Memory, compiled code and the startup plan of a start, said before it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_ctl.answers import ChangeView, MemoryNeed
from engine_ctl.errors import Failed
from engine_ctl.hardware.ledger import CONTEXT_BYTES
from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.model import Kind, Verdict
from engine_ctl.state.records import RunSpec
from engine_ctl.swap import caches, room
from engine_ctl.swap.caches import PlanUse
from engine_ctl.swap.room import GIB, Device
from engine_ctl.swap.seconds import Conditions, Start
from engine_ctl.weights.refusals import CacheFeatures
from tests.standin.nvml import RecordedNvml

DATA = Path(__file__).parent.parent / "data" / "nvml"
NEW = CacheFeatures(version="0.33.0", platform="cuda", counts_weights_in_budget=True)
OLD = CacheFeatures(version="0.31.0", platform="cuda")
H200 = Device("GPU 0", 140 * GIB, 140 * GIB)


@pytest.mark.parametrize(
    ("device", "utilization", "features", "fits"),
    [
        (H200, 0.90, NEW, True),
        # The driver's own and the new context are not free.
        (H200, 1.0, NEW, None),
        (replace(H200, free=100 * GIB), 0.90, NEW, False),
        # The running engine gives its memory back first.
        (replace(H200, free=10 * GIB, returned=125 * GIB), 0.90, NEW, True),
        (replace(H200, free=124 * GIB, weights=15 * GIB), 0.95, NEW, True),
        # Until 0.31 the daemon's weights came on top.
        (replace(H200, free=124 * GIB, weights=15 * GIB), 0.95, OLD, False),
        # Weights that do not fit into the budget at all.
        (replace(H200, free=124 * GIB, weights=15 * GIB), 0.10, NEW, False),
        (replace(H200, returned=None), 0.90, NEW, None),
        (replace(H200, weights=None), 0.90, NEW, None),
    ],
)
def test_need_says_what_fits(
    device: Device, utilization: float, features: CacheFeatures, fits: bool | None
) -> None:
    need = room.need(device, utilization, features)
    assert need.fits is fits
    assert bool(need.note) == (fits is not True)


def test_need_counts_the_daemons_weights_once() -> None:
    device = Device("GPU 0", 140 * GIB, 124 * GIB, weights=15 * GIB)
    need = room.need(device, 0.9, NEW)
    assert need.needed == int(0.9 * 140 * GIB) - 15 * GIB
    assert need.free == 124 * GIB - CONTEXT_BYTES
    assert "beside 15.0 GiB of weights" in room.memory_lines((need,))[0]


def test_only_a_gpu_that_surely_lacks_memory_stops_a_start() -> None:
    room.refuse_memory((MemoryNeed("GPU 0", 1, None, fits=None), MemoryNeed("host", 2, 1)))
    room.refuse_memory((MemoryNeed("host", 2, 1, fits=False),))
    with pytest.raises(Failed, match="GPU 1: too little"):
        room.refuse_memory((MemoryNeed("GPU 1", 2, 1, fits=False, note="too little"),))


@dataclass
class Ahead:
    """A prepared start on the recorded H200, where pid 6845 is the daemon and 7016 the engine."""

    utilization: float
    verdict: Verdict = Verdict.MAPPED
    daemon: str | None = "a-weights/1"
    owners: dict[int, str] = field(default_factory=lambda: {6845: "a-weights/1", 7016: "a/1"})
    strange: set[int] = field(default_factory=set)

    def needs(self, monkeypatch: pytest.MonkeyPatch, live: Any) -> tuple[MemoryNeed, ...]:
        from profiles.model import Profile

        monkeypatch.setattr(room, "owners", lambda _: self.owners)
        monkeypatch.setattr(room, "strange_daemon", lambda _: self.strange)
        monkeypatch.setattr(room, "features_for", lambda *_: NEW)
        monkeypatch.setattr(room, "_exists", lambda _: False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        prepared: Any = SimpleNamespace(
            runtime=SimpleNamespace(platform="cuda", version="0.33.0"),
            concrete=Profile(name="a", model="/m"),
            spec=SimpleNamespace(env={"CUDA_VISIBLE_DEVICES": "0"}),
            check=SimpleNamespace(effective={"gpu_memory_utilization": self.utilization}),
        )
        weighed: Any = SimpleNamespace(
            forecast=SimpleNamespace(verdict=self.verdict),
            record=SimpleNamespace(daemon=self.daemon, sockets=()),
        )
        recorded = json.loads((DATA / "daemon_and_engine.json").read_text())
        source = NvmlSource(RecordedNvml(recorded))
        ctx: Any = SimpleNamespace(store=None)
        return room.memory_ahead(ctx, prepared, weighed, live, source)


LIVE = SimpleNamespace(id="a/1")


@pytest.mark.parametrize(
    ("ahead", "live", "fits"),
    [
        # A restart of the engine that runs: what it holds comes back.
        (Ahead(0.92), LIVE, True),
        # Beside it there is no room.
        (Ahead(0.92), None, False),
        (Ahead(0.05), None, False),
        (Ahead(0.15), None, True),
        # From disk the daemon's weights are in the way.
        (Ahead(0.92, Verdict.FALLBACK), LIVE, False),
        (Ahead(0.85, Verdict.FALLBACK), LIVE, True),
        # A daemon that is not ours: nobody says how much of the use is its weights.
        (Ahead(0.92, daemon=None), LIVE, None),
        # Its ranks' locks say who they are: as for one of ours.
        (Ahead(0.92, daemon=None, strange={6845}), LIVE, True),
        (Ahead(0.92, daemon=None, strange={6845}), None, False),
        # The driver names pids of another namespace.
        (Ahead(0.92, owners={}), LIVE, None),
    ],
)
def test_recorded_gpu(
    ahead: Ahead, live: Any, fits: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (need,) = ahead.needs(monkeypatch, live)
    assert need.where == "GPU 0"
    assert need.fits is fits, need


MISS, HIT = Conditions(config="h1", compiled=False), Conditions(config="h1", compiled=True)
FIRST = Start("a/1", "a", MISS, compile_s=17.0, plan="saved", plan_key="k1")
AGAIN = Start("a/2", "a", HIT, plan="applied", plan_key="k1")
FORKED = replace(AGAIN, run="a/4", conditions=replace(HIT, standby=True))
ON, OFF, APART = PlanUse.SHARED, PlanUse.OFF, PlanUse.APART


def test_a_configuration_that_was_started_compiles_nothing() -> None:
    found = caches.judge([AGAIN, FIRST], "h1", eager=False, use=ON, key="k1")
    assert "a/2 had this configuration" in found.compile
    assert "plan of a/2 applies" in found.plan
    assert found.hit is True and found.planned


def test_a_new_configuration_compiles_and_says_for_how_long() -> None:
    found = caches.judge([AGAIN, FIRST], "h2", eager=False, use=ON, key="k1")
    assert "compiles" in found.compile and "17 s" in found.compile
    assert found.hit is False and not found.planned
    assert "none of these arguments" in found.plan


def test_without_a_hash_the_changed_arguments_decide() -> None:
    change = ChangeView("max_num_batched_tokens", "1", "2", "restart", "compile cache misses")
    found = caches.judge([FIRST], None, eager=False, use=OFF, changes=[change])
    assert "max_num_batched_tokens changed" in found.compile
    assert found.plan == ""
    assert caches.judge([], None, eager=False, use=OFF).compile == ""


def test_eager_compiles_nothing() -> None:
    found = caches.judge([FIRST], "h2", eager=True, use=OFF)
    assert found.compile == "nothing is compiled (enforce_eager)"
    assert found.hit is None


def test_a_plan_that_vllm_did_not_take_is_not_counted_on() -> None:
    refused = Start("a/3", "a", HIT, plan="refused")
    found = caches.judge([refused, AGAIN], "h1", eager=False, use=ON, key="k1")
    assert found.refused and not found.planned and "did not take it at a/3" in found.plan


@pytest.mark.parametrize(
    ("earlier", "use", "key", "planned", "said"),
    [
        # By a standby each set of arguments has a plan of its own.
        ([FORKED], APART, "k1", True, "a/4 applies: memory is not profiled again"),
        ([FORKED], APART, "k2", False, "none of these arguments yet"),
        # vLLM's own place and a standby's are two.
        ([AGAIN], APART, "k1", False, "none of these arguments yet"),
        ([FORKED], ON, "k1", False, "none of these arguments yet"),
        # vLLM alone takes the plan of other memory.
        ([AGAIN], ON, "k2", True, "other arguments, which vLLM does not compare"),
        ([replace(AGAIN, plan_key=None)], ON, "k2", True, "not profiled again"),
        ([FORKED, AGAIN], OFF, "k1", False, ""),
    ],
)
def test_whose_plan_applies(
    earlier: list[Start], use: PlanUse, key: str, planned: bool, said: str
) -> None:
    found = caches.judge(earlier, "h1", eager=False, use=use, key=key)
    assert found.planned is planned
    assert said in found.plan and bool(said) == bool(found.plan)
    assert ("compare" in found.plan) == ("compare" in said)


@pytest.mark.parametrize(
    ("config_hash", "env", "key"),
    [
        ("h1", {}, "h1"),
        ("h1", {"VLLM_CACHE_ROOT": "/fast"}, "h1 /fast"),
        ("h1", {"XDG_CACHE_HOME": "/c", "HF_HOME": "/h"}, "h1 /c"),
        (None, {"VLLM_CACHE_ROOT": "/fast"}, None),
    ],
)
def test_compiled_code_is_found_where_it_was_kept(
    config_hash: str | None, env: dict[str, str], key: str | None
) -> None:
    spec = RunSpec(unit="a", kind=Kind.ENGINE, argv=[], env=env, config_hash=config_hash)
    assert caches.compiled_key(spec) == key
