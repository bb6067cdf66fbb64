"""One real CPU runtime and one tiny model for the whole machine: made once, kept in the cache.

Set STOKER_TEST_CACHE to move them. The runtime is made by the product's own installer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes import readers
from engine_ctl.runtimes.install import add_readers, install, recipe
from engine_ctl.runtimes.overlay import write_overlay
from engine_ctl.runtimes.probe import Probed, clean_environment
from engine_ctl.runtimes.store import Runtime, RuntimeStore, missing
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.lifecycle import Wanted
from engine_ctl.state.store import Run, Store
from tests.engine.world import World


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


@contextlib.contextmanager
def locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    """A lock in the cache between the processes that test; gives its descriptor.

    "lock" is held by who makes something there, "touched" by the test that changes the runtime's
    files and, shared, by those beside it that would notice."""
    with (ensure_private(cache()) / name).open("w") as lock:
        fcntl.flock(lock, how)
        yield lock.fileno()


@pytest.fixture(scope="session")
def cpu_runtime() -> CpuRuntime:
    root = cache()
    base = Dirs.from_env({"HOME": str(root), "XDG_DATA_HOME": str(root / "data")})
    what = recipe("cpu")
    assert what is not None
    with locked("lock") as lock:
        store = RuntimeStore(base)
        if what.name in store.names() and missing(store.load(what.name)):
            store.remove(what.name)
        runtime = install(base, what, lambda text, share: None)
        if readers.lacking(runtime):  # made by an earlier installer
            assert add_readers(Path(runtime.python), lock)
        renew_overlay(runtime)
    return CpuRuntime(Path(runtime.python), runtime.environment({}), runtime, base.data)


def renew_overlay(runtime: Runtime) -> None:
    """Write the overlay again when this Stoker's is another; engines of a session beside this one
    may be using it."""
    assert runtime.overlay is not None
    facts = (runtime.platform, runtime.torch, runtime.package, sys.version_info[:3])
    found = Probed(runtime.version, None, *facts)
    there = Path(runtime.overlay)
    with tempfile.TemporaryDirectory() as scratch:
        write_overlay(Path(scratch) / "overlay", found)
        if contents(Path(scratch) / "overlay") != contents(there):
            write_overlay(there, found)


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.suffix != ".pyc" and path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture(scope="session")
def tiny_model(cpu_runtime: CpuRuntime) -> Path:
    out = cache() / "models" / "tiny-llama"
    script = Path(__file__).parents[2] / "engine_ctl" / "inside" / "demo_model.py"
    with locked("lock"):
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


@pytest.fixture(scope="session")
def shared(cpu_runtime: CpuRuntime, tiny_model: Path) -> Iterator[World]:
    """Directories that test modules use one after the other, so that they share standbys."""
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        made = World(Path(root), cpu_runtime, tiny_model)
        yield made
        made.end_standbys()


@pytest.fixture(scope="session")
def fork(cpu_runtime: CpuRuntime) -> Iterator[Callable[[Run], object]]:
    """Starts a run, of any state directory, out of a standby."""
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        store = Store(Dirs.from_env({"HOME": root}))

        def begin(run: Run) -> None:
            with locked("touched", fcntl.LOCK_SH):
                wanted = Wanted.of(cpu_runtime.runtime, run.spec())
                standbys.become(standbys.ensure(store, wanted), run)

        yield begin
        for standing in standbys.listing(store):
            standbys.stop(store, standing.unit)


@pytest.fixture(scope="module")
def installation(shared: World) -> Iterator[World]:
    """The shared directories with nothing in them, and their environment."""
    with shared.environment():
        yield shared
        shared.close()
        shared.clear()
