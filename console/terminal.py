"""What commands print on a terminal: text from outside can neither move the cursor nor set a
title, and where the locale has no dash or arrow, something near stands in for it."""

from __future__ import annotations

import codecs
from typing import Any, TextIO

NEAREST = "stoker-nearest"
_NEAR = {"–": "-", "—": "-", "→": ">", "←": "<", "·": "-", "…": "~", "±": "~", "×": "x"}
_NEAR |= {"★": "*", "✓": "+", "✗": "x", "●": "*", "○": "o", "└": "`", "≥": ">", "≤": "<"}

# Controls but for tab, line feed and carriage return, and what turns the direction of text.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
_CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")


def shown(text: str) -> str:
    """Text with its controls made visible."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_NEAR.get(letter, "?") for letter in missing), error.end


codecs.register_error(NEAREST, _nearest)


class Terminal:
    """A text stream on a terminal. Bytes written to its `buffer` (a log) go through as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(shown(text))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
