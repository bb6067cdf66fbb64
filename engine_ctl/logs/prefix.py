"""The front of a log line: who, when, where, in every style that vLLM and its carriers use."""

from __future__ import annotations

import re

import msgspec

_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL|WARN|TRACE"
_RECORD = rf"({_LEVELS}) (\d\d-\d\d \d\d:\d\d:\d\d) \[([^\]:]{{1,200}}):(\d{{1,9}})\] ?"
_PROCESS = r"\(([^()]{0,80}?) ?pid=(\d{1,10})\)"
_PREFIX = re.compile(rf"(?:{_PROCESS} ?)?(?:{_RECORD})?")
INNER = re.compile(rf"(?:{_PROCESS} ?)?{_RECORD}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
ELAPSED = re.compile(rb" {0,7}\d{1,7}\.\d\d(?: |$)")
_TRANSPORT = re.compile(
    r"[\w.-]+-\d+ +\| "  # docker compose
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ (?:\S+?\[\d+\]|kernel): "  # journald, syslog
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d) (?:(?:stdout|stderr) [FP] )?"
)
BAR = re.compile(
    r"(?P<label>[^|\r\n]{0,120}?):\s*(?P<percent>\d{1,3})%[^|\[\]\d]{0,12}\|(?:[^|\n]{0,300}\|)?"
    r"\s*(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[[^\]\n]{0,80}\]"
)
NATIVE = re.compile(r"(?:\[rank\d+\]:)?\[?([IWEFC])(\d{4}) (\d\d:\d\d:\d\d)\.\d+(?: (\d{1,10}) )?")
NATIVE_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL"}
UVICORN = re.compile(rf"({_LEVELS}):\s+")
PY_WARNING = re.compile(r"(?:\S{0,1000}/)?([\w-]{1,100}\.py):(\d{1,9}): \w{0,60}Warning: ")
TRACEBACK = "Traceback (most recent call last):"


def clean(line: bytes) -> str:
    """A raw line as text: invalid UTF-8 replaced, colour and the zero bytes of holes removed."""
    if b"\0" in line:
        line = line.replace(b"\0", b"")
    text = line.decode("utf-8", "replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


class Bar(msgspec.Struct, frozen=True, gc=False):
    """One state of a tqdm bar."""

    label: str
    done: int
    total: int
    percent: int


def bar_of(text: str) -> Bar | None:
    """The last state of a progress bar in `text`, None when there is none."""
    if "%" not in text:
        return None
    found = list(BAR.finditer(text))
    if not found:
        return None
    last = found[-1]
    return Bar(last["label"].strip(), int(last["done"]), int(last["total"]), int(last["percent"]))


class Head(msgspec.Struct, frozen=True, gc=False):
    """What the front of one physical line says, and where its message starts."""

    process: str | None
    pid: int | None
    level: str | None
    time: str | None
    file: str | None
    line: int | None


NO_HEAD = Head(None, None, None, None, None, None)


def _head(found: re.Match[str]) -> Head:
    process, pid, level, time, path, number = found.groups()
    return Head(
        process or None,
        int(pid) if pid else None,
        level,
        time,
        None if path is None else path.rpartition("/")[2],
        None if number is None else int(number),
    )


def split_prefix(text: str) -> tuple[Head, str]:
    """Take the prefix off one physical line. No prefix: an empty head and the text itself."""
    found = _PREFIX.match(text)
    if found is not None and found.end():
        if found[3] is None:
            inner = INNER.search(text, found.end(), found.end() + 400)
            if inner is not None and inner.start() - found.end() <= 64:
                # 0.30 and before: (process) VLLM_LOGGING_PREFIX LEVEL …
                head = _head(inner)
                return msgspec.structs.replace(
                    head, process=found[1] or None, pid=int(found[2])
                ), text[inner.end() :]
        return _head(found), text[found.end() :]
    if ":" in text:
        inner = INNER.search(text, 0, 400)
        if inner is not None and inner.start() <= 64:  # VLLM_LOGGING_PREFIX, a transport's stamp
            return _head(inner), text[inner.end() :]
    stamp = _TRANSPORT.match(text)
    if stamp is not None:
        return split_prefix(text[stamp.end() :])
    return NO_HEAD, text
