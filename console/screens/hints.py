"""All hints of a unit in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from console.screens.base import DetailScreen
from console.view.spans import Item, Span, clean, line, wrap
from engine_ctl.model import Snapshot, UnitView


class HintsScreen(DetailScreen):
    """Hints come from the snapshot: rules over the engine's own figures."""

    ACTION: ClassVar[str] = "hints"
    NAME: ClassVar[str] = "hints"
    PER_UNIT: ClassVar[bool] = True

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        hints = unit.hints if unit else ()
        if not hints:
            return [Item(None, ((), line(Span("  Nothing to say: no rule applies.", "ok"))))]
        found: list[Item] = []
        for hint in hints:
            first, *rest = wrap(clean(hint), max(cells - 6, 20))
            lines = [line(Span("  · ", "info"), Span(first))]
            lines += [line(Span("    " + text)) for text in rest]
            found.append(Item(None, ((), *lines)))
        return found
