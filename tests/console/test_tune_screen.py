"""The tune screen: table, best, noise, time left, charts, and a sweep that goes on meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.view import tune
from console.view.spans import plain
from engine_ctl.tune.goal import parse_goal
from engine_ctl.tune.order import Forecast
from engine_ctl.tune.rows import Comparison, Row, judged
from engine_ctl.tune.stats import Stat
from tests.console import answers
from tests.console.test_deck import SIZES, make, painted


def stat(value: float, spread: float = 0.01) -> Stat:
    return Stat(value, value * (1 - spread), value * (1 + spread), 3)


def comparison(state: str = "running") -> Comparison:
    goal = parse_goal("throughput where ttft_p95<500ms")
    seqs = (64, 128, 192, 256, 512, 1024)
    rates = (8000.0, 9790.0, 9812.0, 9861.0)
    ttfts = (200.0, 300.0, 431.0, 612.0)
    rows = [
        Row(
            i,
            {"max_num_seqs": n, "max_num_batched_tokens": 16384},
            f"max_num_seqs {n}",
            "done" if i < 4 else ("refused", "pending")[i - 4],
            {"throughput": stat(rates[i]), "ttft_p95": stat(ttfts[i]), "start_s": stat(9.9)}
            if i < 4
            else {},
            bench=f"b{i}" if i < 4 else None,
            reason="max_num_seqs \x1b[31mtoo [bold]large" if i == 4 else "",
            command=("vllm", "serve", "/m", "--max-num-seqs", str(n)) if i < 4 else (),
        )
        for i, n in enumerate(seqs)
    ]
    return Comparison(
        "sweep s1 of chat-8b",
        "chat-8b",
        goal,
        judged(goal, rows),
        sweep="s1",
        state=state,
        forecast=Forecast(1, 0, 0, 160.0),
        axes=("max_num_seqs", "max_num_batched_tokens"),
    )


def text(found: Comparison | None, selected: str | None = None, cells: int = 118) -> str:
    return "\n".join(plain(x) for item in tune.items(found, selected, cells) for x in item.lines)


def test_the_table_says_best_noise_goal_and_time_left() -> None:
    shown = text(comparison())
    lines = shown.splitlines()
    (best,) = [x for x in lines if x.strip().startswith("★")]
    assert "192" in best and "9 812 ±1 %" in best and "431 ms" in best
    assert any("128" in x and "within noise of ★" in x for x in lines)
    assert any("612 ms ✗" in x for x in lines)
    assert "goal: throughput where ttft_p95 < 500 ms" in shown
    assert "running  5 of 6 · 2 m 40 s left · 1 refused by vLLM" in shown
    assert "refused: max_num_" in shown and "\x1b" not in text(comparison(), "4")
    assert "max_num_seqs too [bold]large" in text(comparison(), "4")
    assert "best: max_num_seqs 192" in shown


def test_the_selected_point_shows_how_to_repeat_it() -> None:
    assert "vllm serve /m --max-num-seqs 192" in text(comparison(), "2")
    assert "kept as b2" in text(comparison(), "2")


def test_nothing_measured_and_a_stopped_sweep_say_what_to_do() -> None:
    assert "stoker sweep UNIT" in text(None)
    assert "stoker sweep --resume s1" in text(comparison("stopped"))
    unmet = comparison()
    goal = parse_goal("throughput where ttft_p95<1ms")
    shown = text(replace(unmet, goal=goal, rows=judged(goal, unmet.rows)))
    assert "no point meets the goal" in shown and "★" not in shown.split("nearest")[0]


@pytest.mark.parametrize("cells", [40, 78, 118, 200])
def test_no_line_is_wider_than_the_screen(cells: int) -> None:
    from console.view.spans import width

    for item in tune.items(comparison(), "0", cells):
        for spans in item.lines:
            assert width(spans) <= max(cells, 78)


@pytest.mark.parametrize("size", SIZES)
async def test_the_screen_opens_with_a_chart_and_goes_back(
    size: tuple[int, int], until: Any
) -> None:
    ops = answers.ops()
    ops.answers["tuning"] = comparison()
    app = make(ops=ops, select="chat-8b")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("t")
        await until(pilot, lambda: "max_num_seqs" in painted(app))
        assert ("tuning", "chat-8b") in ops.calls
        if size[1] >= 30:
            await until(pilot, lambda: "throughput against ttft_p95" in painted(app))
            await pilot.press("c")
            await until(pilot, lambda: "throughput by max_num_seqs" in painted(app))
        await pilot.press("down", "down")
        await until(pilot, lambda: "--max-num-seqs" in painted(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.deck)


async def test_the_best_point_is_saved_and_a_report_written(until: Any) -> None:
    ops = answers.ops()
    ops.answers |= {"tuning": comparison(), "save_best": "saved it", "tune_report": "wrote it"}
    app = make(ops=ops, select="chat-8b")
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("t")
        await until(pilot, lambda: "max_num_seqs" in painted(app))
        await pilot.press("B")
        await until(pilot, lambda: "as a profile" in painted(app))
        await pilot.press(*"../x", "enter")
        await until(pilot, lambda: "no . or - first" in painted(app))
        await pilot.press(*["backspace"] * 4, *"fast", "enter")
        await until(pilot, lambda: "saved it" in painted(app))
        assert ("save_best", "s1", "fast") in ops.calls
        await pilot.press("X")
        await until(pilot, lambda: "commands to repeat" in painted(app))
        await pilot.press(*"/tmp/r.html", "enter")
        await until(pilot, lambda: "wrote it" in painted(app))
        assert ("tune_report", "chat-8b", "/tmp/r.html") in ops.calls


async def test_keys_that_would_do_nothing_are_not_offered(until: Any) -> None:
    ops = answers.ops()
    found = comparison()
    ops.answers["tuning"] = replace(found, rows=found.rows[:1])
    app = make(ops=ops, select="chat-8b")
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("t")
        await until(pilot, lambda: "max_num_seqs" in painted(app))
        title = app.shown_screen.lines("log-title").text[0]
        assert "c chart" not in title and "X export" in title
        await pilot.press("c")
        await until(pilot, lambda: "a chart takes two points" in painted(app))
    ops.answers["tuning"] = comparison()
    app = make(ops=ops, select="chat-8b")
    async with app.run_test(size=(140, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("t")
        await until(pilot, lambda: "max_num_seqs" in painted(app))
        assert "B save best" in app.shown_screen.lines("log-title").text[0]
        await pilot.press("c")
        await until(pilot, lambda: "A chart takes a terminal of" in painted(app))


async def test_there_may_be_no_best_point(until: Any) -> None:
    ops = answers.ops()
    ops.answers["tuning"] = None
    app = make(ops=ops, select="chat-8b")
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("t")
        await until(pilot, lambda: "Nothing measured yet" in painted(app))
        await pilot.press("B")
        await until(pilot, lambda: "no best point" in painted(app))
