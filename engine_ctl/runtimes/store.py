"""The runtimes that Stoker knows: one directory each, one record that is written last.

A managed runtime lives in `$XDG_DATA_HOME/stoker/runtimes/<name>/` with `venv/`, `overlay/` and
`runtime.json`. The record is written when everything else is in place and verified, so a
directory without a record is an interrupted install and never a runtime.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_ctl.atomic import CorruptRecord, read_record, write_record
from engine_ctl.errors import NotFound, Usage
from engine_ctl.paths import Dirs

NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,63}")
ADD = (
    "run: stoker runtime add cpu, or with vllm==VERSION (for GPUs), or with the Python of a vLLM "
    "that you have"
)


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM installation.

    `python` is its interpreter, `version` vLLM's own version, `platform` cuda, rocm, cpu or
    another name of vLLM's. `stamp` changes when the installation is changed underneath
    (mtime and size of the vllm package directory and of the interpreter). `overlay` is a
    directory of ours that goes first on PYTHONPATH, or None. `created` is wall-clock seconds.
    """

    schema: int = 1
    name: str
    python: str
    version: str
    platform: str
    torch: str | None = None
    managed: bool = False
    source: str = ""
    package: str = ""
    stamp: str = ""
    overlay: str | None = None
    created: float = 0.0

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables that a process of this runtime needs, over `base` (default: our own)."""
        base = os.environ if base is None else base
        if self.overlay is None:
            return {}
        inherited = base.get("PYTHONPATH", "")
        parts = [self.overlay, *(p for p in inherited.split(os.pathsep) if p and p != self.overlay)]
        return {"PYTHONPATH": os.pathsep.join(parts)}

    @property
    def label(self) -> str:
        return f"{self.version} ({self.platform})"


def stamp_of(python: str, package: str) -> str:
    """What changes when pip touches the installation: mtimes of interpreter and package."""
    parts = []
    for path in (Path(python), Path(package), Path(package) / "__init__.py"):
        try:
            info = path.stat()
        except OSError:
            parts.append("gone")
        else:
            parts.append(f"{info.st_mtime_ns:x}.{info.st_size:x}")
    return "-".join(parts)


class RuntimeStore:
    """Runtimes by name under one data directory."""

    def __init__(self, dirs: Dirs) -> None:
        self.root = dirs.runtimes

    def directory(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise Usage(f"{name!r} is not a runtime name: use a-z, 0-9 and . _ + -")
        return self.root / name

    def names(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(p.parent.name for p in self.root.glob("*/runtime.json"))

    def interrupted(self) -> list[str]:
        """Names of directories without a record: what interrupted installs left."""
        if not self.root.is_dir():
            return []
        return sorted(
            path.name
            for path in self.root.iterdir()
            if path.is_dir() and not (path / "runtime.json").exists()
        )

    def load(self, name: str) -> Runtime:
        """The runtime called `name`. Raises NotFound with what exists, CorruptRecord on garbage."""
        path = self.directory(name) / "runtime.json"
        record = read_record(path, Runtime)
        if record is None and path.exists():
            raise CorruptRecord(f"{path} is empty; move it away to go on")
        if record is None:
            known = ", ".join(self.names()) or f"none yet; {ADD}"
            raise NotFound(f"there is no runtime {name!r} (known: {known})")
        return record

    def all(self) -> tuple[list[Runtime], list[str]]:
        """Every readable runtime, and one line for each that is not."""
        runtimes, problems = [], []
        for name in self.names():
            try:
                runtimes.append(self.load(name))
            except CorruptRecord as error:
                problems.append(str(error))
        return runtimes, problems

    def save(self, runtime: Runtime) -> None:
        directory = self.directory(runtime.name)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_record(directory / "runtime.json", runtime)

    def remove(self, name: str) -> Runtime:
        """Forget a runtime; a managed one is deleted. The record goes first."""
        runtime = self.load(name)
        directory = self.directory(name)
        (directory / "runtime.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        return runtime


def missing(runtime: Runtime) -> str | None:
    """Why this runtime cannot be used now, in one line, or None."""
    if not os.access(runtime.python, os.X_OK):
        return (
            f"runtime {runtime.name}: its interpreter {runtime.python} is gone; "
            f"run: stoker runtime remove {runtime.name}, then stoker runtime add"
        )
    if runtime.package and not Path(runtime.package).is_dir():
        return f"runtime {runtime.name}: vLLM is no longer in {runtime.package}"
    return None


def choose(runtimes: list[Runtime], wanted: str | None) -> Runtime:
    """The runtime that a profile means: by name, by version, by platform; else the best there is.

    Without a wish, CUDA and ROCm come before the CPU and newer before older.
    """
    if wanted:
        for match in (
            [r for r in runtimes if r.name == wanted],
            [r for r in runtimes if wanted in (r.version, f"vllm=={r.version}")],
            [r for r in runtimes if r.platform == wanted],
        ):
            if match:
                return sorted(match, key=_rank)[-1]
        known = ", ".join(f"{r.name} ({r.label})" for r in runtimes) or "none"
        raise NotFound(
            f"no runtime fits {wanted!r} (known: {known}); add one with: stoker runtime add"
        )
    if not runtimes:
        raise NotFound(f"there is no vLLM runtime yet; {ADD}")
    return sorted(runtimes, key=_rank)[-1]


def _rank(runtime: Runtime) -> tuple[bool, list[int]]:
    numbers = [int(n) for n in re.findall(r"\d+", runtime.version)[:3]]
    return runtime.platform != "cpu", numbers
