"""Records out of raw log bytes, whatever vLLM's version and settings make of their shape.

Understood: the process prefix on every line (0.23 to 0.30) or on log records only (0.31 on),
`VLLM_LOGGING_PREFIX`, colour, DEBUG paths, JSON lines, progress bars redrawn with a carriage
return, records of several lines (each repeats the prefix), raw tracebacks, uvicorn lines, native
lines, and the stamps that containers, journald and recorders put in front of a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from engine_ctl.logs.prefix import (
    BAR,
    ELAPSED,
    INNER,
    NATIVE,
    NATIVE_LEVEL,
    PY_WARNING,
    TRACEBACK,
    UVICORN,
    Bar,
    Head,
    bar_of,
    clean,
    split_prefix,
)

__all__ = ["Bar", "Record", "RecordReader", "bar_of", "clean", "records_of", "split_prefix"]

LONGEST_LINE = 1 << 20
"""Longer lines are cut into pieces of this many bytes, so that memory stays bounded."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One log record.

    `time` is the text of the stamp (`11-29 17:35:02`); `file` a base name (`core.py`), from the
    logger's name in JSON logs; `offset` and `length` are bytes of the raw log, the line ends
    included. `shape` is one of record, json, bar, raw. Lines of one record are joined with a
    newline in `message`. `at_s` are seconds from a leading column of elapsed seconds."""

    message: str
    offset: int
    length: int
    process: str | None = None
    pid: int | None = None
    level: str | None = None
    time: str | None = None
    file: str | None = None
    line: int | None = None
    shape: str = "raw"
    at_s: float | None = None


_JSON_MESSAGE = ("message", "msg", "event")
_JSON_LEVEL = ("levelname", "level", "severity")
_JSON_TIME = ("asctime", "timestamp", "time", "ts")
_JSON_NAME = ("name", "logger", "logger_name")


def _first(fields: dict[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _json_record(text: str, offset: int, length: int, at_s: float | None) -> Record | None:
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(fields, dict):
        return None
    message = _first(fields, _JSON_MESSAGE)
    level = _first(fields, _JSON_LEVEL)
    if not isinstance(message, str) or not isinstance(level, str):
        return None
    for extra in ("exc_info", "exc_text", "exception"):
        if isinstance(fields.get(extra), str) and fields[extra] not in message:
            message = f"{message}\n{fields[extra]}"
    file, number = fields.get("filename"), fields.get("lineno")
    name = _first(fields, _JSON_NAME)
    if not isinstance(file, str):
        known = isinstance(name, str) and not name.startswith("uvicorn")
        file = f"{name.rpartition('.')[2]}.py" if known else None
    process = _first(fields, ("vllm_process_name", "processName"))
    pid = _first(fields, ("process", "pid"))
    time = _first(fields, _JSON_TIME)
    return Record(
        message.replace("\r\n", "\n"),
        offset,
        length,
        process=process if isinstance(process, str) else None,
        pid=pid if isinstance(pid, int) and not isinstance(pid, bool) else None,
        level=level.upper(),
        time=time if isinstance(time, str) else None,
        file=file,
        line=number if isinstance(number, int) and not isinstance(number, bool) else None,
        shape="json",
        at_s=at_s,
    )


class _Open(msgspec.Struct, gc=False):
    """A record that may go on in the next line."""

    head: Head
    lines: list[str]
    offset: int
    end: int
    at_s: float | None
    announced: bool
    """The line ended in a carriage return: vLLM says that the next line belongs to it."""
    traceback: bool


class RecordReader:
    """Turns bytes, fed in chunks of any size, into records.

    A record is handed out as soon as its last line is complete, except that one whose line
    announces a continuation (or that is inside a traceback) waits for it. How the bytes are cut
    into chunks never changes what comes out. Call `flush` at the end of a finished log."""

    def __init__(self, offset: int = 0) -> None:
        self._partial = b""
        self._offset = offset
        self._open: _Open | None = None
        self._elapsed: bool | None = None
        self._crlf = False

    @property
    def partial(self) -> bytes:
        """The last line as far as it has come: a bar that is being redrawn lives here."""
        return self._partial

    def feed(self, chunk: bytes) -> list[Record]:
        data = self._partial + chunk if self._partial else chunk
        lines = data.split(b"\n")
        self._partial = lines.pop()
        out: list[Record] = []
        for line in lines:
            if len(line) > LONGEST_LINE:
                line = self._cut(line, out)
            self._line(line, len(line) + 1, out)
        if len(self._partial) > LONGEST_LINE:
            self._partial = self._cut(self._partial, out)
        return out

    def flush(self) -> list[Record]:
        """The unfinished last line and record, as they are."""
        out: list[Record] = []
        if self._partial:
            line, self._partial = self._partial, b""
            self._line(line, len(line), out)
        self._close(out)
        return out

    def _cut(self, line: bytes, out: list[Record]) -> bytes:
        while len(line) > LONGEST_LINE:
            self._line(line[:LONGEST_LINE], LONGEST_LINE, out)
            line = line[LONGEST_LINE:]
        return line

    def _line(self, line: bytes, length: int, out: list[Record]) -> None:
        offset = self._offset
        self._offset = offset + length
        at_s = None
        if line.startswith((b'{"log":"', b'{"log": "')):
            line = _unwrapped(line)
        if self._elapsed is None and line.strip(b"\0\r "):
            self._elapsed = _elapsed_column(line)
        if self._elapsed:
            found = ELAPSED.match(line)
            if found is not None:
                at_s = float(line[: found.end()])
                line = line[found.end() :]
        stripped = line.rstrip(b"\r")
        ends = len(line) - len(stripped)
        if ends:
            announced = not self._crlf or ends > 1
        else:
            announced = False
            self._crlf = self._crlf and not stripped
        line = stripped
        if b"\r" in line or (b"%" in line and b"|" in line):
            self._pieces(line, offset, length, at_s, out)
            return
        text = clean(line)
        if text.startswith("{") and text.rstrip().endswith("}"):
            record = _json_record(text, offset, length, at_s)
            if record is not None:
                self._close(out)
                out.append(record)
                return
        self._text(text, offset, length, at_s, announced, out)

    def _pieces(
        self, line: bytes, offset: int, length: int, at_s: float | None, out: list[Record]
    ) -> None:
        """A line with bars: the last state of each bar, and records glued behind a bar."""
        text = clean(line)
        head, rest = split_prefix(text)
        bars: list[Record] = []
        kept: list[str] = []
        for piece in rest.split("\r"):
            end = 0
            for found in BAR.finditer(piece):
                gap = piece[end : found.start()].strip()
                if gap:
                    kept.append(gap)
                end = found.end()
                bars.append(
                    Record(
                        found[0].strip(),
                        offset,
                        length,
                        process=head.process,
                        pid=head.pid,
                        shape="bar",
                        at_s=at_s,
                    )
                )
            tail = piece[end:]
            if tail.strip():
                kept.append(tail)
        if not bars:
            self._text(text.replace("\r", " ").strip(), offset, length, at_s, False, out)
            return
        self._close(out)
        last = {bar.message.partition(":")[0]: bar for bar in bars}
        out.extend(last.values())
        for tail in kept:
            inner = INNER.search(tail)
            self._text(tail[inner.start() :] if inner else tail, offset, length, at_s, False, out)

    def _text(
        self,
        text: str,
        offset: int,
        length: int,
        at_s: float | None,
        announced: bool,
        out: list[Record],
    ) -> None:
        head, message = split_prefix(text)
        if announced and head.level is None:
            self._crlf = True  # vLLM ends only records so: this file was converted
        still = self._open
        if still is not None:
            if still.head == head and (still.announced or still.traceback):
                still.lines.append(message)
                still.end = offset + length
                still.announced = announced
                if message == TRACEBACK:
                    still.traceback = True
                elif message and not message[0].isspace():
                    still.traceback = False
                if not announced and not still.traceback:
                    self._close(out)
                return
            # Every line ends in a carriage return: the file was converted, it announces nothing.
            self._crlf = self._crlf or still.announced
            announced = announced and not self._crlf
            self._close(out)
        announced = announced and head.level is not None
        if announced or message == TRACEBACK:
            self._open = _Open(
                head,
                [message],
                offset,
                offset + length,
                at_s,
                announced,
                message == TRACEBACK,
            )
        else:
            out.append(_record(head, message, offset, length, at_s))

    def _close(self, out: list[Record]) -> None:
        still, self._open = self._open, None
        if still is not None:
            out.append(
                _record(
                    still.head,
                    "\n".join(still.lines),
                    still.offset,
                    still.end - still.offset,
                    still.at_s,
                )
            )


class _Wrapped(msgspec.Struct):
    log: str
    stream: str


def _unwrapped(line: bytes) -> bytes:
    """The line inside an entry of Docker's json-file log driver; other lines as they are."""
    try:
        return msgspec.json.decode(line, type=_Wrapped).log.removesuffix("\n").encode()
    except (msgspec.DecodeError, UnicodeError):
        return line


