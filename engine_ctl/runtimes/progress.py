"""How far an install has come: what pip says, what it has written, how long a step already takes.

A share never goes back, and reaches its step's end only when the step has ended: a bar that says
90 % for a minute says nothing. Steps and their shares follow measured installs of the CPU build."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Report = Callable[[str, float], None]
"""(what is being done, fraction 0..1)"""

RESOLVE, DOWNLOAD, UNPACK, CHECK, IMPORT = 0.02, 0.2, 0.35, 0.9, 0.93
"""Where the steps begin."""
QUIET_S = 3.0
_GIB = 1 << 30
_COLLECTING = re.compile(r"Collecting (\S+)|Processing \S*?([^/\s-]+)-\S+")
# With an indent while pip resolves (metadata, or wheels where an index has none); else after.
_WHEEL = re.compile(
    r"( *)(Downloading|Using cached) (\S+?)-\S+\.(?:whl|tar\.gz)(?: \(([^)]+)\))?\s*$"
)


def eased(seconds: float, typical_s: float) -> float:
    """0..1 for a step of which nothing but its usual length is known; never quite 1."""
    return min(1.0 - math.exp(-seconds / typical_s), 0.999)


class PipProgress:
    """Reads pip's lines. `packages` and `unpacked` (bytes) are what to expect in all."""

    def __init__(self, report: Report, packages: int, unpacked: int) -> None:
        self._report = report
        self._packages = max(packages, 1)
        self._unpacked = max(unpacked, 1)
        self._collected = 0
        self._fetched = 0
        self._share = 0.0
        self.total: int | None = None

    def line(self, line: str) -> None:
        """One line of pip's output. `total` is set once it unpacks."""
        if line.startswith("Installing collected packages"):
            self.total = line.count(",") + 1
        elif found := _COLLECTING.match(line):
            self._collected += 1
            self._say(f"resolving {found[1] or found[2]}", self._resolved())
        elif found := _WHEEL.match(line):
            size = f" ({found[4]})" if found[4] else ""
            text = f"{'downloading' if found[2] == 'Downloading' else 'from the cache:'} {found[3]}"
            if found[1]:
                self._say(text + size, self._resolved())
                return
            self._fetched += 1
            share = _part(self._fetched, max(self._collected, self._packages))
            self._say(text + size, DOWNLOAD + (UNPACK - DOWNLOAD) * share)

    def _resolved(self) -> float:
        return RESOLVE + (DOWNLOAD - RESOLVE) * _part(self._collected, self._packages)

    def unpacked(self, packages: int, size: int | None, quiet_s: float = 0.0) -> None:
        """Packages that are there, and bytes that pip has written since it unpacks (None: not
        known): the last of many packages may be a third of all bytes. `quiet_s`: for how long
        neither has changed; pip ends with a minute in which it says and writes nothing."""
        total = self.total or 1
        share = _part(packages, total)
        written = ""
        if size is not None:
            share = _part(size, self._unpacked)
            written = f", {size / _GIB:.1f} GiB written"
        text = f"unpacking {min(packages, total)} of {total} packages{written}"
        reached = UNPACK + (CHECK - UNPACK) * share
        if quiet_s >= QUIET_S:
            text += f", quiet for {quiet_s:.0f} s"
            reached += (CHECK - reached) * eased(quiet_s - QUIET_S, 90.0)
        self._say(text, reached)

    def _say(self, text: str, share: float) -> None:
        self._share = max(self._share, share)
        self._report(text, self._share)


def _part(done: int, expected: int) -> float:
    """Linear to nine tenths; beyond, what was expected is only approached."""
    share = done / expected
    return share if share <= 0.9 else 0.9 + 0.1 * eased(share - 0.9, 0.5)


def written_by(pid: int) -> int | None:
    """Bytes that a process has written so far, None where /proc does not say."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    found = re.search(r"^wchar: (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


@contextlib.contextmanager
def ticking(
    report: Report, text: str, begin: float, end: float, typical_s: float, every_s: float = 0.5
) -> Iterator[None]:
    """Report a step that says nothing of itself while it lasts: for how long it has been going."""
    started = time.monotonic()
    over = threading.Event()

    def tick() -> None:
        while True:
            seconds = time.monotonic() - started
            said = f"{text}, {seconds:.0f} s" if seconds >= 1 else text
            report(said, begin + (end - begin) * eased(seconds, typical_s))
            if over.wait(every_s):
                return

    thread = threading.Thread(target=tick, name="install-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
