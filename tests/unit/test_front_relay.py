"""Requests through the front: passed chunk by chunk, held, asked again, refused, cancelled."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.web import BaseRequest, StreamResponse
from yarl import URL

from engine_ctl.front import bodies
from engine_ctl.front.headers import passed_on, to_engine
from engine_ctl.front.sight import Decision
from engine_ctl.swap.journal import Outcome
from tests.unit.front_rig import UnitFiles, closed_port, front, server, until


@pytest.fixture
def files(tmp_path: Path) -> UnitFiles:
    return UnitFiles(tmp_path)


def named(name: str):  # type: ignore[no-untyped-def]
    async def handler(request: BaseRequest) -> StreamResponse:
        body = await request.content.read()
        return web.Response(text=f"{name} {request.method} {request.raw_path} {len(body)}")

    return handler


async def fetch(port: int, path: str = "/", **options: object) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", **options) as reply,
    ):
        return reply.status, await reply.text()


async def test_requests_pass_as_they_are(files: UnitFiles) -> None:
    seen: list[BaseRequest] = []
    packed = gzip.compress(b"answer")

    async def handler(request: BaseRequest) -> StreamResponse:
        seen.append(request)
        assert await request.read() == gzip.compress(b"question", mtime=0)
        reply = web.Response(body=packed, status=418, reason="Odd")
        reply.headers["Content-Encoding"] = "gzip"
        reply.headers.add("Set-Cookie", "a=1")
        reply.headers.add("Set-Cookie", "b=2")
        return reply

    async with server(handler) as engine, front(files) as (port, _, _):
        files.run(1, engine)
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            headers = {
                "Authorization": "Bearer k",
                "Content-Encoding": "gzip",
                "Connection": "keep-alive, X-Hop",
                "X-Hop": "1",
                "X-Forwarded-For": "10.0.0.1",
                "Host": "models.example",
            }
            target = f"http://127.0.0.1:{port}/v1/x%2Fy?a=%20b&c"

            data = gzip.compress(b"question", mtime=0)
            url = URL(target, encoded=True)
            async with session.put(url, headers=headers, data=data) as reply:
                assert (reply.status, reply.reason) == (418, "Odd")
                assert await reply.read() == packed
                assert reply.headers.getall("Set-Cookie") == ["a=1", "b=2"]
                assert reply.headers["Content-Length"] == str(len(packed))
    request = seen[0]
    assert (request.method, request.raw_path) == ("PUT", "/v1/x%2Fy?a=%20b&c")
    assert request.headers["Authorization"] == "Bearer k"
    assert request.headers["Host"] == "models.example"
    assert request.headers["X-Forwarded-For"] == "10.0.0.1, 127.0.0.1"
    assert "X-Hop" not in request.headers


async def test_streams_pass_chunk_by_chunk(files: UnitFiles) -> None:
    go = asyncio.Event()

    async def handler(request: BaseRequest) -> StreamResponse:
        reply = StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: one\n\n")
        await go.wait()
        await reply.write(b"data: two\n\n")
        await reply.write_eof()
        return reply

    async with server(handler) as engine, front(files) as (port, _, _):
        files.run(1, engine)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/stream") as reply,
        ):
            async with asyncio.timeout(100):
                assert await reply.content.readany() == b"data: one\n\n"
            go.set()
            assert await reply.content.read() == b"data: two\n\n"


async def test_large_bodies_stream_through(files: UnitFiles) -> None:
    async def parts():  # type: ignore[no-untyped-def]
        for _ in range(40):
            yield b"x" * (1 << 18)

    async with server(named("one")) as engine, front(files) as (port, _, relay):
        files.run(1, engine)
        assert await fetch(port, "/up", data=parts()) == (200, f"one POST /up {40 << 18}")
        assert relay._budget.left == bodies.KEEP_ALL_BYTES


async def test_a_client_that_leaves_cancels_at_the_engine(files: UnitFiles) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: BaseRequest) -> StreamResponse:
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return web.Response()

    async with server(handler) as engine, front(files) as (port, gate, _):
        files.run(1, engine)
        asked = asyncio.create_task(fetch(port))
        async with asyncio.timeout(100):
            await began.wait()
            assert gate.in_flight["u/1"] == 1
            asked.cancel()
            await cancelled.wait()
            await until(lambda: not gate.in_flight)


async def test_requests_wait_for_the_next_engine(files: UnitFiles) -> None:
    async with server(named("one")) as one, server(named("two")) as two:
        files.run(1, one)
        async with front(files) as (port, gate, _):
            assert await fetch(port, "/", data=b"abc") == (200, "one POST / 3")
            files.swap()
            files.asked(1)
            asked = [asyncio.create_task(fetch(port, f"/{i}", data=b"abc")) for i in range(20)]
            await until(lambda: gate.held == 20)
            files.ended(1)
            files.run(2, two, ready=False)
            assert gate.look().why == "u/2 is starting" and gate.held == 20
            files.ready(2)
            files.swap(Outcome.COMMITTED)
            assert await asyncio.gather(*asked) == [(200, f"two POST /{i} 3") for i in range(20)]


async def test_more_than_may_wait_are_told_when_to_come_again(files: UnitFiles) -> None:
    files.swap()
    async with front(files, hold_requests=1) as (port, gate, _), aiohttp.ClientSession() as session:
        waits = asyncio.create_task(fetch(port))
        await until(lambda: gate.held == 1)
        async with session.get(f"http://127.0.0.1:{port}/") as reply:
            assert reply.status == 503 and int(reply.headers["Retry-After"]) > 0
            assert "1 requests wait" in (await reply.json())["error"]["message"]
        waits.cancel()
        await until(lambda: gate.held == 0)


async def test_who_has_waited_long_enough_is_told(files: UnitFiles) -> None:
    files.run(1, None, ready=False)
    async with front(files, hold_s=0.05) as (port, _, _):
        status, text = await fetch(port)
        assert status == 503 and "u/1 is starting; waited 0.05 s" in text


async def test_a_stopped_unit_refuses_at_once(files: UnitFiles) -> None:
    files.run(1, 1)
    files.desired("stopped")
    files.asked(1)
    async with front(files) as (port, _, _):
        assert (await fetch(port))[0] == 503


async def test_what_a_replaced_engine_left_unanswered_is_asked_again(files: UnitFiles) -> None:
    async def dies(request: BaseRequest) -> StreamResponse:
        await request.read()
        files.swap()
        files.asked(1)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with server(dies) as one, server(named("two")) as two:
        files.run(1, one)
        async with front(files) as (port, gate, _):
            asked = asyncio.create_task(fetch(port, "/again", data=b"12345"))
            await until(lambda: gate.held == 1)
            files.ended(1)
            files.run(2, two)
            assert await asked == (200, "two POST /again 5")


async def test_what_may_have_killed_an_engine_is_not_asked_again(files: UnitFiles) -> None:
    seen = []

    async def dies(request: BaseRequest) -> StreamResponse:
        seen.append(await request.read())
        files.ended(1, restart_in_s=1.0)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with server(dies) as one, front(files) as (port, _, _):
        files.run(1, one)
        status, text = await fetch(port, "/", data=b"poison")
        assert status == 502 and "u/1 did not answer" in text
        assert seen == [b"poison"]


async def test_what_no_engine_has_seen_waits_for_the_restart(
    files: UnitFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.run(1, closed_port())
    async with server(named("two")) as two, front(files) as (port, gate, _):
        wait = gate.moved

        async def moved(run: str, seconds: float) -> Decision:
            files.ended(1, restart_in_s=1.0)
            return await wait(run, seconds)

        monkeypatch.setattr(gate, "moved", moved)
        asked = asyncio.create_task(fetch(port, "/", data=b"a"))
        await until(lambda: gate.held == 1)
        files.run(2, two)
        assert await asked == (200, "two POST / 1")


async def test_an_engine_that_refuses_and_stays_is_an_error(
    files: UnitFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_ctl.front.relay.DOUBT_S", 0.05)
    files.run(1, closed_port())
    async with front(files) as (port, _, _):
        status, text = await fetch(port)
        assert status == 502 and "did not answer" in text


async def test_a_broken_answer_is_broken_for_the_client_too(files: UnitFiles) -> None:
    async def breaks(request: BaseRequest) -> StreamResponse:
        reply = StreamResponse()
        await reply.prepare(request)
        await reply.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return reply

    async with server(breaks) as engine, front(files) as (port, gate, _):
        files.run(1, engine)
        with pytest.raises(aiohttp.ClientError):
            await fetch(port)
        await until(lambda: not gate.in_flight)


async def test_damaged_files_do_not_end_service(files: UnitFiles) -> None:
    async with server(named("one")) as engine, front(files) as (port, _, _):
        files.run(1, engine)
        assert (await fetch(port))[0] == 200
        for name in ("current.json", "unit.json", "runs/1/spec.json"):
            files.damage(name)
            assert (await fetch(port))[0] == 200


async def test_expect_continue_is_answered(files: UnitFiles) -> None:
    async with server(named("one")) as engine, front(files) as (port, _, _):
        files.run(1, engine)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n")
        writer.write(b"Expect: 100-continue\r\n\r\n")
        async with asyncio.timeout(100):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


def test_headers_of_one_connection_are_not_passed_on() -> None:
    headers = {"Connection": "close, X-A", "X-A": "1", "TE": "trailers", "X-B": "2"}
    assert dict(passed_on(headers)) == {"X-B": "2"}
    assert dict(to_engine({"Expect": "100-continue"}, None)) == {}
