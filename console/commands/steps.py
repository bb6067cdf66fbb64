"""Steps of a long command, a line each; on a terminal the last one counts how long it stands."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

# What stands for less needs no figure.
QUIET_S = 2.0


class Steps:
    """`steps(text)` ends the step before and begins one. As a context it counts on in a thread of
    its own where `out` is a terminal; elsewhere each step is one line and nothing more."""

    def __init__(
        self,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 1.0,
    ) -> None:
        """`clock` is monotonic seconds, `every_s` seconds between two figures."""
        self._out = out
        self._clock = clock
        self._every_s = every_s
        self._terminal = out.isatty()
        self._lock = threading.Lock()
        self._text: str | None = None
        self._began = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        if not self._terminal:
            print(text, file=self._out, flush=True)
            return
        with self._lock:
            self._end()
            self._out.write(text)
            self._out.flush()
            self._text, self._began = text, self._clock()

    def tick(self) -> None:
        """Write how long the step stands, where its line has room for that."""
        with self._lock:
            if self._text is None:
                return
            seconds = self._clock() - self._began
            line = f"{self._text}, {seconds:.0f} s"
            if seconds >= QUIET_S and len(line) < shutil.get_terminal_size().columns:
                self._out.write(f"\r{line}")
                self._out.flush()

    def settle(self) -> None:
        """End the line: something else is going to be written."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._text is not None:
            self._out.write("\n")
            self._out.flush()
            self._text = None

    def __enter__(self) -> Steps:
        if self._terminal:
            self._thread = threading.Thread(target=self._count, name="steps", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.settle()

    def _count(self) -> None:
        while not self._over.wait(self._every_s):
            self.tick()
