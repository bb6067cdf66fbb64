"""The console on the real core, imported after the first paint so that it appears at once.

What changes units runs as a `stoker` command of its own session: leaving the console, or its
death, never leaves a start or a swap half done.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from engine_ctl.model import Phase, Snapshot

if TYPE_CHECKING:
    from engine_ctl.answers import Fix

_ERRORS: dict[int, type[StokerError]] = {1: Failed, 2: Usage, 3: NotFound, 4: Busy}

ADOPT_EVERY_S = 10.0


def detached(*words: str) -> Any:
    """Run `stoker WORDS --json` in a session of its own and return its document.

    Raises the StokerError that its exit code and its line on stderr stand for."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "console.main", *words, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        text = lines[-1].removeprefix("stoker: ") if lines else f"exit code {done.returncode}"
        if isinstance(document, dict) and document.get("reason"):
            text = f"{document.get('outcome', 'failed')}: {document['reason']}"
        raise _ERRORS.get(done.returncode, Failed)(text)
    return document


def _first(document: Any) -> dict[str, Any]:
    units = document.get("units") if isinstance(document, dict) else None
    return units[0] if units else {}


def _seconds(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, (int, float)) else "–"


class ConsoleOperations:
    """The console's `Operations`: looks in this process, changes by commands of their own."""

    @cached_property
    def _here(self) -> Any:
        from engine_ctl.operations.facade import DirectOperations

        return DirectOperations()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            return getattr(self._here, name)(*arguments, **named)

        return call

    def start(self, unit: str) -> str:
        done = _first(detached("start", unit, "--no-wait"))
        return f"{done.get('run')} started on port {done.get('port')}"

    def stop(self, unit: str) -> str:
        done = _first(detached("stop", unit, "--yes"))
        if done.get("how") == "already":
            return f"{unit} was not running"
        return f"{done.get('run')} stopped in {_seconds(done.get('seconds'))}"

    def restart(self, unit: str) -> str:
        done = _first(detached("restart", unit, "--wait"))
        return f"{done.get('run')} ready in {_seconds(done.get('start_s'))}"

    def swap(self, unit: str, profile: str) -> str:
        done = detached("swap", unit, profile)
        return f"{unit} runs {done.get('to')} after {_seconds(done.get('seconds'))}"

    def undo(self, unit: str) -> str:
        done = detached("undo", unit, "--yes")
        return f"{unit} runs {done.get('to')} again after {_seconds(done.get('seconds'))}"

    def apply(self, unit: str, fixes: tuple[Fix, ...]) -> str:
        self._here.write_fixes(unit, fixes)
        return self.restart(unit)

    def preload_start(self, unit: str) -> str:
        return f"{detached('preload', 'start', unit, '--no-wait').get('run')} loads the weights"

    def preload_stop(self, unit: str) -> str:
        done = detached("preload", "stop", unit, "--yes")
        return f"{done.get('unit')} stopped in {_seconds(done.get('seconds'))}"

    def preload_reload(self, unit: str) -> str:
        done = detached("preload", "reload", unit, "--yes", "--no-wait")
        return f"{done.get('run')} loads the weights again"

    def bench(self, unit: str) -> str:
        done = detached("bench", unit)
        return f"{unit}: {_seconds(done.get('seconds'))}, {done.get('summary', 'measured')}"

    def lora_load(self, unit: str, name: str, path: str) -> str:
        return _live(unit, "lora", "load", name, path)

    def lora_unload(self, unit: str, name: str) -> str:
        return _live(unit, "lora", "unload", name)

    def reset_prefix_cache(self, unit: str) -> str:
        return _live(unit, "reset-prefix-cache")

    def sleep(self, unit: str, level: int) -> str:
        return _live(unit, "sleep", "--level", str(level), "--yes")

    def wake(self, unit: str) -> str:
        return _live(unit, "wake")


def _live(unit: str, *words: str) -> str:
    return f"{unit}: {detached('live', unit, *words).get('done')}"


class LazyFeed:
    """The sampler, made when it is started (on a thread of the app's). An engine whose shim died
    is given a new one as soon as it is seen; a run that is lost gets its event."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._tried_at = -ADOPT_EVERY_S
        self._lost: set[str | None] = set()

    def start(self, callback: Callable[[Snapshot], None]) -> None:
        from engine_ctl.observe.sampler import Sampler
        from engine_ctl.operations.context import Context
        from engine_ctl.operations.resuming import resume_in_background
        from engine_ctl.operations.runs import adopt_orphans

        ctx = Context()
        adopt_orphans(ctx)
        resume_in_background(ctx)

        def seen(snapshot: Snapshot) -> None:
            callback(snapshot)
            orphaned = any(u.owed or u.phase is Phase.ORPHANED for u in snapshot.units)
            lost = {unit.run for unit in snapshot.units if unit.phase is Phase.LOST} - self._lost
            if (orphaned or lost) and time.monotonic() - self._tried_at >= ADOPT_EVERY_S:
                self._tried_at = time.monotonic()
                self._lost |= lost
                threading.Thread(
                    target=lambda: adopt_orphans(ctx), name="adopt", daemon=True
                ).start()

        self._sampler = Sampler(ctx.dirs)
        self._sampler.start(seen)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
