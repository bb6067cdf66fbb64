"""Which events are meant: by unit, kind, level, who, time and words. Pure but for the clock."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from engine_ctl.errors import Usage
from engine_ctl.model import Event

LEVELS = ("info", "warning", "error")

# The first pattern that is found names the kind.
_KINDS: tuple[tuple[str, str], ...] = (
    ("sweep", r"^sweep "),
    ("bench", r"^bench "),
    ("live", r"^live |adapter|prefix cache|\b(?:sleeps|asleep|awake|woke)\b"),
    ("swap", r"^(?:swap|undo|restart)\S*(?: to |: | failed|$)|^went back to |interrupted "),
    ("swap", r"^swapped |restarting instead$"),
    ("adopt", r"^adopted |goes on under a new shim"),
    ("reap", r"^reaped "),
    ("prune", r"^forgot "),
    ("fallback", r"fell back|from disk|fallback"),
    ("restart", r"is started again as "),
    ("failure", r"\bfail(?:ed|s)\b|could not be started|restarts are used up| is lost: "),
    ("weights", r"\bweights\b|^preload |daemon"),
    ("stop", r"^(?:stopped|ended|removed)\b"),
    ("start", r"^started\b|^ready\b|is not ready"),
    ("profile", r" → "),
)
KINDS = (*dict.fromkeys(name for name, _ in _KINDS), "other")
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _KINDS)


def kind_of(event: Event) -> str:
    """What sort of thing happened: one of `KINDS`."""
    text = event.text
    return next((name for name, pattern in _COMPILED if pattern.search(text)), "other")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Every condition must hold; within one, any value does. Times are wall-clock seconds.

    `levels` are exact; `words` and `without` are looked for in unit, text and who, whatever their
    case; `by` is a part of who did it."""

    units: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def matches(self, event: Event) -> bool:
        if self.since is not None and event.at < self.since:
            return False
        if self.until is not None and event.at > self.until:
            return False
        if self.units and (event.unit or "") not in self.units:
            return False
        if self.levels and event.severity not in self.levels:
            return False
        if self.by and not _contains(event.by, self.by):
            return False
        if self.kinds and kind_of(event) not in self.kinds:
            return False
        if not (self.words or self.without):
            return True
        whole = f"{event.unit or ''} {event.text} {event.by}".casefold()
        return all(word.casefold() in whole for word in self.words) and not any(
            word.casefold() in whole for word in self.without
        )


def make(
    *,
    units: Sequence[str] = (),
    kinds: Sequence[str] = (),
    levels: Sequence[str] = (),
    by: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    words: Sequence[str] = (),
    without: Sequence[str] = (),
    now: float | None = None,
) -> EventFilter:
    """A filter from what an operator wrote. `warning+` means warning and above. Raises Usage."""
    now = time.time() if now is None else now
    for kind in kinds:
        if kind not in KINDS:
            raise Usage(f"no kind of event is called {kind}; there are: {', '.join(KINDS)}")
    return EventFilter(
        units=tuple(units),
        kinds=tuple(kinds),
        levels=tuple(level for given in levels for level in _levels(given)),
        by=tuple(by),
        since=None if since is None else moment(since, now),
        until=None if until is None else moment(until, now),
        words=tuple(words),
        without=tuple(without),
    )


def parse(text: str, now: float | None = None) -> EventFilter:
    """A filter from one line, as in the console: words, `-word`, and `unit:`, `kind:`, `level:`,
    `by:`, `since:`, `until:` with values that commas separate. Raises Usage."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    without: list[str] = []
    for token in _tokens(text):
        name, colon, value = token.partition(":")
        if colon and name in ("unit", "kind", "level", "by", "since", "until"):
            if not value:
                raise Usage(f"{name}: needs a value")
            found.setdefault(name, []).extend([value] if name in _ONE else value.split(","))
        elif len(token) > 1 and token.startswith("-"):
            without.append(token[1:])
        else:
            words.append(token)
    return make(
        units=found.get("unit", ()),
        kinds=[kind for kind in found.get("kind", ()) if kind],
        levels=[level for level in found.get("level", ()) if level],
        by=found.get("by", ()),
        since=found["since"][-1] if "since" in found else None,
        until=found["until"][-1] if "until" in found else None,
        words=words,
        without=without,
        now=now,
    )


_ONE = ("since", "until")
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_MONTH_DAY = re.compile(r"(\d{2})-(\d{2})(?:[ T](.+))?")


def moment(text: str, now: float) -> float:
    """Wall-clock seconds of `30m`, `2h`, `today`, `14:05`, `11-29 14:05:00`, `2026-11-29`, an ISO
    date and time. Local time; without a date the last such time. Raises Usage."""
    written = text.strip()
    ago = _AGO.fullmatch(written)
    if ago:
        return now - float(ago[1]) * _SECONDS[ago[2]]
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if written in ("today", "yesterday"):
        return (today - timedelta(days=written == "yesterday")).timestamp()
    try:
        clock = _CLOCK.fullmatch(written)
        if clock:
            at = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0))
            return (at - timedelta(days=1) if at.timestamp() > now else at).timestamp()
        short = _MONTH_DAY.fullmatch(written)
        if short:
            written = f"{today.year}-{written}"
        at = datetime.fromisoformat(written)
        if short and at.timestamp() > now:
            at = at.replace(year=today.year - 1)
        return at.timestamp()
    except (ValueError, OverflowError, OSError):
        raise Usage(f"{text} is no time; write 30m, 2h, 14:05, today or 2026-11-29 14:05") from None


def _levels(given: str) -> tuple[str, ...]:
    name = given.rstrip("+")
    if name not in LEVELS:
        raise Usage(
            f"no level is called {given}; there are: {', '.join(LEVELS)} (warning+: and up)"
        )
    return LEVELS[LEVELS.index(name) :] if given.endswith("+") else (name,)


def _contains(text: str, parts: Sequence[str]) -> bool:
    folded = text.casefold()
    return any(part.casefold() in folded for part in parts)


def _tokens(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is still open
        return text.split()
