"""Directories that begin as what was typed, offered while one types."""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual.suggester import Suggester


class DirectorySuggester(Suggester):
    """Offers the first directory that begins with the value; the right arrow takes it."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(first_directory, value)


def first_directory(value: str) -> str | None:
    """The first directory by name whose path begins with `value`, spelled as it is typed; None
    where there is none. Hidden ones only when the dot was typed."""
    head, slash, tail = value.rpartition("/")
    try:
        place = Path(head + slash).expanduser() if slash else Path.cwd()
        names = sorted(
            entry.name
            for entry in place.iterdir()
            if entry.name.startswith(tail) and entry.name[:1] != ("" if tail else ".")
            if entry.is_dir()
        )
    except (OSError, RuntimeError):
        return None
    found = next((name for name in names if name != tail), None)
    return None if found is None else f"{head}{slash}{found}"
