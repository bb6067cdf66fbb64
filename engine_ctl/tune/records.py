"""Benches on disk: `tune/benches/<n>/` in the state directory, one record and vLLM's own files.

A bench is called b1, b2, …; a sweep s1, s2, … Numbers are taken by mkdir, so no lock is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed, NotFound, Usage
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.tune.results import BenchResult
from engine_ctl.tune.settings import BenchSettings
from engine_ctl.tune.stats import Stat, stat

_NAME = re.compile(r"([bs])([1-9]\d*)")
_KIND = {"b": "benches", "s": "sweeps"}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The engine and the machine at one moment of a bench; `t` seconds since its first request
    could come. Bytes, tokens/s, usage 0..1; None where nothing said."""

    t: float
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    gpu_bytes: int | None = None
    host_available: int | None = None


class StartSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How the measured engine started: `phases` are (name, seconds from the start, seconds)."""

    start_s: float | None = None
    phases: list[tuple[str, float, float | None]] = msgspec.field(default_factory=list)
    verdict: str | None = None
    compile_cache: str | None = None
    standby: bool | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class BenchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """bench.json: one benchmark of one engine, with everything to judge and to repeat it.

    `profile` is the resolved profile, secrets masked; `command` vLLM's words for one measurement;
    `run` the benchmark's own run; `results` one per measurement that came to its end; `stats`
    their figures by name (`throughput`, `ttft_p95`, …). `prefix_hit_rate` is the share of prompt
    tokens that the engine's cache answered during the bench. `seconds` is the whole bench,
    `bench_s` the life of vLLM's process in it. `problem`: what went wrong; `failed`: so much that
    the figures, if there are any, do not count."""

    schema: int = 1
    id: str
    unit: str
    at: float
    by: str = ""
    seconds: float = 0.0
    bench_s: float = 0.0
    profile_name: str = ""
    profile: dict[str, Any] = msgspec.field(default_factory=dict)
    runtime: dict[str, str | None] = msgspec.field(default_factory=dict)
    hardware: dict[str, Any] = msgspec.field(default_factory=dict)
    engine_run: str = ""
    serve_command: list[str] = msgspec.field(default_factory=list)
    start: StartSummary | None = None
    settings: BenchSettings = msgspec.field(default_factory=BenchSettings)
    command: list[str] = msgspec.field(default_factory=list)
    run: str = ""
    results: list[BenchResult] = msgspec.field(default_factory=list)
    stats: dict[str, Stat] = msgspec.field(default_factory=dict)
    samples: list[Sample] = msgspec.field(default_factory=list)
    prefix_hit_rate: float | None = None
    sweep: str | None = None
    point: dict[str, Any] = msgspec.field(default_factory=dict)
    problem: str | None = None
    failed: bool = False

    def median(self, name: str) -> float | None:
        found = self.stats.get(name)
        return None if found is None else found.median


def statistics(results: list[BenchResult]) -> dict[str, Stat]:
    """Each figure's statistic over the measurements."""
    names = dict.fromkeys(name for result in results for name in result.figures())
    found = {name: stat([result.figures().get(name) for result in results]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def tune_dir(dirs: Dirs) -> Path:
    return dirs.state / "tune"


def directory(dirs: Dirs, id: str) -> Path:
    """The directory of a bench (b3) or sweep (s1). Raises Usage for what is neither."""
    match = _NAME.fullmatch(id)
    if match is None:
        raise Usage(f"{id!r} is no bench or sweep: write b1, s1, … as in: stoker history")
    return tune_dir(dirs) / _KIND[match[1]] / match[2]


def allocate(dirs: Dirs, letter: str) -> tuple[str, Path]:
    """The next free id and its new directory. Raises Failed when none can be made (disk full)."""
    try:
        ensure_private(dirs.state)
        ensure_private(tune_dir(dirs))
        root = ensure_private(tune_dir(dirs) / _KIND[letter])
        number = max((int(p.name) for p in root.iterdir() if p.name.isdecimal()), default=0) + 1
        while True:
            try:
                (root / str(number)).mkdir(mode=0o700)
                return f"{letter}{number}", root / str(number)
            except FileExistsError:
                number += 1
    except OSError as error:
        raise Failed(f"cannot write in {tune_dir(dirs)}: {error.strerror or error}") from None


def ids(dirs: Dirs, letter: str) -> list[str]:
    """Every bench or sweep, oldest first."""
    root = tune_dir(dirs) / _KIND[letter]
    try:
        numbers = sorted(int(p.name) for p in root.iterdir() if p.name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{letter}{number}" for number in numbers]


def save_bench(dirs: Dirs, record: BenchRecord) -> None:
    """Write bench.json. Raises Failed when the disk is full."""
    path = directory(dirs, record.id) / "bench.json"
    try:
        atomic.write_record(path, record)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror or error}") from None


def load_bench(dirs: Dirs, id: str) -> BenchRecord:
    """Raises NotFound, CorruptRecord."""
    if not id.startswith("b"):
        raise Usage(f"{id!r} is no bench; benches are called b1, b2, …: stoker history")
    record = atomic.read_record(directory(dirs, id) / "bench.json", BenchRecord)
    if record is None:
        raise NotFound(f"there is no bench {id}; see: stoker history")
    return record
