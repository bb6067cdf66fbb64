"""Directories and files that begin as what was typed, offered while one types."""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual.suggester import Suggester


class DirectorySuggester(Suggester):
    """Offers the first directory (or file) that begins with the value; the right arrow takes it."""

    def __init__(self, files: bool = False) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._files = files

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(first_directory, value, self._files)


def first_directory(value: str, files: bool = False) -> str | None:
    """The first directory (or file) by name whose path begins with `value`, spelled as it is typed;
    None where there is none. Hidden ones only when the dot was typed."""
    head, slash, tail = value.rpartition("/")
    try:
        place = Path(head + slash).expanduser() if slash else Path.cwd()
        names = sorted(
            entry.name
            for entry in place.iterdir()
            if entry.name.startswith(tail) and entry.name[:1] != ("" if tail else ".")
            if files or entry.is_dir()
        )
    except (OSError, RuntimeError):
        return None
    found = next((name for name in names if name != tail), None)
    return None if found is None else f"{head}{slash}{found}"
