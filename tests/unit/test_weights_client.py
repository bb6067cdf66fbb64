"""The script that speaks to daemons, against sockets that do what they like. No vLLM is needed."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Failed
from engine_ctl.inside import weight_cache_client as inside
from engine_ctl.weights import client

Behaviour = Callable[[socket.socket], None]


def _read(conn: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack("!Q", conn.recv(8, socket.MSG_WAITALL))
    return pickle.loads(conn.recv(length, socket.MSG_WAITALL))  # type: ignore[no-any-return]


def _answer(conn: socket.socket, answer: object) -> None:
    payload = answer if isinstance(answer, bytes) else pickle.dumps(answer)
    conn.sendall(struct.pack("!Q", len(payload)) + payload)


def _daemon(conn: socket.socket) -> None:
    command = _read(conn)["cmd"]
    answers = {"get_memory": {"status": "ok", "memory_bytes": 77}, "release": {"status": "ok"}}
    _answer(conn, answers.get(command, {"status": "error", "message": f"Unknown {command!r}"}))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/stoker-was-here",)


def _trickle(conn: socket.socket) -> None:
    _read(conn)
    while True:
        conn.sendall(b"\0")
        threading.Event().wait(0.2)


@pytest.fixture
def listen() -> Iterator[Callable[[Behaviour], str]]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="st"))
        os.chmod(directory, 0o700)

        def start(behave: Behaviour) -> str:
            path = f"{directory}/{len(os.listdir(directory))}.sock"
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.bind(path)
            server.listen()
            stack.callback(server.close)

            def handle(conn: socket.socket) -> None:
                with conn, contextlib.suppress(OSError, struct.error):
                    # Until the request is there: who closes with it unread resets the connection.
                    conn.recv(1, socket.MSG_PEEK)
                    behave(conn)
                    conn.shutdown(socket.SHUT_WR)
                    while conn.recv(1 << 16):
                        pass

            def loop() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        conn, _ = server.accept()
                        threading.Thread(target=handle, args=(conn,), daemon=True).start()

            threading.Thread(target=loop, daemon=True).start()
            stack.callback(lambda: contextlib.suppress(OSError) and _shut(server))
            return path

        yield start


def _shut(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


CASES: dict[str, tuple[Behaviour, str]] = {
    "serving": (_daemon, "serving"),
    "released": (lambda c: _answer(c, {"status": "ok", "memory_bytes": 0}), "released"),
    "refuses": (lambda c: _answer(c, {"status": "error", "message": "no"}), "error"),
    "no number": (lambda c: _answer(c, {"status": "ok", "memory_bytes": "x"}), "error"),
    "silent": (lambda c: c.recv(1 << 16) and threading.Event().wait(100), "silent"),
    "trickles": (_trickle, "silent"),
    "hangs up": (lambda c: c.close(), "gone"),
    "hangs up late": (lambda c: _read(c) and None, "gone"),
    "random": (lambda c: c.sendall(b"\xff" * 64), "garbage"),
    "huge": (lambda c: c.sendall(struct.pack("!Q", 1 << 40)), "garbage"),
    "no pickle": (lambda c: _answer(c, b"hello"), "garbage"),
    "other type": (lambda c: _answer(c, ["ok"]), "garbage"),
    "no status": (lambda c: _answer(c, {"memory_bytes": 1}), "garbage"),
    "code": (lambda c: _answer(c, {"status": Evil()}), "garbage"),
}


@pytest.mark.parametrize("name", CASES)
def test_states(name: str, listen: Callable[[Behaviour], str]) -> None:
    behave, state = CASES[name]
    # Only who never answers is waited for to the end.
    found = inside.daemon_status(listen(behave), timeout_s=0.6 if state == "silent" else 60.0)
    assert found["state"] == state, found
    assert (found["memory_bytes"] == 77) == (state == "serving")
    if state not in ("serving", "released"):
        assert found["message"] and "\n" not in found["message"]
    assert not os.path.exists("/tmp/stoker-was-here")


def test_states_without_a_daemon(tmp_path: Path) -> None:
    assert inside.daemon_status(str(tmp_path / "no" / "x.sock"))["state"] == "missing"
    tmp_path.chmod(0o700)
    assert inside.daemon_status(str(tmp_path / "x.sock"))["state"] == "missing"
    (tmp_path / "x.sock").write_text("")
    assert inside.daemon_status(str(tmp_path / "x.sock"))["state"] == "stale"


def test_a_socket_that_nobody_listens_on(listen: Callable[[Behaviour], str]) -> None:
    path = listen(_daemon) + ".dead"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(path)
    dead.close()
    assert inside.daemon_status(path)["state"] == "stale"


def test_unsafe_places_are_not_connected_to(listen: Callable[[Behaviour], str]) -> None:
    asked = threading.Event()
    path = listen(lambda conn: asked.set())
    directory = os.path.dirname(path)
    os.chmod(directory, 0o770)
    found = inside.daemon_status(path)
    assert found["state"] == "unsafe" and "writable by others" in found["message"]
    os.chmod(directory, 0o700)
    os.symlink(path, path + ".link")
    assert inside.daemon_status(path + ".link")["state"] == "stale"
    os.symlink(directory, directory + ".link")
    try:
        through = f"{directory}.link/{os.path.basename(path)}"
        assert inside.daemon_status(through)["state"] == "unsafe"
    finally:
        os.unlink(directory + ".link")
    assert not asked.is_set()


def test_release(listen: Callable[[Behaviour], str]) -> None:
    assert client.release(sys.executable, listen(_daemon)).state == "released"
    assert client.release(sys.executable, "/nowhere/x.sock").state == "missing"


def test_the_script_answers_in_order(listen: Callable[[Behaviour], str]) -> None:
    paths = [listen(_daemon), "/nowhere/x.sock", listen(lambda c: c.sendall(b"\xff" * 64))]
    found = client.statuses(sys.executable, paths)
    assert [s.state for s in found] == ["serving", "missing", "garbage"]
    assert [s.socket for s in found] == paths and found[0].memory_bytes == 77
    assert client.statuses(sys.executable, []) == ()


def test_ready_is_every_daemon_answering(listen: Callable[[Behaviour], str]) -> None:
    good, garbage = listen(_daemon), listen(lambda c: c.sendall(b"\xff" * 64))

    def ask(*paths: str) -> tuple[int, str]:
        argv = client.ready_argv(sys.executable, paths)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    assert ask(good, good) == (0, "")
    code, said = ask(good, garbage)
    assert code == 1 and said.startswith(f"{garbage}: the answer claims")
    evil = listen(lambda c: _answer(c, Evil()))
    code, said = ask(evil)
    assert code == 1 and "is not a daemon's" in said
    silent = listen(lambda c: threading.Event().wait(5) and None)
    assert "does not answer" in (inside.not_ready([good, silent], timeout_s=0.3) or "")


def test_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(Failed, match="cannot be run"):
        client.statuses("/no/python", ["/x"])
    with pytest.raises(Failed, match="client failed"):
        client.features(sys.executable, {"PATH": os.environ["PATH"]})


def test_watch_says_when_a_daemon_ends(listen: Callable[[Behaviour], str]) -> None:
    held: list[socket.socket] = []
    watched = threading.Event()

    def watchable(conn: socket.socket) -> None:
        assert _read(conn)["cmd"] == "watch"
        held.append(conn.dup())
        _answer(conn, {"status": "ok"})
        watched.set()

    paths = [listen(watchable), listen(_daemon)]
    with subprocess.Popen(
        client.script_argv(sys.executable, "watch", *paths), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert '"watched"' in process.stdout.readline()
            assert '"unwatchable"' in process.stdout.readline()
            assert watched.wait(100)
            for conn in held:
                conn.close()
            line = process.stdout.readline()
            assert '"ended"' in line and paths[0] in line
            assert process.wait(timeout=100) == 0
        finally:
            process.kill()


def test_the_key_is_typed_as_the_field_is() -> None:
    assert inside._typed("2", "<class 'int'>") == 2
    assert inside._typed("2", "str | None") == "2"
    assert inside._typed(None, "int") is None
    assert inside._typed("('a', 'b')", "tuple[str, ...]") == ("a", "b")
    assert inside._typed("False", "bool") is False
