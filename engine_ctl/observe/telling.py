"""The few lines of a served engine's log that change what it is. Imports nothing but `re`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine_ctl.atomic import regular_file

_WORDS = (
    b"[shutdown]",
    b"hutting down",
    b"eight cache daemon at ",
    b"seconds to fall asleep",
    b"seconds to wake up",
    b"died unexpectedly",
    b"failed to start",
    b"fatal error",
    b"application shutdown",
    b"Received SIG",
)
_STATISTICS = b"Avg generation throughput: "
_TELLING = re.compile(b"|".join(map(re.escape, _WORDS)))


def telling_lines(data: bytes) -> bytes:
    """The whole lines in `data` that contain one of the words, in order."""
    lines = []
    end = 0
    for found in _TELLING.finditer(data):
        if found.start() < end:
            continue
        start = data.rfind(b"\n", 0, found.start()) + 1
        end = data.find(b"\n", found.end()) + 1
        if end == 0:
            break
        lines.append(data[start:end])
    return b"".join(lines)


def newest_statistics(data: bytes) -> bytes:
    """The last whole line of engine statistics in `data`, b"" when there is none."""
    found = data.rfind(_STATISTICS)
    end = data.find(b"\n", found) + 1
    if found < 0 or end == 0:
        return b""
    return data[data.rfind(b"\n", 0, found) + 1 : end]


def tail_tells(path: Path, size: int = 1 << 18) -> bool:
    """True when one of the words is in the last `size` bytes of a log."""
    try:
        with regular_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return _TELLING.search(file.read(size)) is not None
    except OSError:
        return False
