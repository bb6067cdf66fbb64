"""The front as a run under its own shim: started, kept, killed, damaged, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.web import BaseRequest, StreamResponse

from engine_ctl.errors import Busy, StokerError, Usage
from engine_ctl.front import lifecycle as fronts
from engine_ctl.front import status
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.supervise import liveness
from profiles.model import Profile
from tests.unit.front_rig import UnitFiles, closed_port, server, until
from tests.unit.test_front_relay import fetch

FRONTED = Profile(name="p", front=True)
PLAIN = Profile(name="p")


@pytest.fixture
def ctx(tmp_path: Path) -> AsyncIterator[Context]:
    dirs = Dirs.from_env({"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)})
    made = Context(dirs, by="test")
    made.store.create("u", Kind.ENGINE, "p")
    yield made
    fronts.stop(made, "u")


def spec(port: int) -> RunSpec:
    return RunSpec(unit="u", kind=Kind.ENGINE, argv=[], public_host="127.0.0.1", public_port=port)


async def settle(ctx: Context, port: int, profile: Profile = FRONTED) -> None:
    await asyncio.to_thread(fronts.settle, ctx, spec(port), profile)


def files_of(ctx: Context) -> UnitFiles:
    return UnitFiles(ctx.dirs.state)


async def hello(_: BaseRequest) -> StreamResponse:
    return web.Response(text="hello")


async def test_a_front_is_kept_moved_and_stopped(ctx: Context) -> None:
    port = closed_port()
    await settle(ctx, port)
    first = fronts.live(ctx.store, "u")
    assert first is not None and first.spec().client_port == port
    await until(lambda: liveness.look(first).ready)
    await settle(ctx, port)
    assert fronts.live(ctx.store, "u") == first
    other = closed_port()
    await settle(ctx, other)
    second = fronts.live(ctx.store, "u")
    assert second is not None and second != first
    assert fronts.holds(ctx.store, "u", "127.0.0.1", other)
    await settle(ctx, other, PLAIN)
    assert fronts.live(ctx.store, "u") is None
    end = second.exit()
    assert end is not None and end.requested and end.code == 0
    assert fronts.remove(ctx, "u") and not fronts.remove(ctx, "u")


async def test_a_taken_port_is_said_with_its_owner(ctx: Context) -> None:
    said = pytest.raises(Busy, match=f"in use by pid {os.getpid()}")
    with socket.create_server(("127.0.0.1", 0)) as taken, said:
        await settle(ctx, taken.getsockname()[1])
    assert fronts.live(ctx.store, "u") is None


async def test_a_unit_of_that_name_is_left_alone(ctx: Context) -> None:
    ctx.store.create("u-front", Kind.ENGINE, "p")
    with pytest.raises(Usage, match="is no front"):
        await settle(ctx, closed_port())
    assert not fronts.remove(ctx, "u")


async def test_a_killed_front_comes_back_on_its_port(ctx: Context) -> None:
    began, port = asyncio.Event(), closed_port()

    async def handler(request: BaseRequest) -> StreamResponse:
        if request.path == "/slow":
            began.set()
            await asyncio.sleep(3600)
        return await hello(request)

    async with server(handler) as engine:
        files = files_of(ctx)
        files.run(1, engine)
        await settle(ctx, port)
        run = fronts.live(ctx.store, "u")
        assert run is not None
        slow = asyncio.create_task(fetch(port, "/slow"))
        async with asyncio.timeout(100):
            await began.wait()
        who = run.identity()
        assert who is not None
        os.kill(who.leader.pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await slow

        def back() -> bool:
            now = ctx.store.current("u-front")
            return now is not None and now != run and status.read(now) is not None

        await until(back)
        assert await fetch(port) == (200, "hello")


async def test_it_serves_through_damaged_state(ctx: Context) -> None:
    port = closed_port()
    async with server(hello) as engine:
        files = files_of(ctx)
        files.run(1, engine)
        await settle(ctx, port)
        run = fronts.live(ctx.store, "u")
        assert run is not None
        for name in ("unit.json", "current.json", "runs/1/spec.json", "runs/1/ready.json"):
            files.damage(name)
        (run.dir / status.NAME).write_bytes(b"{")
        assert status.read(run) is None
        assert await fetch(port) == (200, "hello")
        assert "damaged" not in (await fetch(port, status.OWN_PATH))[1]


async def test_a_drain_waits_for_the_front(ctx: Context) -> None:
    go, port = asyncio.Event(), closed_port()

    async def handler(request: BaseRequest) -> StreamResponse:
        await go.wait()
        return await hello(request)

    async with server(handler) as engine:
        files = files_of(ctx)
        files.run(1, engine)
        await settle(ctx, port)
        engine_run = ctx.store.run("u/1")
        record = msgspec.structs.replace(engine_run.spec(), public_port=port)
        files._write("runs/1/spec.json", record)
        found = fronts.drain(ctx, engine_run)
        assert found is not None
        ladder, drained = found
        assert ladder.drain_s == 10.0
        asked = asyncio.create_task(fetch(port))
        front = fronts.live(ctx.store, "u")
        assert front is not None
        assert not drained()
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}{status.OWN_PATH}"
            async with asyncio.timeout(100):
                while True:
                    async with session.get(url) as reply:
                        if (await reply.json())["in_flight"]:
                            break
        files.asked(1)
        await until(lambda: (s := status.read(front)) is not None and s.way == "hold")
        assert not drained()
        go.set()
        assert (await asked)[0] == 200
        await until(drained)


async def test_nothing_to_drain_without_a_front(ctx: Context) -> None:
    files = files_of(ctx)
    files.run(1, 1)
    assert fronts.drain(ctx, ctx.store.run("u/1")) is None


def test_settings_that_cannot_be_read_are_one_line(ctx: Context) -> None:
    path = ctx.dirs.config / "front.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("hold_s: soon")
    with pytest.raises(StokerError, match=r"front\.yaml"):
        fronts.settle(ctx, spec(closed_port()), FRONTED)
    assert fronts.live(ctx.store, "u") is None
