"""A state directory of its own with stand-in runs in it, all ended when the test is over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_ctl import identity
from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.state.records import ExitRecord, RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import launch, liveness, procs, remains
from profiles.model import Restart, Stop

TREE = Path(__file__).with_name("tree.py")
# Who ends when it is asked has as long as it needs on a slow machine; QUICK is for who never does.
PATIENT = Stop(ask_s=60.0, ask_again_s=60.0, kill_s=60.0)
QUICK = Stop(ask_s=0.4, ask_again_s=0.4, kill_s=60.0)
PATIENCE_S = 100.0


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true value of `condition`, which is asked every 10 ms."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never came true: {what or condition}")


def says(run: Run, text: str) -> bool:
    """Whether the run's log, which appears a moment after the run, has the text by now."""
    return run.log.exists() and text in run.log.read_text()


def answers(path: Path) -> bool:
    """Whether somebody accepts connections at a Unix socket: its file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def dirs_in(root: Path) -> Dirs:
    return Dirs(
        state=root / "state",
        data=root / "data",
        config=root / "config",
        cache=root / "cache",
        sockets=root / "s",
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Rig:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.dirs = dirs_in(root)
        self.store = Store(self.dirs)

    def spec(self, *options: str, unit: str = "demo", port: int = 0, **fields: Any) -> RunSpec:
        """A spec that runs tree.py; with a port it serves /health there."""
        argv = [sys.executable, "-I", "-S", str(TREE), *options]
        if port:
            argv += ["--port", str(port)]
            fields.setdefault("ready_url", f"http://127.0.0.1:{port}/health")
        fields = {"kind": Kind.ENGINE, "argv": argv, "stop": PATIENT, **fields}
        return RunSpec(unit=unit, **fields)

    def prepare(self, *options: str, unit: str = "demo", **fields: Any) -> Run:
        """Unit, run and current run, nothing started."""
        if not self.store.exists(unit):
            self.store.create(unit, fields.get("kind", Kind.ENGINE))
        with self.store.lock(unit):
            run = self.store.new_run(self.spec(*options, unit=unit, **fields))
            self.store.set_current(run)
        return run

    def start(self, *options: str, children: int = 0, **fields: Any) -> Run:
        """A running stand-in whose children exist."""
        run = self.prepare(*options, "--children", str(children), **fields)
        launch.launch(run)
        depth = int(options[options.index("--depth") + 1]) if "--depth" in options else 1
        until(lambda: len(self.pids(run)) >= 1 + children * depth, "the tree is there")
        return run

    def ready(self, *options: str, **fields: Any) -> Run:
        """A running stand-in that is ready."""
        run = self.start(*options, port=free_port(), **fields)
        until(run.ready, "ready")
        return run

    @staticmethod
    def pids(run: Run) -> dict[str, int]:
        """Pids by name, as the stand-in said."""
        try:
            lines = run.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        words = [line.split() for line in lines if line.startswith("pid ")]
        return {word[1]: int(word[2]) for word in words if len(word) == 3}

    @staticmethod
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def kill_shim(self, run: Run) -> None:
        who = run.identity()
        assert who is not None
        self.kill(who.shim.pid)
        assert identity.wait_gone(who.shim, PATIENCE_S)

    @staticmethod
    def ended(run: Run) -> ExitRecord:
        record = until(run.exit, f"{run.id} has an exit record")
        assert isinstance(record, ExitRecord)
        return record

    @staticmethod
    def life(run: Run) -> liveness.Life:
        return liveness.look(run).life

    def next_run(self, run: Run) -> Run:
        """The run that the restart policy makes after `run`, once it executes."""

        def found() -> Run | None:
            current = self.store.current(run.unit)
            return current if current is not None and current.id != run.id else None

        successor = until(found, "a next run")
        assert isinstance(successor, Run)
        until(lambda: successor.identity() or successor.exit(), "the next run executes")
        return successor

    def console(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Another process with this state directory as `dirs` and `store`, in place of a console.
        It prints a line when it wants to be noticed."""
        head = (
            "import sys, time, os, signal\n"
            "from pathlib import Path\n"
            f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
            "from tests.standin.rig import Rig, QUICK\n"
            "from engine_ctl.supervise import launch, liveness, stop, orphans\n"
            "from engine_ctl.errors import Busy, Failed\n"
            f"rig = Rig(Path({str(self.root)!r})); store = rig.store\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", head + code, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def clean(self) -> None:
        """End every process of every run of this state directory."""
        units = str(self.store.units_dir)
        boot = identity.boot_id()
        for record in procs.open_runs(units):
            shim = procs.find(record.get("shim"), procs.table(), boot)
            if shim is not None:
                procs.send(shim, signal.SIGKILL)
        for directory in self.store.units_dir.glob("*/runs/*"):
            run = Run(directory.parent.parent.name, int(directory.name), directory)
            self._kill(run, boot)
            remains.remove(str(directory))

    def _kill(self, run: Run, boot: str) -> None:
        who = run.identity()
        if who is None or who.leader.boot != boot:
            return
        if identity.identify(who.leader.pid) not in (None, who.leader):
            return
        for proc in procs.members(str(run.dir), msgspec.to_builtins(who), strict=True):
            procs.send(proc, signal.SIGKILL)


def restart(**fields: Any) -> Restart:
    return Restart(**{"policy": "on-failure", "backoff_s": 0.05, "max": 3, **fields})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.clean()
