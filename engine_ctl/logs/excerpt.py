"""What is read of a log of any size to find its root cause: bounded, without missing the cause.

The beginning and the end whole; of what is between only what may be an error or a start, the first
ones if there are many. Of a very long line or record its beginning and its end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_ctl.logs.blocks import BLOCK, lines_of
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.lines import Record
from engine_ctl.logs.view import telling_stretches

HEAD_BYTES = 4 << 20
TAIL_BYTES = 4 << 20
BETWEEN_BYTES = 2 << 20
LONG_LINE = 1 << 16
LONG_RECORD = 200_000
_EXCEPTIONS = 50
_TELLING = (
    b"ERROR",
    b"CRITICAL",
    b"Traceback",
    b"Error: ",
    b"Exception: ",
    b"Killed",
    b"Fatal Python error",
    b"Segmentation fault",
    b"terminate called",
    b"died unexpectedly",
    b"non-default args: ",
    b"startup complete",
    b"[shutdown]",
)
"""Of lines between beginning and end: errors, starts, their ends."""


def excerpt(path: Path, head: int | None = None, tail: int | None = None) -> bytes:
    """About `head` + `tail` + BETWEEN_BYTES bytes of a log, all of a shorter one, in its order.

    Raises OSError when the file cannot be read."""
    head = HEAD_BYTES if head is None else head
    tail = TAIL_BYTES if tail is None else tail
    file = LogFile(path)
    if file.size <= head + tail:
        return shortened(file.read(0, file.size))
    first, last = max(head // BLOCK, 1), max(file.size - tail, 0) // BLOCK
    blocks = -(-file.size // BLOCK)
    parts = [_lines(file, block) for block in range(min(first, blocks))]
    room = BETWEEN_BYTES
    for block in range(first, last):
        if room <= 0:
            break
        if file.sparse and file.data_from(block * BLOCK) >= (block + 1) * BLOCK:
            continue
        data = _lines(file, block)
        for start, end in telling_stretches(data, _TELLING):
            part = data[start:end]
            parts.append(part if part.endswith(b"\n") else part + b"\n")
            room -= len(part)
    parts += [_lines(file, block) for block in range(max(first, last), blocks)]
    return b"".join(parts)


def _lines(file: LogFile, block: int) -> bytes:
    """The lines that begin in a block, the long ones shortened."""
    start, data, _ = lines_of(file, block)
    if len(data) > BLOCK and not data.endswith(b"\n"):
        # The last line goes on behind what was read of it.
        end = file.line_end(start + len(data))
        data += b" " + file.read(max(end - LONG_LINE, start + len(data)), LONG_LINE)
    return shortened(data)


def shortened(data: bytes) -> bytes:
    """The same lines, those longer than LONG_LINE by their beginning and end. Cut at blanks, so
    that no escape of a JSON string is cut in two."""
    parts: list[bytes] = []
    kept = at = 0
    while len(data) - at > LONG_LINE:
        cut = data.rfind(b"\n", at, at + LONG_LINE)
        if cut >= 0:
            at = cut + 1
            continue
        end = data.find(b"\n", at + LONG_LINE)
        end = len(data) if end < 0 else end
        half = LONG_LINE // 2
        begins, ends = data[at : at + half], data[end - half : end]
        begins = begins[: begins.rfind(b" ") + 1] or begins.rstrip(b"\\")
        parts += [data[kept:at], begins, b"\xe2\x80\xa6 ", ends[ends.find(b" ") + 1 :]]
        kept = at = end
        if at < len(data):
            at += 1
    return b"".join([*parts, data[kept:]]) if parts else data


def condensed(record: Record) -> Record:
    """A record of limited length: of a longer text its beginning, its end, and the lines between
    that name an exception."""
    text = record.message
    if len(text) <= LONG_RECORD:
        return record
    half = LONG_RECORD // 2
    begin, end = text.rfind("\n", 0, half) + 1 or half, text.find("\n", len(text) - half)
    end = end if end >= 0 else len(text) - half
    between: list[str] = []
    for word in ("Error: ", "Exception: "):
        at = text.find(word, begin, end)
        while at >= 0 and len(between) < _EXCEPTIONS:
            low, high = text.rfind("\n", begin, at) + 1 or begin, text.find("\n", at, end)
            high = high if high >= 0 else end
            between.append(text[low : min(high, low + 2000)])
            at = text.find(word, high, end)
    whole = "\n".join([text[:begin].rstrip("\n"), *between, text[end:].lstrip("\n")])
    return msgspec.structs.replace(record, message=whole)
