"""Keys to operations: asked where it costs, checked again after the question, told at the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.widgets.lines import Lines
from engine_ctl.errors import Busy, NotFound
from engine_ctl.model import Kind, Phase, UnitView
from tests.console import answers, fakes
from tests.console.test_deck import SIZES, make, painted, shown


def asked(ops: fakes.Ops, *names: str) -> list[tuple[Any, ...]]:
    return [call for call in ops.calls if call[0] in names]


@pytest.mark.parametrize("size", SIZES)
async def test_stop_asks_says_what_follows_and_does_it(size: tuple[int, int], until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("x")
        await until(pilot, lambda: "Stop chat-8b?" in painted(app))
        assert "12 requests running and 57 waiting" in painted(app)
        assert "the weights stay in the daemon" in painted(app)
        assert not asked(ops, "stop")
        await pilot.press("escape")
        await pilot.pause()
        assert not asked(ops, "stop")
        await pilot.press("x", "enter")
        await until(pilot, lambda: asked(ops, "stop") == [("stop", "chat-8b")])
        await until(pilot, lambda: "✓ stop done" in painted(app))


async def test_the_phase_is_checked_again_after_the_question(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("x")
        await until(pilot, lambda: "Stop chat-8b?" in painted(app))
        app.feed.change("chat-8b", phase=Phase.EXITED)  # type: ignore[attr-defined]
        await until(pilot, lambda: app.unit_named("chat-8b").phase is Phase.EXITED)  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: "not done, it is exited by now" in painted(app))
        assert not asked(ops, "stop")


async def test_a_key_that_makes_no_sense_says_so_and_does_nothing(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops, select="vision")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "vision")
        await pilot.press("r")
        await until(pilot, lambda: "restart is not possible while stopped" in painted(app))
        assert not asked(ops, "restart")
        await pilot.press("s")
        await until(pilot, lambda: asked(ops, "start") == [("start", "vision")])


async def test_an_error_is_one_line_of_data(until: Any) -> None:
    ops = answers.ops()
    ops.errors["restart"] = Busy("chat-8b is held by [red]pid 77[/nope]: wait\nor stop it")
    app = make(ops=ops)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("r")
        text = "✗ chat-8b: chat-8b is held by [red]pid 77[/nope]: wait or stop it"
        await until(pilot, lambda: text in painted(app))


async def test_an_error_on_a_detail_screen_is_shown_there(until: Any) -> None:
    ops = answers.ops()
    ops.errors["restart"] = NotFound("no [/nope] profile")
    app = make(ops=ops)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("g", "r")
        await until(pilot, lambda: "no [/nope] profile" in painted(app))


async def test_one_operation_at_a_time_on_a_unit_but_others_go_on(until: Any) -> None:
    ops = answers.ops()
    ops.gate = threading.Event()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("r")
        await until(pilot, lambda: asked(ops, "restart"))
        await pilot.press("r")
        await until(pilot, lambda: "restart is still under way" in painted(app))
        await pilot.press("5", "s")
        await until(pilot, lambda: asked(ops, "start") == [("start", "vision")])
        assert len(asked(ops, "restart")) == 1
        ops.gate.set()
        await until(pilot, lambda: not app.flows.pending)


async def test_leaving_stops_nothing(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
    assert ops.calls == []
    assert app.feed.stopped  # type: ignore[attr-defined]


async def test_leaving_during_an_operation_that_survives_is_immediate(until: Any) -> None:
    ops = answers.ops()
    ops.gate = threading.Event()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("r", "q")
        await until(pilot, lambda: app._exit)
    ops.gate.set()


async def test_leaving_during_another_operation_asks_and_waits_for_it(until: Any) -> None:
    ops = answers.ops()
    ops.gate = threading.Event()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("o", "enter", "q")
        await until(pilot, lambda: "An operation is under way" in painted(app))
        await pilot.press("enter")
        await pilot.pause()
        assert not app._exit
        ops.gate.set()
        await until(pilot, lambda: app._exit)


async def test_leaving_does_not_wait_for_an_unanswered_question(until: Any) -> None:
    ops = answers.ops()
    ops.gate = threading.Event()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("k")
        await until(pilot, lambda: asked(ops, "kernels"))
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
    ops.gate.set()


@pytest.mark.parametrize("size", SIZES)
async def test_swap_chooses_forecasts_and_then_swaps(size: tuple[int, int], until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("S")
        await until(
            pilot, lambda: "chat-interactive" in painted(app) and "built in" in painted(app)
        )
        await pilot.press(*"inter", "enter")
        await until(pilot, lambda: "Swap chat-8b: chat-interactive" in painted(app))
        await until(pilot, lambda: "vLLM 0.33.0 accepts it, with 1 warning." in painted(app))
        assert asked(ops, "forecast") == [("forecast", "chat-8b", "chat-interactive")]
        assert not asked(ops, "swap")
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "swap") == [("swap", "chat-8b", "chat-interactive")])


async def test_a_forecast_with_errors_cannot_be_entered(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("S")
        await until(pilot, lambda: "long-context" in painted(app))
        await pilot.press(*"long", "enter")
        await until(pilot, lambda: "needs 2 GPUs" in painted(app))
        await pilot.press("enter")
        await pilot.pause()
        assert "needs 2 GPUs" in painted(app) and not asked(ops, "swap")
        await pilot.press("escape")
        await until(pilot, lambda: "needs 2 GPUs" not in painted(app))


async def test_forecast_of_a_stopped_unit_starts_it(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops, select="vision")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "vision")
        await pilot.press("f")
        await until(pilot, lambda: "enter start" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "start") == [("start", "vision")])


async def test_the_forecast_of_a_daemon_is_that_of_its_engine(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops, select="m8b")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "m8b")
        await pilot.press("f")
        await until(pilot, lambda: asked(ops, "forecast") == [("forecast", "chat-8b", None)])


async def test_stopping_a_daemon_says_what_follows(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops, select="m8b")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "m8b")
        await pilot.press("x")
        await until(pilot, lambda: "chat-8b maps these weights and keeps serving" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "preload_stop") == [("preload_stop", "m8b")])


async def test_reap_without_orphans_says_so(until: Any) -> None:
    app = make(replace(fakes.gpu_snapshot(), alerts=()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("o")
        await until(pilot, lambda: "Nothing to reap" in painted(app))


async def test_new_makes_a_unit_from_a_profile(until: Any) -> None:
    ops = answers.ops()
    app = make(fakes.cpu_snapshot(units=()), ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "stoker demo" in painted(app))
        await pilot.press("n")
        await until(pilot, lambda: "New unit from" in painted(app) and "built in" in painted(app))
        await pilot.press(*"fast", "enter")
        await until(pilot, lambda: asked(ops, "create") == [("create", "fast-iteration")])


@pytest.mark.parametrize("word", ["", "long"])
async def test_a_click_on_a_key_is_about_the_unit_that_it_stands_by(word: str, until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        assert app.selected_unit and app.selected_unit.unit == "chat-8b"
        table = app.deck.lines("units")
        row = next(y for y, text in enumerate(table.text) if "[y] why" in text)
        if word:  # the word of a filter that hides it
            app.deck.word = "chat"
            app.deck.again()
            app.flows.perform("why", "long-ctx")
        else:
            await pilot.click("#units", offset=(table.text[row].index("[y]") + 1, row))
        await until(pilot, lambda: "gpu_memory_utilization  0.95 → 0.93" in painted(app))
        assert app.selected_unit and app.selected_unit.unit == "long-ctx"


async def test_a_new_unit_is_selected_for_the_key_that_starts_it(until: Any) -> None:
    ops = answers.ops()
    ops.answers["create"] = "fast"
    app = make(ops=ops)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("n")
        await until(pilot, lambda: "built in" in painted(app))
        await pilot.press(*"fast", "enter")
        await until(pilot, lambda: "unit fast made of fast-iteration: s starts it" in painted(app))
        made = UnitView("fast", Kind.ENGINE, "fast-iteration")
        app.feed.give(fakes.gpu_snapshot(units=(*fakes.gpu_units(), made)))  # type: ignore[attr-defined]
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "fast")
        await until(pilot, lambda: "Never started: s starts it" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: ("forecast", "fast", None) in ops.calls)
        await pilot.press("escape")
        await pilot.press("s")
        await until(pilot, lambda: asked(ops, "start") == [("start", "fast")])


async def test_the_palette_runs_an_action(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: app.screen is not app.deck)
        await pilot.press(*"restart")
        await until(pilot, lambda: "last good profile" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "restart") or "restart" in painted(app))
        if not asked(ops, "restart"):
            await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "restart") == [("restart", "chat-8b")])


async def test_enter_on_a_failed_unit_opens_the_card(until: Any) -> None:
    app = make(select="long-ctx")
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "long-ctx")
        await pilot.press("enter")
        await until(pilot, lambda: "gpu_memory_utilization  0.95 → 0.93" in painted(app))


async def test_applying_a_fix_asks_first(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops, select="long-ctx")
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit and app.selected_unit.unit == "long-ctx")
        await pilot.press("y")
        await until(pilot, lambda: "[a] apply" in painted(app))
        await pilot.press("a")
        await until(pilot, lambda: "Change long-context and restart?" in painted(app))
        assert not asked(ops, "apply")
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "apply"))
        assert asked(ops, "apply") == [("apply", "long-ctx", answers.CARD.fixes[:1])]


async def test_deck_lines_stay_readable_beside_a_message(until: Any) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        app.say("something happened", "ok")
        await until(pilot, lambda: "✓ something happened" in shown(app, "events"))
        await pilot.press("escape")
        await until(pilot, lambda: "something happened" not in shown(app, "events"))
        assert app.screen.query_one("#log", Lines).size.height >= 1


async def test_the_consoles_own_word_gives_way_to_events(until: Any) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        app.say("done", "ok")
        await until(pilot, lambda: "✓ done" in painted(app))
        assert app.snapshot is not None
        app.feed.give(replace(app.snapshot, at=app.snapshot.at + 61))  # type: ignore[attr-defined]
        await until(pilot, lambda: "✓ done" not in painted(app))


POSSIBLE = dict.fromkeys(("lora load", "lora unload", "reset-prefix-cache", "sleep", "wake"), "")


def live(ops: fakes.Ops, **more: Any) -> Any:
    first, *rest = fakes.gpu_units()
    first = replace(first, live=POSSIBLE, **more)
    return make(replace(fakes.gpu_snapshot(), units=(first, *rest)), ops=ops)


async def test_an_adapter_is_loaded_by_name_and_path(
    until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapters" / "red").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    ops = answers.ops()
    app = live(ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("A")
        await until(pilot, lambda: "Load a LoRA adapter into chat-8b" in painted(app))
        await pilot.press(*"a=b")
        await until(pilot, lambda: "✗ name: no blanks" in painted(app))
        await pilot.press("enter", "backspace", "backspace", "backspace")
        assert not asked(ops, "lora_load")
        await pilot.press(*"red", "enter")
        await pilot.press(*"adapters/r")
        await until(pilot, lambda: "adapters/red" in painted(app))
        await pilot.press("right", "enter")
        await until(pilot, lambda: asked(ops, "lora_load"))
        assert asked(ops, "lora_load") == [("lora_load", "chat-8b", "red", "adapters/red")]


async def test_an_adapter_to_unload_is_chosen_from_those_loaded(until: Any) -> None:
    ops = answers.ops()
    ops.answers["adapters"] = (("red", "/adapters/red"), ("blue", None))
    app = live(ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("U")
        await until(pilot, lambda: "/adapters/red" in painted(app))
        await pilot.press("down", "enter")
        await until(
            pilot, lambda: asked(ops, "lora_unload") == [("lora_unload", "chat-8b", "blue")]
        )
        ops.answers["adapters"] = ()
        await until(pilot, lambda: not app.flows.pending)
        await pilot.press("U")
        await until(pilot, lambda: "no adapter is loaded" in painted(app))


async def test_sleep_says_what_it_costs_and_wake_comes_first_then(until: Any) -> None:
    ops = answers.ops()
    app = live(ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("z")
        await until(pilot, lambda: "12 requests run and are aborted" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: asked(ops, "sleep") == [("sleep", "chat-8b", 1)])
        await until(pilot, lambda: not app.flows.pending)
        app.feed.change("chat-8b", phase=Phase.SLEEPING, load=None)
        await until(pilot, lambda: "Z wake" in shown(app, "footer"))
        await pilot.press("Z")
        await until(pilot, lambda: asked(ops, "wake") == [("wake", "chat-8b")])


async def test_a_live_change_that_the_profile_does_not_allow_says_what_it_lacks(until: Any) -> None:
    ops = answers.ops()
    lacks = POSSIBLE | {"reset-prefix-cache": "profile p must have DEV_MODE; then restart"}
    first, *rest = fakes.gpu_units()
    units = (replace(first, live=lacks), *rest)
    app = make(replace(fakes.gpu_snapshot(), units=units), ops=ops)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("C")
        await until(pilot, lambda: "chat-8b: profile p must have DEV_MODE" in painted(app))
        assert not asked(ops, "reset_prefix_cache")
        await pilot.press("question_mark")
        await until(pilot, lambda: "not now: profile p must have DEV_MODE" in shown(app, "body"))
        await pilot.press("escape", "ctrl+p")
        await until(pilot, lambda: app.screen is not app.deck)
        await pilot.press(*"clear")
        await until(pilot, lambda: "not now: profile p must have" in painted(app))
