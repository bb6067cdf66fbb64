"""A front over files that a test writes, before a small HTTP server that a test programs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web import BaseRequest, StreamResponse

from engine_ctl import atomic
from engine_ctl.front.gate import Gate
from engine_ctl.front.relay import Relay
from engine_ctl.front.sight import Watch
from engine_ctl.model import Kind
from engine_ctl.state.records import (
    CurrentRecord,
    ExitRecord,
    ReadyRecord,
    RunSpec,
    StopRequest,
    UnitRecord,
)
from engine_ctl.swap.journal import NAME, Outcome, Step, SwapRecord
from profiles.model import Profile

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


class UnitFiles:
    """The state directory of one unit `u`, as operations and shims write it."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "units" / "u"
        self.desired("running")

    def _write(self, name: str, record: msgspec.Struct) -> None:
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_record(path, record)

    def desired(self, word: str) -> None:
        self._write("unit.json", UnitRecord(unit="u", desired=word))

    def run(self, number: int, port: int | None, ready: bool = True) -> None:
        spec = RunSpec(
            run=f"u/{number}", unit="u", kind=Kind.ENGINE, argv=[], host="127.0.0.1", port=port
        )
        self._write(f"runs/{number}/spec.json", spec)
        if ready:
            self.ready(number)
        self._write("current.json", CurrentRecord(run=f"u/{number}"))

    def ready(self, number: int) -> None:
        self._write(f"runs/{number}/ready.json", ReadyRecord(wall=1.0, seconds=1.0))

    def asked(self, number: int) -> None:
        self._write(f"runs/{number}/request.json", StopRequest(at=1.0))

    def ended(self, number: int, restart_in_s: float | None = None) -> None:
        record = ExitRecord(run=f"u/{number}", ended=1.0, restart_in_s=restart_in_s)
        self._write(f"runs/{number}/exit.json", record)

    def swap(self, outcome: Outcome | None = None) -> None:
        record = SwapRecord(
            id="s",
            unit="u",
            by="test",
            started=1.0,
            step=Step.STOPPING,
            profile=Profile(name="p"),
            outcome=outcome,
        )
        self._write(NAME, record)

    def damage(self, name: str) -> None:
        (self.dir / name).write_bytes(b'{"schema": 1, "ru')


@contextlib.asynccontextmanager
async def server(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """An HTTP server that answers with `handler`; its port."""
    runner = web.ServerRunner(
        web.Server(handler, handler_cancellation=True, auto_decompress=False), shutdown_timeout=0.2
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def front(
    files: UnitFiles, hold_s: float = 100.0, hold_requests: int = 100
) -> AsyncIterator[tuple[int, Gate, Relay]]:
    """A front over `files`: (its port, gate, relay)."""
    gate = Gate(Watch(files.dir), hold_s, hold_requests)
    relay = Relay(gate)
    follower = asyncio.create_task(gate.follow())
    try:
        async with server(relay.handle) as port:
            yield port, gate, relay
            gate.close()
    finally:
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await follower
        await relay.close()


async def until(condition: Callable[[], Any], seconds: float = 100.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
