"""What a look at a socket tells, and what follows from it."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine_ctl.weights import sockets
from engine_ctl.weights.sockets import Node, SocketFacts

ME = 1000
GOOD = SocketFacts(
    path="/d/x.sock",
    directory=Node("directory", ME, 0o700),
    socket=Node("socket", ME, 0o600),
    strict=True,
    euid=ME,
    listening=True,
    lock_held=True,
)


def test_a_private_socket_may_be_used() -> None:
    judged = sockets.judge(GOOD)
    assert judged.refusal is None and judged.may_connect and judged.warnings == ()


@pytest.mark.parametrize(
    ("changes", "category", "word"),
    [
        ({"directory": Node("missing")}, "socket_missing", "does not exist"),
        ({"directory": Node("symlink", ME, 0o777)}, "permissions", "symlink"),
        ({"directory": Node("other", ME, 0o600)}, "permissions", "no directory"),
        ({"directory": Node("other", error="denied")}, "permissions", "denied"),
        ({"directory": Node("directory", 0, 0o700)}, "permissions", "uid 0"),
        ({"directory": Node("directory", ME, 0o750)}, "permissions", "open to others"),
        ({"socket": Node("missing"), "lock_held": False}, "socket_missing", "does not exist"),
        ({"socket": Node("missing")}, "not_ready", "holds the lock"),
        ({"socket": Node("symlink", ME, 0o777)}, "permissions", "symlink"),
        ({"socket": Node("socket", 0, 0o600)}, "permissions", "uid 0"),
        ({"socket": Node("other", ME, 0o600)}, "stale_socket", "no socket"),
        ({"listening": False}, "stale_socket", "nobody listens"),
    ],
)
def test_refusals(changes: dict[str, object], category: str, word: str) -> None:
    judged = sockets.judge(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert judged.refusal is not None and not judged.may_connect
    assert judged.refusal.category == f"wc_fallback.{category}"
    assert word in judged.refusal.line and judged.refusal.hint


@pytest.mark.parametrize(("mode", "who"), [(0o770, "its group"), (0o777, "every user")])
def test_a_named_directory_that_others_can_write(mode: int, who: str) -> None:
    """vLLM connects there; Stoker says so and does not."""
    judged = sockets.judge(replace(GOOD, strict=False, directory=Node("directory", ME, mode)))
    assert judged.refusal is None and not judged.may_connect
    assert who in judged.warnings[0] and "chmod 700" in judged.warnings[0]


def test_readable_is_fine_where_it_is_named() -> None:
    named = replace(GOOD, strict=False, directory=Node("directory", ME, 0o755))
    assert sockets.judge(named).may_connect


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="st") as name:
        yield Path(name)


def test_look_sees_listener_and_lock_without_touching_them(short: Path) -> None:
    path = short / "a.sock"
    assert sockets.look(str(path), strict=True).socket.kind == "missing"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    assert sockets.look(str(path), strict=True).listening is False
    server.listen()
    server.setblocking(False)
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    facts = sockets.look(str(path), strict=True)
    assert facts.socket.kind == "socket" and facts.listening is True
    assert facts.lock_held is True and facts.lock_pid == os.getpid()
    with pytest.raises(BlockingIOError):
        server.accept()
    os.close(lock)
    server.close()
    after = sockets.look(str(path), strict=True)
    assert after.listening is False and after.lock_held is False
    assert sockets.judge(after).refusal is not None


def test_a_listener_under_another_spelling_is_unknown(short: Path) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(short / "a.sock"))
    server.listen()
    (short / "sub").mkdir()
    os.link(short / "a.sock", short / "sub" / "a.sock")
    assert sockets.look(str(short / "sub" / "a.sock"), strict=True).listening is None
    server.close()
