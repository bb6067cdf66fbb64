"""The console on the real core, imported after the first paint so that it appears at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from engine_ctl.model import Snapshot


class LazyOperations:
    """`RealOperations`, made at the first call (which happens in a worker thread)."""

    @cached_property
    def _real(self) -> Any:
        from engine_ctl.operations.facade import RealOperations

        return RealOperations()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            return getattr(self._real, name)(*arguments, **named)

        return call


class LazyFeed:
    """The sampler, made when it is started (on a thread of the app's)."""

    def __init__(self) -> None:
        self._sampler: Any = None

    def start(self, callback: Callable[[Snapshot], None]) -> None:
        from engine_ctl.observe.sampler import Sampler
        from engine_ctl.operations.context import Context
        from engine_ctl.operations.runs import adopt_orphans
        from engine_ctl.operations.swapping import resume_in_background

        ctx = Context()
        adopt_orphans(ctx)
        resume_in_background(ctx)
        self._sampler = Sampler(ctx.dirs)
        self._sampler.start(callback)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
