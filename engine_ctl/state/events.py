"""events.jsonl: what happened and who did it. Losing an event never fails an operation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine_ctl import atomic
from engine_ctl.model import Event
from engine_ctl.paths import Dirs

ROTATE_BYTES = 4 << 20
_CHUNK = 1 << 16
# Nobody waits for the reader of a pipe in its place.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


def record(
    dirs: Dirs, unit: str | None, text: str, *, severity: str = "info", by: str = ""
) -> Event:
    """Append an event that happens now, and return it."""
    event = Event(at=time.time(), unit=unit, text=text, severity=severity, by=by)
    append(dirs, event)
    return event


def append(dirs: Dirs, event: Event) -> bool:
    """Append one line in a single write. False when it could not be kept (disk full)."""
    path = dirs.state / "events.jsonl"
    line = msgspec.json.encode(event) + b"\n"
    try:
        fd = os.open(path, _APPEND, 0o600)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_size + len(line) > ROTATE_BYTES:
            _rotate(path, fd)
        written = os.write(fd, line)
        if written < len(line):
            with contextlib.suppress(OSError):
                os.write(fd, b"\n")
        return written == len(line)
    except OSError:
        return False
    finally:
        os.close(fd)


def _rotate(path: Path, fd: int) -> None:
    # The winner of the lock renames; a loser's line lands in the old file, which is read too.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            os.replace(path, path.with_name("events.jsonl.1"))


Keep = Callable[[Event], bool]


def last(
    dirs: Dirs,
    count: int,
    *,
    unit: str | None = None,
    keep: Keep | None = None,
    end: int | None = None,
) -> list[Event]:
    """The newest `count` events, oldest first; of `unit` only, and of those that `keep` keeps.

    `end`: only those before this offset of events.jsonl. Lines that cannot be read are skipped."""
    found: list[Event] = []
    for name, stop in (("events.jsonl", end), ("events.jsonl.1", None)):
        for line in _lines_backwards(dirs.state / name, stop):
            if len(found) >= count:
                return found[::-1]
            event = _decode(line)
            if event is None or (unit is not None and event.unit != unit):
                continue
            if keep is None or keep(event):
                found.append(event)
    return found[::-1]


def follow(
    dirs: Dirs, count: int, keep: Keep | None = None, *, pause_s: float = 0.2
) -> Iterator[Event]:
    """The newest `count` events, then each new one as it is written; never ends."""
    path = dirs.state / "events.jsonl"
    file = _open(path)
    position = file.seek(0, os.SEEK_END) if file else 0
    try:
        yield from last(dirs, count, keep=keep, end=position)
        rest = b""
        while True:
            data = b""
            if file is not None:
                file.seek(position)
                data = file.read()
                position += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for event in map(_decode, lines):
                if event is not None and (keep is None or keep(event)):
                    yield event
            if data:
                continue
            if file is None or not _same(file, path):
                newer = _open(path)
                if newer is not None:
                    if file is not None:
                        file.close()
                    file, position, rest = newer, 0, b""
                    continue
            time.sleep(pause_s)
    finally:
        if file is not None:
            file.close()


def _decode(line: bytes) -> Event | None:
    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _open(path: Path) -> BinaryIO | None:
    try:
        return atomic.open_regular(path)
    except OSError:
        return None


def _same(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return True


def _lines_backwards(path: Path, end: int | None) -> Iterator[bytes]:
    file = _open(path)
    if file is None:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        if end is not None:
            position = min(position, end)
        rest = b""
        while position:
            size = min(_CHUNK, position)
            position -= size
            file.seek(position)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest
