"""Snapshots out of a written state directory, recorded servers and recorded GPUs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.hardware.readings import GpuSource, NoGpus
from engine_ctl.model import Kind, Phase, Snapshot, UnitView, Verdict
from engine_ctl.observe.once import snapshot_once
from engine_ctl.observe.sampler import Sampler
from engine_ctl.state import events
from engine_ctl.supervise import orphans, procs
from profiles.model import Profile
from tests.standin.nvml import RecordedNvml
from tests.standin.observed import DATA, Recorded, Written, recorded_log
from tests.standin.pages import page
from tests.standin.rig import until

H200 = "h200-vllm-0.33.0"
MIB = 1 << 20
NO_GPUS = NoGpus("no NVIDIA driver on this machine")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    # The servers here answer at once, but not on time when the machine is busy.
    monkeypatch.setattr("engine_ctl.observe.sampler.SCRAPE_BUDGET_S", 100.0)
    world = Written(tmp_path)
    yield world
    world.close()


def sample(written: Written, source: GpuSource = NO_GPUS) -> Snapshot:
    sampler = Sampler(written.dirs, source)
    try:
        return sampler.sample_once()
    finally:
        sampler.stop()


def only(snapshot: Snapshot) -> UnitView:
    (unit,) = snapshot.units
    return unit


def test_an_empty_state_directory(written: Written) -> None:
    snapshot = sample(written)
    assert snapshot.units == () and snapshot.alerts == () and snapshot.problems == ()
    assert snapshot.host.memory_total > 0
    assert snapshot.host.nvml_note == "no NVIDIA driver on this machine"


def test_a_unit_that_never_ran(written: Written) -> None:
    written.unit("chat", profile="chat-throughput")
    unit = only(sample(written))
    assert (unit.unit, unit.profile, unit.phase, unit.run) == (
        "chat",
        "chat-throughput",
        None,
        None,
    )


def test_a_starting_engine(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat", port=1)
    log, clock = recorded_log(f"{H200}/11_ipc")
    at = log.index(b"Capturing CUDA graphs (FULL):  49%")
    written.log(run, log[:at])
    written.clock(run, [pair for pair in clock if pair[1] <= at])
    unit = only(sample(written))
    assert unit.phase is Phase.CAPTURING
    assert unit.progress is not None and unit.progress.total == 51
    assert unit.verdict is Verdict.MAPPED
    assert unit.pid == os.getpid()
    assert unit.elapsed_s is not None and unit.uptime_s is None and unit.start_s is None
    assert unit.load is None
    assert not (run.dir / "facts.json").exists()


def test_typical_seconds_come_from_earlier_starts(written: Written) -> None:
    written.unit("chat")
    log, clock = recorded_log(f"{H200}/11_ipc")
    earlier = written.run("chat")
    written.log(earlier, log)
    written.clock(earlier, clock)
    written.ready(earlier, 43.9)
    written.request(earlier)
    written.exit(earlier, requested=True)
    run = written.run("chat")
    written.log(run, log[: log.index(b"Capturing CUDA graphs (FULL):  49%")])
    unit = only(sample(written))
    assert unit.run == "chat/2" and unit.phase is Phase.CAPTURING
    assert unit.typical_s == pytest.approx(7.0, abs=1.0)


def test_a_ready_engine_with_load_and_hints(written: Written) -> None:
    written.unit("chat")
    with Recorded(page("h200_idle")) as server:
        run = written.run("chat", port=server.port, served_name="m")
        log, clock = recorded_log(f"{H200}/40_load")
        written.log(run, log[: log.index(b"startup complete.") + 18])
        written.clock(run, clock)
        written.ready(run, 59.9)
        sampler = Sampler(written.dirs, NO_GPUS)
        first = only(sampler.sample_once())
        assert first.phase is Phase.READY and first.load is not None
        assert first.load.tokens_per_second == 0.0
        server.metrics = page("h200_load")
        snapshot = sampler.sample_once()
        sampler.stop()
    unit = only(snapshot)
    assert unit.load is not None
    assert (unit.load.running, unit.load.waiting, unit.load.healthy) == (4, 56, True)
    assert unit.load.tokens_per_second is not None and unit.load.tokens_per_second > 0
    # The limits come from the log's own line of arguments.
    assert unit.hints == (
        "56 wait for capacity while KV is 0.0 %: max_num_active_seqs (4) is the limit, not memory",
    )
    assert (unit.start_s, unit.model, unit.port) == (59.9, "m", server.port)
    assert unit.uptime_s is not None
    assert unit.live is not None and "enable_lora" in unit.live["lora load"]
    assert unit.load.history["running"][-1] == 4
    assert sampler.history("chat", "waiting")[-1] == 56
    assert sampler.history("nobody", "waiting") == ()
    facts = json.loads((run.dir / "facts.json").read_text())
    assert facts["verdict"] == "mapped" and facts["start_s"] == 59.9


def test_a_restart_is_a_reset_and_history_goes_on(written: Written) -> None:
    written.unit("chat")
    sampler = Sampler(written.dirs, NO_GPUS)
    with Recorded(page("h200_after")) as server:
        for body in (page("h200_after"), page("h200_idle")):
            server.metrics = body
            run = written.run("chat", port=server.port)
            written.ready(run)
            for _ in range(2):
                unit = only(sampler.sample_once())
                assert unit.load is not None
                rate = unit.load.tokens_per_second
                assert rate is None or rate >= 0
            written.exit(run, requested=True)
            written.request(run)
    assert len(sampler.history("chat", "running")) == 4
    assert only(sampler.sample_once()).load is None
    sampler.stop()


def test_a_dead_engine_core_behind_a_live_server(written: Written) -> None:
    written.unit("chat")
    with Recorded(page("h200_load"), health=503) as server:
        run = written.run("chat", port=server.port)
        written.ready(run)
        snapshot = sample(written)
    unit = only(snapshot)
    assert unit.phase is Phase.READY
    assert unit.note == "/health fails: the engine core is likely dead"
    assert [alert.action for alert in snapshot.alerts] == ["restart"]


def test_a_ready_engine_that_nobody_answers_for(written: Written) -> None:
    written.unit("chat")
    with Recorded() as server:
        port = server.port
    run = written.run("chat", port=port)
    written.ready(run)
    unit = only(sample(written))
    assert unit.phase is Phase.READY
    assert unit.note == "/health: refused"
    assert unit.load is None


def test_the_logs_statistics_stand_in_for_metrics(written: Written) -> None:
    written.unit("chat")
    with Recorded() as server:
        port = server.port
    run = written.run("chat", port=port)
    written.ready(run)
    written.log(
        run,
        b"(APIServer pid=1) INFO 11-20 09:20:02 [loggers.py:335] Engine 000: Avg prompt "
        b"throughput: 812.4 tokens/s, Avg generation throughput: 95.1 tokens/s, Running: 12 reqs, "
        b"Waiting: 3 reqs, GPU KV cache usage: 88.1%, Prefix cache hit rate: 41.0%\n",
    )
    load = only(sample(written)).load
    assert load is not None
    assert (load.running, load.waiting, load.tokens_per_second) == (12, 3, 95.1)
    os.utime(run.log, (1.0, 1.0))
    assert only(sample(written)).load is None


def test_sleeping(written: Written) -> None:
    written.unit("chat")
    with Recorded(page("M4")) as server:
        written.ready(written.run("chat", port=server.port))
        unit = only(sample(written))
    assert unit.phase is Phase.SLEEPING
    assert unit.hints[0].startswith("asleep, level 1")


def test_a_failed_run_has_a_cause(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat")
    log, _ = recorded_log(f"{H200}/40_load")
    written.log(run, log)
    written.ready(run, 59.9)
    written.exit(run, code=0)
    unit = only(sample(written))
    assert unit.phase is Phase.FAILED
    assert unit.cause is not None and unit.cause.category == "engine_core_killed"
    assert unit.pid is None and unit.uptime_s is None
    assert unit.start_s == 59.9


def test_asked_to_stop(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat")
    written.ready(run)
    written.request(run)
    unit = only(sample(written))
    assert unit.phase is Phase.STOPPING
    assert unit.phase_s is not None and unit.phase_s < 60
    written.exit(run, requested=True)
    assert only(sample(written)).phase is Phase.EXITED


def test_an_engine_whose_shim_is_gone(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat")
    written.ready(run)
    written.let_go(run)
    snapshot = sample(written)
    assert only(snapshot).phase is Phase.ORPHANED
    assert [alert.text for alert in snapshot.alerts] == [
        "chat: its shim is gone, nobody watches the process; stoker ps adopts it"
    ]


def test_a_damaged_record_is_one_line_and_hides_nothing(written: Written) -> None:
    written.unit("bad")
    written.unit("chat")
    run = written.run("bad")
    (run.dir / "ready.json").write_text("{")
    written.ready(written.run("chat"))
    snapshot = sample(written)
    assert [unit.unit for unit in snapshot.units] == ["bad", "chat"]
    assert snapshot.units[1].phase is Phase.READY
    assert len(snapshot.problems) == 1 and "is damaged" in snapshot.problems[0]
    assert "is damaged" in snapshot.units[0].note


def test_drift_of_the_profile_file(written: Written) -> None:
    written.unit("chat")
    path = written.dirs.profiles / "chat.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("model: acme/chat-8b\nargs:\n  max_num_seqs: 64\n")
    os.utime(path, (1.0, 1.0))
    run = written.run("chat", profile_path=str(path), created=2.0)
    written.profile(
        run,
        Profile(
            name="chat", path=str(path), model="acme/chat-8b", args={"max_num_seqs": 64}, port=8000
        ),
    )
    sampler = Sampler(written.dirs, NO_GPUS)
    assert only(sampler.sample_once()).drift == ()
    sampler.stop()
    path.write_text("model: acme/chat-8b\nargs:\n  max_num_seqs: 128\n  enforce_eager: true\n")
    assert only(sample(written)).drift == ("args.enforce_eager", "args.max_num_seqs")
    path.write_text("model: [\n")
    for unit in (only(sample(written)), only(snapshot_once(written.dirs, timeout_s=100.0))):
        assert unit.drift == ("file",)
        assert unit.profile_problem.startswith(f"{path}:")
    (path.parent / "another.yaml").write_text("model: acme/other\n")
    path.unlink()
    assert only(sample(written)).profile_problem == f"no profile file {path}"
    path.write_text("model: acme/chat-8b\nargs:\n  max_num_seqs: 64\n")
    assert only(sample(written)).profile_problem == ""


def test_a_damaged_profile_of_a_unit_that_never_ran(written: Written) -> None:
    written.unit("chat", profile="mine")
    path = written.dirs.profiles / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("args: 3\n")
    clock = [0.0]
    sampler = Sampler(written.dirs, NO_GPUS, lambda: clock[0])
    try:
        problem = only(sampler.sample_once()).profile_problem
        assert problem.startswith(f"{path}:1")
        assert only(snapshot_once(written.dirs, timeout_s=100.0)).profile_problem == problem
        path.write_text("model: org/m\n")
        os.utime(path, (5.0, 5.0))
        clock[0] += 10.0
        assert only(sampler.sample_once()).profile_problem == ""
    finally:
        sampler.stop()


def recorded_gpus(name: str, pids: dict[int, int]) -> NvmlSource:
    recording = json.loads((DATA / "nvml" / f"{name}.json").read_text())
    for device in recording["devices"]:
        for process in device["nvmlDeviceGetComputeRunningProcesses"]:
            process["pid"] = pids.get(process["pid"], process["pid"])
    return NvmlSource(RecordedNvml(recording))


def test_gpus_and_who_holds_them(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat", runtime_version="0.33.0")
    log, _ = recorded_log(f"{H200}/11_ipc")
    # The log's own ranks are told apart by pid: here this process is the engine.
    log = log.replace(b"(EngineCore pid=7016)", b"(EngineCore pid=%d)" % os.getpid())
    written.log(run, log[: log.index(b"startup complete.") + 18])
    written.ready(run, 43.9)
    snapshot = sample(written, recorded_gpus("daemon_and_engine", {7016: os.getpid()}))
    (gpu,) = snapshot.gpus
    roles = {holder.role: holder for holder in gpu.holders}
    assert roles["engine"].run == "chat/1"
    assert dict(roles["engine"].parts)["kv"] == int(111.22 * (1 << 30))
    assert roles["engine"].fits is not None
    assert roles["other"].pid == 6845
    unit = only(snapshot)
    assert unit.memory_bytes == 116004 * MIB
    assert unit.gpus == (0,)
    assert snapshot.host.driver == "580.159.04"


def test_orphans_are_named_with_their_gpu(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = procs.look(os.getpid())
    assert me is not None
    orphan = orphans.Orphan(me.pid, me.start, "chat/17", "chat", "VLLM::EngineCore")
    gone = orphans.Orphan(me.pid, me.start + 1, "chat/16", "chat", "VLLM::Worker")
    monkeypatch.setattr(orphans, "find", lambda store: [orphan, gone])
    snapshot = sample(written, recorded_gpus("daemon_killed", {8310: me.pid}))
    (alert,) = snapshot.alerts
    assert alert.text == (
        f"GPU 0: 128.8 GiB held by pid {me.pid} VLLM::EngineCore of run chat/17, which has ended"
    )
    assert (alert.action, alert.pids) == ("reap", (me.pid,))
    assert snapshot.gpus[0].holders[0].role == "orphan"


def test_host_memory_is_shown_by_run_without_gpus(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat")
    written.ready(run)
    snapshot = sample(written)
    mine = [holder for holder in snapshot.host.holders if holder.run == "chat/1"]
    assert len(mine) == 1 and mine[0].role == "engine"
    assert mine[0].bytes is not None and mine[0].bytes > MIB
    assert only(snapshot).memory_bytes == mine[0].bytes


def test_host_memory_is_shown_beside_gpus_and_does_not_make_a_run_larger(written: Written) -> None:
    written.unit("chat")
    run = written.run("chat")
    written.ready(run)
    snapshot = sample(written, recorded_gpus("daemon_killed", {}))
    mine = [holder for holder in snapshot.host.holders if holder.run == "chat/1"]
    assert snapshot.gpus and len(mine) == 1
    assert mine[0].bytes is not None and mine[0].bytes > MIB
    assert not only(snapshot).memory_bytes


def test_a_daemon_that_failed_is_an_alert(written: Written) -> None:
    written.unit("m8b", Kind.PRELOAD)
    written.exit(written.run("m8b"), code=1)
    snapshot = sample(written)
    assert only(snapshot).phase is Phase.FAILED
    assert [alert.action for alert in snapshot.alerts] == ["why"]


def test_events_and_units_that_come_and_go(written: Written) -> None:
    sampler = Sampler(written.dirs, NO_GPUS)
    assert sampler.sample_once().events == ()
    events.record(written.dirs, "chat", "started", by="eva")
    written.unit("chat")
    snapshot = sampler.sample_once()
    assert [event.text for event in snapshot.events] == ["started"]
    assert [unit.unit for unit in snapshot.units] == ["chat"]
    written.store.remove("chat")
    assert sampler.sample_once().units == ()
    sampler.stop()


def test_the_thread_samples_until_it_is_stopped(written: Written) -> None:
    written.unit("chat")
    seen: list[Snapshot] = []
    threads: set[str] = set()

    def callback(snapshot: Snapshot) -> None:
        threads.add(threading.current_thread().name)
        seen.append(snapshot)

    sampler = Sampler(written.dirs, NO_GPUS, interval=0.01)
    sampler.start(callback)
    sampler.start(callback)
    until(lambda: len(seen) >= 3, "three snapshots")
    sampler.stop()
    count = len(seen)
    assert threads == {"stoker-sampler"}
    sampler.stop()
    assert len(seen) == count
    assert "stoker-sampler" not in {thread.name for thread in threading.enumerate()}


def test_a_failing_sample_is_said_and_the_next_one_works(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.unit("chat")
    seen: list[Snapshot] = []
    sampler = Sampler(written.dirs, NO_GPUS, interval=0.01)
    broken = threading.Event()
    works = sampler.sample_once

    def sample_once() -> Snapshot:
        if broken.is_set():
            raise FileNotFoundError(2, "No such file or directory", str(written.dirs.units))
        return works()

    # Not by moving the directory: a sample under way would see some of it and pass for a good one.
    monkeypatch.setattr(sampler, "sample_once", sample_once)
    sampler.start(seen.append)
    try:
        until(lambda: seen, "a snapshot")
        broken.set()
        until(lambda: seen[-1].problems, "a problem")
        last = seen[-1]
        assert last.problems[0].startswith("sampling failed, figures are old: FileNotFoundError")
        assert [unit.unit for unit in last.units] == ["chat"]
        broken.clear()
        until(lambda: not seen[-1].problems, "a good snapshot")
    finally:
        sampler.stop()


def test_snapshot_once_agrees_with_the_sampler(written: Written) -> None:
    written.unit("chat")
    written.unit("other")
    with Recorded(page("h200_load")) as server:
        run = written.run("chat", port=server.port)
        written.log(run, recorded_log(f"{H200}/11_ipc")[0])
        written.ready(run)
        snapshot = snapshot_once(written.dirs, timeout_s=100.0)
        # Work was going on, so a second answer was asked for a rate.
        assert server.asked.count("/metrics") == 2
        assert snapshot_once(written.dirs, ["other"]).units[0].unit == "other"
        full = sample(written)
    chat = snapshot.units[0]
    assert chat.load is not None and chat.load.waiting == 56
    assert chat.load.tokens_per_second == 0.0
    assert (chat.phase, chat.verdict) == (full.units[0].phase, full.units[0].verdict)


def test_snapshot_once_of_an_idle_engine_asks_once(written: Written) -> None:
    written.unit("chat")
    with Recorded(page("h200_idle")) as server:
        written.ready(written.run("chat", port=server.port))
        unit = only(snapshot_once(written.dirs, timeout_s=100.0))
        assert server.asked == ["/health", "/metrics"]
    assert unit.load is not None and unit.load.tokens_per_second == 0.0


def test_snapshot_once_does_not_wait_for_a_silent_engine(written: Written) -> None:
    import socket

    written.unit("chat")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        written.ready(written.run("chat", port=listener.getsockname()[1]))
        begun = time.monotonic()
        unit = only(snapshot_once(written.dirs, timeout_s=0.05))
        assert time.monotonic() - begun < 30
    assert unit.phase is Phase.READY and unit.load is None


def test_everything_shown_can_be_written_as_json(written: Written) -> None:
    written.unit("chat")
    with Recorded(page("h200_load")) as server:
        written.ready(written.run("chat", port=server.port))
        snapshot = sample(written, recorded_gpus("daemon_and_engine", {}))
    assert json.loads(msgspec.json.encode(snapshot))["units"][0]["unit"] == "chat"
