"""A standby whose socket was deleted is replaced, not waited for; one is found where it listens."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from engine_ctl.errors import Failed
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import client, lifecycle
from engine_ctl.standby.lifecycle import Standing, Wanted
from engine_ctl.state.store import Store
from engine_ctl.supervise import liveness
from tests.standin.rig import Rig, rig, until

__all__ = ["rig"]

LISTENS = """
import json, os, socket, sys
path = sys.argv[sys.argv.index("--socket") + 1]
hello = {"ok": True, "version": "0.33.0", "platform": "cpu", "pid": os.getpid(),
         "cuda_initialized": False, "memory": {}, "threads": [], "method": "forkserver"}
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen()
    while True:
        asked, _ = server.accept()
        with asked, asked.makefile("rw") as lines:
            for line in lines:
                answer = {"ok": True, "current": True} if "current" in line else hello
                lines.write(json.dumps(answer) + chr(10))
                lines.flush()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    made = tempfile.mkdtemp(prefix="st-", dir="/tmp")
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def store(rig: Rig, short: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    script = short / "standby.py"
    script.write_text(LISTENS)
    monkeypatch.setattr(client, "SCRIPT", script)
    rig.store = Store(replace(rig.dirs, sockets=short / "s"))
    return rig.store


WANTED = Wanted(Runtime(name="cpu", python=sys.executable, version="0.33.0", platform="cpu"), {})
PLENTY = (64 << 30, 64 << 30)


def ready(store: Store) -> Standing:
    found = lifecycle.ensure(store, WANTED, memory=PLENTY)
    until(found.run.ready, "its shim has seen it ready")
    return found


@pytest.mark.parametrize("how", ["deleted", "with its directory", "left by a killed one"])
def test_it_is_replaced(store: Store, how: str) -> None:
    first = ready(store)
    if how == "with its directory":
        shutil.rmtree(first.socket.parent)
    else:
        first.socket.unlink()
    if how == "left by a killed one":
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(first.socket))
    second = lifecycle.ensure(store, WANTED, memory=PLENTY)
    assert second.ready and second.run.id != first.run.id
    assert liveness.look(first.run).ended
    request = first.run.request()
    assert request is not None and "is gone" in request.reason
    lifecycle.stop(store, second.unit)
    assert not second.socket.exists()


def test_one_whose_start_was_killed_before_it_began_is_started_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "launch", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            ready(store)
    found = ready(store)
    assert found.run.number == 2
    lifecycle.stop(store, found.unit)


def test_one_that_is_not_ready_yet_is_waited_for(store: Store, short: Path) -> None:
    waits = f"import os, time\nwhile not os.path.exists({str(short / 'go')!r}): time.sleep(0.01)\n"
    (short / "standby.py").write_text(waits + LISTENS)
    begun = lifecycle.ensure(store, WANTED, wait_s=0, memory=PLENTY)
    assert not begun.ready and not begun.deaf
    with pytest.raises(Failed, match="not ready after"):
        lifecycle.ensure(store, WANTED, wait_s=0.01, memory=PLENTY)
    (short / "go").touch()
    found = lifecycle.ensure(store, WANTED, memory=PLENTY)
    assert found.run.id == begun.run.id


def test_another_runtime_directory_finds_the_same_standby(store: Store, short: Path) -> None:
    first = ready(store)
    elsewhere = Store(replace(store.dirs, sockets=short / "other"))
    found = lifecycle.ensure(elsewhere, WANTED, memory=PLENTY)
    assert (found.run.id, found.socket) == (first.run.id, first.socket)
    assert lifecycle._address(elsewhere, found.identity)["standby_socket"] == str(first.socket)
    assert os.path.exists(first.socket)
