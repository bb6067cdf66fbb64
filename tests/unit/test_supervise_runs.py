"""Runs of real processes: starting, stopping, restarting, adopting, reaping.

On full disks and with odd clocks too."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine_ctl import atomic, identity
from engine_ctl.errors import Busy, Failed, Usage
from engine_ctl.identity import Identity
from engine_ctl.model import Kind
from engine_ctl.operations import lifecycle
from engine_ctl.operations.context import Context
from engine_ctl.operations.listing import ps
from engine_ctl.operations.runs import adopt_orphans
from engine_ctl.state import events
from engine_ctl.state.records import RunIdentity
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import launch, liveness, orphans, procs, recover
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.stop import Step, stop
from profiles.model import EnvRef, Stop
from tests.standin.rig import PATIENT, QUICK, TREE, Rig, free_port, restart, rig, says, until

__all__ = ["rig"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bystander() -> Iterator[Identity]:
    """A process of somebody else, which must live through everything."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    who = identity.identify(process.pid)
    assert who is not None
    yield who
    assert process.poll() is None
    process.kill()
    process.wait()


def marked(run: Run) -> list[int]:
    """Pids that carry the run's mark."""
    return [pid for pid in procs.table() if procs.run_dir_of(pid) == str(run.dir)]


# Starting


def test_a_start_is_recorded_and_becomes_ready(rig: Rig) -> None:
    run = rig.ready("--bind-after", "0.2", "--ready-after", "0.4", "--lines", "50")
    who, ready = run.identity(), run.ready()
    assert who is not None and ready is not None
    assert identity.alive(who.leader) and identity.alive(who.shim)
    assert who.session == who.leader.pid == os.getsid(who.leader.pid)
    assert 0.4 <= ready.seconds < 20
    samples = list(struct.iter_unpack("<QQ", (run.dir / "clock").read_bytes()))
    assert samples == sorted(samples) and len(samples) >= 2
    # The log grows once more, by `healthy`, after the answer that made it ready.
    assert 50 * 100 <= samples[-1][1] <= run.log.stat().st_size
    assert liveness.look(run).ready
    shim = procs.look(who.shim.pid)
    assert shim is not None and shim.sid != os.getsid(0)
    inherited = sorted(os.listdir(f"/proc/{who.leader.pid}/fd"), key=int)[:3]
    assert inherited == ["0", "1", "2"]
    links = [os.readlink(f"/proc/{who.leader.pid}/fd/{fd}") for fd in inherited]
    assert links == ["/dev/null", str(run.log), str(run.log)]
    assert os.readlink(f"/proc/{who.shim.pid}/fd/1") == "/dev/null"


def test_marks_in_the_environment_and_secrets_by_reference(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cret-value")
    run = rig.start("--print-env", "TOKEN", env_refs={"TOKEN": EnvRef(from_env="MY_SECRET")})
    until(lambda: says(run, "env TOKEN=s3cret-value"))
    assert marked(run) == [rig.pids(run)["leader"]]
    for path in rig.dirs.state.rglob("*"):
        if path.is_file() and path != run.log:
            assert b"s3cret-value" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"argv": ["/no/such/program"]}, "cannot run /no/such/program: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "cannot run /etc/passwd: Permission denied"),
        ({"argv": []}, "the run has no command"),
        ({"cwd": "/no/such/place"}, "cannot enter the directory /no/such/place: No such file"),
        ({"env_refs": {"T": EnvRef(from_env="NOT_SET_ANYWHERE")}}, "which is not set"),
    ],
)
def test_a_start_that_fails_is_one_line_and_an_exit_record(
    rig: Rig, fields: dict[str, object], message: str
) -> None:
    run = rig.prepare(restart=restart(), **fields)
    with pytest.raises(Failed, match=message):
        launch.launch(run)
    record = run.exit()
    assert record is not None and record.error is not None and message in record.error
    life = liveness.look(run)
    assert life.life is Life.FAILED and not life.restarting and message in life.note
    assert marked(run) == []
    assert message in events.last(rig.dirs, 1)[0].text


def test_a_damaged_spec_is_a_failed_start(rig: Rig) -> None:
    run = rig.prepare()
    (run.dir / "spec.json").write_text("{")
    with pytest.raises(Failed, match="missing or damaged"):
        launch.launch(run)
    assert run.exit() is not None


