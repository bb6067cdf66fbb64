"""Opening the console: the app on the real operations and the real sampler."""

from __future__ import annotations


def open_console(unit: str | None = None) -> None:
    """Run the app until the operator leaves. Stops nothing."""
    from console.app import StokerApp
    from console.wiring import ConsoleOperations, LazyFeed

    StokerApp(ConsoleOperations(), LazyFeed(), select=unit).run()
