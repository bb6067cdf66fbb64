"""A card over the screen: lines in a box, keys of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from console.view.spans import Item, Line, Span, clip_line, width
from console.widgets.lines import Lines
from console.widgets.meanings import CLASSES

Answer = TypeVar("Answer")
LEAVES, LEAVES_SHORT = " leave everything as it is", " leave"
_KEYS = {"esc": "escape"}


def key_spans(key: str, text: str) -> tuple[Span, Span]:
    """A key of a card and what it does; a click on it presses it."""
    press = f"key:{_KEYS.get(key, key)}"
    return Span(key, "key", press), Span(f" {text}   ", "", press)


class CardScreen(ModalScreen[Answer]):
    """A modal whose content is one `Lines` widget sized to what it shows."""

    COMPONENT_CLASSES: ClassVar[set[str]] = CLASSES
    CURSOR: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "scroll_content(1)", show=False),
        Binding("up", "scroll_content(-1)", show=False),
        Binding("pagedown,space", "scroll_content(10)", show=False),
        Binding("pageup", "scroll_content(-10)", show=False),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(id="card"):
            yield Lines(id="content", cursor=self.CURSOR)
            yield Lines(id="keys")

    @property
    def room(self) -> int:
        """Cells that a line may take."""
        return max(min(self.app.size.width - 10, 110), 20)

    def put(
        self, content: Sequence[Line] | Sequence[Item], least: int = 0, keys: Line = ()
    ) -> None:
        """Show lines or items, the card as wide as the widest of them. `keys` stay in sight below
        the content, however long it is."""
        if keys:
            keys = (*keys[:-1], keys[-1]._replace(text=keys[-1].text.rstrip()))
        items = [entry if isinstance(entry, Item) else Item(None, (entry,)) for entry in content]
        cut = [Item(i.key, tuple(clip_line(s, self.room) for s in i.lines)) for i in items]
        widget = self.query_one("#content", Lines)
        widest = max((width(s) for i in cut for s in i.lines), default=0)
        widest = max(widest, width(keys))
        widget.styles.width = max(widest + 1, least)
        below = 2 if keys else 0
        widget.styles.max_height = max(self.app.size.height * 96 // 100 - 2 - below, 1)
        widget.set_items(cut)
        foot = self.query_one("#keys", Lines)
        foot.display = bool(keys)
        foot.styles.width = widget.styles.width
        foot.set_items([Item(None, ((), clip_line(keys, self.room)))] if keys else [])

    def action_scroll_content(self, rows: int) -> None:
        self.query_one("#content", Lines).scroll_relative(y=rows, animate=False)
