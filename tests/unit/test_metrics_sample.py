"""Typed samples: the recordings of 0.32 and 0.33, the cases M1 to M7, and every known trap."""

from __future__ import annotations

import pytest

from engine_ctl.metrics.sample import Lora, Parser, RankSample, Sample
from tests.standin.pages import RECORDED, page


def read(name: str) -> Sample:
    return Parser().parse(page(name))


def rank(name: str) -> RankSample:
    sample = read(name)
    assert len(sample.ranks) == 1
    return sample.ranks[0]


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_are_complete(name: str) -> None:
    sample = read(name)
    assert sample.malformed == 0
    assert not sample.stats_disabled
    (only,) = sample.ranks
    assert only.engine == "0"
    assert only.sleep_state == "awake"
    assert {"running", "waiting", "kv_cache_usage"} <= only.gauges.keys()
    assert {"prompt_tokens", "generation_tokens", "preemptions"} <= only.counters.keys()
    assert {"ttft", "itl", "e2e", "queue", "iteration_tokens"} <= only.histograms.keys()
    assert only.histograms["ttft"].edges[-1] == float("inf")
    assert only.cache_config["enable_prefix_caching"] == "True"
    assert sample.rejections == {"max_num_queued_reqs": 0.0, "max_num_queued_tokens": 0.0}


def test_load_of_the_h200() -> None:
    only = rank("h200_load")
    assert only.gauges["running"] == 4
    assert only.gauges["waiting"] == 56
    assert only.labelled["waiting_by_reason"] == {"capacity": 56.0, "deferred": 0.0}
    assert only.counters["generation_tokens"] == 2178
    assert only.labelled["finished"]["length"] == 5
    assert only.histograms["ttft"].count == 9
    assert only.histograms["iteration_tokens"].sum == 2318


def test_created_series_are_not_values() -> None:
    only = rank("h200_load")
    assert all(value < 1e9 for value in only.counters.values())


def test_several_api_servers_have_no_process_start() -> None:
    assert read("cpu_api2").process_start is None
    assert read("cpu_0").process_start == pytest.approx(1.7959734e9, rel=1e-6)
    assert rank("cpu_api2").counters["generation_tokens"] == 24


def test_m1_waiting_by_reason() -> None:
    only = rank("M1")
    assert only.gauges == {"running": 128.0, "waiting": 57.0, "kv_cache_usage": 0.412}
    assert only.labelled["waiting_by_reason"]["capacity"] == 57


def test_m2_the_newest_lora_series_counts() -> None:
    assert read("M2").lora == Lora(max_lora=1, running=("sql",), waiting=("legal",))


def test_m3_ranks_stay_apart() -> None:
    first, second = read("M3").ranks
    assert (first.engine, second.engine) == ("0", "1")
    assert first.gauges["kv_cache_usage"] == 0.998
    assert second.gauges["kv_cache_usage"] == 0.11
    assert first.counters["preemptions"] == 4182


def test_m4_sleep_state_is_the_label_with_one() -> None:
    assert rank("M4").sleep_state == "weights_offloaded"


def test_m5_speculation_by_position() -> None:
    only = rank("M5")
    assert only.counters["spec_accepted_tokens"] == 220
    assert only.labelled["spec_accepted_per_position"] == {"0": 190.0, "3": 2.0}


def test_m6_awkward_text() -> None:
    sample = read("M6")
    assert sample.malformed == 0
    only = sample.ranks[0]
    assert "kv_cache_usage" not in only.gauges  # NaN is unknown, not 0
    assert only.histograms["iteration_tokens"].sum == 36
    assert only.histograms["e2e"].counts == (3.0,)
    assert only.counters["flops_per_gpu"] == 1.2345e17


def test_m7_old_names_and_no_engine_label() -> None:
    only = rank("M7")
    assert only.engine == "0"
    assert only.gauges["kv_cache_usage"] == 0.2
    assert only.gauges["swapped"] == 0
    assert only.histograms["itl"].sum == 1.5


def test_an_old_name_beside_the_new_one_is_not_counted_twice() -> None:
    body = (
        b'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        b'vllm:gpu_prefix_cache_hits_total{engine="0"} 5\n'
        b'vllm:prefix_cache_hits_total{engine="0"} 5\n'
        b'vllm:time_per_output_token_seconds_count{engine="0"} 7\n'
        b'vllm:inter_token_latency_seconds_count{engine="0"} 7\n'
    )
    (only,) = Parser().parse(body).ranks
    assert only.gauges["kv_cache_usage"] == 0.2
    assert only.counters["prefix_hits"] == 5
    assert only.histograms["itl"].count == 7


def test_ray_names() -> None:
    (only,) = Parser().parse(b'ray_vllm_num_requests_running{engine="1",ReplicaId="x"} 3\n').ranks
    assert only.engine == "1"
    assert only.gauges["running"] == 3


def test_disabled_statistics_are_said() -> None:
    sample = Parser().parse(b"# TYPE python_info gauge\npython_info 1.0\n")
    assert sample.stats_disabled
    assert sample.ranks == ()
    assert not read("M7").stats_disabled


def test_values_are_read_anew_behind_known_heads() -> None:
    parser = Parser()
    first = parser.parse(b'vllm:num_requests_running{engine="0"} 1\n')
    second = parser.parse(b'vllm:num_requests_running{engine="0"} 2\n')
    assert (first.ranks[0].gauges["running"], second.ranks[0].gauges["running"]) == (1, 2)


def test_a_line_with_a_timestamp_is_read_anew() -> None:
    parser = Parser()
    for value in (1, 2):
        body = b'vllm:num_requests_running{engine="0"} %d 1700000000000\n' % value
        assert parser.parse(body).ranks[0].gauges["running"] == value


def test_bad_lines_are_counted_and_the_rest_is_read() -> None:
    sample = Parser().parse(
        b"vllm:num_requests_running 1\nvllm:{{{ 3\nvllm:num_requests_waiting x\n"
    )
    assert sample.malformed == 2
    assert sample.ranks[0].gauges == {"running": 1.0}


def test_edges_are_what_the_server_says() -> None:
    body = b"".join(
        b'vllm:time_to_first_token_seconds_bucket{engine="0",le="%s"} %d\n' % (edge, count)
        for edge, count in ((b"0.3", 1), (b"7.0", 2), (b"+Inf", 2))
    )
    histogram = Parser().parse(body).ranks[0].histograms["ttft"]
    assert histogram.edges == (0.3, 7.0, float("inf"))
    assert histogram.counts == (1.0, 2.0, 2.0)


def test_an_answer_cut_short_does_not_raise() -> None:
    body = page("h200_load")
    for cut in range(0, len(body), 997):
        Parser().parse(body[:cut])
