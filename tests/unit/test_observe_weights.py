"""Daemons that lose ranks and engines that lose their daemon are said at the next look."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_ctl.model import Kind, Phase, Reason, UnitView, Verdict
from engine_ctl.observe.alerts import alerts
from engine_ctl.observe.weights import WeightsWatch, lost
from engine_ctl.weights import records, sights
from engine_ctl.weights.records import RankKey, WeightsRecord


@pytest.fixture
def sockets() -> Iterator[list[str]]:
    """Two sockets that are listened on; short paths, as Unix sockets need."""
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        held = []
        paths = [str(Path(root, f"{rank}.sock")) for rank in range(2)]
        for path in paths:
            one = socket.socket(socket.AF_UNIX)
            one.bind(path)
            one.listen()
            held.append(one)
        try:
            yield paths
        finally:
            for one in held:
                one.close()


def watch(unit: str, number: int, kind: Kind, *, ended: bool = False, mapped: bool = True) -> Any:
    return SimpleNamespace(
        unit=unit,
        run=SimpleNamespace(id=f"{unit}/{number}"),
        spec=SimpleNamespace(kind=kind, attempt=1, predecessor=None),
        life=SimpleNamespace(ended=ended, ready=True, phase=None),
        facts=SimpleNamespace(verdict=Verdict.MAPPED if mapped else Verdict.FALLBACK),
        weights_now=(),
    )


def looked(
    monkeypatch: pytest.MonkeyPatch, watches: list[Any], paths: list[str]
) -> list[tuple[str, ...]]:
    keys = [
        RankKey(role="target", rank=rank, local_rank=rank, socket=path, device=None, fields={})
        for rank, path in enumerate(paths)
    ]
    daemon = WeightsRecord(keys=keys)
    engine = WeightsRecord(keys=keys, daemon="w/1")
    monkeypatch.setattr(sights, "record_of", lambda *_: daemon)
    monkeypatch.setattr(records, "read", lambda _: engine)
    store: Any = None
    WeightsWatch(store).look(watches)
    return [tuple(reason.category for reason in each.weights_now) for each in watches]


def test_all_well(monkeypatch: pytest.MonkeyPatch, sockets: list[str]) -> None:
    watches = [watch("w", 1, Kind.PRELOAD), watch("a", 1, Kind.ENGINE)]
    assert looked(monkeypatch, watches, sockets) == [(), ()]


def test_a_rank_that_nobody_serves(monkeypatch: pytest.MonkeyPatch, sockets: list[str]) -> None:
    Path(sockets[1]).unlink()
    watches = [watch("w", 1, Kind.PRELOAD)]
    assert looked(monkeypatch, watches, sockets) == [("wc_daemon_partial",)]
    assert "target 1 of 2" in watches[0].weights_now[0].line


@pytest.mark.parametrize(
    ("daemon", "mapped", "said"),
    [
        (watch("w", 1, Kind.PRELOAD, ended=True), True, ("wc_daemon_lost",)),
        (watch("w", 2, Kind.PRELOAD), True, ("wc_daemon_lost",)),
        (watch("w", 1, Kind.PRELOAD, ended=True), False, ()),
    ],
)
def test_an_engine_whose_daemon_has_gone(
    monkeypatch: pytest.MonkeyPatch,
    sockets: list[str],
    daemon: Any,
    mapped: bool,
    said: tuple[str, ...],
) -> None:
    engine = watch("a", 1, Kind.ENGINE, mapped=mapped)
    assert looked(monkeypatch, [daemon, engine], sockets)[1] == said


def test_alerts_say_what_follows() -> None:
    def text(reason: Reason, kind: Kind) -> str:
        unit = UnitView("u", kind, "p", phase=Phase.READY, reasons=(reason,))
        (found,) = alerts([unit], (), ())
        assert found.action == "weights"
        return found.text

    assert "is from disk" in text(lost("w/1", again=False), Kind.ENGINE)
    assert "maps a new one" in text(lost("w/1", again=True), Kind.ENGINE)
    partial = Reason("wc_daemon_partial", "reload w", "rank target 1 of 2 is gone")
    assert "reload w" in text(partial, Kind.PRELOAD)