def test_a_damaged_spec_hides_no_other_unit_and_the_run_can_be_stopped(rig: Rig) -> None:
    run = rig.ready()
    other = rig.start(unit="other")
    damaged = run.dir / "spec.json"
    damaged.write_bytes(damaged.read_bytes()[:50])
    found = ps(Context(rig.dirs))
    assert {row["unit"]: row["run"] for row in found["units"]}["other"] == other.id
    assert [text for text in found["problems"] if str(damaged) in text]
    assert lifecycle.stop(Context(rig.dirs), "demo")["how"] == "ask"
    assert run.exit() is not None and marked(run) == []


def test_the_pid_of_a_run_is_no_engine_to_import(rig: Rig) -> None:
    from engine_ctl.operations.runs import refuse_own

    run = rig.ready()
    who = run.identity()
    assert who is not None
    with pytest.raises(Usage, match="demo/1, a run of Stoker's own"):
        refuse_own(Context(rig.dirs), who.leader.pid)
    refuse_own(Context(rig.dirs), os.getpid())
    stop(run)
    refuse_own(Context(rig.dirs), who.leader.pid)


def test_one_run_has_one_shim(rig: Rig) -> None:
    run = rig.start()
    with pytest.raises(Busy):
        launch.launch(run)
    assert not launch.adopt(run)
    assert len(marked(run)) == 1


def test_not_ready_in_time_is_a_failure(rig: Rig) -> None:
    # Ended that early, it may not even have said its pid.
    run = rig.prepare("--ready-after", "1000", port=free_port(), ready_timeout_s=0.3)
    launch.launch(run)
    record = rig.ended(run)
    assert record.error == "not ready within 0.3 s" and not record.requested
    assert rig.life(run) is Life.FAILED


# Stopping

AGAIN = Stop(ask_s=0.2, ask_again_s=60.0, kill_s=60.0)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ((), "ask"),
        (("--lose-terms", "1"), "ask again"),
        (("--ignore-term", "--children-ignore-term", "--setsid", "--depth", "2"), "kill"),
    ],
)
def test_the_ladder(rig: Rig, options: tuple[str, ...], how: str) -> None:
    run = rig.ready(*options, children=1)
    steps: list[Step] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        if step.name == "ask again" and how == "ask again":
            # Two signals that wait to be taken are one.
            until(lambda: says(run, "a SIGTERM was lost"), "the first is taken")

    ladder = {"ask": PATIENT, "ask again": AGAIN, "kill": QUICK}[how]
    done = stop(run, by="test", reason="because", ladder=ladder, on_step=on_step)
    assert done.how == how
    names = [step.name for step in steps]
    ladder = ["ask", "ask again", "kill"]
    assert names == [*ladder[: ladder.index(how) + 1], "verify", "ended"]
    assert marked(run) == []
    request, record = run.request(), run.exit()
    assert request is not None and (request.by, request.reason) == ("test", "because")
    assert record is not None and record.requested
    assert rig.life(run) is Life.EXITED
    again = stop(run, by="somebody else")
    assert again.how == "already"
    assert run.request() == request
    assert orphans.find(rig.store) == []


def test_draining_waits_for_requests(rig: Rig) -> None:
    run = rig.ready()
    asked = iter([False, False, True])
    steps: list[Step] = []
    ladder = Stop(drain_s=1000, ask_s=5)
    done = stop(run, ladder=ladder, drained=lambda: next(asked), on_step=steps.append)
    assert [step.name for step in steps] == ["drain", "ask", "verify", "ended"]
    assert done.how == "ask"


def test_no_patience_kills_at_once(rig: Rig) -> None:
    run = rig.ready("--ignore-term")
    assert stop(run, ladder=Stop(ask_s=0, ask_again_s=0)).how == "kill"


def test_a_shim_that_is_suspended_keeps_no_run_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rig.start(children=2)
    who = run.identity()
    assert who is not None
    monkeypatch.setattr("engine_ctl.supervise.stop._SHIM_S", 0.1)
    os.kill(who.shim.pid, signal.SIGSTOP)
    stop(run, ladder=PATIENT)
    record = run.exit()
    assert record is not None and record.requested
    assert not identity.alive(who.shim) and not identity.alive(who.leader)
    assert rig.life(run) is Life.EXITED
    left = procs.members(str(run.dir), msgspec.to_builtins(who), strict=True)
    assert not [proc for proc in left if proc.state not in "ZX"]


def test_a_signal_to_the_shim_ends_its_run(rig: Rig) -> None:
    run = rig.ready("--ignore-term", stop=QUICK, restart=restart())
    who = run.identity()
    assert who is not None
    os.kill(who.shim.pid, signal.SIGTERM)
    record = rig.ended(run)
    assert record.requested and record.restart_in_s is None
    assert rig.life(run) is Life.EXITED


def test_two_stops_at_once(rig: Rig) -> None:
    run = rig.ready("--lose-terms", "2", children=2, stop=QUICK)
    results = []
    threads = [threading.Thread(target=lambda: results.append(stop(run))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert rig.life(run) is Life.EXITED


# The restart policy


def test_restarts_until_they_are_used_up(rig: Rig) -> None:
    first = rig.start("--exit-after", "0", "--code", "3", restart=restart(max=2))
    runs = until(lambda: len(made := rig.store.runs("demo")) == 3 and made)
    last = rig.ended(runs[2])
    assert last.gave_up and last.restart_in_s is None
    assert [rig.ended(run).restart_in_s for run in runs[:2]] == [0.05, 0.1]
    assert [run.spec().attempt for run in runs] == [1, 2, 3]
    assert [run.spec().predecessor for run in runs] == [None, first.id, runs[1].id]
    assert rig.store.current("demo") == runs[2]
    identities = [run.identity() for run in runs]
    assert len({who.shim for who in identities if who}) == 1, "the shim replaces itself"
    assert len({who.leader for who in identities if who}) == 3
    assert [rig.life(run) for run in runs] == [Life.FAILED] * 3

    def texts_of_events() -> list[str]:
        return [event.text for event in events.last(rig.dirs, 10, unit="demo")]

    # The event comes after the record.
    texts = until(lambda: len(texts := texts_of_events()) == 5 and texts)
    assert texts[0].endswith("status 3 without being asked to; next start in 0.05 s")
    assert texts[1] == "demo/1 is started again as demo/2"
    assert texts[-1].endswith("restarts are used up")


def test_status_0_is_restarted_and_the_next_run_is_the_same(rig: Rig) -> None:
    run = rig.start("--exit-0-with-child", children=1, restart=restart(), env={"MARK": "kept"})
    rig.kill(rig.pids(run)["child0"])
    second = rig.next_run(run)
    until(lambda: "child0" in rig.pids(second))
    assert second.spec().env == {"MARK": "kept"}
    assert stop(second).how == "ask"


def test_a_stop_during_backoff_is_noticed_at_once(rig: Rig) -> None:
    run = rig.start("--exit-after", "0", restart=restart(backoff_s=50.0))
    rig.ended(run)
    assert liveness.look(run).restarting
    with rig.store.lock("demo"):
        done = stop(run, by="test")
    assert done.how == "already" and done.seconds < 40
    who = run.identity()
    assert who is not None and not identity.alive(who.shim)
    life = liveness.look(run)
    assert life.life is Life.FAILED and not life.restarting
    assert rig.store.runs("demo") == [run]


def test_a_unit_that_went_on_is_not_restarted(rig: Rig) -> None:
    run = rig.prepare("--exit-after", "0", restart=restart(backoff_s=0.01))
    # A restart waits for the lock: none can come between the end and the other run.
    with rig.store.lock("demo"):
        launch.launch(run)
        rig.ended(run)
        other = rig.store.new_run(rig.spec())
        rig.store.set_current(other)
        launch.launch(other)
    who = run.identity()
    assert who is not None and identity.wait_gone(who.shim, 100)
    assert rig.store.runs("demo") == [run, other]


def test_a_restart_waits_for_the_operation_that_holds_the_unit(rig: Rig) -> None:
    run = rig.prepare("--exit-after", "0", restart=restart(backoff_s=0.01))
    with rig.store.lock("demo"):
        launch.launch(run)
        rig.ended(run)
        time.sleep(0.3)  # several times the delay
        assert rig.store.runs("demo") == [run]
    rig.next_run(run)


# Adoption


def test_an_adopted_run_is_restarted_by_policy_and_its_tree_swept(rig: Rig) -> None:
    run = rig.ready("--setsid", "--children-ignore-term", children=2, stop=QUICK, restart=restart())
    rig.kill_shim(run)
    assert launch.adopt(run)
    rig.kill(rig.pids(run)["leader"])
    record = rig.ended(run)
    assert (record.code, record.signal) == (None, None)
    assert set(record.swept) == {rig.pids(run)["child0"], rig.pids(run)["child1"]}
    second = rig.next_run(run)
    until(second.ready)
    assert second.identity() is not None and not second.identity().adopted


SAYS = "import os; print(*(f'{n}={os.environ.get(n)};' for n in ('HF_HOME', 'KEPT')), flush=True)"


@pytest.mark.parametrize("secret", [True, False])
def test_who_adopts_a_run_starts_it_again_in_the_environment_of_its_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, secret: bool
) -> None:
    monkeypatch.setenv("HF_HOME", "/of/the/start")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("MINE", "secret")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=secret")
    words = [sys.executable, "-c", f"{SAYS}\nimport signal; signal.pause()"]
    run = rig.prepare(
        argv=words, restart=restart(max=1), env_refs={"KEPT": EnvRef(from_env="MINE")}
    )
    launch.launch(run)
    until(lambda: says(run, "HF_HOME=/of/the/start; KEPT=secret;"), "it says what it got")
    kept = (run.dir / "environment.json").read_text()
    assert "secret" not in kept and "hf_other" not in kept and "TOKENIZERS_PARALLELISM" in kept
    rig.kill_shim(run)
    monkeypatch.setenv("HF_HOME", "/of/a/cron/job")
    if not secret:
        monkeypatch.delenv("MINE")
    assert adopt_orphans(Context(rig.dirs, by="test")) == [run.id]
    who = run.identity()
    assert who is not None
    rig.kill(who.leader.pid)
    told = [
        event.text for event in events.last(rig.dirs, 9, unit="demo") if "adopted" in event.text
    ]
    if not secret:
        assert "could not start it again: KEPT comes from the variable MINE, which" in told[0]
        record = rig.ended(rig.next_run(run))
        assert record.error == "KEPT comes from the variable MINE, which is not set"
        return
    assert "could not" not in told[0]
    again = rig.next_run(run)
    until(lambda: says(again, "HF_HOME=/of/the/start; KEPT=secret;"), "the same")


def test_a_start_goes_on_where_its_environment_cannot_be_kept(rig: Rig) -> None:
    run = rig.prepare()
    (run.dir / "environment.json").mkdir()
    launch.launch(run)
    assert "environment.json: " in (run.dir / "shim.err").read_text()


def test_an_adopted_run_is_stopped_as_any_other(rig: Rig) -> None:
    run = rig.ready(children=1)
    rig.kill_shim(run)
    assert launch.adopt(run)
    assert stop(run).how == "ask"
    assert rig.life(run) is Life.EXITED and marked(run) == []


def test_many_adopt_at_once_one_wins(rig: Rig) -> None:
    run = rig.ready()
    rig.kill_shim(run)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(launch.adopt(run))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]


def test_a_copied_state_directory_adopts_nothing(rig: Rig, tmp_path: Path) -> None:
    run = rig.ready()
    copy = Rig(tmp_path / "copy")
    shutil.copytree(rig.dirs.state, copy.dirs.state, dirs_exist_ok=True)
    copied = copy.store.current("demo")
    assert copied is not None and rig.life(copied) is Life.LOST
    assert not launch.adopt(copied)  # its shim goes on for the original
    rig.kill_shim(run)
    assert not launch.adopt(copied)
    assert copied.identity() == run.identity()
    assert launch.adopt(run)


@pytest.mark.parametrize("adopted", [False, True])
def test_what_is_for_a_killed_command_ends_with_it(rig: Rig, adopted: bool) -> None:
    """A bench, whose results nobody would read; its standby's shim or an adopted one, too."""
    code = "time.sleep(1000)"
    process = rig.console(code)
    try:
        who = identity.identify(process.pid)
        run = rig.start(children=1, kind=Kind.BENCH, tied_to=who)
        if adopted:
            rig.kill_shim(run)
            assert launch.adopt(run)
        assert rig.life(run) is Life.RUNNING
    finally:
        process.kill()
        process.wait()
    record = rig.ended(run)
    assert record.requested and rig.life(run) is Life.EXITED and marked(run) == []
    request = run.request()
    assert request is not None and request.by == f"the end of pid {process.pid}, which it was for"
    late = rig.prepare(kind=Kind.BENCH, tied_to=who)
    launch.launch(late)  # the command was killed before the start was done
    assert rig.ended(late).requested


