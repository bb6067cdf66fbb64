"""What the kernel would not execute is said before anything is stopped for it: its own answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from engine_ctl.errors import Failed
from engine_ctl.operations import lifecycle, swapping
from engine_ctl.supervise import exec_limits
from engine_ctl.supervise.exec_limits import STRING, problem
from tests.standin.serving import Serving


def runs(argv: list[str], env: dict[str, str]) -> bool:
    try:
        return subprocess.run(argv, env=env, check=False).returncode == 0
    except OSError as error:
        assert error.strerror == "Argument list too long"
        return False


@pytest.mark.parametrize(("more", "good"), [(0, True), (1, False)])
def test_one_string(more: int, good: bool) -> None:
    word = "--x=" + "é" * ((STRING - 4) // 2) + "a" * ((STRING - 4) % 2 + more)
    argv = ["/bin/true", word]
    assert runs(argv, {}) is good
    found = problem(argv, {})
    assert (found is None) is good and (good or (found is not None and found.startswith("--x has")))
    value = "a" * (STRING - 2 + more)
    assert runs(["/bin/true"], {"V": value}) is good
    assert (problem(["/bin/true"], {"V": value}) is None) is good


def test_the_option_of_a_value_is_named() -> None:
    found = problem(["/bin/true", "--before", "1", "--hf-overrides", "x" * (STRING + 1)], {})
    assert found is not None and found.startswith(f"--hf-overrides has {STRING + 1:,} bytes")


def test_all_together_runs_where_nothing_is_said() -> None:
    part = "x" * 100_000
    fits = []
    env: dict[str, str] = {}
    while problem(["/bin/true"], env) is None:
        fits = [*env]
        env[f"V{len(env)}"] = part
    assert runs(["/bin/true"], dict.fromkeys(fits, part))
    found = problem(["/bin/true"], env)
    assert found is not None and "together" not in found and "ulimit -s" in found
    assert not runs(["/bin/true"], env | {f"W{n}": part for n in range(2)})


def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _: -1)
    assert exec_limits._limit() == 6 << 20


def test_the_old_engine_goes_on(here: Serving) -> None:
    here.profile("p", 4)
    first = lifecycle.ready_run(here.ctx, lifecycle.start(here.ctx, "u", "p"), print)
    here.profile("q", 4, env={"LONG": "x" * STRING})
    with pytest.raises(Failed, match=r"profile q: the variable LONG has 131,0\d\d bytes"):
        swapping.swap_to(here.ctx, "u", "q", print)
    assert here.current("u") == first and first.exit() is None


@pytest.fixture
def here(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Serving(tmp_path)
    try:
        yield made
    finally:
        made.close()
