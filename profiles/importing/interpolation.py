"""compose's own text: `$$`, `$NAME`, `${NAME:-default}`, and commands that no shell splits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from profiles.importing.references import Literal, Piece, Reference, closing, render
from profiles.importing.shellwords import split

_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BRACES = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?!$-])")


def scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def command_words(value: Any) -> list[str] | None:
    """A command's words: a text is split as a shell would, a list is taken as it is."""
    if value is None:
        return None
    if isinstance(value, list):
        return [interpolated(scalar(item)) for item in value]
    return _split(str(value))


def _split(text: str) -> list[str]:
    """compose interpolates first and splits after; a reference stays one word here."""
    marks: list[Piece] = []

    def marked(pieces: list[Piece]) -> str:
        out = ""
        for piece in pieces:
            if isinstance(piece, Literal):
                out += piece.text.replace("$", "\ue001")
            else:
                out += f"\ue000{len(marks)}\ue002"
                marks.append(piece)
        return out

    def restored(text: str) -> list[Piece]:
        out: list[Piece] = []
        for part in re.split(r"(\ue000\d+\ue002)", text):
            mark = re.fullmatch(r"\ue000(\d+)\ue002", part)
            if mark and int(mark[1]) < len(marks):
                out.append(marks[int(mark[1])])
            else:
                out.append(Literal(part.replace("\ue001", "$")))
        return out

    words = split(marked(pieces_of(text)))
    return [
        render(
            [
                piece
                for part in word
                for piece in (restored(part.text) if isinstance(part, Literal) else [part])
            ]
        )
        for word in words
    ]


def pieces_of(text: str) -> list[Piece]:
    """compose's interpolation: `$$` is a dollar, `$NAME`, `${NAME}`, `${NAME:-default}`."""
    return scanned(text, _reference)


def scanned(text: str, refer: Callable[[str, int], tuple[list[Piece], int] | None]) -> list[Piece]:
    """The pieces of a text in which `$$` is a dollar. `refer` says what a `$` at a place stands
    for, and where the text goes on; None where it is a character as any other."""
    out: list[Piece] = []
    i = 0
    while i < len(text):
        if text.startswith("$$", i):
            found: tuple[list[Piece], int] | None = ([Literal("$")], i + 2)
        else:
            found = refer(text, i) if text[i] == "$" else None
        pieces, i = found or ([Literal(text[i])], i + 1)
        out += pieces
    return out


def _reference(text: str, i: int) -> tuple[list[Piece], int] | None:
    match = _NAME.match(text, i)
    if match:
        return [Reference(match[1])], match.end()
    end = closing(text, i + 2, "{", "}") if text.startswith("${", i) else -1
    braces = _BRACES.match(text, i)
    if end > 0 and braces:
        return [Reference(braces[1], render(pieces_of(text[braces.end() : end])))], end + 1
    return None


def interpolated(value: Any) -> str:
    """compose text in the profile's notation."""
    return render(pieces_of(str(value)))


def escaped(value: Any) -> Any:
    """Plain data of a compose file in the profile's notation."""
    if isinstance(value, dict):
        return {str(key): escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return interpolated(value) if isinstance(value, str) else value
