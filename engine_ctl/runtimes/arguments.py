"""The argument schema of a runtime: read from vLLM's own parser once per version, then kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

from engine_ctl.errors import StokerError
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.probe import clean_environment
from engine_ctl.runtimes.store import Runtime
from profiles.schema import ArgumentSchema, from_dump, load_cached, store


def known(dirs: Dirs, runtime: Runtime) -> bool:
    return load_cached(dirs.cache, runtime.version) is not None


def read(dirs: Dirs, runtime: Runtime) -> ArgumentSchema:
    """Ask the runtime itself (10 s for its imports) and keep the answer. Raises Failed."""
    from engine_ctl.standby.client import once

    dump = once(runtime.python, "schema", clean_environment(runtime.environment()))
    return keep(dirs, runtime, dump)


def keep(dirs: Dirs, runtime: Runtime, dump: dict[str, object]) -> ArgumentSchema:
    """Keep what a standby or a one-shot probe answered to `schema`."""
    schema = from_dump(dump, runtime.version)
    with contextlib.suppress(OSError):
        store(dirs.cache, schema)
    return schema


def learn(dirs: Dirs, runtime: Runtime, socket: Path | None = None) -> None:
    """Make sure that the schema is kept, from a standby where one listens. Never raises: the
    shipped schema of the nearest version stands in."""
    if known(dirs, runtime):
        return
    from engine_ctl.standby.client import Client

    with contextlib.suppress(StokerError):
        if socket is None:
            read(dirs, runtime)
            return
        with Client(socket) as asked:
            keep(dirs, runtime, asked.schema())
