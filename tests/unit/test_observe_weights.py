"""Daemons that lose ranks and engines that lose their daemon are said at the next look."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_ctl import identity
from engine_ctl.hardware.readings import NoGpus
from engine_ctl.model import Kind, Phase, Reason, Snapshot, UnitView, Verdict
from engine_ctl.observe.alerts import alerts
from engine_ctl.observe.rank_watch import RankWatch
from engine_ctl.observe.sampler import Sampler
from engine_ctl.observe.units import UnitWatch
from engine_ctl.observe.weights import WeightsWatch, lost
from engine_ctl.weights import records, sights
from engine_ctl.weights.records import RankKey, WeightsRecord
from tests.standin.observed import Written, recorded_log
from tests.standin.ranks import RANK
from tests.standin.rig import until


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
        life=SimpleNamespace(
            ended=ended,
            ready=True,
            phase=None,
            facts=SimpleNamespace(identity=None, ready=None),
        ),
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


def test_a_socket_directory_that_vanished(
    monkeypatch: pytest.MonkeyPatch, sockets: list[str]
) -> None:
    """The ranks run on, so they are not called gone."""
    shutil.rmtree(Path(sockets[0]).parent)
    watches = [watch("w", 1, Kind.PRELOAD), watch("a", 1, Kind.ENGINE)]
    assert looked(monkeypatch, watches, sockets) == [("wc_daemon_partial",), ()]
    assert "has vanished: nobody reaches rank target 0, target 1" in watches[0].weights_now[0].line
    Path(sockets[0]).parent.mkdir()


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


@contextlib.contextmanager
def rank(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a socket and its lock as a daemon of one rank does."""
    argv = [sys.executable, "-I", "-S", "-c", RANK, path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        yield Path(root)


def mapped(written: Written, path: str, daemon: str | None) -> None:
    """An engine that serves on the weights behind `path`."""
    written.unit("chat")
    run = written.run("chat")
    log = recorded_log("h200-vllm-0.33.0/11_ipc")[0]
    written.log(run, log[: log.index(b"startup complete.") + 18])
    # Its leader is this process, which may have begun long before the daemon.
    written.ready(run, 1e6)
    records.write(run, WeightsRecord(keys=[RankKey(socket=path)], daemon=daemon))


@pytest.mark.parametrize("ours", [True, False])
def test_the_end_of_a_daemon_is_shown_when_it_happens(
    tmp_path: Path, short: Path, ours: bool
) -> None:
    """The next look is an hour away, and nobody writes a log line."""
    written, path = Written(tmp_path), str(short / "0.sock")
    seen: list[Snapshot] = []
    sampler = Sampler(written.dirs, NoGpus("none"), interval=3600.0)
    with rank(path) as process:
        if ours:
            written.unit("w", Kind.PRELOAD)
            run = written.run("w")
            written.ready(run)
            records.write(run, WeightsRecord(keys=[RankKey(socket=path)]))
        mapped(written, path, "w/1" if ours else None)
        sampler.start(seen.append)
        try:
            until(lambda: seen, "a first look")
            assert [alert.text for alert in seen[0].alerts if "daemon" in alert.text] == []
            process.kill()
            until(lambda: len(seen) > 1 and seen[-1].alerts, "an alert")
        finally:
            sampler.stop()
    alerted = {alert.unit: alert for alert in seen[-1].alerts}
    assert "its weight daemon is gone; it keeps serving" in alerted["chat"].text
    assert ("w" in alerted) == ours
    chat = next(unit for unit in seen[-1].units if unit.unit == "chat")
    line = next(reason.line for reason in chat.reasons if reason.category == "wc_daemon_lost")
    assert ("a rank of the daemon w/1" if ours else f"the daemon at {path}") in line
    written.close()


def test_a_daemon_that_began_after_the_engine_is_another_one(tmp_path: Path, short: Path) -> None:
    written, path = Written(tmp_path), str(short / "0.sock")
    mapped(written, path, None)
    with rank(path) as process:
        who = identity.identify(process.pid)
        assert who is not None
        watch = RankWatch()
        assert watch.follow("chat/1", path, before=who.start_ticks)
        assert not watch.follow("chat/2", path, before=who.start_ticks - 1)
        assert len(watch.fds()) == 1
        watch.keep({"chat/2"})
        assert watch.fds() == () and not watch.follow("chat/2", path)
        watch.close()
    written.close()


def test_alerts_say_what_follows() -> None:
    def text(reason: Reason, kind: Kind) -> str:
        unit = UnitView("u", kind, "p", phase=Phase.READY, reasons=(reason,))
        (found,) = alerts([unit], (), ())
        assert found.action == "weights"
        return found.text

    assert "is from disk" in text(lost("w/1", again=False), Kind.ENGINE)
    assert "maps a new one" in text(lost("w/1", again=True), Kind.ENGINE)
    # Not read out of the words: those are for people.
    assert "maps a new one" in text(Reason("wc_daemon_lost", "", maps_again=True), Kind.ENGINE)
    assert "from disk" in text(Reason("wc_daemon_lost", "no start maps again"), Kind.ENGINE)
    partial = Reason("wc_daemon_partial", "reload w", "rank target 1 of 2 is gone")
    assert "reload w" in text(partial, Kind.PRELOAD)


def test_what_became_of_the_daemon_since_stands_over_what_the_log_said(tmp_path: Path) -> None:
    written = Written(tmp_path)
    try:
        written.unit("chat")
        run = written.run("chat")
        written.log(run, recorded_log("h200-vllm-0.33.0/40_load")[0])
        written.ready(run)
        watch = UnitWatch(written.store, "chat")
        watch.look(written.store.load("chat"), identity.boot_id())
        watch.read_log()
        said = [r for r in watch.view(1.0, 1.0).reasons if r.category == "wc_daemon_lost"]
        assert [r.maps_again for r in said] == [None]
        watch.weights_now = (lost("w/1", again=True),)
        now = [r for r in watch.view(1.0, 1.0).reasons if r.category == "wc_daemon_lost"]
        assert now == [lost("w/1", again=True)]
    finally:
        written.close()
