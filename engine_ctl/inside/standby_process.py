"""What a forked process must do before it may be somebody else: names, signals, descriptors."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def prctl(option: int, value: int) -> None:
    """prctl(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def default_signals() -> None:
    """Handlers and mask as a fresh Python has them."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def open_descriptors() -> set[int]:
    """Descriptors that are open now."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in found if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def close_all_but(keep: set[int]) -> None:
    for fd in open_descriptors() - keep:
        if fd > 2:
            with contextlib.suppress(OSError):
                os.close(fd)


def standard_streams(log: str | None) -> None:
    """/dev/null as stdin; `log` (made 0600, appended to) or /dev/null as stdout and stderr."""
    null = os.open(os.devnull, os.O_RDWR)
    out = null if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for fd in {null, out}:
        if fd > 2:
            os.close(fd)


class Title:
    """The command line and the marks of a run (STOKER_…) that others see in procfs.

    Linux shows where a process's first arguments and environment were put; a fork keeps the
    standby's. setproctitle overwrites both with a title, so the marks are put back after it.
    """

    def __init__(self) -> None:
        self._marks = b""
        self._area = _area()
        self._set: Callable[[str], None] | None = None

    def prepare(self, environment: dict[str, str]) -> None:
        """Take hold of the setproctitle module, where the runtime has it; keep our marks."""
        try:
            import setproctitle
        except ImportError:
            return
        self._set = setproctitle.setproctitle
        setproctitle.setproctitle = self.set
        self.mark(environment)

    def set(self, text: str) -> None:
        if self._set is None or self._area is None:
            return
        arg_start, arg_end, env_start, env_end = self._area
        self._set(text.encode(errors="replace")[: arg_end - arg_start - 1].decode(errors="ignore"))
        if len(self._marks) < env_end - env_start:
            ctypes.memmove(env_start, self._marks, len(self._marks))

    def mark(self, environment: dict[str, str]) -> None:
        """The run that this process and those that it starts belong to; shown by the next `set`."""
        marks = sorted(item for item in environment.items() if item[0].startswith("STOKER_RUN"))
        self._marks = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in marks)


def _area() -> tuple[int, int, int, int] | None:
    """(arg_start, arg_end, env_start, env_end) of this process, fields 48 to 51 of its stat."""
    try:
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    start, end, env_start, env_end = (int(field) for field in fields[45:49])
    return (start, end, env_start, env_end) if end == env_start and start else None


def run_to_the_end(body: Callable[[], Any]) -> None:
    """Run `body`, then end this process as the interpreter would end one. Never returns."""
    code, died_of = 0, None
    try:
        body()
    except SystemExit as error:
        if isinstance(error.code, int):
            code = error.code
        elif error.code is not None:
            print(error.code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        died_of = signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finish(code, died_of)


def finish(code: int, died_of: signal.Signals | None = None) -> None:
    """Join threads, run exit functions, flush, end. Never returns."""
    try:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if died_of is not None:
            signal.signal(died_of, signal.SIG_DFL)
            os.kill(os.getpid(), died_of)
    finally:
        os._exit(code & 0xFF)
