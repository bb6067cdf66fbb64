"""Points of a sweep, the cheapest order, forecasts, halving."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.errors import Usage
from engine_ctl.tune import halving
from engine_ctl.tune.goal import parse_goal
from engine_ctl.tune.order import Step, cheapest, forecast, keys_of, steps
from engine_ctl.tune.points import axes, combine, label, parse_axis, profile_of
from engine_ctl.tune.settings import settings
from engine_ctl.tune.stats import Stat
from profiles.model import Profile

BASE = Profile(name="p", model="/m", args={"max_num_seqs": 64, "dtype": "bfloat16"})


def test_values_are_yaml_and_commas_inside_brackets_are_theirs() -> None:
    assert parse_axis("max-num-seqs=64, 128") == ("max_num_seqs", (64, 128))
    assert parse_axis("x=true,default,0.5,a") == ("x", (True, None, 0.5, "a"))
    _, values = parse_axis('speculative_config={"method":"ngram","n":2},null')
    assert values == ({"method": "ngram", "n": 2}, None)
    for bad in ("x", "x=", "=1", "x=1,,2", "x=[1,2", "x='a"):
        with pytest.raises(Usage):
            parse_axis(bad)


def test_axes_are_checked_against_vllms_arguments() -> None:
    assert list(axes(["-tp=1,2", "bench.concurrency=1,2", "env.X=1"])) == [
        "tensor_parallel_size",
        "bench.concurrency",
        "env.X",
    ]
    with pytest.raises(Usage, match="did you mean max_num_seqs"):
        axes(["max_num_seq=1,2"])
    with pytest.raises(Usage, match="given twice"):
        axes(["max_num_seqs=1", "max-num-seqs=2"])
    with pytest.raises(Usage, match="names 64 twice"):
        axes(["max_num_seqs=64,64"])
    with pytest.raises(Usage, match="at least one setting"):
        axes([])


def test_grid_and_list() -> None:
    found = {"a": (1, 2), "b": (3, 4)}
    assert len(combine(found, "grid")) == 4
    assert combine(found, "list") == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    with pytest.raises(Usage, match="as many values"):
        combine({"a": (1, 2), "b": (3,)}, "list")
    with pytest.raises(Usage, match="too many"):
        combine({c: tuple(range(20)) for c in "abc"}, "grid")


def test_the_profile_of_a_point() -> None:
    base = Profile(name="p", model="/m", args={"max-num-seqs": 64}, env={"A": "1"})
    made = profile_of(
        base, {"max_num_seqs": 8, "env.A": None, "env.B": True, "bench.requests": 4}, None
    )
    assert made.args == {"max_num_seqs": 8}
    assert made.env == {"B": "1"} and made.bench == {"requests": 4}
    assert profile_of(base, {"max_num_seqs": None}, None).args == {}
    assert base.args == {"max-num-seqs": 64}
    assert label({"a": None, "b": True, "c": 1.5}) == "a default, b on, c 1.5"


def order_of(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [points[index] for index in cheapest(BASE, points)]


def test_weights_change_last_and_least() -> None:
    points = combine({"max_num_seqs": (32, 64), "dtype": ("float16", "bfloat16")}, "grid")
    found = order_of(points)
    assert [p["dtype"] for p in found] == ["bfloat16", "bfloat16", "float16", "float16"]
    assert found[0] == {"max_num_seqs": 64, "dtype": "bfloat16"}, "what runs comes first"
    taken = steps(BASE, found)
    assert taken[0] == Step(restart=False)
    assert [s.reload for s in taken] == [False, False, True, False]


def test_what_compiles_alike_stands_together() -> None:
    points = combine({"gpu_memory_utilization": (0.5, 0.6), "max_num_seqs": (32, 128)}, "grid")
    assert [p["max_num_seqs"] for p in order_of(points)] == [32, 32, 128, 128]
    taken = steps(BASE, order_of(points))
    assert [s.compiles for s in taken] == [True, False, True, False]


def test_the_benchmarks_own_settings_restart_nothing() -> None:
    points = combine({"bench.concurrency": (1, 2), "max_num_seqs": (32, 64)}, "grid")
    found = order_of(points)
    assert [p["max_num_seqs"] for p in found] == [64, 64, 32, 32]
    assert [s.restart for s in steps(BASE, found)] == [False, False, True, False]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "max_num_seqs": st.sampled_from([32, 64, 128]),
                "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
                "gpu_memory_utilization": st.sampled_from([0.5, 0.6]),
            }
        ),
        min_size=1,
        max_size=14,
        unique_by=lambda p: tuple(p.values()),
    )
)
def test_every_point_once_and_never_more_reloads_than_weights(points: list[dict[str, Any]]) -> None:
    order = cheapest(BASE, points)
    assert sorted(order) == list(range(len(points)))
    found = [points[index] for index in order]
    taken, keys = steps(BASE, found), keys_of(BASE, points, None)
    assert sum(s.reload for s in taken) == len({k.weights for k in keys} - {()})
    assert sum(s.compiles for s in taken) == len(
        {(k.weights, k.compiled) for k in keys} - {((), ())}
    )


def test_a_forecast_judges_by_what_was_measured() -> None:
    left = [Step(True), Step(True, reload=True), Step(False)]
    assert forecast(left, [], [], True).seconds is None
    found = forecast(left, [10.0, 12.0, 30.0], [5.0], True)
    assert found.seconds == 3 * 12.0 + 3 * 5.0
    assert (found.restarts, found.reloads) == (3, 1)
    assert forecast([], [], [], False).seconds == 0.0


def test_halving_begins_short_and_ends_as_asked() -> None:
    asked = settings({"requests": 64, "repeats": 3})
    assert [halving.settings_of(asked, r, 3).requests for r in range(3)] == [16, 32, 64]
    assert [halving.settings_of(asked, r, 3).repeats for r in range(3)] == [1, 1, 3]
    assert halving.settings_of(settings({"requests": 4}), 0, 3).requests == 4
    assert halving.rungs(20, "halving") == 3 and halving.rungs(20, "grid") == 1
    assert halving.rungs(1, "halving") == 1


def test_the_better_half_goes_on() -> None:
    goal = parse_goal("throughput where ttft_p95<500")

    def point(rate: float, ttft: float) -> dict[str, Stat]:
        return {"throughput": Stat(rate, rate, rate, 1), "ttft_p95": Stat(ttft, ttft, ttft, 1)}

    measured = {0: point(100, 400), 1: point(300, 600), 2: point(200, 300), 4: point(50, 100)}
    assert halving.ranked(goal, measured, range(5)) == [2, 0, 4, 1]
    assert halving.survivors(goal, measured, [4, 3, 2, 1, 0]) == [2, 0]
    assert halving.survivors(goal, {}, [0, 1]) == []
