"""Files that are never half-written, and records that say when they are damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from engine_ctl.errors import Failed

T = TypeVar("T")


class CorruptRecord(Failed):
    """A record that cannot be read. The file is left as it is for inspection."""


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` with `data`: write beside it, fsync, rename. Raises OSError (ENOSPC too)."""
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a msgspec record as indented JSON, atomically, mode 0600."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path, kind: type[T], remedy: str = "move it away to go on") -> T | None:
    """Read a record; None when the file is absent or empty. Raises CorruptRecord on garbage and on
    what is no regular file, saying the `remedy`.

    Unknown fields are ignored, so that an older Stoker can read what a newer one wrote.
    """
    try:
        data = read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if data is None:
        raise CorruptRecord(f"{path} is damaged (it is no regular file); {remedy}")
    if not data.strip(b"\0 \n"):
        return None
    try:
        return msgspec.json.decode(data.strip(b"\0 \n"), type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptRecord(f"{path} is damaged ({error}); {remedy}") from None


class NotRegular(OSError):
    """A pipe, a device, a socket or a directory where a file was expected."""


def regular_fd(path: Path | str) -> int:
    """A descriptor of the file, open for reading. A pipe or a device may keep its reader waiting:
    for what is no regular file, NotRegular. Raises OSError as open does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, a device without a driver
            raise NotRegular(errno.EINVAL, "it is no regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(errno.EINVAL, "it is no regular file", str(path))
    return fd


def regular_file(path: Path | str) -> BinaryIO:
    """As `regular_fd`, as a file object."""
    return os.fdopen(regular_fd(path), "rb")


def regular_bytes(path: Path | str) -> bytes:
    """The content of a regular file. Raises OSError, NotRegular where it is none."""
    with regular_file(path) as file:
        return file.read()


def open_lock(path: Path) -> int:
    """A descriptor of a file to be locked, made where it is not there; open for reading alone on a
    disk that was made read-only: what runs is to be stopped all the same. Raises OSError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def open_regular(path: Path) -> BinaryIO | None:
    """As `regular_file`, None when it is no regular one."""
    try:
        return regular_file(path)
    except NotRegular:
        return None


def read_regular(path: Path) -> bytes | None:
    """The content of a regular file, None of anything else. Raises OSError."""
    file = open_regular(path)
    if file is None:
        return None
    with file:
        return file.read()
