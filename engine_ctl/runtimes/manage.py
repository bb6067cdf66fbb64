"""`stoker runtime add | list | remove | check`, as functions."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from engine_ctl.errors import Failed, Usage
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes import arguments, detect, readers
from engine_ctl.runtimes.install import install, only_one, recipe, verified
from engine_ctl.runtimes.probe import probe
from engine_ctl.runtimes.progress import Report
from engine_ctl.runtimes.store import Runtime, RuntimeStore, missing, stamp_of


def add(dirs: Dirs, spec: str, report: Report, name: str | None = None) -> Runtime:
    """Add a runtime: `cpu`, `vllm==VERSION`, or the path of an interpreter (never changed), of its
    environment, or of the `vllm` command beside it; `vllm` alone is the one on PATH."""
    what = recipe(spec)
    if what is not None:
        made = install(dirs, what, report, name)
        arguments.learn(dirs, made)
        return made
    if "/" not in spec:
        found = shutil.which(spec) if spec == "vllm" or spec.startswith("python") else None
        if found is None:
            raise Usage(f"{spec!r} is none of: cpu, vllm==VERSION, /path/to/python")
        spec = found
    path = Path(spec).expanduser()
    if path.is_dir() and (path / "bin" / "python").exists():
        path = path / "bin" / "python"
    elif path.name == "vllm":
        path = Path(detect.interpreter_of(path) or path)
    return add_interpreter(dirs, str(path.absolute()), report, name)


def add_interpreter(dirs: Dirs, python: str, report: Report, name: str | None = None) -> Runtime:
    """Remember an existing interpreter after importing vLLM in it; nothing of it is changed."""
    if not os.access(python, os.X_OK):
        raise Failed(f"{python} is not an executable file")
    store = RuntimeStore(dirs)
    ensure_private(store.root)
    for known in store.all()[0]:
        if known.python == python and name in (None, known.name) and not missing(known):
            return known
    report("importing vLLM", 0.3)
    if name is None:
        found = probe(python, {})
        base = re.sub(r"[^a-z0-9_.+-]", "-", f"{found.platform}-{found.version}".lower())
        name, n = base, 2
        while name in store.names():
            name, n = f"{base}-{n}", n + 1
    directory = store.directory(name)
    if (directory / "runtime.json").exists():
        raise Usage(f"there is a runtime {name!r} already; choose another --name")
    ensure_private(directory)
    try:
        runtime = verified(directory, name, python, managed=False, source=python)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    store.save(runtime)
    report("reading vLLM's arguments", 0.8)
    arguments.learn(dirs, runtime)
    report("ready", 1.0)
    return runtime


def check(dirs: Dirs, name: str) -> tuple[Runtime, list[str]]:
    """Import vLLM again and compare with the record; returns it refreshed and what changed, and
    what it lacks."""
    store = RuntimeStore(dirs)
    runtime = store.load(name)
    problem = missing(runtime)
    if problem:
        raise Failed(problem)
    directory = store.directory(name)
    fresh = verified(directory, name, runtime.python, runtime.managed, runtime.source)
    changed = [
        f"{field}: {getattr(runtime, field)} → {getattr(fresh, field)}"
        for field in ("version", "platform", "torch", "package")
        if getattr(runtime, field) != getattr(fresh, field)
    ]
    store.save(fresh)
    arguments.read(dirs, fresh)
    lacks = readers.lacking(fresh)
    return fresh, [*changed, readers.remedy(fresh, lacks)] if lacks else changed


def discard(dirs: Dirs, name: str) -> None:
    """Delete what an interrupted install left. Raises Busy while the install goes on."""
    store = RuntimeStore(dirs)
    directory = store.directory(name)
    if name not in store.interrupted():
        store.load(name)
        raise Usage(f"{name} is a runtime, not what an interrupted install left")
    with only_one(directory, name):
        shutil.rmtree(directory, ignore_errors=True)


def is_stale(runtime: Runtime) -> bool:
    """Was the installation changed since it was recorded (pip install underneath)?"""
    return stamp_of(runtime.python, runtime.package) != runtime.stamp


def offer(dirs: Dirs) -> tuple[str, str] | None:
    """A runtime worth adding without being asked twice: (interpreter, why), or None.

    Beside Stoker first (the extras), then a vLLM on PATH where an NVIDIA driver is loaded.
    """
    known = {r.python for r in RuntimeStore(dirs).all()[0]}
    beside = detect.beside_us()
    if beside and beside not in known:
        return beside, "vLLM is installed beside Stoker"
    path = detect.on_path()
    if path and path not in known and detect.nvidia_driver():
        return path, "vLLM is on PATH and an NVIDIA driver is loaded"
    return None
