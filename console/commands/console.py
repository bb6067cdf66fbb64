"""Opening the console: the app on the real operations and the real sampler."""

from __future__ import annotations

import os
import sys

from engine_ctl.errors import Usage


def unable() -> str | None:
    """Why no console can be drawn here; None where it can."""
    terminals = [stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)]
    if not all(terminals):
        return "the console needs a terminal; see: stoker --help"
    if sys.stderr is None or not sys.stderr.isatty():
        return "the console is drawn on standard error, which goes elsewhere; run it without 2>"
    if os.environ.get("TERM") == "dumb":
        return "the console needs a terminal that can draw (TERM is dumb); use: stoker ps"
    if "utf" not in sys.stdout.encoding.lower():
        return (
            f"the console needs UTF-8 (this is {sys.stdout.encoding}); try: LC_ALL=C.UTF-8 stoker"
        )
    return None


def open_console(unit: str | None = None) -> None:
    """Run the app until the operator leaves. Stops nothing. Raises Usage where it cannot be
    drawn, NotFound for a unit that is not there."""
    problem = unable()
    if problem is not None:
        raise Usage(problem)
    if unit is not None:
        from engine_ctl.operations.context import Context

        store = Context().store
        if not store.unit_dir(unit).is_dir():
            raise store.missing(unit)
    from console import theme
    from console.app import StokerApp
    from console.wiring import ConsoleOperations, LazyFeed

    chosen = theme.remembered()
    app = StokerApp(
        ConsoleOperations(), LazyFeed(), select=unit, theme=chosen, theme_chosen=theme.remember
    )
    app.run()
