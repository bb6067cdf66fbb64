"""What commands print on a terminal: text from outside can neither move the cursor nor set a
title, and where the locale has no dash or arrow, something near stands in for it."""

from __future__ import annotations

import codecs
import re
from typing import Any, TextIO

NEAREST = "stoker-nearest"
_NEAR = {"–": "-", "—": "-", "→": ">", "←": "<", "·": "-", "…": "~", "±": "~", "×": "x"}
_NEAR |= {"★": "*", "✓": "+", "✗": "x", "●": "*", "○": "o", "└": "`", "≥": ">", "≤": "<"}

# Controls but for tab, line feed and carriage return, and what turns the direction of text.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"}
_CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,40})?\Z")


def shown(text: str) -> str:
    """Text with its controls made visible."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_NEAR.get(letter, "?") for letter in missing), error.end


codecs.register_error(NEAREST, _nearest)


def raw(stream: TextIO) -> TextIO:
    """The stream below, where `stream` is a Terminal."""
    return stream.raw if isinstance(stream, Terminal) else stream


class Log:
    """Writes the bytes of a log. On a terminal its colours and the returns of progress bars stay,
    since engines write those; any other control, which a client's request may have put there, is
    made visible."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cleans = isinstance(stream, Terminal)
        self._rest = ""

    def write(self, chunk: bytes) -> None:
        if not self._cleans:
            self._stream.buffer.write(chunk)
            self._stream.buffer.flush()
            return
        text = self._rest + self._decoder.decode(chunk)
        cut = _UNFINISHED.search(text)
        text, self._rest = (text, "") if cut is None else (text[: cut.start()], text[cut.start() :])
        # Every second piece is a colour.
        pieces = enumerate(_COLOUR.split(text))
        out = raw(self._stream)
        out.write("".join(piece if at % 2 else shown(piece) for at, piece in pieces))
        out.flush()

    def close(self) -> None:
        """What was held back; the terminal's own colours."""
        if self._cleans:
            raw(self._stream).write(shown(self._rest) + "\x1b[m")


class Terminal:
    """A text stream on a terminal. What Stoker itself has to move or colour there goes to `raw`."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        return self.raw.write(shown(text))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)
