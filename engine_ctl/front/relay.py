"""Passing one request to the engine and its answer back, as they come.

A client that leaves cancels its request at the engine. A request that an engine left without a
byte of an answer, because it was being replaced, is asked again of the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import aiohttp
from aiohttp import web
from aiohttp.web import BaseRequest, StreamResponse
from yarl import URL

from engine_ctl.front.bodies import Body, Budget
from engine_ctl.front.gate import Gate, Refused
from engine_ctl.front.headers import passed_on, to_engine
from engine_ctl.front.sight import Decision, Way

RETRY_AFTER_S = 5
CONNECT_S = 5.0
# Shorter than the engine's own (uvicorn under vLLM: 5 s), so that it never closes first.
KEEP_ALIVE_S = 2.0
# How long the files may take to tell why an engine does not answer.
DOUBT_S = 2.0
LINE_BYTES = 1 << 16
STALE_TRIES = 3


class Unanswered(Exception):
    """The engine gave no byte of an answer. `sent`: it may have seen the request. `stale`: on a
    connection that had been idle."""

    def __init__(self, why: str, sent: bool, stale: bool) -> None:
        super().__init__(why)
        self.sent = sent
        self.stale = stale


class Relay:
    """The request handler of the front. `served` and `failed` count requests."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._budget = Budget()
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.served = 0
        self.failed = 0

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer one request of a client."""
        body = Body(request, self._budget)
        try:
            return await self._handle(request, body)
        finally:
            body.close()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def _handle(self, request: BaseRequest, body: Body) -> StreamResponse:
        deadline = self._gate.deadline()
        stale = 0
        while True:
            try:
                engine = await self._gate.admit(deadline)
            except Refused as refused:
                self.failed += 1
                return refusal(503, str(refused))
            assert engine.run is not None
            try:
                with self._gate.passing(engine.run):
                    answer = await self._pass(request, body, engine)
                self.served += 1
                return answer
            except Unanswered as error:
                stale += error.stale
                if body.again and error.stale and stale < STALE_TRIES:
                    continue
                if body.again and await self._may_ask_again(engine.run, error):
                    continue
                self.failed += 1
                return refusal(502, f"the engine {engine.run} did not answer: {error}")

    async def _may_ask_again(self, run: str, error: Unanswered) -> bool:
        """What an engine has never seen may go to any other; what it may have seen only where
        the engine is replaced on purpose: a request may be what killed it."""
        now = await self._gate.moved(run, DOUBT_S)
        if now.run == run and now.way is Way.PASS:
            return False
        return now.planned or not error.sent

    def _session(self, run: str) -> aiohttp.ClientSession:
        """Connections belong to one run: none outlives its engine unnoticed."""
        session = self._sessions.get(run)
        if session is None:
            for old in [name for name in self._sessions if name not in self._gate.in_flight]:
                closing = asyncio.create_task(self._sessions.pop(old).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            session = self._sessions[run] = _session()
        return session

    async def _pass(self, request: BaseRequest, body: Body, engine: Decision) -> StreamResponse:
        assert engine.address is not None and engine.run is not None
        host, port = engine.address
        place = f"[{host}]" if ":" in host else host
        data = await body.data()
        mark = SimpleNamespace(reused=False, sent=False)
        try:
            upstream = await self._session(engine.run).request(
                request.method,
                URL(f"http://{place}:{port}{_target(request)}", encoded=True),
                headers=to_engine(request.headers, request.remote),
                data=data,
                allow_redirects=False,
                trace_request_ctx=mark,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(error, mark) from None
        try:
            try:
                first = await upstream.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise _unanswered(error, mark) from None
            answer = StreamResponse(
                status=upstream.status,
                reason=upstream.reason,
                headers=passed_on(upstream.headers),
            )
            await answer.prepare(request)
            await _stream(request, upstream, answer, first)
        except BaseException:
            # Closing the connection is how the engine learns that nobody waits any more.
            upstream.close()
            raise
        upstream.release()
        return answer


async def _stream(
    request: BaseRequest, upstream: aiohttp.ClientResponse, answer: StreamResponse, first: bytes
) -> None:
    part = first
    while part:
        await answer.write(part)
        try:
            part = await upstream.content.readany()
        except (aiohttp.ClientError, OSError):
            # The answer is broken off: the client must not take it for complete.
            if request.transport is not None:
                request.transport.abort()
            raise
    await answer.write_eof()


def _session() -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()

    async def reused(_session: object, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.reused = True

    async def sent(_session: object, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.sent = True

    trace.on_connection_reuseconn.append(reused)
    trace.on_request_headers_sent.append(sent)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        max_line_size=LINE_BYTES,
        max_field_size=LINE_BYTES,
        trace_configs=[trace],
    )


def _target(request: BaseRequest) -> str:
    """Path and query as the client wrote them; a proxy's absolute form loses its origin."""
    target = request.raw_path
    if target.startswith("/"):
        return target
    with contextlib.suppress(ValueError):
        return URL(target, encoded=True).raw_path_qs
    return "/"


def _unanswered(error: BaseException, mark: SimpleNamespace) -> Unanswered:
    gone = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
    words = " ".join(str(error).split()) or type(error).__name__
    return Unanswered(words, sent=mark.sent, stale=mark.reused and gone)


def refusal(status: int, why: str) -> web.Response:
    """An error in the shape of the engine's own API."""
    kind = "ServiceUnavailableError" if status == 503 else "BadGatewayError"
    answer = web.json_response(
        {"error": {"message": f"stoker front: {why}", "type": kind, "param": None, "code": status}},
        status=status,
    )
    answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer
