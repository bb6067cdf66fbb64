"""The gate: requests pass, wait for the engine that is coming, or are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine_ctl.front.sight import Decision, Watch, Way

IDLE_LOOK_S = 0.1
HOLD_LOOK_S = 0.02


class Refused(Exception):
    """A request cannot be passed on; `str(error)` says why."""


class Gate:
    """Belongs to one event loop. `hold_s` is how long a request may wait, `hold_requests` how
    many may wait at once. `changed` is called after every change that an operator may see."""

    def __init__(
        self,
        watch: Watch,
        hold_s: float,
        hold_requests: int,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._watch = watch
        self._hold_s = hold_s
        self._hold_requests = hold_requests
        self._changed = changed
        self._news = asyncio.Event()
        self._closed = False
        self.held = 0
        self.in_flight: Counter[str] = Counter()
        self.decision = watch.look()

    def look(self) -> Decision:
        """The decision now; wakes who waits when it is another one."""
        before, self.decision = self.decision, self._watch.look()
        if self.decision != before:
            self._wake()
            self._changed()
        return self.decision

    async def follow(self) -> None:
        """Look again and again, so that waiting requests hear of the new engine."""
        while True:
            await asyncio.sleep(HOLD_LOOK_S if self.held else IDLE_LOOK_S)
            self.look()

    def close(self) -> None:
        """Refuse what waits and what comes."""
        self._closed = True
        self._wake()

    def deadline(self) -> float:
        """Until when a request that comes now may wait (the loop's clock)."""
        return asyncio.get_running_loop().time() + self._hold_s

    async def admit(self, deadline: float) -> Decision:
        """The engine to ask, now or once there is one. Raises Refused."""
        decision = self.look()
        if decision.way is Way.PASS and not self._closed:
            return decision
        if decision.way is Way.HOLD and self.held >= self._hold_requests:
            raise Refused(f"{decision.why}, and {self.held} requests wait already")
        self.held += 1
        try:
            while not self._closed and decision.way is Way.HOLD:
                await self._wait(deadline, decision)
                decision = self.decision
        finally:
            self.held -= 1
        if self._closed:
            raise Refused("the front is closing")
        if decision.way is Way.REFUSE:
            raise Refused(decision.why)
        return decision

    async def moved(self, run: str, seconds: float) -> Decision:
        """The decision once it is another one than to pass to `run`, at the latest then."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.look().run == run and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(HOLD_LOOK_S)
        return self.decision

    async def _wait(self, deadline: float, decision: Decision) -> None:
        left = deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(self._news.wait(), max(left, 0.0))
        except TimeoutError:
            raise Refused(f"{decision.why}; waited {self._hold_s:g} s") from None

    @contextmanager
    def passing(self, run: str) -> Iterator[None]:
        """Count a request that an engine works on."""
        self.in_flight[run] += 1
        try:
            yield
        finally:
            self.in_flight[run] -= 1
            if not self.in_flight[run]:
                del self.in_flight[run]
            if self.decision.run != run:
                self._changed()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
