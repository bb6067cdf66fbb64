"""One real CPU runtime and one tiny model for the whole machine: made once, kept in the cache.

Set STOKER_TEST_CACHE to move them. The runtime is made by the product's own installer.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes import readers
from engine_ctl.runtimes.install import add_readers, install, recipe
from engine_ctl.runtimes.overlay import write_overlay
from engine_ctl.runtimes.probe import clean_environment, probe
from engine_ctl.runtimes.store import Runtime, RuntimeStore, missing


def cache() -> Path:
    chosen = os.environ.get("STOKER_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "stoker-tests"


@dataclass(frozen=True)
class CpuRuntime:
    """The runtime as tests use it: interpreter, the environment that it needs, its record."""

    python: Path
    env: dict[str, str]
    runtime: Runtime
    data: Path

    def full_env(self) -> dict[str, str]:
        return clean_environment(self.env) | {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="session")
def cpu_runtime() -> CpuRuntime:
    root = ensure_private(cache())
    base = Dirs.from_env({"HOME": str(root), "XDG_DATA_HOME": str(root / "data")})
    what = recipe("cpu")
    assert what is not None
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = RuntimeStore(base)
        if what.name in store.names() and missing(store.load(what.name)):
            store.remove(what.name)
        runtime = install(base, what, lambda text, share: None)
        if readers.lacking(runtime):  # made by an earlier installer
            assert add_readers(Path(runtime.python), lock.fileno())
        assert runtime.overlay is not None
        found = probe(runtime.python, {})
        write_overlay(Path(runtime.overlay), found)
    return CpuRuntime(Path(runtime.python), runtime.environment({}), runtime, base.data)


@pytest.fixture(scope="session")
def tiny_model(cpu_runtime: CpuRuntime) -> Path:
    out = cache() / "models" / "tiny-llama"
    script = Path(__file__).parents[2] / "engine_ctl" / "inside" / "demo_model.py"
    if not (out / "config.json").exists():
        subprocess.run(
            [cpu_runtime.python, "-I", str(script), str(out)],
            env=cpu_runtime.full_env(),
            check=True,
            capture_output=True,
            timeout=250,
        )
    return out


@pytest.fixture
def home_dirs(tmp_path: Path, cpu_runtime: CpuRuntime) -> Iterator[Dirs]:
    """Private XDG directories that know the shared runtime; short socket paths."""
    env = {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    dirs = Dirs.from_env(env)
    RuntimeStore(dirs).save(cpu_runtime.runtime)
    yield dirs
