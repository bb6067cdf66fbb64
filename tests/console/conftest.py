"""Console tests: a fixed time zone, waits that end with the condition, and a Pilot that goes on
when every widget has handled its messages, however slow the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot

from console.screens.base import StokerScreen

PATIENCE_S = 100.0
# Longer is an app that waits on purpose in the middle of a message.
BUSY_S = 3.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def idle(pump: MessagePump) -> bool:
    """The pump waits for its next message. True when it has no loop that could."""
    queue = pump._message_queue
    waiting = any(not one.done() for one in queue.ready_event._waiters)  # type: ignore[attr-defined]
    return not pump.is_running or (queue.empty() and waiting)


async def settled(app: App[Any]) -> None:
    """Let the app work until no widget has a message left, and none after a repaint either."""
    deadline = time.monotonic() + BUSY_S
    quiet = 0
    while quiet < 2 and app.is_running and time.monotonic() < deadline:
        await asyncio.sleep(0)
        pumps: list[MessagePump] = [app, *app.screen_stack]
        for screen in app.screen_stack:
            pumps += screen.walk_children(with_self=False)
        if all(idle(pump) for pump in pumps):
            quiet += 1
            app.screen._on_timer_update()
        else:
            quiet = 0


@pytest.fixture(autouse=True)
def steady_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's own Pilot goes on when the process used little of the last 20 ms, which is also
    true of one that a busy machine did not run."""

    async def soon(*_: float) -> None:
        await asyncio.sleep(0)

    press, pause = App._press_keys, Pilot.pause

    async def press_keys(app: App[Any], keys: Iterable[str]) -> None:
        for key in keys:
            await press(app, [key])
            await settled(app)

    async def pause_settled(pilot: Pilot[Any], delay: float | None = None) -> None:
        await pause(pilot, delay)
        await settled(pilot.app)

    monkeypatch.setattr("textual.app.wait_for_idle", soon)
    monkeypatch.setattr("textual.pilot.wait_for_idle", soon)
    monkeypatch.setattr(App, "_press_keys", press_keys)
    monkeypatch.setattr(Pilot, "pause", pause_settled)


@pytest.fixture(autouse=True)
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen that cannot be drawn is a failure, but for the test of that."""
    if request.node.get_closest_marker("draws_badly"):
        return

    def failed(screen: StokerScreen, problem: Exception) -> None:
        raise problem

    monkeypatch.setattr(StokerScreen, "failed", failed)


@pytest.fixture
def until() -> Callable[[Any, Callable[[], object]], Awaitable[None]]:
    """`await until(pilot, condition)`: let the app work until the condition holds."""

    async def wait(pilot: Any, condition: Callable[[], object], limit: float = PATIENCE_S) -> None:
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("the condition never came true")
            await pilot.pause(0.01)

    return wait
