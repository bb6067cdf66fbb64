"""The command palette's view of the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from console import actions

if TYPE_CHECKING:
    from console.app import StokerApp


class ActionProvider(Provider):
    """Every action that the selected unit allows now, and the themes."""

    async def discover(self) -> Hits:
        for entry in self._entries():
            yield DiscoveryHit(
                f"{entry.title}  [{entry.key}]".replace("[", "\\["),
                self._runner(entry.id),
                text=entry.title,
                help=entry.help,
            )

        yield DiscoveryHit(
            "theme", self.app.action_change_theme, help="Change the colours of the console."
        )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._entries():
            score = max(matcher.match(entry.title), matcher.match(entry.help) * 0.6)
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(entry.title),
                    self._runner(entry.id),
                    text=entry.title,
                    help=f"{entry.key}  {entry.help}",
                )
        for theme in sorted(self.app.available_themes):
            score = matcher.match(f"theme {theme}")
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(f"theme {theme}"),
                    lambda name=theme: setattr(self.app, "theme", name),
                    text=f"theme {theme}",
                    help="Change the colours.",
                )

    def _entries(self) -> list[actions.Action]:
        app = cast("StokerApp", self.app)
        unit = app.selected_unit
        return [e for e in actions.ACTIONS if e.id != "palette" and actions.is_allowed(e, unit)]

    def _runner(self, id: str) -> object:
        app = cast("StokerApp", self.app)
        return lambda: app.flows.perform(id)
