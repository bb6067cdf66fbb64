"""Asks many engines for /health and /metrics at once, in one thread, within a time budget.

An engine under load may take longer than a tick to answer. Its request then stays in flight and
is taken up by the next poll, so that a slow engine delays neither the others nor itself.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine_ctl.metrics.connection import Connection, Endpoint, HttpError, Response

GIVE_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine said. `health` is the status of /health; `metrics` the body of /metrics
    (None unless it was 200); `error` why there is no answer: refused, timed out, hung up, …
    `at` is monotonic seconds."""

    at: float
    health: int | None = None
    metrics: bytes | None = None
    error: str = ""


class _Flight:
    """One engine's round: /health, then /metrics."""

    __slots__ = (
        "connection",
        "endpoint",
        "events",
        "health",
        "metrics",
        "path",
        "retried",
        "since",
    )

    def __init__(self, endpoint: Endpoint, metrics: bool) -> None:
        self.endpoint = endpoint
        self.metrics = metrics
        self.connection: Connection | None = None
        self.path = "/health"
        self.health: int | None = None
        self.since = 0.0
        self.retried = False
        self.events = 0


class Scraper:
    """Keeps one connection per engine. Not thread-safe: one sampling thread owns it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: dict[str, Connection] = {}
        self._flights: dict[str, _Flight] = {}

    def poll(
        self, endpoints: Mapping[str, Endpoint], budget_s: float, metrics: bool = True
    ) -> dict[str, Answer]:
        """Ask every engine and wait up to `budget_s` seconds for the answers.

        Engines that have not answered by then are missing from the result and are not asked
        again until they do, or until GIVE_UP_S have passed (then `error` says so). Engines no
        longer named are forgotten. With `metrics` False only /health is asked.
        """
        for name in [name for name in self._flights if self._changed(name, endpoints)]:
            self._drop(name)
        for name in [name for name in self._idle if name not in endpoints]:
            self._idle.pop(name).close()
        answers: dict[str, Answer] = {}
        started = self._clock()
        for name, endpoint in endpoints.items():
            if name not in self._flights:
                flight = _Flight(endpoint, metrics)
                flight.since = started
                self._flights[name] = flight
        with selectors.DefaultSelector() as selector:
            self._run(selector, answers, started + budget_s)
        return answers

    def close(self) -> None:
        for name in list(self._flights):
            self._drop(name)
        for connection in self._idle.values():
            connection.close()
        self._idle.clear()

    def _changed(self, name: str, endpoints: Mapping[str, Endpoint]) -> bool:
        return endpoints.get(name) != self._flights[name].endpoint

    def _drop(self, name: str) -> None:
        connection = self._flights.pop(name).connection
        if connection is not None:
            connection.close()

    def _run(
        self, selector: selectors.BaseSelector, answers: dict[str, Answer], deadline: float
    ) -> None:
        for name in list(self._flights):
            self._advance(selector, name, answers)
        while selector.get_map():
            left = deadline - self._clock()
            if left <= 0:
                break
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                self._advance(selector, key.data, answers)
        now = self._clock()
        for name, flight in list(self._flights.items()):
            if now - flight.since >= GIVE_UP_S:
                self._drop(name)
                answers[name] = Answer(now, health=flight.health, error="timed out")

    def _advance(
        self, selector: selectors.BaseSelector, name: str, answers: dict[str, Answer]
    ) -> None:
        """Take one engine as far as it goes without waiting."""
        flight = self._flights[name]
        while True:
            try:
                outcome = self._step(name, flight)
            except (HttpError, OSError) as error:
                if self._hung_up_between_requests(flight):
                    continue
                self._drop(name)
                text = str(error) if isinstance(error, HttpError) else "unreachable"
                answers[name] = Answer(self._clock(), health=flight.health, error=text)
                return
            if isinstance(outcome, int):
                assert flight.connection is not None
                selector.register(flight.connection, outcome, name)
                return
            if self._took(flight, outcome):
                continue
            connection = flight.connection
            assert connection is not None
            del self._flights[name]
            if connection.reusable:
                self._idle[name] = connection
            else:
                connection.close()
            body = outcome.body if flight.path == "/metrics" and outcome.status == 200 else None
            answers[name] = Answer(self._clock(), health=flight.health, metrics=body)
            return

    def _step(self, name: str, flight: _Flight) -> Response | int:
        if flight.connection is None:
            kept = self._idle.pop(name, None)
            if kept is not None and kept.endpoint != flight.endpoint:
                kept.close()
                kept = None
            flight.connection = kept or Connection(flight.endpoint)
            flight.connection.get(flight.path)
        return flight.connection.step()

    @staticmethod
    def _took(flight: _Flight, response: Response) -> bool:
        """Note an answer to /health; True when /metrics is to be asked next."""
        if flight.path != "/health":
            return False
        flight.health = response.status
        if not flight.metrics:
            return False
        flight.path = "/metrics"
        connection = flight.connection
        assert connection is not None
        if connection.reusable:
            connection.get(flight.path)
        else:
            connection.close()
            flight.connection = None
        return True

    @staticmethod
    def _hung_up_between_requests(flight: _Flight) -> bool:
        """A server may close a kept connection just when it is used again: try a new one once."""
        connection = flight.connection
        if connection is None or connection.fresh or not connection.unanswered or flight.retried:
            return False
        connection.close()
        flight.connection = None
        flight.retried = True
        return True


def scrape_once(
    endpoints: Mapping[str, Endpoint], timeout_s: float, metrics: bool = True
) -> dict[str, Answer]:
    """One round in parallel. Engines that did not answer in time have `error` "timed out"."""
    scraper = Scraper()
    try:
        answers = scraper.poll(endpoints, timeout_s, metrics)
        late = {
            name: Answer(scraper._clock(), error="timed out")
            for name in endpoints
            if name not in answers
        }
        return answers | late
    finally:
        scraper.close()
