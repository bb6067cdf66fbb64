"""Reading vLLM's own result files and logs, settings, and statistics against known values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.errors import Failed, Usage
from engine_ctl.inside.standby_bench import is_bench, measurements
from engine_ctl.tune.progress import BenchProgress, ProgressReader, last_words
from engine_ctl.tune.results import parse_result
from engine_ctl.tune.settings import (
    Target,
    bench_words,
    describe,
    fitted,
    repeated_words,
    settings,
)
from engine_ctl.tune.stats import Stat, median, stat, within_noise

DATA = Path(__file__).parents[1] / "data" / "bench"
TARGET = Target(host="127.0.0.1", port=8000, model="/m", served_name="m")


def test_a_real_result_of_vllm_0_32() -> None:
    found = parse_result((DATA / "vllm-0.32-cpu-random-8.json").read_bytes())
    assert (found.completed, found.failed) == (8, 0)
    assert found.seconds == pytest.approx(0.10278, abs=1e-5)
    assert found.output_tokens_per_s == pytest.approx(1245.337, abs=1e-3)
    assert found.total_tokens_per_s == pytest.approx(3745.739, abs=1e-3)
    assert found.requests_per_s == pytest.approx(77.8335, abs=1e-3)
    assert (found.input_tokens, found.output_tokens) == (257, 128)
    assert found.goodput_per_s is None
    # This file was written without --metric-percentiles: the median stands in for p50.
    assert found.latency_ms["ttft"]["p50"] == pytest.approx(44.578, abs=1e-3)
    assert found.latency_ms["itl"]["p99"] == pytest.approx(7.7094, abs=1e-3)
    assert "p95" not in found.latency_ms["ttft"] and "e2el" not in found.latency_ms
    assert found.figures()["itl_p99"] == found.latency_ms["itl"]["p99"]


def test_a_real_result_with_percentiles_and_goodput() -> None:
    found = parse_result((DATA / "vllm-0.32-cpu-percentiles.json").read_bytes())
    for name in ("ttft", "tpot", "itl", "e2el"):
        quantities = found.latency_ms[name]
        assert set(quantities) == {"mean", "p50", "p90", "p95", "p99"}
        assert quantities["p50"] <= quantities["p90"] <= quantities["p95"] <= quantities["p99"]
    assert found.goodput_per_s is not None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"date": 1}', b"null", b"\xff\xfe"])
def test_what_is_no_result_is_said(data: bytes) -> None:
    with pytest.raises(Failed, match="result file"):
        parse_result(data)


def test_numbers_that_are_none_are_unknown() -> None:
    raw = {"duration": 1.0, "completed": 0, "output_throughput": None, "mean_ttft_ms": True}
    found = parse_result(json.dumps(raw).replace("null", "NaN").encode())
    assert found.output_tokens_per_s is None and found.latency_ms == {}


def test_statistics_against_known_values() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert stat([10.0, 12.0, 9.0]) == Stat(10.0, 9.0, 12.0, 3)
    assert stat([10.0, 12.0, 9.0]).spread == pytest.approx(0.15)  # type: ignore[union-attr]
    assert stat([None, 5.0, float("nan")]) == Stat(5.0, 5.0, 5.0, 1)
    assert stat([5.0]).spread is None  # type: ignore[union-attr]
    assert stat([]) is None and stat([None]) is None
    with pytest.raises(ValueError):
        median([])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_a_median_lies_within_and_halves(values: list[float]) -> None:
    found = stat(values)
    assert found is not None and found.low <= found.median <= found.high
    assert sum(v <= found.median for v in values) * 2 >= len(values)
    assert sum(v >= found.median for v in values) * 2 >= len(values)


def test_noise_is_overlap_of_what_was_measured() -> None:
    one = Stat(100.0, 95.0, 105.0, 3)
    assert within_noise(one, Stat(104.0, 103.0, 110.0, 3)) is True
    assert within_noise(one, Stat(120.0, 106.0, 130.0, 3)) is False
    assert within_noise(one, None) is None
    assert within_noise(Stat(1.0, 1.0, 1.0, 1), Stat(1.0, 1.0, 1.0, 1)) is None


def test_settings_come_in_layers() -> None:
    made = settings({"requests": 8, "input-len": 32}, {"requests": 16, "goodput": {"ttft": 500}})
    assert (made.requests, made.input_len, made.goodput) == (16, 32, {"ttft": 500.0})
    assert settings({"path": "/x.json"}).dataset == "sharegpt"
    assert settings({"path": "/x.jsonl"}).dataset == "recorded"
    assert describe(made) == "16 requests of 32 in, ? out, 16 at once, 3 times"


def test_requests_that_all_failed_have_no_latency() -> None:
    raw = {"duration": 2.0, "completed": 0, "failed": 64, "median_ttft_ms": 0.0, "p95_itl_ms": 0}
    assert parse_result(json.dumps(raw).encode()).latency_ms == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"request": 8}, "did you mean requests"),
        ({"requests": "many"}, "requests: expected"),
        ({"requests": 0}, "at least 1"),
        ({"dataset": "random", "path": "/x"}, "takes no bench.path"),
        ({"dataset": "sharegpt"}, "needs a file"),
        ({"goodput": {"tfft": 5}}, "none of ttft"),
        ({"request_rate": -1.0}, "more than 0"),
        ({"dataset": "hf", "path": "x"}, "must be one of"),
    ],
)
def test_bad_settings_are_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(Usage, match=says):
        settings(given)


@given(st.integers(32, 1 << 20), st.none() | st.integers(1, 4096), st.none() | st.integers(1, 4096))
def test_lengths_that_were_not_given_fit(max_len: int, inp: int | None, out: int | None) -> None:
    asked = settings({"input_len": inp, "output_len": out})
    try:
        made = fitted(asked, max_len)
    except Usage:
        assert (inp or 0) + (out or 0) >= max_len - 9
        return
    assert made.input_len and made.output_len
    assert made.input_len + made.output_len <= max_len
    assert inp in (None, made.input_len) and out in (None, made.output_len)


def test_the_words_of_a_measurement() -> None:
    made = settings(
        {"requests": 8, "input_len": 32, "output_len": 16, "concurrency": 4},
        {"goodput": {"itl": 40, "ttft": 500}, "extra": {"burstiness": 0.5}},
    )
    words = bench_words(made, TARGET, 7, "/d", "r.json")
    text = " ".join(words)
    assert words[:2] == ["bench", "serve"]
    assert "--goodput tpot:40 ttft:500" in text and "--seed 7" in text
    assert "--burstiness 0.5" in text and "--random-input-len 32" in text
    assert "--result-dir /d --result-filename r.json" in text and "--num-prompts 8" in text
    recorded = bench_words(settings({"path": "/r.jsonl"}), TARGET, 0, "/d", "r")
    assert "--dataset-name custom --dataset-path /r.jsonl" in " ".join(recorded)


def test_several_measurements_in_one_process() -> None:
    made = settings({"requests": 8, "repeats": 3, "goodput": {"ttft": 5}})
    words = repeated_words(made, TARGET, 7, "/d")
    assert is_bench(words) and not is_bench(["serve", "/m"]) and not is_bench(["bench", "sweep"])
    each = measurements(words[2:])
    assert each[0] == bench_words(made, TARGET, 7, "/d", "result-1.json")[2:]
    assert [e[-1] for e in each] == ["result-1.json", "result-2.json", "result-3.json"]
    assert [e[len(e) - 1 - e[::-1].index("--seed") + 1] for e in each] == ["7", "8", "9"]
    assert all(e[: len(each[0])] == each[0] for e in each)
    assert measurements(["a"]) == [["a"]]


def test_progress_out_of_a_real_log() -> None:
    log = (DATA / "vllm-0.32-cpu-bench.log").read_bytes()
    whole = ProgressReader()
    assert whole.feed(log) == BenchProgress("measuring", 8, 8)
    seen = []
    piecewise = ProgressReader()
    for at in range(0, len(log), 7):
        seen.append(piecewise.feed(log[at : at + 7]).stage)
    assert list(dict.fromkeys(seen)) == ["preparing", "warming up", "measuring"]
    assert piecewise.now == whole.now


@pytest.mark.parametrize("step", [1, 7, 64, 100_000])
def test_progress_over_repeats_never_steps_back(step: int) -> None:
    log = (DATA / "vllm-0.32-cpu-bench.log").read_bytes() * 3
    reader = ProgressReader(3)
    seen = [reader.feed(log[at : at + step]) for at in range(0, len(log), step)]
    ranks = [now.rank for now in seen]
    assert ranks == sorted(ranks)
    assert seen[-1] == BenchProgress("measuring", 8, 8, 3, 3)
    if step < 100:
        measured = [(now.repeat, now.done) for now in seen if now.stage == "measuring"]
        assert {(repeat, 8) for repeat in (1, 2, 3)} <= set(measured)


def test_progress_without_warm_ups_counts_the_measurements() -> None:
    reader = ProgressReader(2)
    one = b"Starting main benchmark run...\n  0%| | 0/4 [00:00<?\r100%|#| 4/4 [00:01<00:00]\n"
    assert reader.feed(one) == BenchProgress("measuring", 4, 4, 1, 2)
    # What is counted between two measurements is something else.
    reader.feed(b"=== Serving Benchmark Result ===\n 1/600 [00:00<?")
    assert reader.now == BenchProgress("measuring", 4, 4, 1, 2)
    assert reader.feed(one) == BenchProgress("measuring", 4, 4, 2, 2)
    assert reader.feed(one) == BenchProgress("measuring", 4, 4, 2, 2)


def test_results_complete_a_progress_that_no_bar_told() -> None:
    reader = ProgressReader(2)
    reader.feed(b"--disable-tqdm: Starting main benchmark run...")
    assert reader.finish(6) == reader.now == BenchProgress("measuring", 6, 6, 2, 2)


def test_the_last_words_of_a_failed_benchmark() -> None:
    trace = b'Traceback (most recent call last):\n  File "x", line 1\nValueError: no\nbye\n'
    assert last_words(trace) == "ValueError: no"
    usage = b"usage: vllm bench serve [-h]\nvllm bench serve: error: argument --seed: bad\n"
    assert last_words(usage).endswith("argument --seed: bad")
    assert last_words(b"") == "it said nothing"
    assert last_words(b" 10%|#  | 1/8 [00:01<\r100%| 8/8 [00:02<") == "100%| 8/8 [00:02<"
