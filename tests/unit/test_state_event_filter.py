from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.errors import Usage
from engine_ctl.model import Event
from engine_ctl.state import event_filter
from engine_ctl.state.event_filter import kind_of, make, moment, parse

NOW = datetime(2026, 11, 29, 12, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("started with profile chat", "start"),
        ("stopped chat/3 (asked, 1.2 s)", "stop"),
        ("removed unit chat", "stop"),
        ("chat/3 failed: killed by SIGKILL; next start in 2 s", "failure"),
        ("failed to start: model_not_found: no such model", "failure"),
        ("could not be started: port 8000 is taken", "failure"),
        ("chat/3 is started again as chat/4", "restart"),
        ("swap to fast: checked", "swap"),
        ("swap: chat → fast in 9.8 s", "swap"),
        ("restart: chat/4 in 4.1 s", "swap"),
        ("swap failed: not ready within 600 s", "swap"),
        ("went back to chat in 5.0 s: not ready", "swap"),
        ("going on with an interrupted swap (proving)", "swap"),
        ("bench b3: 812 tok/s", "bench"),
        ("bench b4 failed: the engine ended", "bench"),
        ("sweep s1 begun: 12 points", "sweep"),
        ("loaded adapter sql from /models/sql", "live"),
        ("reset the prefix cache", "live"),
        ("sleeps (level 1)", "live"),
        ("live sleep failed: no answer", "live"),
        ("adopted chat/3: its shim was gone", "adopt"),
        ("chat/3 goes on under a new shim: its own had died", "adopt"),
        ("reaped 2 leftover process(es): [12, 13]", "reap"),
        ("loaded from disk twice in a row: key mismatch (dtype); align them", "fallback"),
        ("preload of org/m started", "weights"),
        ("released its weights", "weights"),
        ("ended: the host's memory is needed", "stop"),
        ("max_num_seqs 256 → 128", "profile"),
        ("chat/3 is not ready: rank 1 does not answer", "start"),
        ("swap to fast given up: the unit is gone", "swap"),
        ("something else", "other"),
    ],
)
def test_what_is_recorded_has_its_kind(text: str, kind: str) -> None:
    assert kind_of(Event(0.0, "chat", text)) == kind
    assert kind in event_filter.KINDS


def event(text: str = "started", **fields: object) -> Event:
    return Event(**{"at": NOW - 60, "unit": "chat", "text": text, "by": "anna", **fields})


@pytest.mark.parametrize(
    ("line", "event", "kept"),
    [
        ("", event(), True),
        ("STARTED", event(), True),
        ("started chat", event(), True),
        ("started other", event(), False),
        ("-started", event(), False),
        ("-swap", event(), True),
        ('"in 9 s"', event("swap: a → b in 9 s"), True),
        ("unit:chat,code", event(unit="code"), True),
        ("unit:cha", event(), False),
        ("level:error", event(severity="warning"), False),
        ("level:warning+", event(severity="error"), True),
        ("level:warning+", event(), False),
        ("by:ann", event(), True),
        ("by:shim", event(), False),
        ("kind:start,stop", event(), True),
        ("kind:stop since:5m", event(), False),
        ("since:5m", event(), True),
        ("since:30s", event(), False),
        ("until:30s", event(), True),
        ("until:5m", event(), False),
        ("http://host", event("GET http://host"), True),
        ('an "open quote', event('an "open quote'), True),
    ],
)
def test_one_line_says_which(line: str, event: Event, kept: bool) -> None:
    assert parse(line, NOW).matches(event) is kept


@pytest.mark.parametrize("line", ["kind:swop", "level:loud", "since:", "since:soon", "until:25:61"])
def test_what_cannot_be_meant_is_said(line: str) -> None:
    with pytest.raises(Usage):
        parse(line, NOW)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", datetime(2026, 11, 29, 11, 58, 30)),
        ("2h ago", datetime(2026, 11, 29, 10, 0)),
        ("today", datetime(2026, 11, 29)),
        ("yesterday", datetime(2026, 11, 28)),
        ("11:30", datetime(2026, 11, 29, 11, 30)),
        ("13:30", datetime(2026, 11, 28, 13, 30)),
        ("11-28 09:00:01", datetime(2026, 11, 28, 9, 0, 1)),
        ("12-24", datetime(2025, 12, 24)),
        ("2026-11-01", datetime(2026, 11, 1)),
        ("2026-11-01T10:00", datetime(2026, 11, 1, 10)),
    ],
)
def test_times_as_people_write_them(text: str, at: datetime) -> None:
    assert moment(text, NOW) == at.timestamp()


@given(st.text(max_size=60))
def test_no_line_breaks_the_filter(line: str) -> None:
    try:
        keep = parse(line, NOW)
    except Usage:
        return
    assert keep.matches(event()) in (True, False)


def test_without_conditions_everything_is_meant() -> None:
    assert make() == parse("") == event_filter.EventFilter()
    assert make(since="1h").since == pytest.approx(time.time() - 3600, abs=60)
