"""Processes that start without importing: "spawn" answered by a fork of a pristine process.

An engine started by a standby has one helper child, the forker, forked before the engine has run
anything. When vLLM starts EngineCore, a worker or another API server with start method `spawn`,
the forker forks itself, and its child reads the pickled process object exactly as a spawned one
would. So every engine process begins single-threaded, with CUDA untouched, no OpenMP team and no
lock held, whatever the process that asked for it had done by then; and `spawn` keeps its meaning
for vLLM (pickled arguments, named semaphores, explicit environment).

Requests travel over a socket pair that only the engine's processes inherit: one datagram with the
descriptors that the child needs. The forker ends when nobody holds the other end any more.
CPython's own forkserver is not used: its children would not belong to the engine's session, and
one server for all engines would outlive or take down engines that have nothing to do with it.
"""

from __future__ import annotations

import array
import contextlib
import io
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing import (
    context,
    popen_fork,
    popen_spawn_posix,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.connection import wait
from typing import Any

from engine_ctl.inside.standby_process import default_signals, finish

STATUS = struct.Struct("q")
FD_LIMIT = 200

_executable = spawn.get_executable()
client: socket.socket | None = None  # this process's end; None: nobody to ask
_received: list[int] = []  # descriptors that came with this process, by index
# run in every new process with the environment that it was forked with, and its name
after_start: Callable[[dict[str, str], str], None] | None = None
# run before a process is started afresh, which inherits this one's environment alone
before_fresh: Callable[[], None] | None = None


class _Handle:
    """A descriptor that travels with the request; unpickled in the new process."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        return _received[self.index]


class Popen(popen_fork.Popen):
    """multiprocessing's view of one process that the forker made."""

    method = "spawn"
    DupFd = _Handle

    def __init__(self, process_object: Any) -> None:
        self._fds: list[int] = []
        super().__init__(process_object)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, process_object: Any) -> None:
        if client is None:
            raise RuntimeError("this process has no forker")
        preparation = spawn.get_preparation_data(process_object._name)
        for name in ("init_main_from_path", "init_main_from_name"):
            preparation.pop(name, None)
        buffer = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(dict(os.environ), buffer)
            reduction.dump(preparation, buffer)
            reduction.dump(process_object, buffer)
        finally:
            context.set_spawning_popen(None)
        if len(self._fds) > FD_LIMIT:
            raise ValueError("too many descriptors for one process")
        data_read, data_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            tracker = resource_tracker.getfd()
            fds = [data_read, status_write, client.fileno(), int(tracker or 0), *self._fds]
            socket.send_fds(client, [STATUS.pack(os.getpid())], fds)
            os.close(data_read)
            os.close(status_write)
            data_read = status_write = -1
            # the new process takes our end of this pipe as the sign that we live
            self.finalizer = util.Finalize(self, _close, (data_write, status_read))
            self.sentinel = status_read
            view = buffer.getbuffer()
            _write(data_write, struct.pack("Q", len(view)))
            _write(data_write, view)
            self.pid = _read_status(status_read)
        except BaseException:
            for fd in (data_read, status_write):
                if fd >= 0:
                    os.close(fd)
            raise

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            if not wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            try:
                self.returncode = _read_status(self.sentinel)
            except (OSError, EOFError):
                self.returncode = 255  # the forker is gone, and with it the answer
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Process(process.BaseProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_object: Any) -> popen_fork.Popen:
        if spawn.get_executable() != _executable:
            # somebody starts this one through another executable (NUMA binding does)
            if before_fresh is not None:
                before_fresh()
            return popen_spawn_posix.Popen(process_object)
        return Popen(process_object)


class Context(context.BaseContext):
    _name = "spawn"
    Process = Process


