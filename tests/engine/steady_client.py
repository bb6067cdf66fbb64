"""A client that asks an engine at a steady rate, whatever becomes of its earlier requests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """One request: seconds until its answer was complete; `problem` is empty when it was good."""

    at: float
    stream: bool
    seconds: float
    problem: str = ""


@dataclass
class SteadyClient:
    """`rate` requests a second to the engine on `port`, every second one streaming. A request is
    good when it has status 200, text, and an end that is not `abort`."""

    port: int
    model: str
    rate: float = 5.0
    tokens: int = 8
    timeout: float = 120.0
    outcomes: list[Outcome] = field(default_factory=list)

    def __enter__(self) -> SteadyClient:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ticker = threading.Thread(target=self._tick)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._ticker.join()
        for thread in self._threads:
            thread.join(self.timeout)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problem]

    def _tick(self) -> None:
        due, count = time.monotonic(), 0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            thread = threading.Thread(target=self._ask, args=(count % 2 == 1,), daemon=True)
            thread.start()
            self._threads.append(thread)
            due, count = due + 1 / self.rate, count + 1

    def _ask(self, stream: bool) -> None:
        began = time.monotonic()
        try:
            problem = self.ask(stream)
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        self.outcomes.append(Outcome(began, stream, time.monotonic() - began, problem))

    def ask(self, stream: bool) -> str:
        """One request; what is wrong with its answer, or "". Raises what the connection raises."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        body = {
            "model": self.model,
            "prompt": "An engine",
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            reply = connection.getresponse()
            data = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            return f"{reply.status}: {data[:200]!r}"
        return _problem_of_stream(data) if stream else _problem_of(json.loads(data)["choices"][0])


def _problem_of(choice: dict[str, object]) -> str:
    return "" if choice["finish_reason"] == "length" else f"ended by {choice['finish_reason']}"


def _problem_of_stream(data: bytes) -> str:
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        return f"the stream broke off after {len(events)} events"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    return _problem_of(choices[-1]) if len(choices) > 1 else "the stream had one event"
