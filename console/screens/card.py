"""A card over the screen: lines in a box, keys of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from console.view.spans import Item, Line, clip_line, width
from console.widgets.lines import Lines
from console.widgets.meanings import CLASSES

Answer = TypeVar("Answer")


class CardScreen(ModalScreen[Answer]):
    """A modal whose content is one `Lines` widget sized to what it shows."""

    COMPONENT_CLASSES: ClassVar[set[str]] = CLASSES
    CURSOR: ClassVar[bool] = False

    def compose(self) -> ComposeResult:
        with Vertical(id="card"):
            yield Lines(id="content", cursor=self.CURSOR)

    @property
    def room(self) -> int:
        """Cells that a line may take."""
        return max(min(self.app.size.width - 10, 110), 20)

    def put(self, content: Sequence[Line] | Sequence[Item], least: int = 0) -> None:
        """Show lines or items, the card as wide as the widest of them."""
        items = [entry if isinstance(entry, Item) else Item(None, (entry,)) for entry in content]
        cut = [Item(i.key, tuple(clip_line(s, self.room) for s in i.lines)) for i in items]
        widget = self.query_one("#content", Lines)
        widest = max((width(s) for i in cut for s in i.lines), default=0)
        widget.styles.width = max(widest + 1, least)
        widget.set_items(cut)
