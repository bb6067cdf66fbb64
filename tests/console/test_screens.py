"""Every detail screen opens, shows its subject, goes back, and follows the selected unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.screens import registry
from console.screens.base import StokerScreen
from engine_ctl.errors import Failed, NotFound
from engine_ctl.model import Phase
from tests.console import answers, fakes
from tests.console.test_deck import SIZES, make, painted

SHOWN = {
    "question_mark": "never stops an engine",
    "y": "CUDA graphs did not fit",
    "W": "saved 37.8 s against disk",
    "g": "one more engine: gpu_memory_utilization",
    "Q": "first token",
    "k": "FLASH_ATTN (version 3)",
    "w": "kv_cache_dtype",
    "e": "daemon ready, 15.6 GiB",
    "h": "prefix hit rate 61 %",
    "p": "enable_prefix_caching",
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", SHOWN)
async def test_a_screen_opens_shows_and_goes_back(
    key: str, size: tuple[int, int], until: Any
) -> None:
    app = make(select="long-ctx" if key == "y" else "chat-8b")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press(key)
        await until(pilot, lambda: SHOWN[key] in painted(app))
        assert "q leave" in painted(app)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.deck)
        await pilot.press(key)
        await until(pilot, lambda: app.screen is not app.deck)
        await pilot.press(key)
        await until(pilot, lambda: app.screen is app.deck)


async def test_screens_replace_each_other_and_one_escape_is_home(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("g", "Q", "W", "k", "e")
        await until(pilot, lambda: "daemon ready" in painted(app))
        assert len(app.screen_stack) == 2
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.deck)


async def test_brackets_walk_through_the_units(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("W")
        await until(pilot, lambda: ("starts", "chat-8b") in ops.calls)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: ("starts", "code-32b") in ops.calls)
        await until(pilot, lambda: "starts code-32b" in painted(app))
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "starts chat-8b" in painted(app))


async def test_a_question_is_asked_again_when_the_run_changes_and_not_else(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("k")
        await until(pilot, lambda: "FLASH_ATTN" in painted(app))
        app.feed.change("chat-8b", uptime_s=9000.0)  # type: ignore[attr-defined]
        await until(pilot, lambda: "12:02:12" in painted(app))
        assert ops.calls.count(("kernels", "chat-8b")) == 1
        app.feed.change("chat-8b", run="chat-8b/19", phase=Phase.CAPTURING)  # type: ignore[attr-defined]
        await until(pilot, lambda: ops.calls.count(("kernels", "chat-8b")) == 2)


async def test_an_error_of_a_question_is_shown_in_its_place(until: Any) -> None:
    ops = answers.ops()
    ops.errors["kernels"] = NotFound("no log of chat-8b/18: [/nope]")
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("k")
        await until(pilot, lambda: "✗ no log of chat-8b/18: [/nope]" in painted(app))


async def test_the_selected_start_unfolds(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("W")
        await until(pilot, lambda: "from a standby" in painted(app))
        await pilot.press("down")
        await until(pilot, lambda: "silent: import, spawn" in painted(app))


async def test_daemon_keys_act_on_the_daemon_under_the_cursor(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("w")
        await until(pilot, lambda: "R reload" in painted(app))
        await pilot.press("R")
        await until(pilot, lambda: "Load the weights of m8b again?" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: ("preload_reload", "m8b") in ops.calls)


async def test_events_filter(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("e")
        await until(pilot, lambda: "daemon ready" in painted(app))
        await pilot.press("slash", *"fell", "enter")
        await until(pilot, lambda: "daemon ready" not in painted(app))
        assert "fell back" in painted(app) and "esc show all" in painted(app)
        await pilot.press("escape")
        await until(pilot, lambda: "daemon ready" in painted(app))
        assert "esc deck" in painted(app)
        await pilot.press("slash", *"level:warning", "enter")
        await until(pilot, lambda: "daemon ready" not in painted(app))
        assert "fell back" in painted(app)
        assert "oom_graph_capture" not in painted(app)
        await until(pilot, lambda: ("events", 2000, "level:warning") in app.ops.calls)
        await pilot.press("slash", *"+ kind:swop")
        await until(pilot, lambda: "no kind of event is called swop" in painted(app))
        assert "daemon ready" in painted(app)


async def test_profiles_show_difference_and_edit(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("p")
        await until(pilot, lambda: "built in: interactive" in painted(app))
        await pilot.press("d")
        await until(pilot, lambda: "running chat-8b → chat-throughput" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: "measured on Tuesday" in painted(app))


@pytest.mark.parametrize("key", ["w", "W", "e", "f", "p", "n"])
async def test_an_error_is_read_to_its_end(key: str, until: Any) -> None:
    """Its end says what to do."""
    ops = answers.ops()
    path = "/home/op/.local/state/stoker"
    full = Failed(f"{path} cannot be written: No space left on device; free some of it")
    ops.errors = dict.fromkeys(("weights", "starts", "events", "forecast", "profiles"), full)
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press(key)

        def said() -> str:
            cut = 24 if key == "p" else 80
            return " ".join(
                " ".join(row[:cut].strip(" │›▕●◐") for row in painted(app).splitlines()).split()
            )

        await until(pilot, lambda: "free some of it" in said())


async def test_an_answer_of_before_says_that_it_is(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("W")
        await until(pilot, lambda: "saved 37.8 s" in painted(app))
        ops.errors["starts"] = Failed("the log is gone; start it again")
        app.feed.change("chat-8b", phase=Phase.STOPPING)  # type: ignore[attr-defined]
        await until(pilot, lambda: "the log is gone" in painted(app))
        assert "saved 37.8 s" in painted(app)


async def test_no_difference_leaves_the_profile_in_sight(until: Any) -> None:
    ops = answers.ops()
    ops.errors["profile_diff"] = NotFound(
        "unit chat-8b has no run yet; start it with: stoker start"
    )
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("p")
        await until(pilot, lambda: "max_num_seqs" in painted(app))
        await pilot.press("d")
        await until(pilot, lambda: "start it with: stoker start" in painted(app))
        assert "max_num_seqs" in painted(app)
        # What uses a profile may be stopped: its sign is none of a phase.
        (row,) = [row for row in painted(app).splitlines() if row.startswith("›chat-throughput")]
        assert "▪" in row and "●" not in row


async def test_the_side_without_the_keys_is_paler(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("p")
        await until(pilot, lambda: "built in: interactive" in painted(app))
        listing = app.shown_screen.lines("list")
        assert listing.has_focus and not listing.has_class("away")
        await pilot.press("tab")
        await until(pilot, lambda: listing.has_class("away") and not listing.has_focus)
        await pilot.press("tab")
        await until(pilot, lambda: listing.has_focus and not listing.has_class("away"))


async def edit(pilot: Any, app: Any, until: Any) -> Any:
    from console.screens.editor import EditorScreen

    await until(pilot, lambda: app.selected_unit is not None)
    app.flows.edit_profile("chat-throughput")
    await until(pilot, lambda: "measured on Tuesday" in painted(app))
    assert isinstance(app.screen, EditorScreen)
    return app.screen


async def test_the_editor_lints_completes_and_saves(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        screen = await edit(pilot, app, until)
        screen.area.move_cursor((5, 7))
        screen.action_complete()
        await until(pilot, lambda: "max_model_" in screen.area.text)
        assert "Longest sequence." in painted(app)
        await pilot.press(*"len")
        await until(pilot, lambda: "changed, not saved" in painted(app))
        await until(pilot, lambda: any(c[0] == "profile_lint" for c in ops.calls))
        await pilot.press("ctrl+s")
        await until(pilot, lambda: any(c[0] == "profile_save" for c in ops.calls))
        saved = next(c for c in ops.calls if c[0] == "profile_save")
        assert saved[1] == "chat-throughput" and "# measured on Tuesday" in saved[2]
        assert "max_model_len" in saved[2]
        await until(pilot, lambda: "✓ saved" in painted(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.deck)


async def test_the_editor_asks_before_it_drops_changes(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await edit(pilot, app, until)
        await pilot.press(*"qx")
        await until(pilot, lambda: "qx# what we serve" in painted(app))
        await pilot.press("escape")
        await until(pilot, lambda: "without saving?" in painted(app))
        await pilot.press("escape")
        await until(pilot, lambda: "without saving?" not in painted(app))
        assert "qx# what we serve" in painted(app)
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.screen is app.deck)


async def test_a_built_in_profile_is_read_only(until: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        app.flows.edit_profile("fast-iteration")
        await until(pilot, lambda: "read-only" in painted(app))
        await pilot.press(*"zz")
        await pilot.pause()
        assert "zz" not in painted(app)


def test_every_screen_of_the_registry_can_be_made() -> None:
    for id in registry._SCREENS:
        assert isinstance(registry.make(id), StokerScreen)


@pytest.mark.parametrize("key", [k for k in SHOWN if k not in ("y", "h", "question_mark")])
async def test_a_screen_survives_an_empty_machine(key: str, until: Any) -> None:
    ops = fakes.Ops()
    ops.answers = dict.fromkeys(("starts", "kernels", "weights", "events", "profiles"), ())
    app = make(fakes.cpu_snapshot(units=()), ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "stoker demo" in painted(app))
        await pilot.press(key)
        await pilot.pause()
        assert "q leave" in painted(app)


async def test_a_built_in_profile_is_extended_by_one_of_ones_own(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("p")
        await until(pilot, lambda: "fast-iteration" in painted(app))
        await pilot.press("end")
        await pilot.press("c", *"broken")
        await until(pilot, lambda: "there is one of that name" in painted(app))
        await pilot.press("enter")
        assert "there is one of that name" in painted(app)
        await pilot.press(*"-2", "enter")
        await until(pilot, lambda: "extends: fast-iteration" in painted(app))
        assert "changed, not saved" in painted(app)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: any(c[0] == "profile_save" for c in ops.calls))
        saved = next(c for c in ops.calls if c[0] == "profile_save")
        assert saved[1] == "broken-2" and saved[2].startswith("extends: fast-iteration\n")


async def test_a_file_that_somebody_else_changed_is_not_overwritten_unasked(until: Any) -> None:
    ops = answers.ops()
    app = make(ops=ops)
    async with app.run_test(size=(120, 35)) as pilot:
        screen = await edit(pilot, app, until)
        await pilot.press("x")
        other = replace(answers.detail("chat-throughput"), text="other: text\n")
        ops.answers["profile"] = lambda name: other
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "changed by somebody else" in painted(app))
        assert not any(c[0] == "profile_save" for c in ops.calls)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "✓ saved" in painted(app))
        assert not screen.changed