def _write(fd: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _read_status(fd: int) -> int:
    data = b""
    while len(data) < STATUS.size:
        piece = os.read(fd, STATUS.size - len(data))
        if not piece:
            raise EOFError("the forker ended")
        data += piece
    return int(STATUS.unpack(data)[0])


def install(named: Callable[[], None]) -> int:
    """Fork the forker and let "spawn" mean it, in this process and those it starts; its pid."""
    global client
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            named()
            _forker(theirs)
        finally:
            os._exit(0)
    theirs.close()
    client = ours
    _replace_spawn()
    return pid


def _replace_spawn() -> None:
    """The one private name of CPython that this needs, checked by `possible`."""
    contexts: dict[str, Any] = context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = Context()


def possible() -> str | None:
    """Why this Python cannot do it, or None."""
    table = getattr(context, "_concrete_contexts", None)
    if not isinstance(table, dict) or "spawn" not in table:
        return "this Python keeps its start methods elsewhere"
    if not hasattr(resource_tracker._resource_tracker, "_fd"):
        return "this Python keeps its resource tracker elsewhere"
    if not hasattr(socket, "send_fds"):
        return "this Python cannot send descriptors"
    return None


def _forker(server: socket.socket) -> None:
    """Fork on request, reap, report exit codes; until every client is gone and no child is left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    askers: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    listening = True
    while listening or statuses:
        for key, _ in selector.select():
            if key.fileobj is server:
                if not _receive(server, statuses, askers, (selector, wake_read, wake_write)):
                    selector.unregister(server)
                    listening = False
            else:
                with contextlib.suppress(BlockingIOError):
                    while os.read(wake_read, 512):
                        pass
                _reap(statuses, askers)


def _receive(
    server: socket.socket,
    statuses: dict[int, int],
    askers: dict[int, int],
    mine: tuple[Any, int, int],
) -> bool:
    fds = array.array("i")
    message, ancillary, flags, _ = server.recvmsg(
        STATUS.size, socket.CMSG_SPACE(fds.itemsize * 253)
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not message:
        return False
    if len(fds) < 4 or len(message) != STATUS.size or flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        return True
    data_read, status_write, client_fd, tracker, *rest = fds
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        code = 1
        try:
            selector, wake_read, wake_write = mine
            selector.close()
            for fd in (wake_read, wake_write, server.detach(), status_write, *statuses.values()):
                os.close(fd)
            code = _child(data_read, client_fd, tracker, rest)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            finish(code)
    for fd in (data_read, client_fd, tracker, *rest):
        os.close(fd)
    if pid > 0:
        statuses[pid] = status_write
        askers[pid] = int(STATUS.unpack(message)[0])
        with contextlib.suppress(OSError):
            os.write(status_write, STATUS.pack(pid))
    else:
        os.close(status_write)
    return True


def _reap(statuses: dict[int, int], askers: dict[int, int]) -> None:
    """Report exit codes. What a killed process has asked for is killed too: vLLM kills the tree
    below a process of its own, and these are not below it but beside it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        askers.pop(pid, None)
        if code == -signal.SIGKILL:
            for child, asker in askers.items():
                if asker == pid:
                    os.kill(child, signal.SIGKILL)
        fd = statuses.pop(pid, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, STATUS.pack(code))
            os.close(fd)


def _child(data_read: int, client_fd: int, tracker: int, rest: list[int]) -> int:
    """Become the process that was asked for: environment, names, then its own target."""
    global client, _received
    default_signals()
    client = socket.socket(fileno=client_fd)
    _replace_spawn()
    _received = rest
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    parent_sentinel = os.dup(data_read)
    size = struct.unpack("Q", _read_exactly(data_read, 8))[0]
    source = io.BytesIO(_read_exactly(data_read, size))
    os.close(data_read)
    environment: dict[str, str] = pickle.load(source)
    before = dict(os.environ)
    set_environment(environment)
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(pickle.load(source))
        _unlike_siblings()
        if after_start is not None:
            after_start(before, process.current_process().name)
        target: Any = pickle.load(source)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]
    return int(target._bootstrap(parent_sentinel))


def set_environment(wanted: dict[str, str]) -> None:
    """Make os.environ (and with it what C code sees) exactly `wanted`."""
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _unlike_siblings() -> None:
    """Random states that a fork would share; Python's own is made new by the interpreter."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(fd, min(1 << 20, size - len(data)))
        if not piece:
            raise EOFError("the process that asked for this one ended")
        data += piece
    return bytes(data)
