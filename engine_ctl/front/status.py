"""front.json in the front's run directory: what it does now. Writer: the front.

It is how a swap learns, without talking to the front, that no request goes to the old engine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from engine_ctl import atomic
from engine_ctl.state.store import Run

NAME = "front.json"
# Answered by the front itself, to this machine only: its shim asks for readiness there.
OWN_PATH = "/.well-known/stoker-front"


class FrontStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`passes_to` is the run that new requests go to, None while they wait or are refused (`way`,
    `why`). `in_flight` counts requests that an engine works on, by run. `held` counts waiting
    requests at the time of the last change. `at` is wall-clock seconds."""

    schema: int = 1
    way: str
    passes_to: str | None = None
    why: str = ""
    in_flight: dict[str, int] = msgspec.field(default_factory=dict)
    held: int = 0
    at: float = 0.0


def write(run_dir: Path, status: FrontStatus) -> None:
    """Replace the file, without waiting for the disk: it means nothing after a crash."""
    temporary = run_dir / f".{NAME}.new"
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.encode(status))
        os.replace(temporary, run_dir / NAME)


def read(run: Run) -> FrontStatus | None:
    """None when the front has said nothing yet, or nothing that can be read."""
    try:
        return atomic.read_record(run.dir / NAME, FrontStatus)
    except (atomic.CorruptRecord, OSError):
        return None


def is_drained(status: FrontStatus | None, run: str) -> bool:
    """True when new requests do not go to `run` and none is on its way there. Pure."""
    return status is not None and status.passes_to != run and not status.in_flight.get(run)
