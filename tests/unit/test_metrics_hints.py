"""Hints in plain words: what each case of the facts has to say, and silence when all is well."""

from __future__ import annotations

import pytest

from engine_ctl.metrics.hints import ENGINE_RULES, RANK_RULES, Hint, hints, words
from engine_ctl.metrics.sample import Parser
from engine_ctl.metrics.window import EngineWindow
from engine_ctl.model import EngineLoad, RankLoad
from tests.standin.pages import page


def of(name: str, limits: dict[str, float] | None = None) -> dict[str, Hint]:
    window = EngineWindow()
    window.add(Parser().parse(page(name)), 0.0)
    found = window.load(0.0, 0.0, True)
    assert found is not None
    return {hint.rule: hint for hint in hints(found, limits)}


def test_m1_the_limit_is_max_num_seqs_not_memory() -> None:
    (hint,) = of("M1", {"max_num_seqs": 128}).values()
    assert hint.text == (
        "57 wait for capacity while KV is 41.2 %: max_num_seqs (128) is the limit, not memory"
    )
    assert hint.knob == "max_num_seqs"
    assert "128 run" in of("M1")["seqs_limit_unnamed"].text


def test_the_active_limit_is_named_before_max_num_seqs() -> None:
    (hint,) = of("h200_load", {"max_num_seqs": 8, "max_num_active_seqs": 4}).values()
    assert hint.rule == "active_limit"
    assert hint.knob == "max_num_active_seqs"
    assert of("h200_load", {"max_num_seqs": 8})["step_budget"].knob == "max_num_batched_tokens"


def test_a_moment_between_two_requests_does_not_change_the_limit() -> None:
    rank = RankLoad(
        "0",
        running=1,
        waiting_by_reason={"capacity": 13},
        kv_cache_usage=0.0,
        extra={"running_peak": 2.0},
    )
    (hint,) = hints(EngineLoad(0.0, (rank,)), {"max_num_seqs": 2})
    assert hint.rule == "seqs_limit"


def test_m2_deferred_by_the_lora_budget() -> None:
    (hint,) = of("M2").values()
    assert hint.text == (
        "9 deferred: adapters legal wait for a slot, max_loras is 1; raise it, more memory does "
        "not help"
    )


def test_m3_per_rank_and_the_imbalance() -> None:
    found = of("M3")
    assert found["kv_full_preempted"].engine == "0"
    assert words(found["kv_full_preempted"]).startswith("rank 0: KV is full (99.8 %), 31 wait")
    assert "rank 1 is at 11.0 %" in found["uneven_ranks"].text


def test_m4_asleep_is_not_idle() -> None:
    assert of("M4")["asleep_level_1"].text.startswith("asleep, level 1")


def test_m5_weak_speculation() -> None:
    assert "accepts 5.5 % (mean length 1.22)" in of("M5")["weak_speculation"].text


@pytest.mark.parametrize("name", ["M6", "M7", "h200_idle", "h200_after", "cpu_0", "cpu_spec"])
def test_nothing_to_say(name: str) -> None:
    assert of(name) == {}


def test_memory_is_the_limit_when_the_cache_is_full() -> None:
    rank = RankLoad("0", running=9, waiting_by_reason={"capacity": 3}, kv_cache_usage=0.9)
    (hint,) = hints(EngineLoad(0.0, (rank,)), {"max_num_seqs": 9})
    assert hint.rule == "kv_is_the_limit"


def test_preemptions_now() -> None:
    rank = RankLoad("0", preemptions_per_second=2.5, preemptions=7, kv_cache_usage=0.97, waiting=1)
    (hint,) = hints(EngineLoad(0.0, (rank,)))
    assert hint.rule == "preempting"
    assert hint.text.startswith("2.5 preemptions/s with KV at 97.0 %")


def test_deferred_by_transfer_and_otherwise() -> None:
    deferred = {"deferred": 2}
    fetching = RankLoad("0", waiting_by_reason=deferred, extra={"kv_fetch_in_progress": 2.0})
    assert [hint.rule for hint in hints(EngineLoad(0.0, (fetching,)))] == ["deferred_by_transfer"]
    other = RankLoad("0", waiting_by_reason=deferred)
    assert [hint.rule for hint in hints(EngineLoad(0.0, (other,)))] == ["deferred"]


def test_errors_come_first() -> None:
    rank = RankLoad("0", running=1, waiting_by_reason={"capacity": 3}, kv_cache_usage=0.1)
    load = EngineLoad(
        0.0, (rank,), stalled_s=42.0, healthy=False, rejections={"max_num_queued_reqs": 4.0}
    )
    found = hints(load)
    assert [hint.rule for hint in found[:3]] == ["hung", "unhealthy", "rejected_requests"]
    assert "42 s" in found[0].text
    assert hints(EngineLoad(0.0, (), stalled_s=3.0)) == ()


def test_disabled_statistics() -> None:
    (hint,) = hints(EngineLoad(0.0, (), stats_disabled=True))
    assert "--disable-log-stats" in hint.text


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in (*RANK_RULES, *ENGINE_RULES)]
    assert len(names) == len(set(names))
