"""One open log file, read by position: growth, truncation, replacement and holes are noticed.

Never mapped into memory: a truncation under a mapping ends the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from pathlib import Path

from engine_ctl.atomic import regular_fd

SHOWN_BYTES = 1 << 16
"""Of a longer line this many bytes are shown."""
_ANCHOR = 64
_STEP = 1 << 16
_HOLE = 4096


class Change(Enum):
    """What became of a file since the last look."""

    SAME = "same"
    GREW = "grew"
    REPLACED = "replaced"
    """Another file, a shorter one, or one whose middle was given back: read it anew."""


class LogFile:
    """A file of any size. Positions and sizes are bytes. Reads are safe from several threads.

    `size` is the size at the last `poll`: reads go no further, so that what was counted and what
    is read belong together. Raises OSError when it cannot be opened."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """`descriptor`: the open file, which is this one's from now on."""
        self.path = path
        # A file object, not a bare descriptor: it closes when the last reader lets go of it.
        descriptor = regular_fd(path) if descriptor is None else descriptor
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115
        info = os.fstat(self._file.fileno())
        self._identity = (info.st_dev, info.st_ino)
        self._blocks = info.st_blocks
        self.size = info.st_size
        self._anchor = self._end()
        self._first_hole = self._hole_from(0)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> LogFile:
        """A file that another process has opened."""
        return cls(Path(f"/proc/self/fd/{descriptor}"), descriptor)

    @property
    def descriptor(self) -> int:
        """Of the open file, to be given to another process."""
        return self._file.fileno()

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes; fewer at the end of the file."""
        length = min(length, self.size - offset)
        return os.pread(self._file.fileno(), length, offset) if length > 0 else b""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from a position on; the number of bytes, fewer at the file's end."""
        length = min(len(buffer), self.size - offset)
        return os.preadv(self._file.fileno(), [buffer[:length]], offset) if length > 0 else 0

    def poll(self) -> Change:
        """Look again. A file that was deleted stays readable and is the same."""
        info = os.fstat(self._file.fileno())
        try:
            named = os.stat(self.path)
        except OSError:
            named = info
        if (named.st_dev, named.st_ino) != self._identity or info.st_size < self.size:
            return Change.REPLACED
        if self._end() != self._anchor:
            return Change.REPLACED
        if info.st_blocks < self._blocks and self._hole_from(0) != self._first_hole:
            return Change.REPLACED
        self._blocks = info.st_blocks
        if info.st_size == self.size:
            return Change.SAME
        self.size = info.st_size
        self._anchor = self._end()
        return Change.GREW

    def _end(self) -> bytes:
        start = max(self.size - _ANCHOR, 0)
        return self.read(start, self.size - start)

    # Holes

    @property
    def sparse(self) -> bool:
        """Whether a part of the file has been given back to the file system."""
        return self._first_hole < self.size

    def _hole_from(self, offset: int) -> int:
        """Where the next hole begins; the size of the file when there is none."""
        try:
            return os.lseek(self._file.fileno(), offset, os.SEEK_HOLE)
        except OSError:
            return self.size

    def data_from(self, offset: int) -> int:
        """The first position at or after `offset` that is not in a hole (the size: none)."""
        try:
            return min(os.lseek(self._file.fileno(), offset, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else offset

    # Lines

    def last_line(self, floor: int = 0) -> int:
        """Where the unfinished last line begins: the size when the last byte ends a line. The
        search goes back to `floor` and no further."""
        end = self.size
        while end > floor:
            start = max(end - _STEP, floor)
            cut = self.read(start, end - start).rfind(b"\n")
            if cut >= 0:
                return start + cut + 1
            end = start
        return floor

    def line_end(self, offset: int) -> int:
        """The position behind the line that `offset` is in, its newline included."""
        while offset < self.size:
            data = self.read(offset, _STEP)
            cut = data.find(b"\n")
            if cut >= 0:
                return offset + cut + 1
            offset += len(data) or self.size
            if self.sparse:
                offset = self.data_from(offset)
        return self.size

    def line(self, offset: int) -> bytes:
        """The line that begins at `offset`, without its newline, cut to `SHOWN_BYTES`.

        Zero bytes are left out; where a hole was punched the text says how much is gone."""
        data = self.read(offset, _HOLE)
        cut = data.find(b"\n")
        if cut < 0 and len(data) == _HOLE:
            data = self.read(offset, SHOWN_BYTES)
            cut = data.find(b"\n")
        line = data[:cut] if cut >= 0 else data
        zero = line.find(b"\0")
        if zero >= 0:
            return self._around(offset, line, zero)
        if cut < 0 and len(data) == SHOWN_BYTES:
            more = self.line_end(offset + SHOWN_BYTES) - offset - SHOWN_BYTES
            line += f" … {more / 1024:.0f} KiB more".encode()
        return line

    def _around(self, offset: int, line: bytes, zero: int) -> bytes:
        begin = offset + zero
        end = self.data_from(begin)
        while end < self.size:
            data = self.read(end, _STEP)
            rest = data.lstrip(b"\0")
            end += len(data) - len(rest)
            if rest:
                break
            end = self.data_from(end)
        gone = end - begin
        if gone < _HOLE:
            return line.replace(b"\0", b"")
        tail = self.read(end, SHOWN_BYTES).partition(b"\n")[0].replace(b"\0", b"")
        mark = f"✂ {gone / 1048576:.1f} MiB of this log were trimmed ✂".encode()
        return b" ".join(part for part in (line[:zero].strip(), mark, tail.strip()) if part)
