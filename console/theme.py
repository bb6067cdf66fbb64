"""The theme that the operator chose, kept from one console to the next."""

from __future__ import annotations

import os
from pathlib import Path

from engine_ctl import atomic
from engine_ctl.paths import Dirs


def remembered() -> str | None:
    """The theme to begin with: TEXTUAL_THEME is Textual's own matter, then the one chosen last."""
    if os.environ.get("TEXTUAL_THEME"):
        return None
    try:
        found = atomic.read_regular(_path())
    except OSError:
        return None
    return (found or b"").decode(errors="replace").strip() or None


def remember(name: str) -> None:
    """Keep the theme. That it could not be kept (a full disk) is no error."""
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic.write_bytes(path, f"{name}\n".encode())
    except OSError:
        return


def _path() -> Path:
    return Dirs.from_env().config / "theme"
