"""The installer's product, and what it does with wishes that cannot be met."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine_ctl.errors import Failed, NotFound, Usage
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.manage import add, check, is_stale
from engine_ctl.runtimes.store import RuntimeStore, choose
from tests.engine.conftest import CpuRuntime

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def quiet(text: str, share: float) -> None:
    assert 0.0 <= share <= 1.0


def test_the_cpu_runtime_knows_itself(cpu_runtime: CpuRuntime) -> None:
    runtime = cpu_runtime.runtime
    assert runtime.version == "0.32.0"
    assert runtime.platform == "cpu"
    assert runtime.torch == "2.13.0+cpu"
    assert runtime.managed and runtime.overlay
    assert not is_stale(runtime)


def test_check_imports_again_and_finds_nothing_changed(home_dirs: Dirs) -> None:
    store = RuntimeStore(home_dirs)
    (name,) = store.names()
    fresh, changed = check(home_dirs, name)
    assert changed == []
    assert fresh.version == "0.32.0"


def test_an_existing_interpreter_is_used_as_it_is(home_dirs: Dirs, cpu_runtime: CpuRuntime) -> None:
    site = Path(cpu_runtime.runtime.package).parent
    before = sorted(p.name for p in site.iterdir())
    runtime = add(home_dirs, str(cpu_runtime.python), quiet, name="mine")
    assert runtime.name == "mine" and not runtime.managed
    assert sorted(p.name for p in site.iterdir()) == before
    store = RuntimeStore(home_dirs)
    assert choose(store.all()[0], "mine").name == "mine"
    store.remove("mine")
    assert cpu_runtime.python.exists()
    with pytest.raises(NotFound, match="mine"):
        store.load("mine")


def test_an_interpreter_without_vllm_is_refused_and_leaves_nothing(home_dirs: Dirs) -> None:
    with pytest.raises(Failed, match="has no vLLM; name the Python"):
        add(home_dirs, sys.executable, quiet, name="none")
    assert not RuntimeStore(home_dirs).directory("none").exists()


def test_nonsense_is_a_usage_error(home_dirs: Dirs) -> None:
    with pytest.raises(Usage, match="is none of"):
        add(home_dirs, "vlm", quiet)
