"""The forker: multiprocessing's spawn contract kept by forks of a pristine process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin.rig import until

SCRIPT = Path(__file__).with_name("standby_forker_script.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    root = str(SCRIPT.parents[2])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "last argument"],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_this_python_can(found: dict[str, Any]) -> None:
    assert found["possible"] is None


def test_it_is_still_called_spawn(found: dict[str, Any]) -> None:
    assert found["method"] == "spawn"


def test_a_process_has_the_environment_of_the_moment_and_a_parent(found: dict[str, Any]) -> None:
    word, colour, _, has_parent, argument = found["child"]
    assert (word, colour, has_parent, argument) == ("child", "blue", True, "last argument")
    assert found["forker_is_parent"]


def test_processes_start_processes_and_share_locks(found: dict[str, Any]) -> None:
    assert found["grandchild"] == "grandchild"


def test_exit_codes_and_signals_arrive(found: dict[str, Any]) -> None:
    assert found["exitcodes"] == [0, 3, -15]


def test_a_child_sees_its_asking_parent_die(found: dict[str, Any]) -> None:
    assert found["orphan"] == "parent gone"


def test_what_a_killed_process_asked_for_is_killed_with_it(found: dict[str, Any]) -> None:
    assert found["killed_with_its_asker"] is True


def test_sockets_travel(found: dict[str, Any]) -> None:
    assert found["socket"] == "served"


def test_a_hundred_starts_without_a_deadlock_or_a_leaked_descriptor(found: dict[str, Any]) -> None:
    assert found["many"] == 100
    assert found["descriptors_grew"] <= 0


def test_the_forker_ends_with_its_last_client(found: dict[str, Any]) -> None:
    until(lambda: not Path(f"/proc/{found['forker']}").exists(), "the forker has ended")
