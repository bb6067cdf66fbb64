"""One registry of actions: keys, footer, palette, help and the CLI's sub-command help.

Imported by the command line, so it imports nothing heavy (no Textual).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine_ctl.model import ENDED, STARTING, Kind, Phase, UnitView, Verdict

__all__ = [
    "ACTIONS",
    "LOG_ACTIONS",
    "Action",
    "action",
    "allowed_now",
    "for_command",
    "groups",
    "is_allowed",
]

Predicate = Callable[[UnitView], bool]


def _always(unit: UnitView) -> bool:
    return True


def _stopped(unit: UnitView) -> bool:
    return unit.phase is None or unit.phase in ENDED


def _running(unit: UnitView) -> bool:
    return not _stopped(unit)


def _serves(unit: UnitView) -> bool:
    return unit.kind is Kind.ENGINE and unit.phase is Phase.READY


def _startable(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD, Kind.FRONT) and _stopped(unit)


def _stoppable(unit: UnitView) -> bool:
    return _running(unit) and unit.phase is not Phase.STOPPING


def _restartable(unit: UnitView) -> bool:
    return _stoppable(unit) and unit.kind in (Kind.ENGINE, Kind.PRELOAD)


def _forecastable(unit: UnitView) -> bool:
    """Engines, and daemons: the forecast of theirs is that of the engine that maps them."""
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD)


def _engine(unit: UnitView) -> bool:
    return unit.kind is Kind.ENGINE


def _tunable(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.BENCH)


def _has_run(unit: UnitView) -> bool:
    return unit.run is not None


def _explainable(unit: UnitView) -> bool:
    ended = unit.phase in (Phase.FAILED, Phase.LOST, Phase.EXITED)
    return ended or unit.cause is not None or unit.verdict is Verdict.FALLBACK


def _has_start(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD) and unit.run is not None


def _has_load(unit: UnitView) -> bool:
    return _engine(unit) and unit.phase in (Phase.READY, Phase.SLEEPING, Phase.DRAINING)


def _has_kernels(unit: UnitView) -> bool:
    return _engine(unit) and unit.phase is not None and unit.phase not in STARTING[:2]


def _daemon(unit: UnitView) -> bool:
    return unit.kind is Kind.PRELOAD and _running(unit)


def _forgettable(unit: UnitView) -> bool:
    if unit.kind is Kind.STANDBY:  # one that ended as it should goes by itself
        return unit.phase in (Phase.FAILED, Phase.LOST)
    return _stopped(unit)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing an operator can do.

    `keys` is a comma-separated list in Textual's spelling, the first is shown; `title` is the
    footer's word; `help` one sentence; `command` the CLI sub-command; `scope` is `unit` (needs a
    selected unit for which `allowed` holds), `deck` (always), `app` or `log` (in a log only);
    `rank` orders the footer, small first, None keeps it out of the footer."""

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
}

