"""The memory of the moment at which a run ended unasked, with an nvidia-smi that answers, fails,
hangs, or is not there; the exit record waits for none of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.model import Kind, Phase
from engine_ctl.observe.phase import note_of
from engine_ctl.operations import explain
from engine_ctl.operations.context import Context
from engine_ctl.state import aftermath as kept
from engine_ctl.state import events
from engine_ctl.state.aftermath import MemoryRecord
from engine_ctl.state.store import Run
from engine_ctl.supervise import aftermath, liveness, procs, room
from engine_ctl.supervise.stop import stop
from profiles.model import Restart
from tests.standin.rig import Rig, rig, until

__all__ = ["rig"]

GIB = 1 << 30
MISSING = "1.0 GiB are missing"
ANSWERS = """#!/bin/sh
case "$1" in
--query-gpu=*)
    echo "0, GPU-aaaa, 143771, 73000"
    echo "1, GPU-bbbb, 143771, [N/A]";;
*)
    echo "GPU-aaaa, 4242, 71000"
    echo "GPU-aaaa, 4243, [N/A]"
    echo "GPU-zzzz, 1, 5";;
esac
"""
FAILS = """#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
"""
HANGS = """#!/bin/sh
echo $$ >> "$0.pids"
exec sleep 1000
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts its nvidia-smi: first on the PATH of what it starts."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place / "nvidia-smi"


def write(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def record_of(run: Run, done: bool = True) -> MemoryRecord:
    """The record; when `done`, once it says something of GPUs."""

    def found() -> MemoryRecord | None:
        record = kept.read(run)
        settled = record is not None and (record.gpus is not None or record.gpu_note)
        return record if settled or not done else None

    record = until(found, "memory.json")
    assert isinstance(record, MemoryRecord)
    return record


def alive(pid: int) -> bool:
    proc = procs.look(pid)
    return proc is not None and proc.state not in "ZX"


def killed(rig: Rig, children: int = 1, **fields: object) -> Run:
    run = rig.start(children=children, **fields)
    who = run.identity()
    assert who is not None
    rig.kill(who.leader.pid)
    rig.ended(run)
    return run


def test_the_host_what_is_left_and_the_gpus(rig: Rig, smi: Path) -> None:
    write(smi, ANSWERS)
    run = killed(rig)
    record = record_of(run)
    assert record.host.total and record.host.available
    assert 0 < record.host.available < record.host.total
    assert record.before is not None and record.before.seconds >= 0
    (child,) = [pid for name, pid in rig.pids(run).items() if name != "leader"]
    assert [each.pid for each in record.left] == [child] and record.left[0].resident
    assert record.gpus is not None
    first, second = record.gpus
    assert (first.index, first.total, first.used) == (0, 143771 << 20, 73000 << 20)
    assert [(p.pid, p.used) for p in first.processes] == [(4242, 71000 << 20), (4243, None)]
    assert (second.used, second.processes) == (None, [])


def test_the_card_and_the_command_say_it(rig: Rig, smi: Path) -> None:
    write(smi, ANSWERS)
    run = killed(rig)
    record_of(run)
    card = explain.why(Context(rig.dirs, by="test"), run.unit)
    assert card is not None and card.memory_then is not None
    said = "\n".join(card.memory)
    assert "host: " in said and "left of the run in host memory: " in said
    assert "GPU 0: 71.3 GiB used of 140.4 GiB; pid 4242 69.3 GiB, pid 4243 N/A" in said
    assert "GPU 1: N/A used of 140.4 GiB" in said


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (FAILS, "nvidia-smi failed: NVIDIA-SMI has failed because it couldn't communicate"),
        ("#!/bin/sh\n", "nvidia-smi failed: it said nothing"),
        ("#!/no/such/interpreter\n", "nvidia-smi failed: No such file"),
    ],
)
def test_one_that_fails_is_said(rig: Rig, smi: Path, script: str, note: str) -> None:
    write(smi, script)
    record = record_of(killed(rig, children=0))
    assert record.gpus is None and record.gpu_note.startswith(note)


def test_the_exit_record_is_there_while_one_hangs(rig: Rig, smi: Path) -> None:
    write(smi, HANGS)
    run = killed(rig)
    record = record_of(run)
    assert record.host.available
    assert record.gpus is None and "did not answer within" in record.gpu_note
    written = [(run.dir / name).stat().st_mtime_ns for name in ("exit.json", "memory.json")]
    assert written == sorted(written)
    exited = run.exit()
    assert exited is not None and exited.signal == 9
    assert set(exited.swept) <= {each.pid for each in record.left} and exited.remaining == []
    pids = smi.with_name("nvidia-smi.pids")
    hung = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    until(lambda: not {pid for pid in hung if alive(pid)}, "they are ended")


def test_a_run_on_the_cpu_asks_no_gpu(rig: Rig, smi: Path) -> None:
    write(smi, HANGS)
    run = killed(rig, children=0, platform="cpu")
    record = record_of(run, done=False)
    assert record.gpus is None and record.gpu_note == "" and record.host.available


def test_an_end_that_was_asked_for_is_not_looked_at(rig: Rig, smi: Path) -> None:
    write(smi, ANSWERS)
    run = rig.start()
    stop(run, by="test")
    rig.ended(run)
    assert kept.read(run) is None


