"""Records as the shim reads and writes them: plain JSON, with room reserved for the last words.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import fcntl
import json
import os
import stat
import time

TYPE_CHECKING = False  # typing costs the shim 0.7 MB
if TYPE_CHECKING:
    from typing import Any

RESERVED = 4096
# Not waiting: in the place of the file there may be a pipe that nobody reads.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


def read_json(path: str) -> dict[str, Any] | None:
    """The record, None when it is absent, blank, damaged, or no regular file (a pipe would keep
    its reader waiting)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        with open(fd, "rb") as file:
            data = file.read().strip(b"\0 \n")
        value = json.loads(data) if data else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str, record: dict[str, Any]) -> None:
    """Replace `path` atomically, mode 0600. Raises OSError."""
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(fd, json.dumps(record, indent=1).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise


def reserve(path: str) -> None:
    """Take the disk space that `fill(path, …)` will need. Raises OSError (ENOSPC) now, not then."""
    fd = os.open(_reserved(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        taken = True
        try:
            os.posix_fallocate(fd, 0, RESERVED)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            taken = False
        _write_all(fd, b" " * RESERVED)
        if not taken:  # else the blocks are the file's already, and a sync costs 5 ms of each start
            os.fsync(fd)
    except OSError:
        remove(_reserved(path))
        raise
    finally:
        os.close(fd)


def fill(path: str, record: dict[str, Any]) -> None:
    """Write a record into its reserved space and move it into place: needs no free space.

    Readers see the whole record or none. Raises OSError."""
    data = json.dumps(record).encode()
    try:
        fd = os.open(_reserved(path), os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        write_json(path, record)
        return
    try:
        os.pwrite(fd, data.ljust(RESERVED - 1) + b"\n", 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(_reserved(path), path)


def release(path: str) -> None:
    """Give reserved space back."""
    remove(_reserved(path))


def remove(path: str) -> None:
    """Unlink, if it can be."""
    try:
        os.unlink(path)
    except OSError:
        pass


def try_lock(path: str, command: str | None = None) -> int | None:
    """An open file that holds the flock on `path`, None while somebody else holds it.

    `command` is written into the file, to say who holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if command is not None:
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b'{"pid": %d, "command": "%s"}' % (os.getpid(), command.encode()), 0)
        except OSError:
            pass
    return fd


def complain(text: str) -> None:
    """A line for shim.err; lost when the disk is full."""
    try:
        os.write(2, text.encode() + b"\n")
    except OSError:
        pass


def event(state: str, unit: str, text: str, severity: str = "info") -> None:
    """Append to events.jsonl (shape: engine_ctl.model.Event); lost when it cannot be written."""
    line = json.dumps(
        {"at": time.time(), "unit": unit, "text": text, "severity": severity, "by": "shim"}
    )
    try:
        fd = os.open(f"{state}/events.jsonl", APPEND, 0o600)
    except OSError:
        return
    try:
        os.write(fd, line.encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(fd)


def _reserved(path: str) -> str:
    directory, name = os.path.split(path)
    return f"{directory}/.{name}.reserved"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


_UNSUPPORTED = (22, 38, 95)  # EINVAL, ENOSYS, EOPNOTSUPP
