"""A run that is for another process, and of no use to anybody when that has ended: a bench, whose
results only its own command reads.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import select

from engine_ctl.supervise import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Tie:
    """Wakes `poll` when the process of the identity record ends; a record of None never does."""

    def __init__(self, record: dict[str, Any] | None, poll: select.poll) -> None:
        self._record = record
        self._poll = poll
        self._fd = -1
        if record is not None:
            try:
                self._fd = os.pidfd_open(record["pid"])
                poll.register(self._fd, select.POLLIN)
            except OSError:
                pass  # it has ended already, or `broken` sees it at the next look

    def broken(self) -> int | None:
        """The pid of the process once it has ended: once, then None again."""
        if self._record is None:
            return None
        pid: int = self._record["pid"]
        now = procs.look(pid)
        if procs.find(self._record, {} if now is None else {pid: now}, procs.boot_id()):
            return None
        self._record = None
        if self._fd >= 0:
            self._poll.unregister(self._fd)
            os.close(self._fd)
        return pid
