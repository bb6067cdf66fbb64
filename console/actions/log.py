"""Keys of the log view: they hold there, before those of the app."""

from __future__ import annotations

from functools import partial

from console.actions.action import Action

_log = partial(Action, group="Log", scope="log")

LOG: tuple[Action, ...] = (
    _log(
        "log_search",
        "slash",
        "search",
        "Search the whole log as you type; ^r takes an expression, ^t matches case.",
        rank=70,
    ),
    _log("log_next", "n", "next", "The next line that matches.", rank=71),
    _log("log_previous", "N", "previous", "The match before.", rank=72),
    _log(
        "log_matches",
        "ampersand",
        "only matches",
        "Show only lines that match, or all again.",
        rank=81,
    ),
    _log("log_follow", "f", "follow", "Follow the end of the log, or stay where you are.", rank=73),
    _log(
        "log_error",
        "e",
        "first error",
        "Go to the root cause of the failure, else to the first error.",
        rank=74,
    ),
    _log("log_all", "1", "all", "Every line: drops level, process, phase and matches.", rank=75),
    _log("log_info", "2", "info", "INFO and above."),
    _log("log_warnings", "3", "warnings", "Warnings and errors.", rank=76),
    _log("log_errors", "4", "errors", "Errors only.", rank=77),
    _log("log_process", "p", "process", "Choose processes by name.", rank=78),
    _log("log_phase", "P", "phase", "Only the lines that one phase of the start wrote.", rank=82),
    _log(
        "log_fold",
        "z",
        "fold",
        "Fold repeated lines, the route list and records of many lines; enter opens one.",
        rank=79,
    ),
    _log(
        "log_wrap",
        "w",
        "wrap",
        "Wrap long lines; unwrapped, left and right move along them.",
        rank=80,
    ),
    _log(
        "log_written",
        "t",
        "as written",
        "Show lines as they were written, without columns.",
        rank=87,
    ),
    _log(
        "log_run_before",
        "left_curly_bracket",
        "start before",
        "The start before: in this log where it holds several, else the unit's run before.",
        rank=83,
    ),
    _log(
        "log_run_after",
        "right_curly_bracket",
        "start after",
        "The next start: in this log where it holds several, else the unit's next run.",
        rank=84,
    ),
    _log("log_merge", "m", "merge", "Choose units whose logs to read merged by time.", rank=85),
    _log("log_open", "o", "open a file", "Read another log file of this machine.", rank=88),
    _log("log_mark", "v", "mark", "Mark lines from here on; the mouse marks by dragging.", rank=86),
    _log(
        "log_copy",
        "y",
        "copy",
        "Copy what is marked, else this line, to the terminal's clipboard and a file.",
        rank=86,
    ),
)
