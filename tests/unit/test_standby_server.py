"""The socket of a standby: private, one bad client never hurts another, children are bounded."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.inside import standby_server
from engine_ctl.inside.standby_server import LINE_LIMIT, BadRequest, Job, Server, listen
from engine_ctl.standby.client import Client, Refused, Unavailable
from tests.standin.rig import until


def forked(seconds: float, answer: bytes, limit: float) -> Job:
    """A job whose child answers after `seconds` (a process, as in a real standby)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(seconds)
        os.write(write, answer)
        os._exit(0)
    os.close(write)

    def finish(data: bytes, problem: str | None) -> dict[str, Any]:
        return {"ok": True, "data": data.decode(), "problem": problem}

    return Job(pid, read, time.monotonic() + limit, finish)


def refuse(request: dict[str, Any]) -> dict[str, Any]:
    raise BadRequest("request", "never\nthat")


def crash(request: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("oops")


HANDLERS: dict[str, Any] = {
    "hello": lambda request: {"ok": True, "got": request.get("value")},
    "big": lambda request: {"ok": True, "text": "x" * (8 << 20)},
    "job": lambda request: forked(request["seconds"], b"done", request.get("limit", 100.0)),
    "refuse": refuse,
    "crash": crash,
}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    socket_file = directory / "x"
    listener = listen(str(socket_file))
    pid = os.fork()
    if pid == 0:
        try:
            Server(listener, HANDLERS).serve()
        finally:
            os._exit(0)
    listener.close()
    yield socket_file
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)


def raw(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(100)
    connection.connect(str(path))
    return connection


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_the_socket_is_private(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(PermissionError):
        listen(str(tmp_path / "x"))


def test_a_stale_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    listen(str(tmp_path / "x")).close()
    listen(str(tmp_path / "x")).close()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OSError):
        listen(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"


def test_questions_are_answered_in_order_on_one_connection(path: Path) -> None:
    with Client(path) as client:
        assert [client.ask("hello", value=i)["got"] for i in range(3)] == [0, 1, 2]


def test_several_lines_at_once_are_answered_one_by_one(path: Path) -> None:
    with raw(path) as connection:
        connection.sendall(b'{"op":"job","seconds":0.1}\n{"op":"hello","value":7}\n')
        lines = connection.makefile().readline, connection.makefile().readline
        first = json.loads(lines[0]())
        assert first["data"] == "done"


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[1,2]\n", b'{"no":"op"}\n', b"\xff\xfe\n", b"[" * 9999],
    ids=["empty", "http", "list", "no op", "bytes", "deep"],
)
def test_garbage_closes_that_connection_only(path: Path, garbage: bytes) -> None:
    with Client(path) as other, raw(path) as connection:
        other.ask("hello")
        connection.sendall(garbage if garbage.endswith(b"\n") else garbage + b"\n")
        assert closed(connection)
        assert other.ask("hello", value=1)["got"] == 1


def test_an_endless_line_is_cut_off(path: Path) -> None:
    with raw(path) as connection:
        try:
            connection.sendall(b"x" * (LINE_LIMIT + 65536))
        except (BrokenPipeError, ConnectionResetError):
            return
        assert closed(connection)


def test_half_a_line_does_not_keep_others_waiting(path: Path) -> None:
    with raw(path) as connection, Client(path) as other:
        connection.sendall(b'{"op":')
        assert other.ask("hello", value=2)["got"] == 2


def test_a_reader_that_does_not_read_does_not_keep_others_waiting(path: Path) -> None:
    with raw(path) as connection, Client(path) as other:
        connection.sendall(b'{"op":"big"}\n')
        assert other.ask("hello", value=3)["got"] == 3
        data = b""
        while not data.endswith(b"\n"):
            data += connection.recv(1 << 20)
        assert len(json.loads(data)["text"]) == 8 << 20


def test_errors_are_answers(path: Path) -> None:
    with Client(path) as client:
        with pytest.raises(Refused) as refused:
            client.ask("refuse")
        assert (refused.value.kind, str(refused.value)) == ("request", "never that")
        with pytest.raises(Refused, match="ZeroDivisionError: oops"):
            client.ask("crash")
        with pytest.raises(Refused, match="unknown operation"):
            client.ask("nonsense")
        assert client.ask("hello", value=4)["got"] == 4


def test_jobs_run_beside_each_other_and_beside_questions(path: Path) -> None:
    began = time.monotonic()
    with Client(path) as one, Client(path) as two, Client(path) as three:
        answers: list[Any] = []
        threads = [
            threading.Thread(target=lambda c=c: answers.append(c.ask("job", seconds=0.6)))
            for c in (one, two)
        ]
        for thread in threads:
            thread.start()
        assert three.ask("hello", value=5)["got"] == 5
        for thread in threads:
            thread.join()
        assert [answer["data"] for answer in answers] == ["done", "done"]
    assert time.monotonic() - began < 100


def test_a_job_out_of_time_is_killed_and_answered(path: Path) -> None:
    with Client(path) as client:
        answer = client.ask("job", seconds=60, limit=0.2)
        assert answer["problem"] == "timeout"
        assert client.ask("hello", value=6)["got"] == 6


def test_connections_are_bounded(path: Path) -> None:
    held = [raw(path) for _ in range(standby_server.CONNECTIONS)]
    with Client(path) as last_in:
        held[-1].sendall(b'{"op":"hello"}\n')
        assert held[-1].recv(1000)
        with pytest.raises(Unavailable):
            last_in.ask("hello")
    for connection in held:
        connection.close()

    def served() -> bool:
        try:
            with Client(path) as client:
                return bool(client.ask("hello")["ok"])
        except Unavailable:
            return False

    until(served)


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no standby answers at"):
        Client(tmp_path / "none")
