"""What was copied out of a log, as a file: for terminals without a clipboard, and for a lot."""

from __future__ import annotations

from pathlib import Path

from engine_ctl import atomic
from engine_ctl.paths import ensure_private

FILE = "copied.log"


def keep(text: str, state: Path) -> Path:
    """Write it to the state directory, in place of what was copied before; where it is.

    Raises OSError and Failed."""
    path = ensure_private(state) / FILE
    atomic.write_bytes(path, text.encode("utf-8", "replace") + b"\n")
    return path
