"""Keeping a run's log within bounds: the middle goes, the start-up and the newest part stay.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import ctypes
import os

# The start of a log holds the phases and the verdict: worth more than anything after it.
HEAD_BYTES = 1 << 20
LOW_SPACE_TAIL_BYTES = 16 << 20
_BLOCK = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_CHUNK = 1 << 20


def keep_bytes(used: int, free: int, max_bytes: int, floor: int) -> int | None:
    """How much of the log's end to keep, None when nothing has to go. All in bytes.

    `used` is what the log takes on disk, `free` what its file system has left."""
    if max_bytes and used > max_bytes:
        return max(max_bytes // 2 - HEAD_BYTES, max_bytes // 4)
    if free < floor and used > HEAD_BYTES + 2 * LOW_SPACE_TAIL_BYTES:
        return LOW_SPACE_TAIL_BYTES
    return None


def trim(path: str, max_bytes: int, floor: int) -> int:
    """Bytes freed. Never raises: a log that cannot be trimmed is left as it is."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        info = os.fstat(fd)
        space = os.fstatvfs(fd)
        used = info.st_blocks * 512
        keep = keep_bytes(used, space.f_bavail * space.f_frsize, max_bytes, floor)
        if keep is None:
            return 0
        head = min(HEAD_BYTES, max_bytes // 4 // _BLOCK * _BLOCK) if max_bytes else HEAD_BYTES
        end = (info.st_size - keep) // _BLOCK * _BLOCK
        if end <= head:
            return 0
        if not _punch(fd, head, end - head):
            _copy_truncate(fd, head, end)
        return used - os.fstat(fd).st_blocks * 512
    except OSError:
        return 0
    finally:
        os.close(fd)


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or libc.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(call(fd, _KEEP_SIZE_PUNCH_HOLE, offset, length) == 0)


def _copy_truncate(fd: int, head: int, start: int) -> None:
    # In place, so that it works on a full disk. The writer appends, so it follows the new end;
    # what it writes between the last read and the truncation is lost.
    position = head
    while True:
        chunk = os.pread(fd, _CHUNK, start)
        if not chunk:
            break
        os.pwrite(fd, chunk, position)
        position += len(chunk)
        start += len(chunk)
    os.ftruncate(fd, position)
