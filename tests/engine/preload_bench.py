"""What the preload tests share: the harness process, a state directory, sockets that lie."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pickle
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.model import Reason, Verdict
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness
from engine_ctl.supervise.launch import launch
from engine_ctl.weights import daemons, spec
from engine_ctl.weights.client import DaemonStatus
from profiles.argv import serve_argv
from profiles.model import Preload, Profile

HARNESS = Path(__file__).with_name("preload_harness.py")
READY_S = 180.0


def shared_harness(python: str | Path, env: Mapping[str, str]) -> Harness:
    """One harness for the whole test session: its imports take seconds."""
    # pytest's own variables change from test to test.
    kept = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    return _harness(str(python), tuple(sorted(kept.items())))


@functools.cache
def _harness(python: str, env: tuple[tuple[str, str], ...]) -> Harness:
    made = Harness(Path(python), dict(env))
    atexit.register(made.close)
    return made


class Harness:
    """The process under the runtime that does the loads; one case at a time."""

    def __init__(self, python: Path, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(python), str(HARNESS)],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lock = threading.Lock()
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the harness ended"
        return json.loads(line)

    def run(self, **case: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        with self.lock:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            return self.read()

    def check(self, argv: list[str], env: Mapping[str, str]) -> dict[str, Any]:
        """As the standby's `check`."""
        return self.run(argv=argv, env=dict(env), load=False)["check"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)


@dataclass
class Bench:
    """Everything a case works on. `root` is short: Unix socket paths are limited."""

    root: Path
    store: Store
    runtime: Runtime
    harness: Harness
    model: Path
    begin: daemons.Begin
    undo: list[Callable[[], object]] = field(default_factory=list)

    @property
    def sockets(self) -> Path:
        return self.root / "s"

    def profile(self, **changes: Any) -> Profile:
        """The daemon's own profile, with changes: args are merged, preload replaced."""
        args = {"max_model_len": 1024, "enforce_eager": True} | changes.pop("args", {})
        preload = changes.pop("preload", {"socket_dir": str(self.sockets)})
        return Profile(
            name="tiny",
            model=str(changes.pop("model", self.model)),
            args={key: value for key, value in args.items() if value is not None},
            env={"VLLM_CPU_KVCACHE_SPACE": "1"},
            preload=None if preload is None else Preload(**preload),
            **changes,
        )

    def later(self, action: Callable[[], object]) -> None:
        """Run at the end of the case."""
        self.undo.append(action)

    def clean(self) -> None:
        while self.undo:
            self.undo.pop()()

    def directory(self, name: str, mode: int = 0o700) -> Path:
        path = self.root / name
        path.mkdir(mode=mode)
        path.chmod(mode)
        self.later(lambda: shutil.rmtree(path, ignore_errors=True))
        return path

    def start_daemon(self, unit: str, profile: Profile, cold: bool = False) -> Run:
        """Out of the standby, or `cold`: vLLM is imported by the launcher and by each rank."""
        asked = daemons.Asked(unit, spec.with_health_port(profile), self.runtime)
        begin = launch if cold else self.begin
        return daemons.start(self.store, asked, self.harness.check, begin)

    def wait_ready(self, run: Run) -> None:
        deadline = time.monotonic() + READY_S
        while not (life := liveness.look(run)).ready:
            assert not life.ended, run.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the daemon is not ready"
            time.sleep(0.1)


@contextlib.contextmanager
def bench(
    runtime: Runtime, env: Mapping[str, str], model: Path, begin: daemons.Begin
) -> Iterator[Bench]:
    root = Path(tempfile.mkdtemp(prefix="st-"))
    (root / "s").mkdir(mode=0o700)
    (root / "state").mkdir(mode=0o700)
    dirs = Dirs.from_env({"HOME": str(root), "XDG_STATE_HOME": str(root / "state")})
    harness = shared_harness(runtime.python, env)
    made = Bench(root, Store(dirs), runtime, harness, model, begin)
    try:
        yield made
    finally:
        made.clean()
        for unit in made.store.list_units().units:
            with contextlib.suppress(Exception):
                daemons.stop(made.store, unit.unit, confirmed=True)
        shutil.rmtree(root, ignore_errors=True)


def serve_words(profile: Profile) -> list[str]:
    return serve_argv(msgspec.structs.replace(profile, port=1))


def status_of(answer: Mapping[str, Any]) -> DaemonStatus:
    return msgspec.convert(answer, DaemonStatus)


# Sockets that lie. Each takes a connected socket.


def garbage(conn: socket.socket) -> None:
    conn.sendall(os.urandom(64))


def nonsense(conn: socket.socket) -> None:
    payload = b"not a pickle at all"
    conn.sendall(struct.pack("!Q", len(payload)) + payload)


def hang_up(conn: socket.socket) -> None:
    conn.recv(1)


def silent(conn: socket.socket) -> None:
    while conn.recv(4096):
        pass


def other_protocol(conn: socket.socket) -> None:
    """A daemon of a version that calls the key by another name."""
    (length,) = struct.unpack("!Q", conn.recv(8, socket.MSG_WAITALL))
    request = conn.recv(length, socket.MSG_WAITALL)
    answer = {"status": "ok", "memory_bytes": 1 << 20}
    if b"get_memory" not in request:
        answer = {"status": "error", "message": "Missing cache_key"}
    payload = pickle.dumps(answer)
    conn.sendall(struct.pack("!Q", len(payload)) + payload)


def serve_on(bench: Bench, path: str, behave: Callable[[socket.socket], None]) -> None:
    """Listen at `path` and treat every connection with `behave`, until the case ends."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    os.chmod(path, 0o600)
    server.listen()

    def handle(conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError):
            behave(conn)

    def loop() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = server.accept()
                threading.Thread(target=handle, args=(conn,), daemon=True).start()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()

    def end() -> None:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(timeout=5)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    bench.later(end)


def names(reasons: tuple[Reason, ...]) -> set[tuple[str, tuple[str, ...]]]:
    """What two sets of reasons must agree on: category, and fields of a mismatch."""
    return {
        (r.category, tuple(sorted(f[0] for f in r.fields if "key_mismatch" in r.category)))
        for r in reasons
    }


__all__ = ["Bench", "Harness", "Verdict", "bench", "names", "serve_on", "serve_words"]
