"""The end of one log file, read by offset in a thread of its own; rendering does no I/O."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

from engine_ctl.atomic import regular_fd

_CHUNK = 64 * 1024
_KEPT = 400
# Our own questions, one a second, would push everything else out of sight.
_POLL = re.compile(rb'"GET /(?:metrics|health|load|ping|version)/? HTTP/[\d.]+" 200')


class Tail:
    """The last lines of a growing file. Not thread-safe: one thread polls.

    A file that was replaced or became shorter is read anew. A burst costs one read of at most
    64 KiB a poll, whatever its size."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: tuple[str, ...] = ()
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""
        self._whole: list[str] = []

    def poll(self) -> bool:
        """Read what is new; True if `lines` changed. A missing file has no lines."""
        try:
            fd = regular_fd(self.path)
        except OSError:
            changed = bool(self.lines)
            self._forget()
            return changed
        try:
            return self._read(fd)
        except OSError:
            return False
        finally:
            os.close(fd)

    def _forget(self) -> None:
        self.lines, self._inode, self._offset, self._rest = (), None, 0, b""
        self._whole = []

    def _read(self, fd: int) -> bool:
        status = os.fstat(fd)
        again = self._inode != status.st_ino or status.st_size < self._offset
        if again:
            self._forget()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return again
        start = max(self._offset, status.st_size - _CHUNK)
        data = os.pread(fd, status.st_size - start, start)
        if start > self._offset:
            data = data.partition(b"\n")[2]
            self._whole = []
        else:
            data = self._rest + data
        self._offset = status.st_size
        *whole, rest = data.split(b"\n")
        self._rest = rest[-_CHUNK:]
        heard = [raw for raw in whole if raw.strip() and not _POLL.search(raw)]
        self._whole += [_text(raw) for raw in heard[-_KEPT:]]
        self._whole = self._whole[-_KEPT:]
        last = [_text(self._rest)] if self._rest.strip() else []
        self.lines = tuple(self._whole + last)
        return True


def _text(raw: bytes) -> str:
    """A progress bar rewrites its line with carriage returns: what is seen is the last piece."""
    pieces = [piece for piece in raw.rstrip(b"\r").split(b"\r") if piece.strip()]
    return (pieces[-1] if pieces else b"")[:4000].decode("utf-8", "replace")


class TailThread(threading.Thread):
    """Polls the watched file and calls back when its end changed."""

    def __init__(
        self, callback: Callable[[str | None, tuple[str, ...]], object], every: float = 0.25
    ) -> None:
        super().__init__(name="log-tail", daemon=True)
        self._callback = callback
        self._every = every
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._path: str | None = None
        self._stopped = False

    def watch(self, path: str | None) -> None:
        """Follow another file (None: none)."""
        with self._lock:
            if path == self._path:
                return
            self._path = path
        self._wake.set()

    def stop(self) -> None:
        """End; returns at once."""
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        tail: Tail | None = None
        while not self._stopped:
            with self._lock:
                path = self._path
            if path is None:
                tail = None
                self._wake.wait()
            elif tail is None or tail.path != path:
                tail = Tail(path)
                tail.poll()
                self._callback(path, tail.lines)
            elif tail.poll():
                self._callback(path, tail.lines)
            if not self._stopped:
                self._wake.wait(self._every if path else None)
            self._wake.clear()
