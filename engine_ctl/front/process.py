"""The front's process: `python -m engine_ctl.front.process UNIT_DIR --host … --port …`.

It runs under a shim like every other run, and needs nobody else: neither the console nor the
command that started it. SIGTERM lets requests that an engine works on finish for a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.web import BaseRequest

from engine_ctl.front import status
from engine_ctl.front.gate import Gate
from engine_ctl.front.relay import LINE_BYTES, Relay
from engine_ctl.front.sight import Decision, Watch, Way
from engine_ctl.front.status import FrontStatus

CLOSE_S = 5.0
BACKLOG = 1024


def say(text: str) -> None:
    """One line of the front's log."""
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"INFO {now} [front] {text}", flush=True)


class Teller:
    """Writes front.json and the log after every change."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._told: Decision | None = None
        self.gate: Gate | None = None

    def __call__(self) -> None:
        gate = self.gate
        if gate is None:
            return
        now = gate.decision
        if self._run_dir is not None:
            status.write(self._run_dir, status_of(gate))
        told = self._told
        if told is None or (now.way, now.run, now.why) != (told.way, told.run, told.why):
            self._told = now
            if now.way is Way.PASS:
                say(f"passing to {now.run} on port {now.address[1] if now.address else '?'}")
            else:
                verb = "holding requests" if now.way is Way.HOLD else "refusing requests"
                say(f"{verb}: {now.why}")


def status_of(gate: Gate) -> FrontStatus:
    now = gate.decision
    return FrontStatus(
        way=now.way.value,
        passes_to=now.run if now.way is Way.PASS else None,
        why=now.why,
        in_flight=dict(gate.in_flight),
        held=gate.held,
        at=time.time(),
    )


def is_local(request: BaseRequest) -> bool:
    """True when the client is on this machine: both ends have one address."""
    transport = request.transport
    if transport is None:
        return False
    ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
    return bool(ends[0] and ends[1] and ends[0][0] == ends[1][0])


async def serve(
    unit_dir: Path, host: str, port: int, hold_s: float, hold_requests: int, run_dir: Path | None
) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError when the address cannot be bound."""
    teller = Teller(run_dir)
    gate = Gate(Watch(unit_dir), hold_s, hold_requests, teller)
    relay = Relay(gate)

    async def handle(request: BaseRequest) -> web.StreamResponse:
        if request.path == status.OWN_PATH and is_local(request):
            body = msgspec.json.encode(status_of(gate))
            return web.Response(body=body, content_type="application/json")
        return await relay.handle(request)

    server = web.Server(
        handle,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
        max_line_size=LINE_BYTES,
        max_field_size=LINE_BYTES,
        max_headers=1000,
    )
    runner = web.ServerRunner(server, shutdown_timeout=CLOSE_S)
    await runner.setup()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
    teller.gate = gate
    say(f"listening on {host}:{port}, up to {hold_requests} requests wait up to {hold_s:g} s")
    teller()
    follower = asyncio.create_task(gate.follow())
    try:
        await stop.wait()
    finally:
        gate.close()
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await follower
        await runner.cleanup()
        await relay.close()
        say(f"closed after {relay.served} requests passed on, {relay.failed} refused")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="front")
    parser.add_argument("unit_dir", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--hold-s", type=float, default=120.0)
    parser.add_argument("--hold-requests", type=int, default=1000)
    given = parser.parse_args(arguments)
    run_dir = os.environ.get("STOKER_RUN_DIR")
    try:
        asyncio.run(
            serve(
                given.unit_dir,
                given.host,
                given.port,
                given.hold_s,
                given.hold_requests,
                Path(run_dir) if run_dir else None,
            )
        )
    except OSError as error:
        print(f"ERROR cannot listen on {given.host}:{given.port}: {error.strerror}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
