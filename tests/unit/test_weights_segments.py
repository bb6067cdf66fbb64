"""Shared memory of killed processes: removed only when it is the same file and nobody maps it."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Store
from engine_ctl.supervise import procs, segments
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop
from engine_ctl.supervise.sweep import sweep

HOLD = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
keep = mmap.mmap(fd, 4096)
os.close(fd)
print("mapped", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path(f"/dev/shm/stoker-test-{uuid.uuid4().hex}")
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


def _hold(path: Path, script: str = HOLD) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "mapped\n"
    return process


def test_what_a_swept_process_mapped_is_removed(shared: Path) -> None:
    process = _hold(shared)

    def left() -> list[procs.Proc]:
        process.poll()
        found = procs.look(process.pid)
        return [found] if found is not None and found.state != "Z" else []

    sweep(left, grace_s=0.0, term_s=0.0)
    assert not shared.exists()


def test_what_another_process_maps_stays(shared: Path) -> None:
    one, other = _hold(shared), _hold(shared)
    noted = segments.mapped_by(one.pid)
    assert noted == {str(shared): shared.stat().st_ino}
    one.kill()
    one.wait()
    assert segments.remove_abandoned(noted) == []
    other.kill()
    other.wait()
    assert segments.remove_abandoned(noted) == [str(shared)]


def test_a_new_file_of_the_same_name_stays(shared: Path) -> None:
    inode = shared.stat().st_ino
    assert segments.remove_abandoned({str(shared): inode + 1}) == []
    assert shared.exists()


@pytest.mark.parametrize("how", ["in a directory", "only read"])
def test_an_operators_weights_in_shared_memory_are_not_noted(how: str) -> None:
    directory = Path(f"/dev/shm/stoker-test-{uuid.uuid4().hex}")
    directory.mkdir()
    read = how == "only read"
    weights = directory.with_suffix(".gguf") if read else directory / "model.safetensors"
    script = HOLD.replace("4096)", "4096, prot=mmap.PROT_READ)") if read else HOLD
    try:
        weights.write_bytes(bytes(4096))
        process = _hold(weights, script)
        noted: dict[str, int] = {}
        try:
            segments.note(noted, [process.pid])
            assert str(weights) in segments.mapped_by(process.pid), "used by it all the same"
        finally:
            process.kill()
            process.wait()
        assert noted == {}
    finally:
        weights.unlink(missing_ok=True)
        directory.rmdir()


def test_a_process_that_is_gone_maps_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert segments.mapped_by(process.pid) == {}


QUITS = HOLD.replace("time.sleep(600)", "import signal; signal.sigwait([signal.SIGTERM])").replace(
    "keep =", "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); keep ="
)


def test_a_stop_removes_what_a_process_leaves_that_ends_as_asked(
    shared: Path, tmp_path: Path
) -> None:
    store = Store(Dirs.from_env({"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}))
    store.create("u", Kind.ENGINE)
    argv = [sys.executable, "-c", QUITS, str(shared)]
    run = store.new_run(RunSpec(unit="u", kind=Kind.ENGINE, argv=argv))
    store.set_current(run)
    launch(run)
    while b"mapped" not in run.log.read_bytes():
        time.sleep(0.01)
    with store.lock("u"):
        stopped = stop(run)
    assert stopped.exit is not None and stopped.exit.requested and stopped.how == "ask"
    assert not shared.exists()


SEMAPHORE = """
import multiprocessing, time
held = multiprocessing.get_context("spawn").Semaphore()
print(held._semlock.name, flush=True)
time.sleep(600)
"""


def test_a_semaphore_is_known_by_the_name_that_it_has_now() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SEMAPHORE], stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None
            name = one.stdout.readline().strip().lstrip("/")
            noted = segments.mapped_by(one.pid)
            path = f"/dev/shm/sem.{name}"
            assert noted[path] == Path(path).stat().st_ino
            assert segments.remove_abandoned(dict(noted)) == [], "it is in use"
        finally:
            one.terminate()


def test_files_in_which_api_servers_count_go_with_their_directory(tmp_path: Path) -> None:
    made, own = tmp_path / "tmpa1b2c3d4", tmp_path / "tmp-of-the-operator"
    for directory in (made, own):
        directory.mkdir()
        for name in ("counter_17.db", "gauge_mostrecent_17.db"):
            (directory / name).write_bytes(bytes(4096))
    (made / "counter_.db").write_bytes(bytes(4096))
    noted: dict[str, int] = {}
    for path in (*made.iterdir(), *own.iterdir()):
        process = _hold(path)
        segments.note(noted, [process.pid])
        process.kill()
        process.wait()
    assert sorted(noted) == [str(made / "counter_17.db"), str(made / "gauge_mostrecent_17.db")]
    (made / "counter_.db").unlink()
    (made / "summary_17.db").touch()
    later = made / "counter_18.db"
    later.write_bytes(bytes(4096))
    other = _hold(later)
    assert len(segments.remove_abandoned(noted)) == 2
    assert list(made.iterdir()) == [later], "in use"
    segments.note(noted, [other.pid])
    other.kill()
    other.wait()
    assert segments.remove_abandoned(noted) == [str(later)]
    assert not made.exists() and len(list(own.iterdir())) == 2
