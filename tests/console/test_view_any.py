"""Whatever a snapshot holds is drawn, and no line is wider than its terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from console import actions
from console.view import confirm, deck, help, ledger, machine, queues, spans, units, why
from engine_ctl.model import (
    Alert,
    Cause,
    EngineLoad,
    GpuView,
    Holder,
    HostView,
    Kind,
    Phase,
    Progress,
    Reason,
    Snapshot,
    UnitView,
    Verdict,
)
from tests.console import fakes

TEXT = st.sampled_from(
    ["u", "", "x" * 300, "日本語ユニット" * 5, "a\nb\tc\x1b[31m", "[red]m[/nope]", "two words"]
)
COUNT = st.one_of(st.none(), st.integers(0, 10**12))
FIGURE = st.one_of(st.none(), st.floats(0, 1e12), st.sampled_from([float("nan"), float("inf")]))
SECONDS = st.one_of(st.none(), st.floats(0, 1e9))
VALUES = st.lists(st.one_of(st.floats(0, 1e9), st.just(float("nan"))), max_size=150).map(tuple)

LOADS = st.builds(
    replace,
    st.just(fakes.load()),
    running=COUNT,
    waiting=COUNT,
    kv_cache_usage=FIGURE,
    tokens_per_second=FIGURE,
    healthy=st.sampled_from([None, True, False]),
    ranks=st.sampled_from([(), fakes.ranks(), fakes.ranks() * 3]),
    history=st.dictionaries(
        st.sampled_from(["tokens_per_second", "running", "hour.running", "kv_cache_usage"]), VALUES
    ),
)
UNITS = st.builds(
    UnitView,
    unit=TEXT,
    kind=st.sampled_from(Kind),
    profile=TEXT,
    phase=st.one_of(st.none(), st.sampled_from(Phase)),
    phase_s=SECONDS,
    typical_s=SECONDS,
    progress=st.one_of(
        st.none(), st.builds(Progress, TEXT, st.integers(0, 99), st.sampled_from([None, 0, 7]))
    ),
    verdict=st.one_of(st.none(), st.sampled_from(Verdict)),
    reasons=st.lists(st.builds(Reason, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    model=st.one_of(st.none(), TEXT),
    port=st.sampled_from([None, 8000, 65535]),
    gpus=st.sampled_from([(), (0,), tuple(range(16))]),
    load=st.one_of(st.none(), LOADS, st.just(EngineLoad(fakes.NOON))),
    uptime_s=SECONDS,
    start_s=SECONDS,
    elapsed_s=SECONDS,
    run=st.sampled_from([None, "u/1"]),
    drift=st.sampled_from([(), ("args.x",) * 30]),
    cause=st.one_of(st.none(), st.builds(Cause, TEXT, TEXT, TEXT)),
    hints=st.lists(TEXT, max_size=2).map(tuple),
    note=TEXT,
    memory_bytes=COUNT,
    live=st.sampled_from([None, {}, {"sleep": "no"}, {"sleep": ""}]),
)
HOLDERS = st.lists(
    st.builds(
        Holder,
        pid=st.integers(0, 4194304),
        role=st.sampled_from(["weights", "engine", "standby", "orphan", "other", "new"]),
        bytes=COUNT,
        unit=st.one_of(st.none(), TEXT),
        command=st.one_of(st.none(), TEXT),
        fits=FIGURE,
    ),
    max_size=4,
).map(tuple)
GPUS = st.builds(
    GpuView,
    index=st.integers(0, 15),
    uuid=st.just("GPU-00000000"),
    name=TEXT,
    total=COUNT,
    used=COUNT,
    free=COUNT,
    holders=HOLDERS,
    utilisation=st.sampled_from([None, 0, 100]),
    power_w=FIGURE,
    temperature_c=st.sampled_from([None, 33, 91]),
    fits=FIGURE,
    mig=st.booleans(),
)
SNAPSHOTS = st.builds(
    Snapshot,
    at=st.just(fakes.NOON),
    host=st.builds(
        HostView,
        hostname=TEXT,
        cores=st.integers(0, 512),
        cpu_percent=FIGURE,
        memory_total=st.integers(0, 10**13),
        memory_available=st.integers(0, 10**13),
        holders=HOLDERS,
    ),
    units=st.lists(UNITS, max_size=4).map(tuple),
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    events=st.just(fakes.events()),
    alerts=st.lists(st.builds(Alert, TEXT, st.sampled_from([None, "reap", "gone"]))).map(tuple),
    runtimes=st.lists(TEXT, max_size=3).map(tuple),
    problems=st.lists(TEXT, max_size=2).map(tuple),
)
CELLS = st.sampled_from([80, 100, 119, 120, 140, 200, 250])


def fits(found: Iterable[spans.Item | spans.Line], cells: int) -> None:
    for one in found:
        for line in one.lines if isinstance(one, spans.Item) else (one,):
            assert spans.width(line) <= cells, spans.plain(line)


@settings(deadline=None, max_examples=60)
@given(SNAPSHOTS, CELLS)
def test_any_machine_is_drawn(snapshot: Snapshot, cells: int) -> None:
    fits([machine.header(snapshot, cells)], cells)
    fits(machine.machine(snapshot, cells, 5), cells)
    fits(machine.alerts(snapshot, cells), cells)
    fits(ledger.items(snapshot, cells), cells)
    columns = units.columns_for(snapshot.units, cells)
    fits([units.title(columns)], cells)
    fits(units.items(snapshot.units, columns, cells - 1), cells)
    fits(deck.event_strip(snapshot, (spans.Span("✗ " + "word " * 60),), cells, 5), cells)


@settings(deadline=None, max_examples=60)
@given(UNITS, SNAPSHOTS, CELLS)
def test_any_unit_is_drawn(unit: UnitView, snapshot: Snapshot, cells: int) -> None:
    for rows in (1, 2):
        fits(deck.footers(unit, cells, rows), cells)
    fits(help.items(unit, cells), cells)
    fits(queues.items(unit, cells), cells)
    fits(why.items(None, unit, fakes.NOON, cells), cells)
    fits([deck.log_title(unit, True, cells), deck.hint_line(unit, cells) or ()], cells)
    for id in ("stop", "bench", "remove", "reload", "release"):
        assert confirm.question(id, unit, snapshot)
    for entry in actions.ACTIONS:
        assert (actions.refusal(entry, unit) is None) is actions.is_allowed(entry, unit)
