"""Goals: the grammar, its errors, and what it means for measured points."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.errors import Usage
from engine_ctl.tune.goal import METRICS, RATES, Condition, Goal, parse_goal
from engine_ctl.tune.stats import Stat


def one(value: float) -> Stat:
    return Stat(value, value, value, 1)


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("throughput", Goal("throughput", True)),
        ("ttft_p95", Goal("ttft_p95", False)),
        (
            "throughput where ttft_p95<500ms",
            Goal("throughput", True, (Condition("ttft_p95", "<", 500.0),)),
        ),
        (
            " min e2el_p50  where throughput >= 1_000 tok/s and itl_p99<=0.04s",
            Goal(
                "e2el_p50",
                False,
                (Condition("throughput", ">=", 1000.0), Condition("itl_p99", "<=", 40.0)),
            ),
        ),
        ("max ttft_p50", Goal("ttft_p50", True)),
        (
            "start_s where throughput>5",
            Goal("start_s", False, (Condition("throughput", ">", 5.0),)),
        ),
        (
            "throughput where start_s<90, ttft_mean<2s",
            Goal(
                "throughput",
                True,
                (Condition("start_s", "<", 90.0), Condition("ttft_mean", "<", 2000.0)),
            ),
        ),
    ],
)
def test_goals(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a metric, it ends"),
        ("speed", "'speed' is no metric"),
        ("througput", "did you mean throughput"),
        ("throughput when ttft_p95<1", "expected 'where' or the end of the goal, found 'when'"),
        ("throughput where", "expected a metric, it ends"),
        ("throughput where tfft_p95<1", "did you mean ttft_p95"),
        ("throughput where ttft_p95=1", "expected <, <=, > or >=, found '='"),
        ("throughput where ttft_p95<", "expected a number, it ends"),
        ("throughput where ttft_p95<fast", "expected a number, found 'fast'"),
        ("throughput where ttft_p95<5min", "expected a unit of time"),
        ("throughput where requests>5ms", "expected no unit"),
        ("throughput where ttft_p95<5ms or itl_p95<2", "expected 'and' or the end"),
        ("throughput; rm", "expected"),
    ],
)
def test_errors_say_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(Usage, match="goal") as caught:
        parse_goal(text)
    assert says in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_goal_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(Usage):
        parse_goal(text)


@given(
    st.sampled_from(METRICS),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(METRICS),
            st.sampled_from(["<", "<=", ">", ">="]),
            st.integers(0, 10**5),
        ),
        max_size=3,
    ),
)
def test_a_goal_reads_back(metric: str, up: bool, limits: list[tuple[str, str, int]]) -> None:
    goal = Goal(metric, up, tuple(Condition(m, o, float(v)) for m, o, v in limits))
    assert parse_goal(str(goal)) == goal


def test_meeting_a_goal() -> None:
    goal = parse_goal("throughput where ttft_p95<500ms")
    fast = {"throughput": one(100.0), "ttft_p95": one(499.0)}
    slow = {"throughput": one(200.0), "ttft_p95": one(500.0)}
    assert goal.meets(fast) and not goal.meets(slow)
    assert goal.missed(slow) == ("ttft_p95",)
    assert not goal.meets({"throughput": one(1.0)}), "what was not measured is not met"
    assert goal.score(fast) == 100.0
    assert parse_goal("ttft_p95").score(fast) == -499.0
    assert all(parse_goal(rate).maximise for rate in RATES)
