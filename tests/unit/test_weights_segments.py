"""Shared memory of killed processes: removed only when it is the same file and nobody maps it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_ctl.supervise import procs, segments
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


def _hold(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
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


def test_a_process_that_is_gone_maps_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert segments.mapped_by(process.pid) == {}
