"""What every operation needs at hand: directories, state, profiles, runtimes, and who asks."""

from __future__ import annotations

import getpass
import os
from functools import cached_property
from typing import TYPE_CHECKING

from engine_ctl.errors import NotFound
from engine_ctl.model import Event
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime, RuntimeStore, choose
from engine_ctl.state import events
from engine_ctl.state.store import Store

if TYPE_CHECKING:
    from profiles.loading import ProfileStore, Resolved
    from profiles.model import Profile
    from profiles.schema import ArgumentSchema


def who() -> str:
    """The operator's name for records and events."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


class Context:
    """One per process. `by` goes into every record and event."""

    def __init__(self, dirs: Dirs | None = None, by: str | None = None) -> None:
        self.dirs = dirs or Dirs.from_env()
        self.by = by or who()

    @cached_property
    def store(self) -> Store:
        return Store(self.dirs)

    @cached_property
    def profiles(self) -> ProfileStore:
        from profiles.loading import ProfileStore

        return ProfileStore(self.dirs.profiles)

    @cached_property
    def runtimes(self) -> RuntimeStore:
        return RuntimeStore(self.dirs)

    def runtime_for(self, resolved: Resolved) -> Runtime:
        """The runtime that the profile means. Raises NotFound with what there is, or with what
        could be added: a vLLM beside Stoker or on PATH."""
        known = self.runtimes.all()[0]
        if not known:
            from engine_ctl.runtimes.manage import offer

            found = offer(self.dirs)
            if found is not None:
                raise NotFound(
                    f"there is no vLLM runtime yet, but {found[1]}; "
                    f"run: stoker runtime add {found[0]}"
                )
        return choose(known, resolved.profile.runtime)

    def schema_for(self, runtime: Runtime | None) -> ArgumentSchema:
        """The arguments of that runtime: as read from it, else as shipped for the nearest."""
        from profiles.schema import for_version

        version = runtime.version if runtime else None
        return for_version(version, self.dirs.cache)

    def concrete(self, profile: Profile, *, reload: bool = False) -> Profile:
        """The profile as it would be run now: references filled in, its socket directory named
        (`reload`: whatever a daemon that runs has). Raises Usage for a variable that is not set."""
        from engine_ctl.weights.socket_dir import concrete

        return concrete(self.store, profile, os.environ, reload=reload)

    def event(self, unit: str | None, text: str, severity: str = "info") -> Event:
        """Record something that happened; never fails an operation."""
        return events.record(self.dirs, unit, text, severity=severity, by=self.by)
