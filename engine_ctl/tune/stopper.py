"""A sweep that is asked to stop: at once while it measures, after the swap while it swaps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(Exception):
    """Somebody asked the sweep to stop, at a moment when that is safe."""


class Stopper:
    """SIGINT and SIGTERM end a bench at once, but a swap only when it is over. A second signal
    is a KeyboardInterrupt anywhere: the next `stoker` then finishes the swap."""

    def __init__(self) -> None:
        self.asked = False
        self.soft = False

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.soft:
            raise Interrupted("the sweep was asked to stop")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self.ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        self.soft = True
        try:
            if self.asked:
                raise Interrupted("the sweep was asked to stop")
            yield
        finally:
            self.soft = False