def _elapsed_column(line: bytes) -> bool:
    found = ELAPSED.match(line)
    return found is not None and found.end() in (8, 9)


def _record(head: Head, message: str, offset: int, length: int, at_s: float | None) -> Record:
    if head.level is not None:
        return Record(
            message,
            offset,
            length,
            head.process,
            head.pid,
            "WARNING" if head.level == "WARN" else head.level,
            head.time,
            head.file,
            head.line,
            "record",
            at_s,
        )
    level, time, file, pid = None, None, None, head.pid
    if message.startswith(TRACEBACK):
        level = "ERROR"
    elif (found := UVICORN.match(message)) is not None:
        level, message = found[1], message[found.end() :]
    elif (found := NATIVE.match(message)) is not None:
        level, time = NATIVE_LEVEL[found[1]], f"{found[2][:2]}-{found[2][2:]} {found[3]}"
        pid = int(found[4]) if found[4] and pid is None else pid
    elif "Warning: " in message and (found := PY_WARNING.match(message)) is not None:
        level, file = "WARNING", found[1]
    return Record(
        message,
        offset,
        length,
        process=head.process,
        pid=pid,
        level=level,
        time=time,
        file=file,
        at_s=at_s,
    )


def records_of(data: bytes) -> Iterator[Record]:
    """All records of a finished log."""
    reader = RecordReader()
    yield from reader.feed(data)
    yield from reader.flush()
