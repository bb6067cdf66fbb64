"""Asking engines: kept connections, slow and dead servers, odd HTTP. Real sockets on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.metrics import scrape
from engine_ctl.metrics.connection import Endpoint, HttpError, _ResponseParser
from engine_ctl.metrics.scrape import Answer, Scraper, scrape_once

WAIT_S = 100.0
Serve = Callable[[socket.socket, int], None]


@contextmanager
def server(serve: Serve, family: int = socket.AF_INET) -> Iterator[Endpoint]:
    """Accept connections and hand each with its number to `serve`, until the block ends."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
    listener.listen()
    stopping = threading.Event()
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        number = 0
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=guarded, args=(connection, number), daemon=True).start()
            number += 1

    def guarded(connection: socket.socket, number: int) -> None:
        try:
            serve(connection, number)
        except OSError:
            pass
        finally:
            connection.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        host, port = listener.getsockname()[:2]
        yield Endpoint(host, port)
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in open_sockets:
            each.close()


def request(connection: socket.socket) -> str | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(4096)
        if not more:
            return None
        data += more
    return data.split(b" ")[1].decode()


def reply(connection: socket.socket, status: int, body: bytes, extra: bytes = b"") -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), extra)
    connection.sendall(head + body)


def healthy(connection: socket.socket, number: int) -> None:
    while (path := request(connection)) is not None:
        reply(connection, 200, b"" if path == "/health" else b"up %d\n" % number)


def until(scraper: Scraper, endpoint: Endpoint) -> Answer:
    return scraper.poll({"a": endpoint}, WAIT_S)["a"]


def test_one_connection_is_kept_for_many_rounds() -> None:
    with server(healthy) as endpoint:
        scraper = Scraper()
        for _ in range(3):
            answer = until(scraper, endpoint)
            assert (answer.health, answer.metrics, answer.error) == (200, b"up 0\n", "")
        scraper.close()


def test_only_health_can_be_asked() -> None:
    with server(healthy) as endpoint:
        answer = scrape_once({"a": endpoint}, WAIT_S, metrics=False)["a"]
        assert (answer.health, answer.metrics) == (200, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "localhost", "127.0.0.1"])
def test_a_wildcard_address_is_reached_through_loopback(host: str) -> None:
    with server(healthy) as endpoint:
        assert scrape_once({"a": Endpoint(host, endpoint.port)}, WAIT_S)["a"].health == 200


def test_ipv6() -> None:
    with server(healthy, socket.AF_INET6) as endpoint:
        for host in ("::", "::1", "[::1]"):
            assert scrape_once({"a": Endpoint(host, endpoint.port)}, WAIT_S)["a"].health == 200


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])
        answer = scrape_once({"a": endpoint}, WAIT_S)["a"]
    assert answer.error == "refused"
    assert answer.health is None


def test_dead_engine_core_says_503_and_frozen_metrics() -> None:
    def serve(connection: socket.socket, _: int) -> None:
        while (path := request(connection)) is not None:
            reply(connection, 503 if path == "/health" else 200, b"frozen 1\n")

    with server(serve) as endpoint:
        answer = scrape_once({"a": endpoint}, WAIT_S)["a"]
        assert (answer.health, answer.metrics) == (503, b"frozen 1\n")


def test_metrics_that_are_not_there() -> None:
    def serve(connection: socket.socket, _: int) -> None:
        while (path := request(connection)) is not None:
            reply(connection, 200 if path == "/health" else 404, b"no")

    with server(serve) as endpoint:
        answer = scrape_once({"a": endpoint}, WAIT_S)["a"]
        assert (answer.health, answer.metrics, answer.error) == (200, None, "")


def test_a_slow_engine_is_taken_up_later_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "GIVE_UP_S", WAIT_S)
    release = threading.Event()

    def slow(connection: socket.socket, _: int) -> None:
        assert request(connection) == "/health"
        release.wait(WAIT_S)
        reply(connection, 200, b"")
        assert request(connection) == "/metrics"
        reply(connection, 200, b"late 1\n")

    with server(slow) as slowly, server(healthy) as fast:
        scraper = Scraper()
        endpoints = {"slow": slowly, "fast": fast}
        first: dict[str, Answer] = {}
        while "fast" not in first:
            first |= scraper.poll(endpoints, 0.2)
        assert "slow" not in first
        release.set()
        answers: dict[str, Answer] = {}
        while "slow" not in answers:
            answers |= scraper.poll(endpoints, 0.2)
        assert answers["slow"].metrics == b"late 1\n"
        scraper.close()


