"""JSON lines over a private Unix socket: one thread, so that every fork starts from one thread.

A request is one line `{"op": NAME, …}`, its answer one line `{"ok": true, …}` or
`{"ok": false, "error": {"kind", "message"}}`. Whoever sends something else loses that connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

LINE_LIMIT = 1 << 20
CONNECTIONS = 32
LINE_SECONDS = 10.0
SEND_SECONDS = 30.0  # for an answer to be taken


class BadRequest(Exception):
    """A request that cannot be served; the text is the answer. `kind` is for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Job:
    """A child process that answers by writing to a pipe and ends. `finish` makes the answer."""

    def __init__(
        self, pid: int, fd: int, deadline: float, finish: Callable[[bytes, str | None], Any]
    ) -> None:
        self.pid, self.fd, self.deadline, self.finish = pid, fd, deadline, finish
        self.data = bytearray()
        self.kill_group = True


class Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.read = bytearray()
        self.write = bytearray()
        self.deadline: float | None = None  # for a line to be complete, or an answer to be taken
        self.job: Job | None = None


Handler = Callable[[dict[str, Any]], Any]


def listen(path: str) -> socket.socket:
    """Bind `path` (0600) in a directory that is ours and 0700. Raises OSError, PermissionError."""
    directory = os.path.dirname(path) or "."
    info = os.lstat(directory)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(f"{directory} must be a directory of ours with mode 0700")
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        server.bind(path)
    finally:
        os.umask(mask)
    server.listen(2 * CONNECTIONS)
    server.setblocking(False)
    return server


class Server:
    """`serve` until a signal says stop. Children of jobs are reaped, strangers refused."""

    def __init__(self, listener: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self.listener = listener
        self.handlers = handlers
        self.selector = selectors.DefaultSelector()
        self.connections: set[Connection] = set()
        self.stopping = False
        self.children: set[int] = set()

    def serve(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._stop)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: self._woken(wake_read))
        while not self.stopping:
            for key, _ in self.selector.select(self._wait()):
                key.data()
            self._expire()
        for connection in list(self.connections):
            if connection.job:
                self._kill(connection.job)

    def _stop(self, *_: Any) -> None:
        self.stopping = True

    def _woken(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fd, 512):
                pass
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.children.discard(pid)

    def _wait(self) -> float | None:
        times = [c.job.deadline for c in self.connections if c.job]
        times += [c.deadline for c in self.connections if c.deadline is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        if len(self.connections) >= CONNECTIONS or not _is_ours(sock):
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.add(connection)
        self.selector.register(sock, selectors.EVENT_READ, lambda: self._ready(connection))

    def _ready(self, connection: Connection) -> None:
        if connection.write:
            self._send(connection)
            return
        try:
            data = connection.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.read += data
        if not data or len(connection.read) > LINE_LIMIT:
            self._close(connection)
            return
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Serve complete lines, one at a time: the next waits until this one's answer is taken."""
        while connection in self.connections and not connection.job and not connection.write:
            line, newline, rest = connection.read.partition(b"\n")
            if not newline:
                if not connection.read:
                    connection.deadline = None
                elif connection.deadline is None:
                    connection.deadline = time.monotonic() + LINE_SECONDS
                return
            connection.read = rest
            connection.deadline = None
            self._serve(connection, bytes(line))

    def _serve(self, connection: Connection, line: bytes) -> None:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or not isinstance(request.get("op"), str):
            self._close(connection)
            return
        answer: dict[str, Any] | Job
        handler = self.handlers.get(request["op"])
        try:
            if handler is None:
                known = ", ".join(sorted(self.handlers))
                raise BadRequest("unknown", f"unknown operation (known: {known})")
            answer = handler(request)
        except BadRequest as error:
            answer = failure(error.kind, str(error))
        except Exception as error:
            answer = failure("internal", f"{type(error).__name__}: {error}")
        if isinstance(answer, Job):
            connection.job = answer
            self.children.add(answer.pid)
            os.set_blocking(answer.fd, False)
            self.selector.register(
                answer.fd, selectors.EVENT_READ, lambda: self._job_readable(connection)
            )
        else:
            self._answer(connection, answer)

    def _job_readable(self, connection: Connection) -> None:
        job = connection.job
        assert job is not None
        try:
            data = os.read(job.fd, 65536)
        except BlockingIOError:
            return
        if data:
            job.data += data
            return
        self._finish(connection, job, None)

    def _finish(self, connection: Connection, job: Job, problem: str | None) -> None:
        self.selector.unregister(job.fd)
        os.close(job.fd)
        connection.job = None
        try:
            answer = job.finish(bytes(job.data), problem)
        except Exception as error:
            answer = failure("internal", f"{type(error).__name__}: {error}")
        self._answer(connection, answer)
        self._next(connection)

    def _answer(self, connection: Connection, answer: dict[str, Any]) -> None:
        if connection in self.connections:
            connection.write += json.dumps(answer, default=str).encode() + b"\n"
            connection.deadline = time.monotonic() + SEND_SECONDS
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.write)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        del connection.write[:sent]
        wanted = selectors.EVENT_WRITE if connection.write else selectors.EVENT_READ
        key = self.selector.get_key(connection.sock)
        if key.events != wanted:
            self.selector.modify(connection.sock, wanted, key.data)
            if wanted == selectors.EVENT_READ:
                self._next(connection)
        if not connection.write and not connection.read:
            connection.deadline = None

    def _close(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.selector.unregister(connection.sock)
        connection.sock.close()
        if connection.job:
            job, connection.job = connection.job, None
            self.selector.unregister(job.fd)
            os.close(job.fd)
            self._kill(job)
            with contextlib.suppress(Exception):
                job.finish(b"", "nobody waits for the answer")

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            job = connection.job
            if job and now >= job.deadline:
                self._kill(job)
                self._finish(connection, job, "timeout")
            elif connection.deadline is not None and now >= connection.deadline:
                self._close(connection)

    def _kill(self, job: Job) -> None:
        if not job.kill_group or job.pid not in self.children:
            return
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(job.pid, signal.SIGKILL)


def failure(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"ok": False, "error": {"kind": kind, "message": " ".join(message.split()), **more}}


def _is_ours(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.geteuid())
