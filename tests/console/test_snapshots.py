"""What screens look like: clock, size and theme fixed. Update with `pytest --snapshot-update`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import StokerApp
from tests.console import answers, fakes


def make(theme: str = "textual-dark", snapshot: Any = None, **more: Any) -> StokerApp:
    feed = fakes.Feed(snapshot or fakes.gpu_snapshot())
    return StokerApp(answers.ops(), feed, theme=theme, **more)


def ready(*keys: str) -> Any:
    """Wait for the first snapshot, press keys, wait for answers."""

    async def run(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, StokerApp)
        while app.selected_unit is None:
            await pilot.pause(0.01)
        for key in keys:
            await pilot.press(key)
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause(0.01)
        await pilot.pause()

    return run


@pytest.fixture
def logged(tmp_path: Path) -> Any:
    """The GPU machine, its first unit with a log of a few lines."""
    log = tmp_path / "log"
    log.write_text(
        "(APIServer pid=4101) INFO 11-29 12:02:00 [launcher.py:188] Available routes are:\n"
        "(APIServer pid=4101) INFO 11-29 12:02:00 [launcher.py:46] Route: /health, Methods: GET\n"
        "(APIServer pid=4101) INFO 11-29 12:02:00 [launcher.py:46] Route: /load, Methods: GET\n"
        "(EngineCore pid=4120) WARNING 11-29 12:02:05 [scheduler.py:10] preempted [3 requests]:"
        " no free block\n"
        "(APIServer pid=4101) INFO 11-29 12:02:10 [loggers.py:335] Engine 000: Avg prompt"
        " throughput: 9120.4 tokens/s, Running: 12 reqs, Waiting: 57 reqs, GPU KV cache usage:"
        " 41.2%\n"
    )
    first, *rest = fakes.gpu_units()
    return replace(fakes.gpu_snapshot(), units=(replace(first, log=str(log)), *rest))


def test_deck_small(snap_compare: Any) -> None:
    assert snap_compare(make(), terminal_size=(80, 24), run_before=ready())


def test_deck_light(snap_compare: Any) -> None:
    assert snap_compare(make("textual-light"), terminal_size=(140, 45), run_before=ready())


def test_deck_with_log(snap_compare: Any, logged: Any) -> None:
    app = make(snapshot=logged)

    async def run(pilot: Pilot[Any]) -> None:
        await ready()(pilot)
        while not app.deck.query_one("#log").text:  # type: ignore[attr-defined]
            await pilot.pause(0.01)
        await pilot.pause()

    assert snap_compare(app, terminal_size=(120, 35), run_before=run)


def test_why(snap_compare: Any) -> None:
    app = make(select="long-ctx")
    assert snap_compare(app, terminal_size=(120, 30), run_before=ready("y"))


def test_queues(snap_compare: Any) -> None:
    assert snap_compare(make(), terminal_size=(120, 30), run_before=ready("Q"))


def test_memory(snap_compare: Any) -> None:
    assert snap_compare(make("nord"), terminal_size=(120, 35), run_before=ready("g"))


def test_starts(snap_compare: Any) -> None:
    assert snap_compare(make(), terminal_size=(120, 30), run_before=ready("W"))


def test_forecast(snap_compare: Any) -> None:
    assert snap_compare(make(), terminal_size=(120, 30), run_before=ready("f"))
