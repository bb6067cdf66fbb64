"""Undo: the profile that it leads to is named in the question, and nothing is asked for nothing."""

from __future__ import annotations

from typing import Any

from engine_ctl.errors import NotFound
from tests.console import answers
from tests.console.test_deck import make, painted


async def test_undo_names_what_it_leads_to_and_does_it(until: Any) -> None:
    ops = answers.ops()
    ops.answers["undo_profile"] = "chat-before"
    app = make(ops=ops)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("u")
        await until(pilot, lambda: "Swap chat-8b back to chat-before?" in painted(app))
        await pilot.press("enter")
        await until(pilot, lambda: ("undo", "chat-8b") in ops.calls)


async def test_with_nothing_to_undo_nothing_is_asked(until: Any) -> None:
    ops = answers.ops()
    words = "nothing to undo: chat-8b has run with nothing but chat before"
    ops.errors["undo_profile"] = NotFound(words)
    app = make(ops=ops)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.selected_unit is not None)
        await pilot.press("u")
        await until(pilot, lambda: "nothing to undo" in painted(app))
        assert "back to" not in painted(app) and len(app.screen_stack) == 1
        assert not any(call[0] == "undo" for call in ops.calls)
