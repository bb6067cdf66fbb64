"""Several starts in one log: a restart policy that appends, or two servers that share a port."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine_ctl.logs.facts import statements, untagged
from engine_ctl.logs.lines import Record
from engine_ctl.model import Cause

_FIRST_WORDS = ("vLLM server version", "vLLM API server version", "non-default args: ")
"""What a start says first, in order."""


def last_start(records: list[Record]) -> list[Record]:
    """The records from the last start on (a log that a restart policy appended to)."""
    begin, pid = 0, None
    seen: set[str] = set()
    for index, record in enumerate(records):
        words = next((each for each in _FIRST_WORDS if record.message.startswith(each)), None)
        if words is None:
            continue
        other = pid is not None and record.pid is not None and record.pid != pid
        # In a container every start has the same pid: a process says each of these only once.
        if other or words in seen or (words != _FIRST_WORDS[-1] and seen):
            begin, seen = index, set()
        seen.add(words)
        pid = record.pid if record.pid is not None else pid
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