def test_an_engine_that_never_answers_is_given_up() -> None:
    now = 0.0
    stopped = threading.Event()

    def serve(connection: socket.socket, _: int) -> None:
        request(connection)
        stopped.wait(WAIT_S)

    with server(serve) as endpoint:
        scraper = Scraper(clock=lambda: now)
        assert scraper.poll({"a": endpoint}, 0.0) == {}
        now = 6.0
        assert scraper.poll({"a": endpoint}, 0.0)["a"].error == "timed out"
        assert scrape_once({"a": endpoint}, 0.01)["a"].error == "timed out"
        scraper.close()
        stopped.set()


def test_a_connection_that_was_closed_in_between_is_opened_again() -> None:
    def once(connection: socket.socket, number: int) -> None:
        for body in (b"", b"up %d\n" % number):
            request(connection)
            reply(connection, 200, body)

    with server(once) as endpoint:
        scraper = Scraper()
        assert until(scraper, endpoint).metrics == b"up 0\n"
        assert until(scraper, endpoint).metrics == b"up 1\n"
        scraper.close()


def test_connection_close_and_bodies_up_to_the_end() -> None:
    def serve(connection: socket.socket, _: int) -> None:
        path = request(connection)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + (b"" if path == "/health" else b"x 1\n"))

    with server(serve) as endpoint:
        answer = scrape_once({"a": endpoint}, WAIT_S)["a"]
        assert (answer.health, answer.metrics) == (200, b"x 1\n")


def test_chunks() -> None:
    def serve(connection: socket.socket, _: int) -> None:
        while (request(connection)) is not None:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nx 1\r\n")
            connection.sendall(b"1;a=b\r\n\n\r\n0\r\n\r\n")

    with server(serve) as endpoint:
        assert scrape_once({"a": endpoint}, WAIT_S)["a"].metrics == b"x 1\n"


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", b""])
def test_another_program_on_the_port(text: bytes) -> None:
    def serve(connection: socket.socket, _: int) -> None:
        request(connection)
        connection.sendall(text)

    with server(serve) as endpoint:
        answer = scrape_once({"a": endpoint}, WAIT_S)["a"]
        assert answer.error in ("not HTTP", "hung up")


def test_a_moved_engine_is_asked_at_its_new_address() -> None:
    with server(healthy) as first, server(healthy) as second:
        scraper = Scraper()
        assert until(scraper, first).health == 200
        assert until(scraper, second).health == 200
        assert scraper.poll({}, 0.1) == {}
        scraper.close()


def test_a_unix_socket(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("s") / "e")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        healthy(connection, 0)

    threading.Thread(target=serve, daemon=True).start()
    assert scrape_once({"a": Endpoint("", 0, uds=path)}, WAIT_S)["a"].health == 200
    listener.close()


@given(st.binary(max_size=200), st.integers(1, 60))
@settings(max_examples=200)
def test_any_bytes_are_a_response_or_an_error(data: bytes, step: int) -> None:
    for start in (
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        parser = _ResponseParser()
        buffer = bytearray()
        text = start + data
        try:
            for at in range(0, len(text), step):
                buffer += text[at : at + step]
                if parser.feed(buffer, ended=False) is not None:
                    break
            else:
                parser.feed(buffer, ended=True)
        except HttpError:
            pass


@given(st.binary(max_size=300), st.integers(1, 40), st.booleans())
def test_a_body_comes_out_as_it_went_in(body: bytes, step: int, chunked: bool) -> None:
    if chunked:
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        text = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + text + b"0\r\n\r\n"
    else:
        wire = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    parser = _ResponseParser()
    buffer = bytearray()
    found = None
    for at in range(0, len(wire), step):
        assert found is None
        buffer += wire[at : at + step]
        found = parser.feed(buffer, ended=False)
    assert found is not None and found.body == body
