"""Installs that were killed or cannot succeed: never a runtime, finished or removed later."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.main import run
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.install import Unresolved, install, pip_failure, recipe
from engine_ctl.runtimes.manage import discard
from engine_ctl.runtimes.store import RuntimeStore

NAME = "vllm-99.1"
ADD = """
from engine_ctl.runtimes import install
install._check_disk = lambda *_: None
from console.main import main
main(["runtime", "add", "vllm==99.1"])
"""


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dirs:
    for name in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("engine_ctl.runtimes.install._check_disk", lambda *_: None)
    return Dirs.from_env()


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A package index that takes pip's connection and says nothing until it is closed."""
    server = socket.create_server(("127.0.0.1", 0))
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.close()


def test_a_killed_install_is_no_runtime_and_keeps_others_out_until_its_pip_ended(
    dirs: Dirs, silent_index: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    adding = subprocess.Popen([sys.executable, "-c", ADD], stderr=subprocess.DEVNULL)
    silent_index.settimeout(120)
    asked, _ = silent_index.accept()  # pip asks its index: venv and lock are there
    adding.send_signal(signal.SIGKILL)
    adding.wait()

    store = RuntimeStore(dirs)
    assert store.names() == [] and store.interrupted() == [NAME]
    with pytest.raises(NotFound):
        store.load(NAME)
    what = recipe("vllm==99.1")
    assert what is not None
    with pytest.raises(Busy, match=NAME):
        install(dirs, what, lambda text, share: None)
    with pytest.raises(Busy, match=NAME):
        discard(dirs, NAME)
    assert run(["runtime", "list", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["runtimes"] == [] and shown["interrupted"] == [NAME]

    asked.close()
    silent_index.close()
    python = store.directory(NAME) / "venv" / "bin" / "python"
    ended = threading.Event()
    while True:  # pip, whose connection was closed, ends and lets the lock go
        try:
            discard(dirs, NAME)
            break
        except Busy:
            ended.wait(0.1)
    assert not python.exists() and store.interrupted() == []


def test_what_an_install_left_is_removed_by_name(
    dirs: Dirs, capsys: pytest.CaptureFixture[str]
) -> None:
    left = RuntimeStore(dirs).directory(NAME) / "venv"
    left.mkdir(parents=True)
    assert run(["runtime", "remove", NAME]) == 2  # asks first; there is no terminal here
    assert left.exists()
    assert run(["runtime", "remove", NAME, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": NAME}
    assert not left.parent.exists()
    assert run(["runtime", "remove", NAME, "--yes"]) == 3


def test_a_runtime_is_not_discarded(dirs: Dirs) -> None:
    record = RuntimeStore(dirs).directory("mine") / "runtime.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"name": "mine", "python": "/x/python", "version": "1", "platform": "cpu"}')
    with pytest.raises(Usage, match="is a runtime"):
        discard(dirs, "mine")
    assert record.exists()


@pytest.mark.parametrize("damage", ["", "\0" * 99, "{"])
def test_a_damaged_record_hides_no_other_runtime(dirs: Dirs, damage: str) -> None:
    store = RuntimeStore(dirs)
    for name in ("good", "torn"):
        path = store.directory(name) / "runtime.json"
        path.parent.mkdir(parents=True)
        path.write_text(
            '{"name": "good", "python": "/x/python", "version": "1", "platform": "cpu"}'
            if name == "good"
            else damage
        )
    runtimes, problems = store.all()
    assert [runtime.name for runtime in runtimes] == ["good"]
    assert len(problems) == 1 and "torn/runtime.json" in problems[0]


VERSIONS = ", ".join(f"0.{n}.0" for n in range(200))
GONE = (
    "ERROR: Could not find a version that satisfies the requirement "
    f"vllm==99.1 (from versions: {VERSIONS})\n"
    "ERROR: No matching distribution found for vllm==99.1\n"
)


def test_a_version_that_no_index_has_is_told_in_a_short_line() -> None:
    error = pip_failure("vllm==99.1", GONE)
    assert isinstance(error, Unresolved)
    assert str(error) == (
        "pip could not install vllm==99.1: Could not find a version that satisfies the "
        "requirement vllm==99.1 (newest there: 0.197.0, 0.198.0, 0.199.0)"
    )


@pytest.mark.parametrize(
    "tail",
    [
        GONE.replace(VERSIONS, "none"),  # no network: the next try may go on
        GONE.replace("vllm==99.1 (", "torch==2.13.0+cpu ("),  # a dependency
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "",
    ],
)
def test_other_failures_keep_what_is_there(tail: str) -> None:
    error = pip_failure("vllm==99.1", tail)
    assert isinstance(error, Failed) and not isinstance(error, Unresolved)
    assert "\n" not in str(error)
