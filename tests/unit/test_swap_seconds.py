"""Predicted seconds: sums of phases of recorded starts, each chosen by what governs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engine_ctl.answers import ForecastView
from engine_ctl.model import Phase, Verdict
from engine_ctl.operations.context import Context
from engine_ctl.swap import past
from engine_ctl.swap.forecast import text
from engine_ctl.swap.seconds import GIVEN, PLANNED, PROFILED, Conditions, Start, again, predict
from profiles.model import Profile
from tests.standin.observed import Written, recorded_log

BIG = {"model": "/models/m8b", "python": "/v/python", "profile": "big"}
# The recordings of one model, oldest first: ready after so many seconds.
STARTS: dict[str, tuple[float, dict[str, Any]]] = {
    "plain_8b_first": (47.7, {}),
    "plain_8b_again": (64.4, {}),
    "50_A_plan_save": (111.7, {"config_hash": "graphs"}),
    "50_B_plan_apply": (46.5, {"config_hash": "graphs"}),
    "40_load": (59.9, {}),
    "20_standby_ipc_eager": (22.5, {"via": "standby"}),
    "11_ipc": (43.95, {}),
    "12_ipc": (42.95, {}),
}
NOW = Conditions("0.33.0 /v/python", BIG["model"], False, Verdict.MAPPED, False, True, PROFILED)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Start]]:
    """As read back from the run directories of these starts, newest first."""
    written = Written(tmp_path_factory.mktemp("past"))
    written.unit("a")
    for name, (ready, spec) in STARTS.items():
        run = written.run("a", **BIG, **spec)
        log, clock = recorded_log(f"h200-vllm-0.33.0/{name}")
        written.log(run, log)
        written.clock(run, clock)
        written.profile(run, Profile(name="big", model=BIG["model"]))
        written.ready(run, ready)
        written.request(run)
        asked = run.request()
        assert asked is not None
        written.exit(run, requested=True, ended=asked.at + 4.0)
    yield past.starts_of(Context(written.dirs, by="test"), "a")
    written.close()


def seconds(found: Any) -> dict[Phase, float | None]:
    return {part.phase: part.seconds for part in found.parts}


def test_what_governs_the_phases_is_read_out_of_the_logs(starts: list[Start]) -> None:
    assert len(starts) == len(STARTS)
    of = dict(zip(reversed(STARTS), (start.conditions for start in starts), strict=True))
    assert of["11_ipc"] == NOW
    assert of["plain_8b_first"] == replace(NOW, weights=Verdict.DISK)
    assert of["40_load"] == replace(NOW, compiled=False)
    assert of["20_standby_ipc_eager"] == replace(NOW, standby=True, eager=True, compiled=None)
    assert of["50_A_plan_save"].memory == PROFILED and of["50_B_plan_apply"].memory == PLANNED
    assert all(start.stop_s == pytest.approx(4.0) for start in starts)
    assert sum(starts[0].phases.values()) == pytest.approx(42.92, abs=0.1)


def test_a_start_like_the_last_ones_takes_the_sum_of_their_phases(starts: list[Start]) -> None:
    found = predict(NOW, starts)
    by = seconds(found)
    assert list(by) == [
        Phase.IMPORTING,
        Phase.CONFIGURING,
        Phase.MAPPING,
        Phase.COMPILING,
        Phase.PROFILING,
        Phase.CAPTURING,
        Phase.READY,
    ]
    # Loading and mapping are one: what becomes of the weights.
    assert by[Phase.MAPPING] == pytest.approx(median([1.03, 1.09, 0.96, 1.1, 1.08]), abs=0.02)
    # Compiled before, memory profiled: 12, 11, and the two from disk, not the one that compiled.
    assert by[Phase.PROFILING] == pytest.approx(median([7.76, 7.96, 23.62, 7.61]), abs=0.02)
    assert found.total == pytest.approx(sum(s or 0.0 for s in by.values()))
    assert found.parts[2].basis == (
        "5 starts: same runtime, same model, importing anew, weights mapped"
    )


@pytest.mark.parametrize(
    ("ahead", "phase", "expected"),
    [
        (replace(NOW, weights=Verdict.DISK), Phase.LOADING, median([4.53, 4.17])),
        (replace(NOW, compiled=False), Phase.COMPILING, median([14.79, 23.2])),
        (replace(NOW, memory=PLANNED), Phase.PROFILING, 19.69),
        (replace(NOW, standby=True, eager=True, compiled=None), Phase.PROFILING, 3.61),
        (replace(NOW, standby=True), Phase.CONFIGURING, 1.68),
        (replace(NOW, config="graphs"), Phase.CAPTURING, median([8.4, 9.31])),
    ],
)
def test_each_phase_goes_by_what_governs_it(
    starts: list[Start], ahead: Conditions, phase: Phase, expected: float
) -> None:
    assert seconds(predict(ahead, starts))[phase] == pytest.approx(expected, abs=0.02)


def test_eager_has_no_compiling_and_no_graphs(starts: list[Start]) -> None:
    ahead = replace(NOW, standby=True, eager=True, compiled=None)
    found = predict(ahead, starts)
    assert not {Phase.COMPILING, Phase.CAPTURING} & set(seconds(found))
    assert found.total == pytest.approx(22.5, abs=0.5)


def test_what_no_start_tells_is_unknown_and_so_is_the_sum(starts: list[Start]) -> None:
    copied = predict(replace(NOW, weights=Verdict.COPIED), starts)
    assert seconds(copied)[Phase.LOADING] is None and copied.total is None
    assert seconds(copied)[Phase.IMPORTING] is not None
    (part,) = (part for part in copied.parts if part.seconds is None)
    assert part.basis.startswith("no start yet: ") and "weights copied" in part.basis
    assert predict(NOW, []).total is None
    assert seconds(predict(replace(NOW, weights=None), starts))[Phase.LOADING] is None
    given = predict(replace(NOW, memory=GIVEN), starts)
    assert seconds(given)[Phase.PROFILING] is None


def test_another_model_shares_only_what_does_not_depend_on_it(starts: list[Start]) -> None:
    by = seconds(predict(replace(NOW, model="/models/other"), starts))
    known = {phase for phase, value in by.items() if value is not None}
    assert known == {Phase.IMPORTING, Phase.CONFIGURING, Phase.READY}


def test_another_version_of_vllm_is_a_coarser_comparison(starts: list[Start]) -> None:
    found = predict(replace(NOW, runtime="0.34.0 /w/python"), starts)
    assert found.total is not None
    assert all("same runtime" not in part.basis for part in found.parts)
    newer = Start("a/99", "big", replace(NOW, runtime="0.34.0 /w/python"), {Phase.IMPORTING: 9.0})
    closer = predict(replace(NOW, runtime="0.34.0 /w/python"), [*starts, newer])
    assert seconds(closer)[Phase.IMPORTING] == 9.0


def test_the_engine_that_runs_is_stopped_first(starts: list[Start]) -> None:
    found = predict(NOW, starts, stops=True)
    assert found.parts[0].phase is Phase.STOPPING
    assert found.parts[0].seconds == pytest.approx(4.0)
    alone = predict(NOW, starts).total
    assert found.total is not None and found.total == pytest.approx((alone or 0.0) + 4.0)


def test_only_the_newest_count() -> None:
    old = [Start(f"a/{n}", "big", NOW, {Phase.IMPORTING: 100.0}, 100.0) for n in range(9)]
    new = [Start(f"a/{n}", "big", NOW, {Phase.IMPORTING: 1.0}, 1.0) for n in range(5)]
    assert seconds(predict(NOW, [*new, *old]))[Phase.IMPORTING] == 1.0


def test_a_start_without_times_tells_nothing() -> None:
    assert predict(NOW, [Start("a/1", "big", NOW, {}, 40.0)]).total is None


def test_the_next_start_finds_compiled_code_and_the_plan() -> None:
    first = replace(NOW, compiled=False)
    assert again(first, plan=True) == replace(NOW, compiled=True, memory=PLANNED)
    assert again(first, plan=False) == replace(NOW, compiled=True)
    assert again(replace(NOW, memory=GIVEN), plan=True).memory == GIVEN
    eager = replace(NOW, eager=True, compiled=None)
    assert again(eager, plan=False) == eager


def test_words_for_a_terminal(starts: list[Start]) -> None:
    known = predict(NOW, starts, stops=True)
    shown = text(ForecastView("a", "big", expected_s=known.total, expected=known.parts))
    assert f"expected: {known.total:.1f} s, by the phases of earlier starts" in shown
    assert "stopping" in shown and "capturing" in shown and "answering" in shown
    unknown = predict(replace(NOW, weights=Verdict.COPIED), starts)
    shown = text(ForecastView("a", "big", expected=unknown.parts))
    assert "expected: unknown" in shown and "no start yet" in shown


def test_other_units_tell_what_the_units_own_starts_do_not(tmp_path: Path) -> None:
    written = Written(tmp_path)
    try:
        for unit, name in (("a", "20_standby_ipc_eager"), ("b", "11_ipc")):
            written.unit(unit)
            run = written.run(unit, **BIG, **({"via": "standby"} if unit == "a" else {}))
            log, clock = recorded_log(f"h200-vllm-0.33.0/{name}")
            written.log(run, log)
            written.clock(run, clock)
            written.ready(run, 44.0)
        seen = past.Past(Context(written.dirs, by="test"), "a")
        own = seen.predicted(replace(NOW, standby=True, eager=True, compiled=None))
        assert own.total == pytest.approx(44.0, abs=0.1)
        assert [start.run for start in seen.own] == ["a/1"]
        # Compiling and graphs: only b has had them.
        with_graphs = seen.predicted(replace(NOW, standby=True))
        assert seconds(with_graphs)[Phase.CAPTURING] == pytest.approx(7.3, abs=0.1)
        assert with_graphs.total is not None
        assert [start.run for start in seen.all] == ["a/1", "b/1"]
        assert past.Past(Context(written.dirs, by="test"), "new").own == []
    finally:
        written.close()
