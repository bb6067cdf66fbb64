"""Console tests: a fixed time zone, and a wait that ends with the condition, not with a clock."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def until() -> Callable[[Any, Callable[[], object]], Awaitable[None]]:
    """`await until(pilot, condition)`: let the app work until the condition holds."""

    async def wait(pilot: Any, condition: Callable[[], object], limit: float = 20.0) -> None:
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("the condition never came true")
            await pilot.pause(0.01)

    return wait
