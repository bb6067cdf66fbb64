"""Actions that show something, move about, or concern the console itself."""

from __future__ import annotations

from functools import partial

from console.actions import conditions as when
from console.actions.action import Action

_unit = partial(Action, group="Look", scope="unit")
_deck = partial(Action, group="Look")
_move = partial(Action, group="Move")
_app = partial(Action, group="Stoker", scope="app")

LOOK: tuple[Action, ...] = (
    _unit(
        "why",
        "y",
        "why",
        "Why it failed or fell back: the cause, the line, and the knob to turn.",
        command="why",
        allowed=when.explainable,
        rank=5,
        why_not=when.said("nothing to explain: the last run did not fail or fall back"),
    ),
    _unit(
        "forecast",
        "f",
        "forecast",
        "What a start would meet now: weights verdict, seconds, memory, errors. Touches nothing.",
        command="forecast",
        allowed=when.forecastable,
        rank=20,
    ),
    _unit(
        "log",
        "l",
        "log",
        "The unit's whole log: follow, search, filter.",
        command="logs",
        allowed=when.has_run,
        rank=21,
        why_not=when.said("no log yet: it was never started"),
    ),
    _unit(
        "queues",
        "Q",
        "queues",
        "Scheduler queues per engine and rank, with an hour of history.",
        command="queues",
        allowed=when.has_load,
        rank=22,
    ),
    _unit(
        "kernels",
        "k",
        "kernels",
        "What runs underneath: attention, MoE, linear, all-reduce, fusions, graphs.",
        command="kernels",
        allowed=when.has_kernels,
        rank=33,
    ),
    _unit(
        "starts",
        "W",
        "starts",
        "Every start as a waterfall of phases, beside the best one.",
        command="phases",
        allowed=when.has_start,
        rank=32,
        why_not=when.said("no start yet"),
    ),
    _unit(
        "tune",
        "t",
        "tune",
        "The points of a sweep, or benches, side by side: best, noise, goal, charts.",
        command="compare",
        allowed=when.tunable,
        rank=31,
    ),
    _unit(
        "hints",
        "h",
        "hints",
        "All hints for the unit, in plain words.",
        allowed=when.has_hints,
        why_not=when.said("no hints: nothing noticed that could be better"),
    ),
    _deck(
        "ledger",
        "g",
        "memory",
        "The memory ledger: who holds what on each GPU, and on the host.",
        command="memory",
        rank=40,
    ),
    _deck(
        "weights",
        "w",
        "weights",
        "Preload daemons: ranks, sockets, fingerprints, clients, verdicts.",
        command="weights",
        rank=41,
    ),
    _deck(
        "profiles",
        "p",
        "profiles",
        "Profiles: list, provenance, difference with costs, lint, edit.",
        command="profile",
        rank=42,
    ),
    _deck("events", "e", "events", "What happened and who did it.", command="events", rank=43),
)

MOVE: tuple[Action, ...] = (
    _move(
        "next_unit",
        "right_square_bracket",
        "next unit",
        "On a detail screen: the same for the next unit.",
    ),
    _move(
        "previous_unit",
        "left_square_bracket",
        "previous unit",
        "On a detail screen: the same for the previous unit.",
    ),
    _move(
        "sort",
        "greater_than_sign",
        "sort",
        "On the deck: sort the units by the next column; a click on a title does that too.",
    ),
    _move("sort_back", "less_than_sign", "sort back", "On the deck: by the column before."),
    _move(
        "filter",
        "slash",
        "filter",
        "Show only lines that contain a word; an empty word shows all.",
    ),
    _move("back", "escape", "back", "Back to the deck; drops a filter first."),
)

STOKER: tuple[Action, ...] = (
    _app("help", "question_mark,f1", "help", "Keys, words and signs.", rank=90),
    _app("palette", "ctrl+p", "palette", "Every action and theme by name.", rank=91),
    _app(
        "leave",
        "q",
        "leave",
        "Leave the console. Engines keep running; nothing is stopped.",
        rank=92,
    ),
)
