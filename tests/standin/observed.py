"""Run directories written by hand and servers that replay recorded pages, to observe."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from engine_ctl import atomic, identity
from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.state.records import ExitRecord, ReadyRecord, RunIdentity, RunSpec, StopRequest
from engine_ctl.state.store import Run, Store
from profiles.model import Profile

DATA = Path(__file__).parent.parent / "data"
RECORDINGS = DATA / "recordings"


class Recorded:
    """A server on loopback with /health and /metrics, whose answers can be changed."""

    def __init__(self, metrics: bytes = b"", health: int = 200) -> None:
        self.metrics = metrics
        self.health = health
        self.asked: list[str] = []
        recorded = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                recorded.asked.append(self.path)
                body = recorded.metrics if self.path == "/metrics" else b""
                self.send_response(recorded.health if self.path == "/health" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        self._thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class Written:
    """A state directory with units and runs as a shim and operations would have written them.

    The leader of a live run is this very process, its shim's lock is held by this object."""

    def __init__(self, root: Path) -> None:
        self.dirs = Dirs(
            state=root / "state",
            data=root / "data",
            config=root / "config",
            cache=root / "cache",
            sockets=root / "s",
        )
        self.store = Store(self.dirs)
        self._locks: dict[str, int] = {}

    def unit(self, name: str, kind: Kind = Kind.ENGINE, profile: str = "chat") -> None:
        self.store.create(name, kind, profile)

    def run(self, unit: str, *, port: int | None = None, **spec: Any) -> Run:
        """A new current run that lives: identity.json is there, the shim holds its lock."""
        kind = self.store.load(unit).kind
        values: dict[str, Any] = {
            "argv": ["python", "-m", "vllm"],
            "profile": "chat",
            "model": "acme/chat-8b",
            "host": "127.0.0.1",
            "port": port,
            "runtime": "cpu",
            "runtime_version": "0.33.0",
            "ready_url": None if port is None else f"http://127.0.0.1:{port}/health",
        } | spec
        run = self.store.new_run(RunSpec(unit=unit, kind=kind, **values))
        with self.store.lock(unit):
            self.store.set_current(run)
        me = identity.identify(os.getpid())
        assert me is not None
        atomic.write_record(
            run.dir / "identity.json",
            RunIdentity(
                run=run.id,
                shim=me,
                leader=me,
                session=os.getsid(0),
                started=time.time(),
                monotonic=time.monotonic(),
            ),
        )
        self.hold(run)
        return run

    def hold(self, run: Run) -> None:
        fd = os.open(run.dir / "shim.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._locks[run.id] = fd

    def let_go(self, run: Run) -> None:
        os.close(self._locks.pop(run.id))

    def log(self, run: Run, data: bytes) -> None:
        with run.log.open("ab") as file:
            file.write(data)

    def clock(self, run: Run, pairs: list[tuple[float, int]]) -> None:
        with (run.dir / "clock").open("ab") as file:
            for seconds, size in pairs:
                file.write(struct.pack("<QQ", int(seconds * 1000), size))

    def profile(self, run: Run, profile: Profile) -> None:
        atomic.write_record(run.dir / "profile.json", profile)

    def ready(self, run: Run, seconds: float = 9.5) -> None:
        record = ReadyRecord(wall=time.time(), seconds=seconds)
        atomic.write_record(run.dir / "ready.json", record)

    def request(self, run: Run) -> None:
        atomic.write_record(run.dir / "request.json", StopRequest(at=time.time(), by="eva"))

    def exit(self, run: Run, **values: Any) -> None:
        """The run is over and its shim has left."""
        record = ExitRecord(**({"ended": time.time(), "seconds": 20.0, "code": 0} | values))
        atomic.write_record(run.dir / "exit.json", record)
        if run.id in self._locks:
            self.let_go(run)

    def close(self) -> None:
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()


def recorded_log(name: str) -> tuple[bytes, list[tuple[float, int]]]:
    """A recorded log (`h200-vllm-0.33.0/11_ipc`) without its column of seconds, and the clock
    that the column gives."""
    log, clock = b"", []
    for line in (RECORDINGS / f"{name}.log").read_bytes().splitlines(keepends=True):
        head = line[:9]
        try:
            seconds = float(head)
        except ValueError:
            log += line
            continue
        log += line[9:]
        clock.append((seconds, len(log)))
    return log, clock
