"""Holds the processes behind weight-cache sockets, so that their end is known when it happens.

A pidfd and no connection: vLLM's daemon serves one client at a time and waits for what it says, so
that a silent one would hold up every engine; and a `watch` request is pickle, which only the
runtime speaks.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection
from dataclasses import dataclass

from engine_ctl import identity
from engine_ctl.weights import sockets


@dataclass(frozen=True, slots=True)
class Held:
    """`who` serves a run's socket; `fd` is a pidfd of that process."""

    who: identity.Identity
    fd: int


class RankWatch:
    """The servers of the sockets of each run, as they were when first seen. One thread owns it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}
        self._gone: set[tuple[str, str]] = set()

    def fds(self) -> tuple[int, ...]:
        """Readable once one of the processes has ended, until the next `settle`."""
        return tuple(held.fd for held in self._held.values())

    def settle(self) -> None:
        """Note who has ended."""
        if not self._held:
            return
        poll = select.poll()
        for held in self._held.values():
            poll.register(held.fd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        for key in [key for key, held in self._held.items() if held.fd in ended]:
            self._gone.add(key)
            os.close(self._held.pop(key).fd)

    def keep(self, runs: Collection[str]) -> None:
        """Forget all runs but these."""
        for key in [key for key in self._held if key[0] not in runs]:
            os.close(self._held.pop(key).fd)
        self._gone = {key for key in self._gone if key[0] in runs}

    def follow(self, run: str, path: str, before: int | None = None) -> bool:
        """Hold the process that serves `path` for `run`. False when the one that did has ended.

        `before`: clock ticks since boot; one that began later is not the one that is meant."""
        key = (run, path)
        if key in self._gone:
            return False
        if key in self._held:
            return True
        pid = sockets.look(path, strict=False).lock_pid
        who = identity.identify(pid) if pid else None
        if who is None:
            return True
        if before is not None and who.start_ticks > before:
            self._gone.add(key)
            return False
        fd = identity.open_pidfd(who)
        if fd is not None:
            self._held[key] = Held(who, fd)
        return True

    def close(self) -> None:
        for held in self._held.values():
            os.close(held.fd)
        self._held.clear()
