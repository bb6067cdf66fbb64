"""What speaks against a bench's figures is said, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from engine_ctl.tune import halving
from engine_ctl.tune.caveats import between, caveats, noted
from engine_ctl.tune.goal import parse_goal
from engine_ctl.tune.records import BenchRecord, Sample
from engine_ctl.tune.results import BenchResult
from engine_ctl.tune.rows import Comparison, Row, judged
from engine_ctl.tune.settings import BenchSettings, settings
from engine_ctl.tune.stats import Stat


def record(seconds: float = 30.0, **fields: Any) -> BenchRecord:
    made = settings(fields.pop("settings", {}))
    results = [BenchResult(seconds=seconds, completed=64, failed=0, peak_concurrency=9.0)] * 3
    return BenchRecord(id="b1", unit="u", at=0.0, settings=made, results=results, **fields)


def queue(*waiting: int) -> list[Sample]:
    return [Sample(t=float(at), running=8, waiting=count) for at, count in enumerate(waiting)]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (record(), None),
        (record(prefix_hit_rate=0.05), None),
        (record(prefix_hit_rate=0.6), "answered 60% of the prompt tokens"),
        (
            record(prefix_hit_rate=0.6, settings={"path": "a.jsonl"}),
            "; each measurement asks the file's prompts again",
        ),
        (record(seconds=0.8), "took 0.8 s only"),
        (record(settings={"concurrency": 64, "requests": 64}), "256 or more"),
        (record(settings={"concurrency": 64}), None),
        (
            record(
                settings={"request_rate": 4.0, "concurrency": 9},
                samples=[*queue(0, 1, 1, 0), Sample(t=4.0, running=9, waiting=0)],
            ),
            "waited in the client",
        ),
        # vLLM's peak is of a second: four that follow each other in one are four.
        (
            record(
                settings={"request_rate": 4.0, "concurrency": 9},
                samples=[Sample(t=float(at), running=1, waiting=0) for at in range(9)],
            ),
            None,
        ),
        (
            record(
                settings={"request_rate": 0.5, "concurrency": 1},
                samples=[Sample(t=float(at), running=at % 2, waiting=0) for at in range(12)],
            ),
            None,
        ),
        (record(settings={"request_rate": 4.0}, samples=queue(0, 0, 0, 0)), None),
        (record(settings={"request_rate": 4.0}, samples=queue(0, 0, 2, 0, 0)), None),
        (
            record(settings={"request_rate": 4.0}, samples=queue(0, 1, 5, 9, 14)),
            "4/s is more than it sustains",
        ),
        # With so many at once they are meant to wait.
        (record(settings={"concurrency": 16}, samples=queue(0, 1, 5, 9, 14)), None),
        (BenchRecord(id="b1", unit="u", at=0.0, prefix_hit_rate=0.9), None),
    ],
)
def test_what_is_said(made: BenchRecord, words: str | None) -> None:
    found = caveats(made)
    assert (words is None) == (found == ())
    assert words is None or any(words in text for text in found)


def test_a_rate_has_no_limit_unless_it_is_asked_for() -> None:
    assert settings({"request_rate": 5.0}).concurrency is None
    assert settings({"concurrency": 8}, {"request_rate": 5.0}).concurrency == 8
    assert settings({"request_rate": None}).concurrency == BenchSettings().concurrency


def test_so_many_requests_that_the_concurrency_is_kept_up() -> None:
    assert settings({"concurrency": 128}).requests == 512
    assert settings({"concurrency": 4}).requests == settings({}).requests == 64
    assert settings({"requests": 10}, {"concurrency": 128}).requests == 10
    asked = settings({"concurrency": 64})
    assert [halving.settings_of(asked, rung, 3).requests for rung in range(3)] == [64, 128, 256]


def test_points_that_cannot_be_compared() -> None:
    cold, warm = record(prefix_hit_rate=0.01), record(prefix_hit_rate=0.9)
    assert between([cold, cold]) == () == between([])
    (said,) = between([cold, warm, record()])
    assert "from 1% to 90%" in said
    notes = noted({"a": cold, "b": warm, "c": record(prefix_hit_rate=0.8)})
    assert notes[0] == said
    assert notes[1:] == ("b: the prefix cache answered 90% of the prompt tokens (and 1 more)",)


def test_what_lost_requests_is_never_the_best() -> None:
    fast, slow = (
        {"throughput": Stat(900.0, 900.0, 900.0, 3)},
        {"throughput": Stat(5.0, 5.0, 5.0, 3)},
    )
    rows = (
        Row(0, {}, "fast", "done", stats=fast, lost=3),
        Row(1, {}, "slow", "done", stats=slow),
    )
    goal = parse_goal("throughput")
    found = judged(goal, rows)
    assert [row.best for row in found] == [False, True]
    pooled = Comparison(
        "", "u", goal, (Row(0, {}, "a", "done", stats={"requests": fast["throughput"]}),)
    )
    assert pooled.sentence() == "the benchmark gives no throughput; a goal may be of requests"
    only = Comparison("", "u", goal, judged(goal, rows[:1]))
    assert only.best is None and only.sentence() == (
        "requests failed at every point that was measured"
    )
