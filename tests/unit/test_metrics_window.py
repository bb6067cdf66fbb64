"""Rates, percentiles, history and stalls over time and over restarts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.metrics.hints import hints
from engine_ctl.metrics.history import Ring, thin
from engine_ctl.metrics.quantile import Quantile, quantile
from engine_ctl.metrics.sample import Parser, Sample
from engine_ctl.metrics.window import EngineWindow
from engine_ctl.model import EngineLoad, RankLoad
from tests.standin.pages import page

INF = math.inf


def sample(engine: str = "0", start: float | None = None, **values: float) -> Sample:
    lines = [f'vllm:{name}{{engine="{engine}"}} {value}' for name, value in values.items()]
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    return Parser().parse("\n".join(lines).encode())


def load(window: EngineWindow, now: float = 0.0) -> EngineLoad:
    found = window.load(wall=0.0, now=now, healthy=True)
    assert found is not None
    return found


def only(window: EngineWindow) -> RankLoad:
    (rank,) = load(window).ranks
    return rank


def test_rates_need_two_samples() -> None:
    window = EngineWindow()
    assert window.load(0.0, 0.0, None) is None
    window.add(sample(generation_tokens_total=100), 10.0)
    assert only(window).tokens_per_second is None
    window.add(sample(generation_tokens_total=150), 12.0)
    assert only(window).tokens_per_second == 25


def test_a_rate_is_over_the_last_seconds() -> None:
    window = EngineWindow()
    for second in range(20):
        window.add(sample(generation_tokens_total=100 * min(second, 10)), float(second))
    assert only(window).tokens_per_second == 0


@pytest.mark.parametrize("start", [None, 1.0])
def test_a_restart_is_a_reset_and_no_negative_rate(start: float | None) -> None:
    window = EngineWindow()
    window.add(sample(start=start, generation_tokens_total=1000, num_preemptions_total=9), 0.0)
    window.add(sample(start=start, generation_tokens_total=1100, num_preemptions_total=9), 1.0)
    again = None if start is None else start + 5
    window.add(sample(start=again, generation_tokens_total=20, num_preemptions_total=0), 2.0)
    rank = only(window)
    assert rank.tokens_per_second == pytest.approx((100 + 20) / 2)
    assert rank.preemptions_per_second == 0
    assert rank.preemptions == 0


def test_a_restart_that_counts_past_the_old_total_is_seen_by_the_process_start() -> None:
    window = EngineWindow()
    window.add(sample(start=1.0, generation_tokens_total=10), 0.0)
    window.add(sample(start=2.0, generation_tokens_total=30), 1.0)
    assert only(window).tokens_per_second == 30


def test_a_restart_known_to_the_caller_is_a_reset() -> None:
    window = EngineWindow()
    window.add(sample(generation_tokens_total=10), 0.0)
    window.restart()
    assert window.load(0.0, 0.0, None) is None
    window.add(sample(generation_tokens_total=30), 1.0)
    assert only(window).tokens_per_second == 30


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=30))
def test_no_rate_is_ever_negative(totals: list[int]) -> None:
    window = EngineWindow()
    for second, total in enumerate(totals):
        window.add(sample(generation_tokens_total=total), float(second))
        rate = only(window).tokens_per_second
        assert rate is None or rate >= 0


def test_hit_rate_is_unknown_when_idle() -> None:
    window = EngineWindow()
    window.add(sample(prefix_cache_queries_total=100, prefix_cache_hits_total=40), 0.0)
    window.add(sample(prefix_cache_queries_total=100, prefix_cache_hits_total=40), 1.0)
    assert only(window).prefix_hit_rate is None
    window.add(sample(prefix_cache_queries_total=200, prefix_cache_hits_total=65), 2.0)
    assert only(window).prefix_hit_rate == 0.25


def test_ranks_are_summed_and_the_fullest_cache_is_shown() -> None:
    window = EngineWindow()
    window.add(Parser().parse(page("M3")), 0.0)
    found = load(window)
    assert found.waiting == 31
    assert found.kv_cache_usage == 0.998
    assert [rank.kv_cache_usage for rank in found.ranks] == [0.998, 0.11]


def test_a_rank_that_went_away_is_not_shown() -> None:
    window = EngineWindow()
    window.add(Parser().parse(page("M3")), 0.0)
    window.add(sample(num_requests_waiting=1), 1.0)
    assert [rank.engine for rank in load(window).ranks] == ["0"]


def test_percentiles_are_those_of_the_window() -> None:
    window = EngineWindow()

    def ttft(*counts: int) -> Sample:
        edges = ("0.1", "1.0", "10.0", "+Inf")
        text = "\n".join(
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{edge}"}} {count}'
            for edge, count in zip(edges, counts, strict=True)
        )
        return Parser().parse(text.encode())

    window.add(ttft(1000, 1000, 1000, 1000), 0.0)
    assert only(window).percentiles == {}
    window.add(ttft(1000, 1100, 1100, 1100), 1.0)
    assert only(window).percentiles["ttft"]["p50"] == pytest.approx(0.55)
    # A minute later the old observations are out of the window.
    window.add(ttft(1000, 1100, 1100, 1101), 70.0)
    window.add(ttft(1000, 1100, 1100, 1102), 131.0)
    rank = only(window)
    assert rank.percentiles["ttft"]["p50"] == 10.0
    assert "ttft.p50" in rank.over
    assert rank.under == {}
    # After a restart only the new server's observations count.
    window.add(ttft(4, 4, 4, 4), 132.0)
    assert only(window).percentiles["ttft"]["p99"] < 0.1
    assert only(window).under["ttft.p99"] == 0.1


def test_means_are_exact_where_buckets_are_coarse() -> None:
    window = EngineWindow()
    name = 'vllm:request_queue_time_seconds_{}{{engine="0"{}}} {}'

    def queue(total: float, count: int) -> Sample:
        buckets = [name.format("bucket", f',le="{edge}"', count) for edge in ("0.3", "+Inf")]
        ends = [name.format("sum", "", total), name.format("count", "", count)]
        return Parser().parse("\n".join([*buckets, *ends]).encode())

    window.add(queue(10.0, 100), 0.0)
    assert only(window).means == {}
    window.add(queue(10.02, 110), 1.0)
    rank = only(window)
    assert rank.means["queue"] == pytest.approx(0.002)
    assert rank.under["queue.p50"] == 0.3


def test_other_bucket_edges_after_a_restart() -> None:
    window = EngineWindow()
    text = 'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{}"}} {}'
    for second, edge in enumerate(("1.0", "2.0")):
        body = "\n".join([text.format(edge, 5), text.format("+Inf", 5)])
        window.add(Parser().parse(body.encode()), float(second))
    assert only(window).percentiles["ttft"]["p50"] == 1.0


def test_quantile_interpolates_and_says_when_it_is_over() -> None:
    assert quantile((1.0, 2.0, INF), (10.0, 20.0, 20.0), 0.75) == Quantile(1.5)
    assert quantile((1.0, 2.0, INF), (0.0, 0.0, 5.0), 0.5) == Quantile(2.0, over=True)
    assert quantile((1.0, INF), (0.0, 0.0), 0.5) is None
    assert quantile((), (), 0.5) is None


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=20, unique=True),
    st.lists(st.integers(0, 1000), min_size=21, max_size=21),
    st.floats(0.0, 1.0),
)
def test_quantile_stays_inside_the_edges(edges: list[float], observed: list[int], q: float) -> None:
    upper = (*sorted(edges), INF)
    counts = [float(sum(observed[: index + 1])) for index in range(len(upper))]
    found = quantile(upper, counts, q)
    if counts[-1] == 0:
        assert found is None
    else:
        assert found is not None
        assert 0 <= found.value <= upper[-2]


def test_acceptance_and_mean_length() -> None:
    window = EngineWindow()
    window.add(Parser().parse(page("M5")), 0.0)
    extra = only(window).extra
    assert extra["spec_acceptance"] == pytest.approx(0.055)
    assert extra["spec_mean_length"] == pytest.approx(1.22)
    assert extra["spec_acceptance_at_0"] == pytest.approx(0.19)
    assert "spec_acceptance" not in only_of("cpu_spec").extra


def only_of(name: str) -> RankLoad:
    window = EngineWindow()
    window.add(Parser().parse(page(name)), 0.0)
    return only(window)


def test_recorded_idle_load_after() -> None:
    window = EngineWindow()
    for second, name in enumerate(("h200_idle", "h200_load", "h200_after")):
        window.add(Parser().parse(page(name)), second * 4.0)
    rank = only(window)
    assert rank.running == 0
    assert rank.tokens_per_second is not None and rank.tokens_per_second > 0
    assert rank.prefix_hit_rate is not None and 0 < rank.prefix_hit_rate < 1
    assert set(rank.percentiles) == {"ttft", "itl", "e2e", "queue"}
    assert rank.percentiles["itl"]["p50"] <= rank.percentiles["itl"]["p99"]
    assert rank.extra["kv_cache_size_tokens"] == 4115296


def test_standing_still_with_requests_is_a_stall() -> None:
    window = EngineWindow()
    busy = {"num_requests_running": 2, "generation_tokens_total": 10}
    window.add(sample(**busy), 0.0)
    window.add(sample(**busy), 40.0)
    assert load(window, now=41.0).stalled_s == 41.0
    window.add(sample(num_requests_running=2, generation_tokens_total=11), 42.0)
    assert load(window, now=42.0).stalled_s is None


def test_a_step_without_finished_tokens_is_progress() -> None:
    window = EngineWindow()
    for second in range(3):
        window.add(
            sample(
                num_requests_running=1,
                generation_tokens_total=10,
                iteration_tokens_total_count=second,
            ),
            second * 30.0,
        )
    assert load(window, now=60.0).stalled_s is None


def test_idle_and_asleep_are_no_stall() -> None:
    window = EngineWindow()
    window.add(sample(num_requests_running=0, generation_tokens_total=10), 0.0)
    window.add(sample(num_requests_running=0, generation_tokens_total=10), 90.0)
    assert load(window, now=90.0).stalled_s is None
    body = (
        b'vllm:num_requests_waiting{engine="0"} 3\n'
        b'vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 1\n'
    )
    asleep = EngineWindow()
    asleep.add(Parser().parse(body), 0.0)
    asleep.add(Parser().parse(body), 90.0)
    assert load(asleep, now=90.0).stalled_s is None


def test_rejections_of_the_last_minute() -> None:
    window = EngineWindow()
    text = 'vllm:admission_rejections_total{{model_name="m",reason="max_num_queued_reqs"}} {}'
    window.add(Parser().parse(text.format(5).encode()), 0.0)
    assert load(window).rejections == {}
    window.add(Parser().parse(text.format(8).encode()), 1.0)
    assert load(window).rejections == {"max_num_queued_reqs": 3.0}


def test_an_hour_of_history() -> None:
    window = EngineWindow(history=100)
    for second in range(150):
        window.add(sample(num_requests_running=second), float(second))
        window.tick(load(window))
    window.tick(None)
    running = window.history("running")
    assert len(running) == 100
    assert running[-2] == 149 and math.isnan(running[-1])
    assert window.history("running", 2)[0] == 149
    recent = window.recent()
    assert len(recent["running"]) == 100
    assert recent["hour.running"][-1] == 149
    with pytest.raises(KeyError):
        window.history("nothing")


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), max_size=40), st.integers(1, 12), st.integers(0, 15)
)
def test_a_ring_keeps_the_newest(values: list[float], size: int, count: int) -> None:
    ring = Ring(size)
    for value in values:
        ring.push(value)
    newest = values[-min(count, size) :] if count else []
    assert list(ring.last(count)) == newest
    assert len(ring) == min(len(values), size)


def test_thinning_keeps_unknown_apart() -> None:
    nan = math.nan
    assert thin((1.0, 3.0, nan, 5.0, nan, nan), 3)[:2] == (2.0, 5.0)
    assert math.isnan(thin((1.0, 3.0, nan, 5.0, nan, nan), 3)[2])
    assert thin((1.0,), 5) == (1.0,)
    assert thin((1.0,), 0) == ()


def _peers(failed: int, expired: int, moved: int, prefill: tuple[float, int]) -> bytes:
    labels = 'engine="0",model_name="m"'
    lines = {
        f"vllm:num_requests_running{{{labels}}}": 1,
        f"vllm:nixl_num_failed_transfers_total{{{labels}}}": failed,
        f"vllm:nixl_num_failed_notifications_total{{{labels}}}": 1,
        f"vllm:nixl_num_kv_expired_reqs_total{{{labels}}}": expired,
        f"vllm:nixl_bytes_transferred_sum{{{labels}}}": moved,
        f"vllm:nixl_bytes_transferred_count{{{labels}}}": 2,
        f"vllm:request_prefill_time_seconds_sum{{{labels}}}": prefill[0],
        f"vllm:request_prefill_time_seconds_count{{{labels}}}": prefill[1],
        f"vllm:kv_offload_cpu_cache_usage_perc{{{labels}}}": 0.5,
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items()).encode()


def test_what_a_prefill_engine_does_for_its_peers() -> None:
    window, parser = EngineWindow(), Parser()
    window.add(parser.parse(_peers(3, 0, 1000, (2.0, 4))), 0.0)
    first = only(window).extra
    assert first["kv_transfer_failures"] == 3  # vLLM counts the notification among them
    assert not {"kv_transfer_bytes_per_second", "prefill_mean_s"} & first.keys()
    assert not hints(load(window))
    window.add(parser.parse(_peers(5, 1, 6000, (8.0, 7))), 10.0)
    extra = only(window).extra
    assert extra["kv_transfer_bytes_per_second"] == pytest.approx(500.0)
    assert extra["prefill_mean_s"] == pytest.approx(2.0)  # of the window, not since the start
    assert extra["kv_offload_usage"] == 0.5
    assert extra["kv_transfer_failures_lately"] == 2 and extra["kv_expired_lately"] == 1
    told = [hint.rule for hint in hints(load(window))]
    assert told == ["transfers_failed"]  # one word for the matter, the graver one
    # Nothing new for longer than the window: the total stays, the hint goes.
    for at in (40.0, 80.0, 120.0):
        window.add(parser.parse(_peers(5, 1, 6000, (8.0, 7))), at)
    assert not hints(load(window)) and only(window).extra["kv_transfer_failures"] == 5
    assert "prefill_mean_s" not in only(window).extra


def test_an_error_that_appears_first_counts_from_nothing() -> None:
    window, parser = EngineWindow(), Parser()
    base = 'vllm:num_requests_running{engine="0"} 1\n'
    window.add(parser.parse(base.encode()), 0.0)
    failed = 'vllm:request_success_total{engine="0",finished_reason="error"} 3\n'
    window.add(parser.parse((base + failed).encode()), 5.0)
    assert [hint.text for hint in hints(load(window))] == [
        "3 requests ended with an error in the last minute: see the log"
    ]


@pytest.mark.parametrize("start", [1.0, None])
def test_tokens_a_step_are_of_one_api_server_alone(start: float | None) -> None:
    # Of several each counts a step in which it has requests: only the single one says its start.
    window = EngineWindow()
    for second in range(1, 4):
        steps = {"iteration_tokens_total_sum": 300 * second, "iteration_tokens_total_count": second}
        window.add(sample(start=start, num_requests_running=1, **steps), float(second))
    found = only(window).extra.get("tokens_per_step")
    assert found == (None if start is None else pytest.approx(300))
