"""A run is not ready because somebody else answers on its port."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import other_listener
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop
from tests.standin.rig import dirs_in, until

LISTEN = (
    "import socket, sys, time\n"
    "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "time.sleep(600)"
)


def made(ctx: Context, port: int, argv: list[str]) -> Run:
    ctx.store.create("u", Kind.ENGINE, "p")
    spec = RunSpec(unit="u", kind=Kind.ENGINE, argv=argv, host="127.0.0.1", port=port)
    run = ctx.store.new_run(spec)
    ctx.store.set_current(run)
    launch(run)
    return run


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_its_own_listener_is_fine(tmp_path: Path) -> None:
    ctx, port = Context(dirs_in(tmp_path)), free()
    run = made(ctx, port, [sys.executable, "-c", LISTEN, str(port)])
    try:
        until(lambda: listens(port))
        assert other_listener(ctx, run) is None
    finally:
        stop(run)


def test_another_one_is_named(tmp_path: Path) -> None:
    ctx = Context(dirs_in(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = made(ctx, port, ["/bin/sleep", "600"])
        try:
            problem = other_listener(ctx, run)
        finally:
            stop(run)
    assert problem is not None and f"pid {os.getpid()}" in problem and "u/1" in problem
