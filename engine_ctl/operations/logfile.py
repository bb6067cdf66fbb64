"""Reading a run's log: its end, and what is added; truncation and an ended run are noticed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from engine_ctl.atomic import regular_fd
from engine_ctl.errors import Failed, NotFound
from engine_ctl.operations.runs import is_live
from engine_ctl.state.store import Run

_CHUNK = 1 << 16


def _open(path: Path) -> int:
    try:
        return regular_fd(path)
    except FileNotFoundError:
        raise NotFound(f"there is no log yet: {path}") from None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None


def start_of(fd: int, lines: int | None) -> int:
    """The offset where the last `lines` lines begin (0 for all)."""
    if lines is None:
        return 0
    position = end = os.fstat(fd).st_size
    if lines < 1:
        return end
    wanted = lines
    while position > 0 and wanted > 0:
        step = min(_CHUNK, position)
        block = os.pread(fd, step, position - step)
        at = len(block)
        if position == end and block.endswith(b"\n"):
            at -= 1
        while wanted > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return position - step + at + 1
        position -= step
    return 0


def _pieces(fd: int, position: int) -> Iterator[tuple[bytes, int]]:
    """What there is from `position` on, each with the offset after it. Of a trimmed middle, which
    may be terabytes that read as NULs, one line."""
    while True:
        try:
            hole = os.lseek(fd, position, os.SEEK_HOLE)
            if hole == position:
                data = os.lseek(fd, position, os.SEEK_DATA)
                yield b"\n... %d bytes were trimmed here ...\n" % (data - hole), data
                position = data
                continue
        except OSError:  # the end, or a file system without holes
            hole = position + _CHUNK
        chunk = os.pread(fd, min(_CHUNK, hole - position), position)
        if not chunk:
            return
        position += len(chunk)
        yield chunk, position


def tail(path: Path, lines: int | None) -> Iterator[bytes]:
    """The log's content from the last `lines` lines on (None: all of it), in chunks."""
    fd = _open(path)
    try:
        for chunk, _ in _pieces(fd, start_of(fd, lines)):
            yield chunk
    finally:
        os.close(fd)


def follow(run: Run, lines: int | None = None, poll_s: float = 0.2) -> Iterator[bytes]:
    """As `tail`, and on as the log grows, until the run is over."""
    while not run.log.exists() and is_live(run):
        time.sleep(poll_s)
    fd = _open(run.log)
    try:
        position = start_of(fd, 10 if lines is None else lines)
        while True:
            if os.fstat(fd).st_size < position:
                position = 0
            over = not is_live(run)
            for chunk, after in _pieces(fd, position):
                position = after
                yield chunk
            if over:
                return
            time.sleep(poll_s)
    finally:
        os.close(fd)
