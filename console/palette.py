"""The command palette's view of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from console import actions
from console.view.spans import clip

if TYPE_CHECKING:
    from console.app import StokerApp

_THEMES = "Change the colours of the console."
_KEY, _TITLE = 6, 15  # cells of a row's first parts
_ENTRIES = tuple(entry for entry in actions.ACTIONS if entry.id != "palette")


class Palette(CommandPalette):
    """Textual's, with a row for each action as in the help; it also stays up where the terminal
    has no line left for its list."""

    def __init__(self) -> None:
        super().__init__(placeholder="an action or a theme", id="--command-palette")

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except LookupError:  # a page of no lines
            return


class ActionProvider(Provider):
    """Every action that the selected unit allows now, and the themes. A search finds the others
    too, after these, with what stands against them."""

    async def discover(self) -> Hits:
        unit = self._stoker.shown_screen.unit
        for entry in (entry for entry in self._entries if actions.is_allowed(entry, unit)):
            row = self._row(entry.key, Content(entry.title), entry.help)
            yield DiscoveryHit(row, self._runner(entry.id), text=entry.title)
        row = self._row("", Content("theme"), _THEMES)
        yield DiscoveryHit(row, self.app.action_change_theme, text="theme")

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        unit = self._stoker.shown_screen.unit
        for entry in self._entries:
            score = max(matcher.match(entry.title), matcher.match(entry.help) * 0.6)
            if score > 0:
                text = entry.help
                if not actions.is_allowed(entry, unit):
                    score *= 0.5
                    why = actions.refusal(entry, unit) if unit else "select a unit first"
                    text = f"not now: {why}"
                row = self._row(entry.key, matcher.highlight(entry.title), text)
                yield Hit(score, row, self._runner(entry.id), text=entry.title)
        for theme in sorted(self.app.available_themes):
            score = matcher.match(f"theme {theme}")
            if score > 0:
                yield Hit(
                    score,
                    self._row("", matcher.highlight(f"theme {theme}"), ""),
                    lambda name=theme: setattr(self.app, "theme", name),
                    text=f"theme {theme}",
                )

    def _row(self, key: str, title: Content, help: str) -> Content:
        """Key, title and what it does, one line each."""
        title = title.pad_right(max(_TITLE - title.cell_length, 0))
        told = clip(help, self.app.size.width - _KEY - _TITLE - 8)
        return Content.assemble(
            (f"{key:<{_KEY}}", "$text-primary"), title, (f" {told}", "not bold")
        )

    @property
    def _entries(self) -> tuple[actions.Action, ...]:
        """Those of the screen first: they are why one is there."""
        return (*actions.of_screen(self._stoker.shown_screen.ACTION), *_ENTRIES)

    @property
    def _stoker(self) -> StokerApp:
        return cast("StokerApp", self.app)

    def _runner(self, id: str) -> Callable[[], None]:
        return lambda: self._stoker.flows.perform(id)
