"""What an action is: one thing an operator can do, by key, palette, footer or command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine_ctl.model import UnitView

Predicate = Callable[[UnitView], bool]
Why = Callable[[UnitView], str | None]


def _always(unit: UnitView) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One thing an operator can do.

    `keys` is a comma-separated list in Textual's spelling, the first is shown; `title` is the
    footer's word; `help` one sentence; `command` the CLI sub-command; `scope` is `unit` (needs a
    selected unit for which `allowed` holds), `deck` (always), `app`, `log` (in a log only) or
    `screen` (on the one whose action is `screen` only);
    `rank` orders the footer, small first, None keeps it out of the footer. `why_not` says of a
    unit for which `allowed` does not hold what it lacks, where that is more than its phase."""

    id: str
    keys: str
    title: str
    help: str
    group: str
    scope: str = "deck"
    command: str | None = None
    allowed: Predicate = _always
    rank: int | None = None
    asks: bool = False
    why_not: Why | None = None
    screen: str = ""

    @property
    def key(self) -> str:
        """The first key as shown to an operator: `x`, `^p`, `?`."""
        name = self.keys.split(",")[0]
        if name.startswith("ctrl+"):
            return "^" + name.removeprefix("ctrl+")
        return _KEY_NAMES.get(name, name)


_KEY_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "ampersand": "&",
    "escape": "esc",
    "greater_than_sign": ">",
    "less_than_sign": "<",
}
