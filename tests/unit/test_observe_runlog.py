"""Following a log as it grows: phases live, then only the lines that matter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.model import Kind, Phase, Verdict
from engine_ctl.observe import runlog
from engine_ctl.observe.runlog import RunLog, silent_children
from engine_ctl.operations import watching
from engine_ctl.operations.watching import StartWatch
from engine_ctl.state.store import Run
from engine_ctl.tune.progress import ProgressReader
from tests.standin.observed import Written, recorded_log

H200 = "h200-vllm-0.33.0"
NOISE = b"(APIServer pid=1) INFO 11-29 17:50:00 [loggers.py:335] Engine 000: Running: 1 reqs\n"
STOP = b"(APIServer pid=1) INFO 11-29 17:50:09 [launcher.py:256] [shutdown] API server: "
STOP += b"shutdown triggered\n"
LOST = b"(EngineCore pid=1) WARNING 11-29 17:50:01 [ipc_loader.py:1] Weight cache daemon at "
LOST += b"/tmp/x.sock exited while its weights are in use\n"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    world = Written(tmp_path)
    world.unit("chat")
    yield world
    world.close()


def test_phases_come_in_order_however_the_log_is_cut(written: Written) -> None:
    log, clock = recorded_log(f"{H200}/11_ipc")
    for step in (300, 50_000):
        run = written.run("chat")
        written.clock(run, clock)
        follower = RunLog(run.dir, Kind.ENGINE, "0.33.0")
        seen = []
        for at in range(0, len(log), step):
            written.log(run, log[at : at + step])
            follower.poll(ready=False)
            if not seen or seen[-1] is not follower.phase:
                seen.append(follower.phase)
        if step == 300:
            assert seen[:3] == [Phase.IMPORTING, Phase.CONFIGURING, Phase.LOADING]
        assert follower.start.timeline.ready_seen
        assert Phase.MAPPING in {mark.phase for mark in follower.start.timeline.marks()}
        assert follower.start.weights.result()[0] is Verdict.MAPPED


def test_who_waits_for_a_start_is_not_held_up_by_a_log_that_grows_faster_than_it_is_read(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written.run("chat")
    log, _ = recorded_log(f"{H200}/11_ipc")
    log = log[: log.index(b"Application startup complete.") + 30]
    step = len(log) // 8 + 1
    monkeypatch.setattr(watching, "_CHUNK", step)
    written.log(run, log)
    watch, looks = StartWatch(run), 0
    said = watch.news()
    assert watch.phase is not Phase.READY, "it does not read on and on"
    while watch.phase is not Phase.READY:
        looks += 1
        assert looks < 3
        said += watch.news()
    assert said[0] == "chat: importing" and "chat: mapping" in said and len(set(said)) == len(said)


def ready_run(written: Written) -> tuple[Run, RunLog]:
    run = written.run("chat")
    log, clock = recorded_log(f"{H200}/11_ipc")
    log = log[: log.index(b"Application startup complete.") + 30]
    written.log(run, log)
    written.clock(run, clock)
    follower = RunLog(run.dir, Kind.ENGINE, "0.33.0")
    follower.poll(ready=False)
    assert follower.phase is Phase.READY
    return run, follower


def test_once_ready_only_telling_lines_are_read(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, follower = ready_run(written)
    fed: list[bytes] = []
    feed = follower.start.feed
    monkeypatch.setattr(follower.start, "feed", lambda chunk: (fed.append(chunk), feed(chunk)))
    written.log(run, NOISE * 1000)
    assert follower.poll(ready=True)
    assert fed == []
    written.log(run, NOISE + LOST + NOISE + STOP[:50])
    follower.poll(ready=True)
    assert fed == [LOST]
    reasons = follower.start.weights.result()[1]
    assert [reason.category for reason in reasons] == ["wc_daemon_lost"]
    written.log(run, STOP[50:])
    follower.poll(ready=True)
    assert follower.phase is Phase.STOPPING


def test_a_burst_is_skipped_but_for_its_end(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runlog, "TICK_BYTES", 4096)
    run, follower = ready_run_small(written)
    written.log(run, NOISE * 5000 + STOP)
    follower.poll(ready=True)
    assert follower.phase is Phase.STOPPING


def ready_run_small(written: Written) -> tuple[Run, RunLog]:
    run = written.run("chat")
    written.log(run, b"INFO:     Application startup complete.\n")
    follower = RunLog(run.dir, Kind.ENGINE, "0.33.0")
    follower.poll(ready=False)
    return run, follower


def test_truncation_and_rotation(written: Written) -> None:
    run, follower = ready_run_small(written)
    run.log.write_bytes(b"")
    assert not follower.poll(ready=True)
    written.log(run, STOP)
    follower.poll(ready=True)
    assert follower.phase is Phase.STOPPING

    run, follower = ready_run_small(written)
    os.rename(run.log, run.dir / "old")
    written.log(run, NOISE * 3 + STOP)
    follower.poll(ready=True)
    assert follower.phase is Phase.STOPPING


def test_a_log_that_is_not_there_yet(written: Written) -> None:
    follower = RunLog(written.run("chat").dir, Kind.ENGINE)
    assert not follower.poll(ready=False)
    assert follower.phase is Phase.IMPORTING


def test_a_known_start_is_not_read_again(written: Written) -> None:
    run = written.run("chat")
    written.log(run, recorded_log(f"{H200}/11_ipc")[0])
    follower = RunLog(run.dir, Kind.ENGINE, known=True)
    follower.poll(ready=True)
    # The recorded run was stopped at its end: that is what happened since.
    assert not follower.start.timeline.ready_seen
    fresh = written.run("chat")
    written.log(fresh, NOISE)
    follower = RunLog(fresh.dir, Kind.ENGINE, known=True)
    follower.poll(ready=True)
    assert follower.phase is None


def test_versions_whose_daemons_are_silent() -> None:
    assert silent_children("0.32.0+cpu") and silent_children("0.31.1")
    assert not silent_children("0.33.0") and not silent_children(None)


def test_a_benchmark_counts_its_requests(written: Written) -> None:
    log = (Path(__file__).parents[1] / "data" / "bench" / "vllm-0.32-cpu-bench.log").read_bytes()
    run = written.run("chat")
    follower = RunLog(run.dir, Kind.BENCH, "0.32.0")
    follower.bench = ProgressReader(2)
    written.log(run, log)
    assert follower.poll(ready=False)
    assert follower.bench.now.overall == (8, 16)
    written.log(run, log)
    assert follower.poll(ready=False) and follower.bench.now.overall == (16, 16)
