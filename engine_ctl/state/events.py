"""events.jsonl: what happened and who did it. Losing an event never fails an operation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine_ctl.model import Event
from engine_ctl.paths import Dirs

ROTATE_BYTES = 4 << 20
_CHUNK = 1 << 16


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
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def last(dirs: Dirs, count: int, *, unit: str | None = None) -> list[Event]:
    """The newest `count` events, oldest first; with `unit`, of that unit only.

    Lines that cannot be read are skipped."""
    found: list[Event] = []
    for name in ("events.jsonl", "events.jsonl.1"):
        for line in _lines_backwards(dirs.state / name):
            try:
                event = msgspec.json.decode(line, type=Event)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue
            if unit is None or event.unit == unit:
                found.append(event)
                if len(found) >= count:
                    return found[::-1]
    return found[::-1]


def _lines_backwards(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        rest = b""
        while position:
            size = min(_CHUNK, position)
            position -= size
            file.seek(position)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest
