"""The decisions of supervision, without processes."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.identity import Identity
from engine_ctl.model import Kind, Phase
from engine_ctl.state.records import ExitRecord, ReadyRecord, RunIdentity, StopRequest
from engine_ctl.supervise import disk, policy, procs, spawn, trim
from engine_ctl.supervise.liveness import Facts, Life, judge
from engine_ctl.supervise.probe import Probe
from tests.standin.rig import until

RESTART = {"policy": "on-failure", "max": 3, "backoff_s": 1.0, "backoff_max_s": 5.0, "reset_s": 60}


def decide(**change: Any) -> policy.Decision:
    restart = {**RESTART, **change.pop("restart", {})}
    given: dict[str, Any] = {
        "kind": "engine",
        "requested": False,
        "code": 1,
        "uptime_s": 3.0,
        "attempt": 1,
        **change,
    }
    return policy.again(restart, **given)


def test_the_delay_doubles_up_to_its_maximum_and_then_it_gives_up() -> None:
    assert [decide(attempt=n)[:2] for n in (1, 2, 3)] == [(1.0, 2), (2.0, 3), (4.0, 4)]
    assert decide(attempt=4) == (None, 0, True)
    assert decide(attempt=9, restart={"max": 99}).delay_s == 5.0


def test_uptime_begins_a_new_series() -> None:
    assert decide(attempt=4, uptime_s=60.0)[:2] == (1.0, 2)


@pytest.mark.parametrize("name", ["never", "on-failure", "always"])
def test_what_was_asked_for_is_never_undone(name: str) -> None:
    assert decide(requested=True, restart={"policy": name}) == policy.NO


def test_status_0_of_a_server_is_a_failure_of_a_bench_it_is_none() -> None:
    assert decide(code=0).delay_s == 1.0
    assert decide(code=0, kind="bench") == policy.NO
    assert decide(code=0, kind="bench", restart={"policy": "always"}).delay_s == 1.0
    assert decide(restart={"policy": "never"}) == policy.NO


@given(attempt=st.integers(1, 10**6), uptime=st.floats(0, 1e9))
def test_delays_are_bounded(attempt: int, uptime: float) -> None:
    decision = decide(attempt=attempt, uptime_s=uptime, restart={"max": 10**9})
    assert decision.delay_s is not None and 0 < decision.delay_s <= 5.0


WHO = RunIdentity(
    run="demo/1",
    shim=Identity("boot", 10, 100),
    leader=Identity("boot", 11, 101),
    session=11,
    started=0.0,
    monotonic=0.0,
)
ALIVE = Facts(
    kind=Kind.ENGINE,
    shim_holds=True,
    leader_alive=True,
    launching=False,
    same_boot=True,
    identity=WHO,
    request=None,
    ready=ReadyRecord(wall=0.0, seconds=1.0),
    exit=None,
)
ASKED = StopRequest(at=0.0)


def over(**fields: Any) -> ExitRecord:
    return ExitRecord(ended=0.0, **fields)


@pytest.mark.parametrize(
    ("change", "life"),
    [
        ({}, Life.RUNNING),
        ({"request": ASKED}, Life.STOPPING),
        ({"leader_alive": False}, Life.STOPPING),  # its shim sweeps
        ({"shim_holds": False}, Life.ORPHANED),
        ({"shim_holds": False, "request": ASKED}, Life.ORPHANED),
        ({"shim_holds": False, "leader_alive": False}, Life.LOST),
        ({"shim_holds": False, "leader_alive": False, "request": ASKED}, Life.LOST),
        ({"same_boot": False}, Life.LOST),
        ({"identity": None, "shim_holds": False, "leader_alive": False}, Life.LOST),
        ({"identity": None, "leader_alive": False}, Life.RUNNING),
        ({"identity": None, "shim_holds": False, "launching": True}, Life.RUNNING),
        ({"exit": over(code=0, requested=True)}, Life.EXITED),
        ({"exit": over(signal=9, requested=True)}, Life.EXITED),
        ({"exit": over(code=0)}, Life.FAILED),
        ({"exit": over(code=0), "request": ASKED}, Life.FAILED),  # asked after the end
        ({"exit": over(code=0), "kind": Kind.BENCH}, Life.EXITED),
        ({"exit": over(code=1), "kind": Kind.BENCH}, Life.FAILED),
        ({"exit": over(error="cannot run x"), "same_boot": False}, Life.FAILED),
        ({"exit": over(), "same_boot": False}, Life.FAILED),
    ],
)
def test_judgement(change: dict[str, Any], life: Life) -> None:
    verdict = judge(dataclasses.replace(ALIVE, **change))
    assert verdict.life is life
    assert verdict.phase is (None if life is Life.RUNNING else Phase(life.value)) or verdict.fell
    assert verdict.pending == (life is Life.RUNNING and "identity" in change)


def test_a_run_that_fell_has_failed_at_once_and_stays_so() -> None:
    """Not failed by its log, stopping while the shim sweeps, and failed again."""
    fell = dataclasses.replace(ALIVE, leader_alive=False)
    seen = [judge(facts) for facts in (fell, dataclasses.replace(fell, exit=over(code=0)))]
    assert [verdict.phase for verdict in seen] == [Phase.FAILED, Phase.FAILED]
    assert not seen[0].ended and seen[1].ended
    asked = judge(dataclasses.replace(fell, request=ASKED))
    assert asked.phase is Phase.STOPPING
    # A task whose process has ended may have done its work.
    assert judge(dataclasses.replace(fell, kind=Kind.BENCH)).phase is Phase.STOPPING


def test_restarting_needs_a_shim_and_no_request() -> None:
    facts = dataclasses.replace(ALIVE, leader_alive=False, exit=over(code=1, restart_in_s=3.0))
    assert judge(facts).restarting
    assert not judge(dataclasses.replace(facts, shim_holds=False)).restarting
    assert not judge(dataclasses.replace(facts, request=ASKED)).restarting


@given(
    st.builds(
        Facts,
        kind=st.sampled_from(Kind),
        shim_holds=st.booleans(),
        leader_alive=st.booleans(),
        launching=st.booleans(),
        same_boot=st.booleans(),
        identity=st.sampled_from([None, WHO]),
        request=st.sampled_from([None, ASKED]),
        ready=st.none(),
        exit=st.sampled_from([None, over(code=0), over(code=1, requested=True)]),
    )
)
def test_any_facts_are_judged_and_an_exit_record_settles_it(facts: Facts) -> None:
    verdict = judge(facts)
    assert verdict.ended or facts.exit is None
    assert not (verdict.life is Life.ORPHANED and not facts.leader_alive)


# The log


@pytest.mark.parametrize(
    ("used", "free", "keep"),
    [
        (10 << 20, 1 << 40, None),
        (101 << 20, 1 << 40, 49 << 20),
        (90 << 20, 1 << 20, 16 << 20),
        (20 << 20, 1 << 20, None),
    ],
)
def test_how_much_of_a_log_stays(used: int, free: int, keep: int | None) -> None:
    assert trim.keep_bytes(used, free, 100 << 20, 256 << 20) == keep


def lines(path: Path, count: int) -> list[bytes]:
    made = [b"line %08d " % n + b"x" * 85 + b"\n" for n in range(count)]
    path.write_bytes(b"".join(made))
    return made


@pytest.mark.parametrize("punch", [True, False])
def test_the_middle_of_a_log_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, punch: bool
) -> None:
    path = tmp_path / "log"
    made = lines(path, 50_000)
    if not punch:
        monkeypatch.setattr(trim, "_punch", lambda *_: False)
    writer = path.open("ab")
    freed = trim.trim(str(path), 2 << 20, 0)
    if punch and freed == 0:
        pytest.skip("this file system cannot punch holes")
    assert freed > 2 << 20
    writer.write(b"after\n")
    writer.close()
    left = path.read_bytes()
    assert left.startswith(b"".join(made[:1000]))
    assert left.endswith(made[-2] + made[-1] + b"after\n")
    assert os.stat(path).st_blocks * 512 < 2 << 20
    assert (len(left) == 50_000 * 100 + 6) == punch
    assert trim.trim(str(path), 2 << 20, 0) == 0


def test_a_log_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    assert trim.trim(str(tmp_path / "log"), 1, 1) == 0


# Last words


def test_reserved_space_becomes_the_record(tmp_path: Path) -> None:
    path = str(tmp_path / "exit.json")
    disk.reserve(path)
    assert disk.read_json(path) is None
    (reserved,) = tmp_path.iterdir()
    assert reserved.stat().st_blocks * 512 >= 4096
    disk.fill(path, {"code": 3})
    assert disk.read_json(path) == {"code": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["exit.json"]


def test_filling_works_without_a_reservation(tmp_path: Path) -> None:
    disk.fill(str(tmp_path / "exit.json"), {"code": 3})
    assert disk.read_json(str(tmp_path / "exit.json")) == {"code": 3}


@pytest.mark.parametrize("damage", [b"\xff\x00", b"[" * 200_000, b"[]", b'{"a":', b"nul"])
def test_a_damaged_record_is_none(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(damage)
    assert disk.read_json(str(path)) is None


# The environment


def test_environment_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from file\n")
    base = {"PATH": "/bin", "GONE": "1", "TOKEN": "from env", "STOKER_RUN_DIR": "/other"}
    spec = {
        "run": "demo/1",
        "unit": "demo",
        "env": {"A": "1"},
        "env_unset": ["GONE", "NEVER"],
        "env_refs": {
            "HF_TOKEN": {"from_env": "TOKEN", "from_file": None},
            "KEY": {"from_file": str(tmp_path / "token")},
        },
    }
    assert spawn.environment(spec, "/run/dir", base) == {
        "PATH": "/bin",
        "TOKEN": "from env",
        "A": "1",
        "HF_TOKEN": "from env",
        "KEY": "from file",
        "STOKER_RUN": "demo/1",
        "STOKER_UNIT": "demo",
        "STOKER_RUN_DIR": "/run/dir",
    }


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"from_env": "NOPE"}, "variable NOPE, which is not set"),
        ({"from_file": "/no/such/file"}, "'/no/such/file'.*No such file"),
    ],
)
def test_references_that_lead_nowhere(reference: dict[str, str], message: str) -> None:
    spec = {"run": "demo/1", "unit": "demo", "env_refs": {"HF_TOKEN": reference}}
    with pytest.raises(spawn.SpawnError, match=message):
        spawn.environment(spec, "/run/dir", {})


# Readiness


def answer(server: socket.socket, status: bytes) -> None:
    client, _ = server.accept()
    assert client.recv(4096).startswith(b"GET /health HTTP/1.1\r\nHost: ")
    client.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
    client.close()


def test_only_status_200_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = Probe(f"http://0.0.0.0:{server.getsockname()[1]}/health")
        assert not probe.step()
        for status, ready in ((b"503 Service Unavailable", False), (b"200 OK", True)):
            until(lambda: probe.step() is False and probe._sent)
            answer(server, status)
            verdicts = iter(lambda: probe.step() if probe._socket else None, None)
            assert (True in verdicts) == ready
        probe.close()


def test_nobody_there_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    probe = Probe(f"http://localhost:{port}/health")
    assert not any(probe.step() for _ in range(5))


def test_a_unix_socket_is_ready_when_it_accepts(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")
    probe = Probe(f"unix:{path}")
    assert not probe.step()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert not probe.step()
        server.listen()
        assert probe.step()


@pytest.mark.parametrize(
    "url", ["https://h:x/", "http://h:x/", "tcp://h:x", "ftp://h:1/", "nonsense"]
)
def test_addresses_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(ValueError, match="cannot ask"):
        Probe(url)


# Processes


def test_a_process_that_names_itself_oddly(tmp_path: Path) -> None:
    proc = procs.look(os.getpid())
    assert proc is not None and proc.ppid == os.getppid() and proc.sid == os.getsid(0)
    assert procs.look(2**22 + 1) is None
    assert procs.run_dir_of(2**22 + 1) is None


def test_descendants_do_not_enter_what_is_foreign() -> None:
    def proc(pid: int, ppid: int) -> procs.Proc:
        return procs.Proc(pid, ppid, 0, 0, 0, "S", 0, "x")

    processes = {p.pid: p for p in (proc(2, 1), proc(3, 2), proc(4, 3), proc(5, 2), proc(6, 5))}
    assert procs.descendants([2], processes, ()) == {3, 4, 5, 6}
    assert procs.descendants([2], processes, {5}) == {3, 4}


@pytest.mark.parametrize(
    "record",
    [None, "x", 5, [], {}, {"boot": "b"}, {"boot": "b", "pid": [1]}, {"boot": "b", "pid": "1"}],
)
def test_a_damaged_identity_names_no_process(record: Any) -> None:
    assert procs.find(record, procs.table(), "b") is None
