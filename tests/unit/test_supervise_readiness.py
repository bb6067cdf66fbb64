"""Ready is what the run's own processes say: not anybody on its port, not /health alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_ctl import identity
from engine_ctl.errors import Failed
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import wait_ready
from engine_ctl.state import events
from engine_ctl.supervise import listener
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop
from engine_ctl.weights import client
from tests.standin.rig import Rig, free_port, rig, until

__all__ = ["rig"]

# Says no, and why, until its file is there.
UNTIL_THERE = (
    "import os, sys\n"
    "there = os.path.exists(sys.argv[1])\n"
    "print('first line'); print('' if there else 'x.sock: is silent')\n"
    "sys.exit(0 if there else 3)"
)


def command(path: Path) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", UNTIL_THERE, str(path)]


def test_health_alone_is_not_ready_when_a_command_is_to_agree(rig: Rig, tmp_path: Path) -> None:
    flag = tmp_path / "there"
    run = rig.start(port=free_port(), kind=Kind.PRELOAD, ready_argv=command(flag))
    # Asked again only when the command has ended: by the third 200 it has said no twice.
    until(lambda: run.log.read_bytes().count(b"healthy") >= 3, "three answers of 200")
    assert run.ready() is None
    flag.touch()
    until(run.ready, "ready")
    stop(run)
    ended = rig.ended(run)
    assert ended.requested and ended.swept == [] and ended.error is None


def test_why_the_command_said_no_is_why_the_run_failed(rig: Rig, tmp_path: Path) -> None:
    argv = command(tmp_path / "never")
    run = rig.start(port=free_port(), ready_argv=argv, ready_timeout_s=2.5)
    assert rig.ended(run).error == "not ready within 2.5 s: x.sock: is silent"


def test_a_run_without_an_address_is_ready_by_its_log(rig: Rig) -> None:
    run = rig.prepare(ready_log=["never", "the last word"], ready_timeout_s=0.0)
    run.log.write_text("x" * 300_000 + "the last")
    launch(run)
    until(lambda: run.identity(), "it runs")
    assert run.ready() is None
    with run.log.open("a") as log:
        log.write(" word\n")
    until(run.ready, "ready")
    stop(run)
    assert rig.ended(run).requested


def test_a_command_that_hangs_holds_up_nothing_and_ends_with_the_run(
    rig: Rig, tmp_path: Path
) -> None:
    noted = tmp_path / "pid"
    code = (
        "import os, sys, time\n"
        "open(sys.argv[1] + '.new', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(1000)"
    )
    run = rig.start(
        port=free_port(), ready_argv=[sys.executable, "-I", "-S", "-c", code, str(noted)]
    )
    until(noted.exists)
    who = identity.identify(int(noted.read_text()))
    assert who is not None and run.ready() is None
    stop(run)
    assert rig.ended(run).swept == [] and identity.wait_gone(who, 100)


def test_a_command_that_cannot_be_run_is_said(rig: Rig) -> None:
    run = rig.start(port=free_port(), ready_argv=["/nowhere/python"], ready_timeout_s=1.5)
    error = rig.ended(run).error
    assert error == "not ready within 1.5 s: cannot run /nowhere/python: No such file or directory"


def test_sockets_that_do_not_answer_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    relative = os.path.relpath(directory)
    argv = client.ready_argv(sys.executable, [f"{relative}/none.sock"])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "none.sock: No such file" in done.stdout
    assert client.ready_argv(sys.executable, []) == []


# Whose port


@pytest.fixture
def impostor() -> Iterator[int]:
    """A port on which somebody else says 200 to everything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    conn, _ = server.accept()
                except OSError:
                    return
                with conn:
                    conn.recv(4096)
                    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(100)


def test_another_program_on_the_port_does_not_make_a_run_ready(rig: Rig, impostor: int) -> None:
    url = f"http://127.0.0.1:{impostor}/health"
    run = rig.start(ready_url=url, host="127.0.0.1")
    said = until(lambda: [e for e in events.last(rig.dirs, 50) if "is not ready" in e.text])
    assert f"port {impostor} is answered by pid {os.getpid()} " in said[0].text
    assert said[0].severity == "error" and run.ready() is None
    stop(run)


def test_who_waits_for_it_is_told_at_once(rig: Rig, impostor: int) -> None:
    spec = msgspec.structs.replace(rig.spec(host="127.0.0.1"), port=impostor)
    rig.store.create("demo", Kind.ENGINE)
    run = rig.store.new_run(spec)
    rig.store.set_current(run)
    launch(run)
    with pytest.raises(Failed, match=f"port {impostor} is answered by pid {os.getpid()} "):
        wait_ready(Context(rig.dirs), run, lambda _: None)
    stop(run)


def test_whose_a_listener_is() -> None:
    me = {os.getpid()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener.stranger("127.0.0.1", port, me) is None
        assert listener.stranger("127.0.0.1", port, {1}) == os.getpid()
        assert listener.stranger("localhost", port, ()) == os.getpid()
        assert listener.stranger("127.0.0.2", port, ()) is None, "no connection there is its"
    assert listener.stranger("127.0.0.1", port, ()) is None, "nobody listens"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_a_listener_on_every_address_answers_for_each() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        assert listener.stranger("127.0.0.1", port, ()) == os.getpid()
        assert listener.stranger("::1", port, ()) == os.getpid()


def test_the_listener_of_the_address_itself_is_the_one_that_answers() -> None:
    code = (
        "import socket, sys, time\n"
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('0.0.0.0', int(sys.argv[1]))); s.listen(); print('up', flush=True)\n"
        "time.sleep(1000)"
    )
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        argv = [sys.executable, "-I", "-S", "-c", code, str(port)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None and other.stdout.readline() == b"up\n"
                assert listener.stranger("127.0.0.1", port, {other.pid}) == os.getpid()
                assert listener.stranger("127.0.0.3", port, {other.pid}) is None
            finally:
                other.kill()