ACTIONS: tuple[Action, ...] = (
    Action(
        "start",
        "s",
        "start",
        "Start the unit with its profile file as it is now.",
        "Run",
        "unit",
        "start",
        _startable,
        10,
    ),
    Action(
        "stop",
        "x",
        "stop",
        "Stop the unit: drain, ask, ask again, then kill; verified, and asked about first.",
        "Run",
        "unit",
        "stop",
        _stoppable,
        11,
        asks=True,
    ),
    Action(
        "restart",
        "r",
        "restart",
        "Restart with the file as it is now; if it fails, the last good profile comes back.",
        "Run",
        "unit",
        "restart",
        _restartable,
        12,
    ),
    Action(
        "swap",
        "S",
        "swap",
        "Replace the engine by one with another profile: choose it, see the forecast, enter.",
        "Run",
        "unit",
        "swap",
        _engine,
        13,
        asks=True,
    ),
    Action(
        "undo",
        "u",
        "undo",
        "Swap back to the profile that ran before this one.",
        "Run",
        "unit",
        "undo",
        _engine,
        24,
        asks=True,
    ),
    Action(
        "bench",
        "b",
        "bench",
        "Run the profile's benchmark against the running engine.",
        "Run",
        "unit",
        "bench",
        _serves,
        30,
        asks=True,
    ),
    Action(
        "remove",
        "D",
        "remove",
        "Forget a stopped unit, with its runs and logs.",
        "Run",
        "unit",
        "remove",
        _forgettable,
        60,
        asks=True,
    ),
    Action(
        "reload",
        "R",
        "reload",
        "Load a preload daemon's weights again, because its files or fingerprint changed.",
        "Weights",
        "unit",
        None,
        _daemon,
        14,
        asks=True,
    ),
    Action(
        "release",
        "E",
        "release",
        "Give a preload daemon's weights back to the GPU without ending the daemon.",
        "Weights",
        "unit",
        None,
        _daemon,
        15,
        asks=True,
    ),
    Action(
        "reap",
        "o",
        "reap",
        "End orphaned processes that hold GPU memory, after checking who they are.",
        "Run",
        "deck",
        "reap",
        rank=None,
        asks=True,
    ),
    Action(
        "new",
        "n",
        "new",
        "Make a new unit from a profile.",
        "Run",
        "deck",
        None,
        rank=55,
    ),
    Action(
        "why",
        "y",
        "why",
        "Why it failed or fell back: the cause, the line, and the knob to turn.",
        "Look",
        "unit",
        "why",
        _explainable,
        5,
    ),
    Action(
        "forecast",
        "f",
        "forecast",
        "What a start would meet now: weights verdict, seconds, memory, errors. Touches nothing.",
        "Look",
        "unit",
        "forecast",
        _forecastable,
        20,
    ),
    Action(
        "log",
        "l",
        "log",
        "The unit's whole log: follow, search, filter.",
        "Look",
        "unit",
        "logs",
        _has_run,
        21,
    ),
    Action(
        "queues",
        "Q",
        "queues",
        "Scheduler queues per engine and rank, with an hour of history.",
        "Look",
        "unit",
        "queues",
        _has_load,
        22,
    ),
    Action(
        "kernels",
        "k",
        "kernels",
        "What runs underneath: attention, MoE, linear, all-reduce, fusions, graphs.",
        "Look",
        "unit",
        "kernels",
        _has_kernels,
        33,
    ),
    Action(
        "starts",
        "W",
        "starts",
        "Every start as a waterfall of phases, beside the best one.",
        "Look",
        "unit",
        "phases",
        _has_start,
        32,
    ),
    Action(
        "tune",
        "t",
        "tune",
        "The points of a sweep, or benches, side by side: best, noise, goal, charts.",
        "Look",
        "unit",
        "compare",
        _tunable,
        56,
    ),
    Action(
        "hints",
        "h",
        "hints",
        "All hints for the unit, in plain words.",
        "Look",
        "unit",
        None,
        lambda unit: bool(unit.hints),
        None,
    ),
    Action(
        "ledger",
        "g",
        "memory",
        "The memory ledger: who holds what on each GPU, and on the host.",
        "Look",
        "deck",
        "memory",
        rank=40,
    ),
    Action(
        "weights",
        "w",
        "weights",
        "Preload daemons: ranks, sockets, fingerprints, clients, verdicts.",
        "Look",
        "deck",
        "weights",
        rank=41,
    ),
    Action(
        "profiles",
        "p",
        "profiles",
        "Profiles: list, provenance, difference with costs, lint, edit.",
        "Look",
        "deck",
        "profile",
        rank=42,
    ),
    Action(
        "events",
        "e",
        "events",
        "What happened and who did it.",
        "Look",
        "deck",
        "events",
        rank=43,
    ),
    Action(
        "next_unit",
        "right_square_bracket",
        "next unit",
        "On a detail screen: the same for the next unit.",
        "Move",
        "deck",
    ),
    Action(
        "previous_unit",
        "left_square_bracket",
        "previous unit",
        "On a detail screen: the same for the previous unit.",
        "Move",
        "deck",
    ),
    Action(
        "filter",
        "slash",
        "filter",
        "Show only lines that contain a word; an empty word shows all.",
        "Move",
        "deck",
    ),
    Action(
        "back",
        "escape",
        "back",
        "Back to the deck; drops a filter first.",
        "Move",
        "deck",
    ),
    Action(
        "help",
        "question_mark,f1",
        "help",
        "Keys, words and signs.",
        "Stoker",
        "app",
        None,
        rank=90,
    ),
    Action(
        "palette",
        "ctrl+p",
        "palette",
        "Every action and theme by name.",
        "Stoker",
        "app",
        None,
        rank=91,
    ),
    Action(
        "leave",
        "q",
        "leave",
        "Leave the console. Engines keep running; nothing is stopped.",
        "Stoker",
        "app",
        None,
        rank=92,
    ),
)

