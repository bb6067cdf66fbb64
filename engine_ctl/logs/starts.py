"""Several starts in one log: a restart policy that appends, or two servers that share a port."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine_ctl.logs.facts import statements, untagged
from engine_ctl.logs.lines import Record
from engine_ctl.model import Cause

FIRST_WORDS = ("vLLM server version", "vLLM API server version", "non-default args: ")
"""What a start says first, in order."""


class Starts:
    """Told what processes say, in order: where another start begins."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._seen: set[str] = set()

    def first(self, message: str) -> bool:
        """Whether these are a start's first words."""
        return message.startswith(FIRST_WORDS)

    def again(self, message: str, pid: int | None) -> bool:
        """Whether the first words of a process are those of another start than before."""
        words = next(each for each in FIRST_WORDS if message.startswith(each))
        other = self._pid is not None and pid is not None and pid != self._pid
        # In a container every start has the same pid: a process says each of these only once.
        again = other or words in self._seen or bool(words != FIRST_WORDS[-1] and self._seen)
        if again:
            self._seen = set()
        self._seen.add(words)
        self._pid = pid if pid is not None else self._pid
        return again


def last_start(records: list[Record]) -> list[Record]:
    """The records from the last start on (a log that a restart policy appended to)."""
    begin, starts = 0, Starts()
    for index, record in enumerate(records):
        if starts.first(record.message) and starts.again(record.message, record.pid):
            begin = index
    return records[begin:]


_SERVER = re.compile(r"Starting vLLM (?:API )?server(?: \d+)? on \S+?:(\d{1,5})\b")
_ENDED = re.compile(
    r"\[shutdown\]|Shutting down|Application shutdown|failed to start|Traceback|died unexpectedly"
)


def shared_port(records: Sequence[Record]) -> Cause | None:
    """Two servers on one port, none of which ended: possible up to 0.24 (SO_REUSEPORT)."""
    serving: dict[str, tuple[int | None, str]] = {}
    version: tuple[int, ...] | None = None
    for record in records:
        if "version" in record.message:
            found = statements(untagged(record.message)).get("version")
            digits = re.match(r"(\d{1,4})\.(\d{1,4})", found or "")
            version = (int(digits[1]), int(digits[2])) if digits else version
        if _ENDED.search(record.message):
            serving.clear()
        started = _SERVER.match(record.message)
        if started is None or not (record.process or "").startswith("APIServer"):
            continue
        before = serving.get(started[1])
        if (
            before is not None
            and before[0] != record.pid
            and (version is None or version < (0, 25))
        ):
            return Cause(
                "port_shared_silently",
                f"two servers (pids {before[0]} and {record.pid}) listen on port {started[1]} "
                "through SO_REUSEPORT and share its requests: stop one, or give it another port",
                record.message,
                (before[1],),
            )
        serving[started[1]] = (record.pid, record.message)
    return None
