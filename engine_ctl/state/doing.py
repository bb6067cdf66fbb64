"""What the operation that holds a unit is at, in words, for whoever looks meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from engine_ctl import atomic
from engine_ctl.state.store import Store

Tell = Callable[[str], None]
NAME = "doing"


@contextlib.contextmanager
def doing(store: Store, unit: str, what: str, tell: Tell) -> Iterator[Tell]:
    """Hand out a `tell` that also keeps its last line beside the unit; gone at the end. The caller
    holds the unit's lock. Losing the note (disk full) is no error."""
    path = store.unit_dir(unit) / NAME

    def note(text: str) -> None:
        with contextlib.suppress(OSError):
            path.write_text(text.removeprefix(f"{unit}: ")[:300])

    def both(text: str) -> None:
        note(text)
        tell(text)

    note(what)
    try:
        yield both
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def read(store: Store, unit: str) -> str | None:
    """What is being done to the unit now; None when nothing is (a killed operation's note does
    not count: nobody holds the lock)."""
    path = store.unit_dir(unit) / NAME
    try:
        text = (atomic.read_regular(path) or b"").decode(errors="replace").strip()
    except OSError:
        return None
    return text if text and store.locked(unit) else None
