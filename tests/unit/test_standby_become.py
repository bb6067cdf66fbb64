"""Become around a stand-in for vLLM: who is whose child, and what a SIGKILL at any time leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_ctl import identity
from engine_ctl.inside.standby_plan import KEY
from engine_ctl.model import Kind
from engine_ctl.standby.client import Become, Client, Refused, Unavailable
from engine_ctl.standby.lifecycle import command
from engine_ctl.state import events
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness, procs
from engine_ctl.supervise.launch import SHIM, hold_shim_lock
from engine_ctl.supervise.stop import stop
from profiles.model import Restart
from tests.standin.rig import PATIENT, answers, dirs_in, says, until

SCRIPT = Path(__file__).with_name("standby_become_script.py")
MAIN = """
import multiprocessing, os, signal, sys, time

def worker():
    time.sleep(600)

def main():
    if "--fail" in sys.argv:
        raise ValueError("no such thing")
    if "--exit" in sys.argv:
        sys.exit(int(sys.argv[-1]))
    child = multiprocessing.get_context("spawn").Process(target=worker, daemon=True)
    child.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("running", os.environ["STOKER_RUN"], os.getcwd(), sys.argv[1:], flush=True)
    time.sleep(600)

if __name__ == "__main__":
    main()
"""
IDENTITY = "0123456789"


class Stage:
    def __init__(self, root: Path) -> None:
        self.store = Store(dirs_in(root))
        self.store.create("u", Kind.ENGINE)
        self.socket = root / "s" / "x"
        self.socket.parent.mkdir(mode=0o700)
        package = root / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        for directory in (root / "vllm", root / "vllm" / "entrypoints", package):
            (directory / "__init__.py").write_text("")
        (package / "main.py").write_text(MAIN)
        self.root = root
        self.path = f"{SCRIPT.parents[2]}:{root}"
        self.token = uuid.uuid4().hex
        self.runs: list[Run] = []
        self.process: subprocess.Popen[bytes] | None = None

    def standby(self) -> subprocess.Popen[bytes]:
        self.socket.unlink(missing_ok=True)
        marks = {"PYTHONPATH": self.path, "TOKEN_OF_TEST": self.token}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.socket), str(self.root), IDENTITY],
            env={**os.environ, **marks},
        )
        until(lambda: answers(self.socket), "the standby listens")
        return self.process

    def run(self, *more: str) -> Run:
        argv = ["serve", "m", *more]
        run = self.store.new_run(RunSpec(unit="u", kind=Kind.ENGINE, argv=argv, stop=PATIENT))
        self.runs.append(run)
        return run

    def restarting(self, **spec: Any) -> Run:
        """A current run out of the standby, that the restart policy starts again at once."""
        values: dict[str, Any] = {
            "unit": "u",
            "kind": Kind.ENGINE,
            "argv": [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "m"],
            "env": {"PYTHONPATH": self.path},
            "cwd": "/",
            "runtime_version": "0.32.0",
            "via": "standby",
            "standby_socket": str(self.socket),
            "standby_identity": IDENTITY,
            "restart": Restart(policy="on-failure", backoff_s=0.01, max=3),
            "stop": PATIENT,
            **spec,
        }
        run = self.store.new_run(RunSpec(**values))
        self.store.set_current(run)
        self.become(run)
        until(lambda: says(run, "running"), "the engine has begun")
        return run

    def kill(self, run: Run) -> None:
        """End its engine as the kernel would."""
        who = run.identity()
        assert who is not None
        identity.send_signal(who.leader, signal.SIGKILL)

    def current(self) -> Run:
        run = self.store.current("u")
        assert run is not None
        return run

    def next(self, run: Run) -> Run:
        """The run that came after `run`, once it runs."""
        until(lambda: self.current().id != run.id, "it is started again")
        now = self.current()
        until(lambda: says(now, "running"), "it runs again")
        return now

    def said(self) -> list[str]:
        return [event.text for event in events.last(self.store.dirs, 100, unit="u")]

    def become(self, run: Run, method: str = "auto", env: dict[str, str] | None = None) -> Become:
        marks = {"STOKER_RUN": run.id, "STOKER_RUN_DIR": str(run.dir), **(env or {})}
        with Client(self.socket) as client:
            return client.become(
                command(run.spec().argv),
                marks,
                run_dir=run.dir,
                shim=SHIM,
                shim_python=sys.executable,
                cwd="/",
                method=method,
            )

    def left(self, run: Run) -> list[procs.Proc]:
        """Live processes in the sessions of this run's shim and leader."""
        who = run.identity()
        if who is None:
            return []
        sessions = {who.session, who.shim.pid}
        return [p for p in procs.table().values() if p.sid in sessions and p.state not in "ZX"]

    def strays(self) -> list[int]:
        """Everything that was started from the standby, whatever became of it."""
        found = []
        for proc in procs.table().values():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{proc.pid}/environ").read_bytes()
                if self.token.encode() in environ and proc.state not in "ZX":
                    found.append(proc.pid)
        return found

    def end(self) -> None:
        for run in [*self.runs, *self.store.runs("u")]:
            if run.identity() is not None:
                stop(run)
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.standby()
    yield made
    made.end()


def test_the_shim_is_the_parent_and_the_engine_leads_its_own_session(stage: Stage) -> None:
    run = stage.run("--flag")
    began = stage.become(run)
    until(lambda: says(run, "running"), "the engine has begun")
    assert run.log.read_text() == f"running {run.id} / ['serve', 'm', '--flag']\n"
    table = procs.table()
    engine, shim = table[began.engine], table[began.shim]
    assert engine.ppid == shim.pid and engine.sid == engine.pgid == engine.pid
    assert shim.sid == shim.pid
    until(lambda: len(stage.left(run)) == 5, "shim, engine, forker, resource tracker and worker")
    assert run.log.stat().st_mode & 0o777 == 0o600
    stop(run)
    ended = run.exit()
    assert ended is not None and (ended.code, ended.requested) == (0, True)
    until(lambda: not stage.left(run))


WORKER = """
import multiprocessing, os

def worker():
    from vllm.v1.worker.startup_plan import compute_plan_fingerprint
    enabled = os.environ.get("VLLM_ENABLE_STARTUP_PLAN")
    print("plan", enabled, compute_plan_fingerprint(), flush=True)

def main():
    if "STOKER_OTHER" in os.environ:
        multiprocessing.set_executable(os.environ["STOKER_OTHER"])
    child = multiprocessing.get_context("spawn").Process(target=worker)
    child.start()
    child.join()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("method", "key", "other", "enabled", "mixed"),
    [
        ("auto", "k1", False, "1", True),
        ("auto", None, False, "None", False),
        # Processes that start afresh know nothing of the key: no plan rather than another's.
        ("spawn", "k1", False, "None", False),
        ("auto", "k1", True, "None", False),
    ],
)
def test_the_workers_of_an_engine_keep_its_startup_plan_apart(
    stage: Stage, method: str, key: str | None, other: bool, enabled: str, mixed: bool
) -> None:
    (stage.root / "vllm" / "entrypoints" / "cli" / "main.py").write_text(WORKER)
    plan = stage.root / "vllm" / "v1" / "worker" / "startup_plan.py"
    plan.parent.mkdir(parents=True)
    plan.write_text("def compute_plan_fingerprint():\n    return 'plain'\n")
    run = stage.run()
    env = {} if key is None else {KEY: key}
    if other:  # as NUMA binding does
        env["STOKER_OTHER"] = str(stage.root / "python")
        (stage.root / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (stage.root / "python").chmod(0o700)
    stage.become(run, method, env)
    until(lambda: says(run, "plan"), "a worker has begun")
    said = run.log.read_text().split()
    assert said[:2] == ["plan", enabled] and (said[2] != "plain") is mixed
    until(lambda: run.exit() is not None, "it has ended")


def test_no_descriptor_of_the_standby_reaches_an_engine(stage: Stage) -> None:
    run = stage.run()
    began = stage.become(run)
    until(lambda: says(run, "running"))
    links = {os.readlink(f"/proc/{began.engine}/fd/{fd}") for fd in (0, 1, 2)}
    assert links == {"/dev/null", str(run.log)}
    others = os.listdir(f"/proc/{began.engine}/fd")
    sockets = [fd for fd in others if "socket" in os.readlink(f"/proc/{began.engine}/fd/{fd}")]
    assert len(sockets) == 1  # to the forker


def test_an_engine_has_its_directory_for_sockets_where_its_standby_has_another_tmp(
    stage: Stage,
) -> None:
    run, directory = stage.run(), stage.root / "sockets"
    stage.become(run, env={"VLLM_RPC_BASE_PATH": str(directory)})
    until(lambda: says(run, "running"), "the engine has begun")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_exit_codes_and_tracebacks_are_those_of_a_command(stage: Stage) -> None:
    exits, fails = stage.run("--exit", "5"), stage.run("--fail")
    for run in (exits, fails):
        stage.become(run)
        until(lambda run=run: liveness.look(run).ended)
    assert [run.exit().code for run in (exits, fails)] == [5, 1]  # type: ignore[union-attr]
    assert "ValueError: no such thing" in fails.log.read_text()


def test_a_run_that_is_watched_already_is_refused_and_nothing_runs(stage: Stage) -> None:
    run = stage.run()
    lock = hold_shim_lock(run)
    with pytest.raises(Refused, match="another shim watches"):
        stage.become(run)
    os.close(lock)
    until(lambda: says(run, "ended before"), "the engine has given up")
    assert run.identity() is None
    assert stage.process is not None
    until(lambda: procs.descendants([stage.process.pid], procs.table(), ()) == set())  # type: ignore[union-attr]


def test_a_run_directory_that_is_none_is_refused(stage: Stage) -> None:
    run = stage.run()
    (run.dir / "spec.json").write_text("damaged")
    with Client(stage.socket) as client, pytest.raises(Refused, match="missing or damaged"):
        client.become(
            ["serve"], {}, run_dir=run.dir, shim=SHIM, shim_python=sys.executable, cwd="/"
        )


def test_the_standby_reaps_and_stays_small(stage: Stage) -> None:
    process = stage.process
    assert process is not None
    fds = len(os.listdir(f"/proc/{process.pid}/fd"))
    for _ in range(10):
        run = stage.run("--exit", "0")
        stage.become(run)
        until(lambda run=run: run.exit() is not None)
    until(lambda: procs.descendants([process.pid], procs.table(), ()) == set())
    assert len(os.listdir(f"/proc/{process.pid}/fd")) == fds


@pytest.mark.parametrize("after_ms", [0, 2, 4, 8, 15, 25, 40, 60, 90, 150])
def test_sigkill_at_any_time_leaves_an_engine_or_nothing(stage: Stage, after_ms: int) -> None:
    process, run = stage.process, stage.run()
    assert process is not None
    killer = threading.Timer(after_ms / 1000, process.send_signal, (signal.SIGKILL,))
    killer.start()
    began = None
    with contextlib.suppress(Unavailable, Refused):
        began = stage.become(run)
    killer.join()
    process.wait()
    if began is None:
        # nothing was begun, or it ends by itself; or only the answer was lost
        until(lambda: not stage.strays() or (says(run, "running")))
    else:
        until(lambda: says(run, "running"), "the engine goes on")
        assert stage.left(run)
    if run.identity() is not None:
        stop(run)
        assert run.exit() is not None
    until(lambda: not stage.strays(), "nothing is left")


# The restart policy


def test_the_restart_policy_starts_from_the_standby(stage: Stage) -> None:
    first = stage.restarting()
    stage.kill(first)
    second = stage.next(first)
    spec, who = second.spec(), second.identity()
    assert (spec.via, spec.attempt, spec.by) == ("standby", 2, "restart policy")
    assert who is not None and stage.process is not None
    assert procs.table()[who.shim.pid].ppid == stage.process.pid
    until(lambda: not stage.left(first), "the first shim has gone")
    assert stage.said()[-1] == "u/1 is started again as u/2, from the standby"
    # That shim does the same.
    stage.kill(second)
    third = stage.next(second)
    assert (third.spec().via, third.spec().attempt) == ("standby", 3)


def test_without_the_standby_it_imports_anew(stage: Stage) -> None:
    first = stage.restarting()
    assert stage.process is not None
    stage.process.kill()
    stage.process.wait()
    stage.kill(first)
    second = stage.next(first)
    assert (second.spec().via, second.spec().standby) == ("spawn", None)
    assert "importing anew: no standby answers" in stage.said()[-1]
    assert not liveness.look(second).ended and second.exit() is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"standby_identity": "another"}, "another standby answers there"),
        ({"runtime_version": "0.33.0"}, "the standby has vLLM 0.32.0"),
        ({"env": {"OMP_NUM_THREADS": "7"}}, "OMP_NUM_THREADS"),
        ({"standby_identity": None}, ""),
    ],
)
def test_in_doubt_it_imports_anew(stage: Stage, spec: dict[str, Any], why: str) -> None:
    env = {"PYTHONPATH": stage.path, **spec.get("env", {})}
    first = stage.restarting(**{**spec, "env": env})
    stage.kill(first)
    second = stage.next(first)
    assert second.spec().via == "spawn"
    assert why in stage.said()[-1]
    assert [liveness.look(run).ended for run in stage.store.runs("u")] == [True, False]


def test_a_standby_that_closes_without_an_answer_has_not_started_it(stage: Stage) -> None:
    first = stage.restarting()
    assert stage.process is not None
    stage.process.kill()
    stage.process.wait()
    stage.socket.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stage.socket))
        listener.listen()
        stage.kill(first)
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            assert b'"hello"' in lines.readline()
            lines.write(
                b'{"ok": true, "identity": "%s", "version": "0.32.0"}\n' % IDENTITY.encode()
            )
            lines.flush()
            assert b'"become"' in lines.readline()
    second = stage.next(first)
    assert second.spec().via == "spawn" and "it closed the connection" in stage.said()[-1]


def test_a_frozen_standby_is_not_waited_for_long_and_starts_nothing_later(stage: Stage) -> None:
    first = stage.restarting()
    assert stage.process is not None
    stage.process.send_signal(signal.SIGSTOP)
    stage.kill(first)
    second = stage.next(first)
    assert second.spec().via == "spawn"
    stage.process.send_signal(signal.SIGCONT)
    with Client(stage.socket) as client:
        client.ask("hello")
    assert [run.id for run in stage.store.runs("u") if not liveness.look(run).ended] == ["u/2"]


@pytest.mark.parametrize("after_ms", [0, 5, 15, 30, 60])
def test_sigkill_of_the_standby_while_it_is_asked_leaves_one_engine(
    stage: Stage, after_ms: int
) -> None:
    first = stage.restarting()
    assert stage.process is not None
    ahead = first.dir.parent / "2" / "spec.json"

    def end() -> None:
        assert stage.process is not None
        until(ahead.exists, "the next run is made")
        threading.Event().wait(after_ms / 1000)
        stage.process.kill()

    killer = threading.Thread(target=end)
    killer.start()
    stage.kill(first)
    killer.join()
    stage.process.wait()

    def serving() -> bool:
        run = stage.current()
        return says(run, "running") and run.exit() is None

    until(serving, "an engine runs again")
    alive = [run for run in stage.store.runs("u") if not liveness.look(run).ended]
    assert [run.id for run in alive] == [stage.current().id]