def test_the_shim_of_an_adopted_run_leaves_with_its_directory(rig: Rig, tmp_path: Path) -> None:
    run = rig.ready()
    rig.kill_shim(run)
    assert launch.adopt(run)
    who = run.identity()
    assert who is not None
    moved = run.dir.rename(tmp_path / "moved")
    try:
        os.kill(who.shim.pid, signal.SIGUSR1)  # wakes it before its five seconds
        assert identity.wait_gone(who.shim, 100)
        assert identity.alive(who.leader)
        assert not (moved / "exit.json").exists()
    finally:
        moved.rename(run.dir)


# The standby: a process that forks engines whose shim it does not stay


STANDBY = """
import os, signal, sys
def become(number, frame):
    pid = os.fork()
    if pid:
        return
    os.setsid()
    engine = os.fork()
    if engine == 0:
        os.setsid()
        log = os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        child = os.fork()
        os.write(1, b"pid %s %d\\n" % (b"leader" if child else b"child0", os.getpid()))
        signal.signal(signal.SIGUSR2, lambda *_: os._exit(7))
        while True:
            signal.pause()
    os.execv(sys.argv[2], [*sys.argv[2:], "--child", str(engine)])
signal.signal(signal.SIGUSR1, become)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("pid leader", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def start_by_standby(rig: Rig) -> tuple[Run, Run]:
    run = rig.prepare(unit="chat", restart=restart(), via="standby")
    command = [sys.executable, "-c", STANDBY, str(run.dir), *launch.shim_command(run)]
    standby = rig.prepare(unit="warm", kind=Kind.STANDBY, argv=command)
    launch.launch(standby)
    until(lambda: "leader" in rig.pids(standby))
    os.kill(rig.pids(standby)["leader"], signal.SIGUSR1)
    until(lambda: len(rig.pids(run)) == 2 and run.identity())
    return standby, run


def test_a_shim_takes_over_the_child_of_a_standby(rig: Rig) -> None:
    _, run = start_by_standby(rig)
    who = run.identity()
    assert who is not None and not who.adopted
    assert who.leader.pid == rig.pids(run)["leader"]
    os.kill(who.leader.pid, signal.SIGUSR2)
    record = rig.ended(run)
    assert (record.code, record.swept) == (7, [rig.pids(run)["child0"]])
    second = rig.next_run(run)
    assert second.spec().via == "spawn"


def test_the_end_of_a_standby_is_not_the_end_of_its_engines(rig: Rig) -> None:
    # They carry the standby's mark and its shim is above them.
    standby, run = start_by_standby(rig)
    owners = orphans.owners(rig.store)
    assert {owners[pid] for pid in rig.pids(run).values()} == {run.id}
    assert stop(standby).how == "ask"
    assert rig.life(run) is Life.RUNNING
    assert all(procs.look(pid) for pid in rig.pids(run).values())
    assert orphans.find(rig.store) == []
    pids = rig.pids(run).values()
    assert stop(run).how == "ask"
    assert all((proc := procs.look(pid)) is None or proc.state in "ZX" for pid in pids)


def test_an_engine_is_adopted_while_its_standby_lives(rig: Rig) -> None:
    # Without its shim, an engine and later its children belong to the standby's shim.
    standby, run = start_by_standby(rig)
    rig.kill_shim(run)
    assert rig.life(run) is Life.ORPHANED
    assert orphans.find(rig.store) == []
    assert launch.adopt(run)
    rig.kill(rig.pids(run)["leader"])
    assert rig.ended(run).swept == [rig.pids(run)["child0"]]
    assert rig.life(standby) is Life.RUNNING


def test_what_an_engine_of_a_live_standby_left_behind_is_an_orphan(rig: Rig) -> None:
    standby, run = start_by_standby(rig)
    who = run.identity()
    assert who is not None
    rig.kill_shim(run)
    rig.kill(who.leader.pid)
    assert identity.wait_gone(who.leader, 100)
    assert rig.life(run) is Life.LOST
    child = rig.pids(run)["child0"]
    # It carries the standby's mark and is a child of the standby's shim.
    until(lambda: procs.look(child).ppid == standby.identity().shim.pid)
    (orphan,) = orphans.find(rig.store)
    assert (orphan.pid, orphan.run, orphan.unit) == (child, run.id, "chat")
    assert orphans.reap([orphan]).ended == (child,)
    assert orphans.find(rig.store) == []
    assert rig.life(standby) is Life.RUNNING


def test_a_run_that_starts_other_runs_does_not_take_them_along(rig: Rig) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from tests.standin.rig import Rig\n"
        f"rig = Rig(Path({str(rig.root)!r})); rig.start(unit='inner')\n"
        "print('pid leader', __import__('os').getpid(), flush=True)\n"
        "import time; time.sleep(1000)\n"
    )
    outer = rig.prepare(unit="outer", kind=Kind.BENCH, argv=[sys.executable, "-c", code])
    launch.launch(outer)
    until(lambda: rig.pids(outer))
    inner = rig.store.current("inner")
    assert inner is not None
    assert stop(outer).swept == ()
    assert rig.life(inner) is Life.RUNNING
    shim = inner.identity()
    assert shim is not None and procs.run_dir_of(shim.shim.pid) is None


# Identity


def forge(rig: Rig, leader: Identity, session: int | None = None) -> Run:
    """A run whose records speak of a process that is not its own, as after a reuse of the pid."""
    run = rig.prepare()
    gone = Identity(identity.boot_id(), leader.pid, 1)
    record = RunIdentity(
        run=run.id,
        shim=gone,
        leader=leader,
        session=session or leader.pid,
        started=0.0,
        monotonic=0.0,
    )
    atomic.write_record(run.dir / "identity.json", record)
    return run


def test_a_reused_pid_is_left_alone(rig: Rig, bystander: Identity) -> None:
    before = Identity(bystander.boot, bystander.pid, bystander.start_ticks - 1)
    run = forge(rig, before)
    assert rig.life(run) is Life.LOST
    assert procs.members(str(run.dir), msgspec.to_builtins(run.identity())) == []
    assert stop(run).how == "already"
    assert not launch.adopt(run)
    assert orphans.find(rig.store) == []
    assert bystander.pid not in orphans.owners(rig.store)
    assert orphans.reap(
        [orphans.Orphan(bystander.pid, before.start_ticks, "demo/1", "demo", "sleep")]
    ).ended == (bystander.pid,)
    assert identity.alive(bystander)


def test_another_boot_is_another_world(rig: Rig, bystander: Identity) -> None:
    run = forge(rig, Identity("another boot", bystander.pid, bystander.start_ticks))
    life = liveness.look(run)
    assert (life.life, life.note) == (Life.LOST, "the machine was restarted")
    assert stop(run).how == "already"
    assert not launch.adopt(run)
    assert orphans.find(rig.store) == []
    assert identity.alive(bystander)
    with rig.store.lock("demo"):
        following = rig.store.new_run(rig.spec())
        rig.store.set_current(following)
        launch.launch(following)
    assert rig.life(following) is Life.RUNNING


def test_orphans_of_removed_units_are_found(rig: Rig) -> None:
    run = rig.ready("--setsid", children=1)
    pids = set(rig.pids(run).values())
    rig.kill_shim(run)
    rig.store.remove("demo")
    found = orphans.find(rig.store)
    assert {orphan.pid for orphan in found} == pids
    assert set(orphans.reap(found).ended) == pids
    assert orphans.find(rig.store) == []


def test_the_same_run_id_in_another_state_directory_is_another_run(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Rig(tmp_path_factory.mktemp("other"))
    try:
        theirs = other.start(children=1)
        ours = rig.start(children=1)
        assert ours.id == theirs.id
        stop(ours)
        assert other.life(theirs) is Life.RUNNING
        assert orphans.find(rig.store) == []
        assert len(marked(theirs)) == 2
    finally:
        other.clean()


# Two at once


def test_many_operations_on_one_unit_make_one_leader(rig: Rig) -> None:
    rig.store.create("demo", Kind.ENGINE)
    code = """