def test_a_task_that_succeeded_is_not_looked_at(rig: Rig) -> None:
    run = rig.start("--exit-after", "0.05", "--code", "0", kind=Kind.BENCH)
    assert rig.ended(run).code == 0
    assert kept.read(run) is None


def test_limits_of_the_cgroups_above(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/pod/engine\n")
    for path, limit, used in (("pod", str(8 * GIB), 7 * GIB), ("pod/engine", "max", 3 * GIB)):
        (root / path).mkdir(parents=True)
        (root / path / "memory.max").write_text(f"{limit}\n")
        (root / path / "memory.current").write_text(f"{used}\n")
    (root / "pod/memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert aftermath._cgroup(str(proc), str(root)) == {
        "limit": 8 * GIB,
        "used": 7 * GIB,
        "oom_kills": 2,
    }
    (proc / "self/cgroup").write_text("5:memory:/job\n4:cpu:/\n")
    (root / "memory/job").mkdir(parents=True)
    (root / "memory/job/memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (root / "memory/job/memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert aftermath._cgroup(str(proc), str(root)) == {"limit": 4 * GIB, "used": GIB}
    assert aftermath._cgroup(str(tmp_path), str(root)) is None


def test_a_kill_for_want_of_memory_is_said() -> None:
    record = MemoryRecord(
        at=0.0,
        host=kept.HostMemory(total=16 * GIB, available=GIB, swap_total=GIB, swap_free=0),
        before=kept.Before(seconds=3.2, available=6 * GIB),
        cgroup=kept.GroupMemory(limit=8 * GIB, used=8 * GIB),
        oom_kills=1,
    )
    assert kept.words(record) == (
        "host: 1.0 GiB available of 16.0 GiB, 6.0 GiB 3 s earlier; swap 0.0 GiB free of 1.0 GiB",
        "container: 8.0 GiB used of a limit of 8.0 GiB",
        "the kernel had just killed a process for want of host memory",
    )


def test_weights_wait_for_room_before_the_policy_loads_them_again(rig: Rig, smi: Path) -> None:
    # 69.1 GiB free on the first GPU, not known of the second
    write(smi, ANSWERS.replace("sh\n", 'sh\necho >> "$0.asked"\n', 1))
    restart = Restart(policy="on-failure", backoff_s=0.01, backoff_max_s=0.2)
    room = {"GPU-aaaa": 70 * GIB, "GPU-bbbb": 70 * GIB}
    run = killed(rig, restart=restart, room=room)
    said = until(lambda: [e for e in events.last(rig.dirs, 20) if "waits for room" in e.text])
    why = "GPU 0 has 69.1 GiB free, its weights need 70.0 GiB: 0.9 GiB are missing"
    assert said[0].text.endswith(why)
    life = until(lambda: (look := liveness.look(run)).facts.waits and look)
    assert note_of(life, Phase.FAILED) == f"waits for room: {why}"
    current = rig.store.current(run.unit)
    assert current is not None and current.id == run.id
    asked, who = Path(f"{smi}.asked"), run.identity()
    until(lambda: asked.stat().st_size > 16, "asked again and again")
    assert who is not None
    dead = [p for p in procs.table().values() if p.ppid == who.shim.pid and p.state == "Z"]
    assert len(dead) < 8, "who asked is no zombie"
    write(smi, ANSWERS.replace("73000", "71000"))
    again = until(lambda: (now := rig.store.current(run.unit)) and now.id != run.id and now)
    until(lambda: again.identity() is not None)
    assert again.spec().room == room and not (run.dir / "waits.json").exists()
    assert len([e for e in events.last(rig.dirs, 20) if "waits for room" in e.text]) == 1
    stop(again)


@pytest.mark.parametrize(
    ("needed", "why"),
    [
        ({}, None),
        ({"GPU-a": 10 * GIB}, None),
        (
            {"GPU-a": 11 * GIB},
            "GPU 0 has 10.0 GiB free, its weights need 11.0 GiB: 1.0 GiB are missing",
        ),
        ({"GPU-b": 11 * GIB, "GPU-c": 11 * GIB}, None),  # not known, not there
    ],
)
def test_room_on_the_gpus(needed: dict[str, int], why: str | None) -> None:
    gpus = [
        {"index": 0, "uuid": "GPU-a", "total": 80 * GIB, "used": 70 * GIB},
        {"index": 1, "uuid": "GPU-b", "total": 80 * GIB, "used": None},
    ]
    assert room.lacking(needed, gpus) == why


class Said(aftermath._Query):
    """An nvidia-smi that has said this."""

    def __init__(self, text: str) -> None:
        self.pid, self.fd, self._pidfd, self._said = 0, -1, -1, text.encode()


ROW = st.lists(
    st.sampled_from(["0", "1", "GPU-a", "GPU-b", "[N/A]", "143771", "", " 7", "-3", "x"]),
    max_size=6,
)
TEXT = st.text(max_size=80) | st.lists(ROW, max_size=5).map(
    lambda rows: "\n".join(", ".join(row) for row in rows)
)


@given(TEXT, TEXT)
def test_whatever_nvidia_smi_says_is_a_record(gpus: str, apps: str) -> None:
    found = aftermath.Aftermath([], None, gpus=False)
    found._queries = [Said(gpus), Said(apps)]
    assert found.poll()
    record = msgspec.json.decode(json.dumps(found.record), type=MemoryRecord)
    assert (record.gpus is None) == bool(record.gpu_note)
    assert all("\n" not in line for line in kept.words(record))