LOG_ACTIONS: tuple[Action, ...] = (
    Action(
        "log_search",
        "slash",
        "search",
        "Search the whole log as you type; ^r takes an expression, ^t matches case.",
        "Log",
        "log",
        rank=70,
    ),
    Action(
        "log_next",
        "n",
        "next",
        "The next line that matches.",
        "Log",
        "log",
        rank=71,
    ),
    Action(
        "log_previous",
        "N",
        "previous",
        "The match before.",
        "Log",
        "log",
        rank=72,
    ),
    Action(
        "log_matches",
        "ampersand",
        "only matches",
        "Show only lines that match, or all again.",
        "Log",
        "log",
        rank=81,
    ),
    Action(
        "log_follow",
        "f",
        "follow",
        "Follow the end of the log, or stay where you are.",
        "Log",
        "log",
        rank=73,
    ),
    Action(
        "log_error",
        "e",
        "first error",
        "Go to the root cause of the failure, else to the first error.",
        "Log",
        "log",
        rank=74,
    ),
    Action(
        "log_all",
        "1",
        "all",
        "Every line: drops level, process, phase and matches.",
        "Log",
        "log",
        rank=75,
    ),
    Action(
        "log_info",
        "2",
        "info",
        "INFO and above.",
        "Log",
        "log",
        rank=None,
    ),
    Action(
        "log_warnings",
        "3",
        "warnings",
        "Warnings and errors.",
        "Log",
        "log",
        rank=76,
    ),
    Action(
        "log_errors",
        "4",
        "errors",
        "Errors only.",
        "Log",
        "log",
        rank=77,
    ),
    Action(
        "log_process",
        "p",
        "process",
        "Choose processes by name.",
        "Log",
        "log",
        rank=78,
    ),
    Action(
        "log_phase",
        "P",
        "phase",
        "Only the lines that one phase of the start wrote.",
        "Log",
        "log",
        rank=82,
    ),
    Action(
        "log_fold",
        "z",
        "fold",
        "Fold repeated lines, the route list and records of many lines; enter opens one.",
        "Log",
        "log",
        rank=79,
    ),
    Action(
        "log_wrap",
        "w",
        "wrap",
        "Wrap long lines; unwrapped, left and right move along them.",
        "Log",
        "log",
        rank=80,
    ),
    Action(
        "log_written",
        "t",
        "as written",
        "Show lines as they were written, without columns.",
        "Log",
        "log",
        rank=87,
    ),
    Action(
        "log_run_before",
        "left_curly_bracket",
        "run before",
        "The log of the unit's run before.",
        "Log",
        "log",
        rank=83,
    ),
    Action(
        "log_run_after",
        "right_curly_bracket",
        "run after",
        "The log of the unit's next run.",
        "Log",
        "log",
        rank=84,
    ),
    Action(
        "log_merge",
        "m",
        "merge",
        "Choose units whose logs to read merged by time.",
        "Log",
        "log",
        rank=85,
    ),
    Action(
        "log_mark",
        "v",
        "mark",
        "Mark lines from here on; the mouse marks by dragging.",
        "Log",
        "log",
        rank=86,
    ),
    Action(
        "log_copy",
        "y",
        "copy",
        "Copy what is marked, else this line, to the terminal's clipboard.",
        "Log",
        "log",
        rank=86,
    ),
)
"""Keys of the log view: they hold there, before those of the app."""

_BY_ID = {entry.id: entry for entry in (*ACTIONS, *LOG_ACTIONS)}


def action(id: str) -> Action:
    """The action with that id. Raises KeyError."""
    return _BY_ID[id]


def groups() -> dict[str, tuple[Action, ...]]:
    """Actions by group, in the registry's order (for help and the palette)."""
    found: dict[str, list[Action]] = {}
    for entry in (*ACTIONS, *LOG_ACTIONS):
        found.setdefault(entry.group, []).append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def is_allowed(entry: Action, unit: UnitView | None) -> bool:
    """Whether the action makes sense for the selected unit (None: nothing is selected)."""
    if entry.scope != "unit":
        return True
    return unit is not None and entry.allowed(unit)


def allowed_now(unit: UnitView | None) -> tuple[Action, ...]:
    """The footer: ranked actions that the selected unit allows now."""
    ranked = [entry for entry in ACTIONS if entry.rank is not None and is_allowed(entry, unit)]
    return tuple(sorted(ranked, key=lambda entry: entry.rank or 0))


def for_command(command: str) -> Action | None:
    """The action behind a CLI sub-command, for its help sentence."""
    return next((entry for entry in ACTIONS if entry.command == command), None)