from engine_ctl.state.store import Store
print('here', flush=True); sys.stdin.readline()
try:
    with store.lock('demo', command='start'):
        current = store.current('demo')
        if current is not None and not liveness.look(current).ended:
            print('running'); sys.exit()
        run = store.new_run(rig.spec()); store.set_current(run); launch.launch(run)
        print('started', flush=True)
except Busy as busy:
    print('busy' if 'held by pid' in str(busy) else busy)
"""
    with contextlib.ExitStack() as stack:
        read, write = os.pipe()
        with contextlib.suppress(OSError):
            saved = os.dup(0)
        os.dup2(read, 0)
        try:
            consoles = [stack.enter_context(rig.console(code)) for _ in range(4)]
        finally:
            os.dup2(saved, 0)
            os.close(saved)
            os.close(read)
        for console in consoles:
            assert console.stdout is not None and console.stdout.readline() == "here\n"
        os.write(write, b"go\n" * 4)
        os.close(write)
        words = [console.stdout.read().strip() for console in consoles if console.stdout]
    assert words.count("started") == 1
    assert set(words) <= {"started", "running", "busy"}
    (run,) = rig.store.runs("demo")
    assert rig.life(run) is Life.RUNNING and len(marked(run)) == 1


# The disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "stoker-test", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass


def test_a_full_disk_loses_no_end(small_disk: Path) -> None:
    rig = Rig(small_disk)
    try:
        victim = rig.ready(unit="victim", restart=restart(), free_floor_bytes=0)
        asked = rig.ready(unit="asked", children=1, free_floor_bytes=0)
        waiting = rig.start("--ready-after", "0.5", unit="late", port=free_port())
        waiter = rig.prepare(unit="never")
        fill(small_disk)
        assert until(waiting.ready).seconds >= 0.5
        rig.kill(rig.pids(victim)["leader"])
        record = rig.ended(victim)
        assert (record.signal, record.requested) == (signal.SIGKILL, False)
        assert rig.life(victim) is Life.FAILED
        done = stop(asked, by="test")
        assert done.exit is not None and done.exit.requested
        assert rig.life(asked) is Life.EXITED and marked(asked) == []
        for action in (
            lambda: rig.store.new_run(rig.spec(unit="never")),
            lambda: rig.store.set_current(waiter),
            lambda: rig.store.create("another", Kind.ENGINE),
            lambda: launch.launch(waiter),
        ):
            with pytest.raises(Failed, match="No space left"):
                action()
        assert rig.store.runs("never") == [waiter] and rig.life(waiter) is not Life.RUNNING
        # The restart was put off, not given up.
        assert rig.store.current("victim") == victim
        (small_disk / "filler").unlink()
        rig.next_run(victim)
    finally:
        rig.clean()


def test_a_full_disk_does_not_keep_an_engine_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rig.start(children=1)

    def full(*_: object) -> None:
        raise Failed("cannot write unit.json: No space left on device")

    monkeypatch.setattr(Store, "save", full)
    told: list[str] = []
    done = lifecycle.stop(Context(rig.dirs), "demo", told.append)
    assert done["how"] == "ask" and rig.life(run) is Life.EXITED and marked(run) == []
    assert "No space left on device; it is stopped all the same" in told[0]


@pytest.mark.parametrize("name", ["unit.json", "current.json"])
def test_a_damaged_record_of_the_unit_does_not_keep_an_engine_up(rig: Rig, name: str) -> None:
    run, other = rig.start(children=1), rig.start(unit="other")
    ctx = Context(rig.dirs)
    (rig.store.unit_dir("demo") / name).write_text("[")
    assert "other" in [row["unit"] for row in ps(ctx)["units"]]
    assert lifecycle.stop(ctx, "demo")["how"] == "ask"
    assert rig.life(run) is Life.EXITED and marked(run) == []
    assert rig.life(other) is Life.RUNNING
    lifecycle.remove(ctx, "demo")
    assert [row["unit"] for row in ps(ctx)["units"]] == ["other"]


# As an engine that has overwritten its environment, with titles of its processes for example.
UNMARKED = ("/usr/bin/env", "-u", "STOKER_RUN_DIR", sys.executable, "-I", "-S", str(TREE))


@pytest.mark.parametrize("words", [(), UNMARKED])
@pytest.mark.parametrize("shim", ["its own", "another", "none"])
def test_an_engine_with_a_damaged_identity_is_found_and_stopped(
    rig: Rig, shim: str, words: tuple[str, ...]
) -> None:
    how = {"argv": [*words, "--children", "2"]} if words else {}
    run, other = rig.start(children=2, **how), rig.start(unit="other")
    assert bool(marked(run)) == (not words)
    ctx, who = Context(rig.dirs), run.identity()
    assert who is not None
    if shim != "its own":
        rig.kill_shim(run)
    if shim == "another":
        assert launch.adopt(run)
    (run.dir / "identity.json").write_text("{")
    (run.dir / "ready.json").write_text("{")
    assert "stoker stop demo" in str(ps(ctx)["problems"])
    assert lifecycle.stop(ctx, "demo")["how"] == "ask"
    record, found = run.exit(), run.identity()
    assert record is not None and record.requested and found is not None
    assert found.leader == who.leader and marked(run) == []
    left = [proc for pid in rig.pids(run).values() if (proc := procs.look(pid)) is not None]
    assert all(proc.state in "ZX" for proc in left)
    assert rig.life(run) is Life.EXITED and rig.life(other) is Life.RUNNING
    assert lifecycle.remove(ctx, "demo")["removed"]


def test_who_reads_the_log_is_none_of_the_run(rig: Rig) -> None:
    run = rig.start()
    stop(run)
    (run.dir / "identity.json").write_text("{")
    with run.log.open("r+b") as log:
        reader = subprocess.Popen(["sleep", "1000"], stdin=log, stdout=log)
    try:
        assert recover.find(run) is None
    finally:
        reader.kill()
        reader.wait()
        (run.dir / "identity.json").unlink()


def test_a_damaged_identity_without_a_process_is_told(rig: Rig) -> None:
    run = rig.start()
    stop(run)
    (run.dir / "identity.json").write_text("{")
    (exit_record := run.dir / "exit.json").rename(kept := run.dir / "kept")
    with pytest.raises(Failed, match=r"no process of demo/1 is found; move it away"):
        stop(run)
    kept.rename(exit_record)
    assert stop(run).how == "already"


def test_a_log_that_fills_the_disk_is_ended_by_it_and_recorded(small_disk: Path) -> None:
    rig = Rig(small_disk)
    try:
        run = rig.prepare("--lines", "100000", free_floor_bytes=0)
        launch.launch(run)
        record = rig.ended(run)
        assert record.code in (1, 120) and not record.requested
        assert rig.life(run) is Life.FAILED
        assert b"xxx" in run.log.read_bytes()
    finally:
        rig.clean()


def test_a_limit_on_file_sizes_loses_no_end(rig: Rig) -> None:
    rig.prepare("--lines", "1000")
    code = "run = store.current('demo'); launch.launch(run); print('ok')"
    with rig.console(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n" + code
    ) as console:
        assert console.stdout is not None and console.stdout.read() == "ok\n"
    run = rig.store.current("demo")
    assert run is not None
    assert rig.ended(run).code in (1, 120)  # Python's statuses for output that cannot be written
    assert run.log.stat().st_size == 8192
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 8192


def test_the_shim_trims_the_log(rig: Rig) -> None:
    run = rig.start("--lines", "60000", log_max_bytes=2 << 20)
    size = 60_000 * 100
    until(lambda: run.log.stat().st_size >= size, "all lines are written")
    until(lambda: run.log.stat().st_blocks * 512 <= 2 << 20, "it is trimmed")
    assert run.log.read_bytes().startswith(b"pid leader")
    assert rig.life(run) is Life.RUNNING


# The clock


def test_a_wall_clock_that_runs_backwards_breaks_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "shim.py"
    wrapper.write_text(
        "import sys, time\n"
        "begin = time.monotonic()\n"
        "time.time = lambda: 1e9 - 3600 * (time.monotonic() - begin)\n"
        f"sys.path.append({str(ROOT)!r})\n"
        "from engine_ctl.supervise import shim\n"
        "sys.exit(shim.main(sys.argv[1:]))\n"
    )
    monkeypatch.setattr(launch, "SHIM", wrapper)
    run = rig.ready("--ready-after", "0.3", restart=restart())
    monkeypatch.setattr(time, "time", lambda: 5e8)
    ready, who = run.ready(), run.identity()
    assert ready is not None and who is not None
    assert 0.3 <= ready.seconds < 20 and ready.wall < who.started <= 1e9
    rig.kill(rig.pids(run)["leader"])
    record = rig.ended(run)
    assert record.ended < ready.wall and record.seconds is not None
    assert ready.seconds <= record.seconds < 60
    second = rig.next_run(run)
    assert stop(second, by="test").how == "ask"
    assert rig.life(second) is Life.EXITED


# What a shim costs


def test_a_shim_is_small_and_asleep(rig: Rig) -> None:
    run = rig.ready("--lines", "1000")
    who = run.identity()
    assert who is not None
    status = Path(f"/proc/{who.shim.pid}/status")

    def switches() -> int:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    rollup = Path(f"/proc/{who.shim.pid}/smaps_rollup").read_text()
    pss_kb = int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")))
    assert pss_kb < 10_000

    def asleep() -> bool:
        before = switches()
        time.sleep(2.0)  # the thing that is measured
        return switches() - before <= 3

    # What it does right after its run became ready is none of this.
    until(asleep, "at most three wakes in two seconds")
