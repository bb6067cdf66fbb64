"""An engine that a sweep left behind when it was killed. Read from the sweep's own files, without
the imports of tuning: `ps` asks for each engine whose run a sweep made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.atomic import NotRegular, regular_bytes, regular_file
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, is_locked

# `RunSpec.purpose` of runs that a sweep makes: the word, and the sweep's id.
_PURPOSE = re.compile(r"sweep s([1-9]\d*)")
_OVER = ("stopped", "ended")
_TAIL = 1 << 16


def interrupted_sweep(dirs: Dirs, run: Run, spec: RunSpec) -> str:
    """The id of the sweep that made this run for one of its points and was interrupted there; ""
    for other runs, while the sweep goes on, when it has put its unit back, and when its files
    cannot be read."""
    match = _PURPOSE.fullmatch(spec.purpose)
    if match is None:
        return ""
    try:
        left = _left(dirs.state / "tune" / "sweeps" / match[1], run)
    except OSError:
        return ""
    return f"s{match[1]}" if left else ""


def _left(sweep: Path, run: Run) -> bool:
    plan = _record(sweep / "sweep.json")
    if plan is None or _is_over(sweep / "journal.jsonl") or is_locked(sweep / "lock"):
        return False
    # Its end may have been noted between the two looks.
    if _is_over(sweep / "journal.jsonl"):
        return False
    return plan.get("base") != _record(run.dir / "profile.json")


def words(unit: str, sweep: str) -> str:
    """What an operator should know of it, and both ways on."""
    return (
        f"{unit} runs a point of interrupted sweep {sweep}; "
        f"resume: stoker sweep --resume {sweep}; back: stoker undo {unit}"
    )


def _is_over(journal: Path) -> bool:
    """Whether the last entry says so; a cut line counts as not written."""
    try:
        with regular_file(journal) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
    except (FileNotFoundError, NotRegular):
        return False
    for line in reversed(lines):
        entry = _decoded(line)
        if entry is not None:
            return entry.get("what") in _OVER
    return False


def _record(path: Path) -> dict[str, Any] | None:
    try:
        return _decoded(regular_bytes(path))
    except (FileNotFoundError, NotRegular):
        return None


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return found if isinstance(found, dict) else None
