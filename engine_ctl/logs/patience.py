"""An end for a piece of work that may have none, as the match of an expression with nested repeats.

`re` looks for signals while it matches, in the main thread of a process and nowhere else: there
a timer ends it. In any other thread such work needs a process of its own, which can be killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_LEAST_S = 0.001


class TooSlow(Exception):
    """The work was ended because it took too long."""


def can_end() -> bool:
    """Whether `at_most` holds here: in the main thread."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End what is inside after so many seconds of this thread's processor time (which neither a
    busy machine nor another thread uses up). Raises TooSlow; RuntimeError in a thread where it
    would not hold."""
    if not can_end():
        raise RuntimeError("only the main thread's work can be ended")
    over = False
    begun = time.thread_time()

    def end(number: int, frame: FrameType | None) -> None:
        left = seconds - (time.thread_time() - begun)
        if over:
            return
        if left <= 0:
            raise TooSlow
        # The timer counts what all threads use.
        signal.setitimer(signal.ITIMER_VIRTUAL, max(left, _LEAST_S))

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # The default action ends the process, and a signal may be on its way still.
        signal.signal(signal.SIGVTALRM, _nothing if before == signal.SIG_DFL else before)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass
