"""The words of Stoker as types: phases, kinds, verdicts, and the immutable views of one moment.

Everything a screen or a command shows is one of these views; `None` means unknown, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    ENGINE = "engine"
    PRELOAD = "preload"
    STANDBY = "standby"
    BENCH = "bench"
    FRONT = "front"


class Phase(StrEnum):
    """Where a run is."""

    IMPORTING = "importing"
    CONFIGURING = "configuring"
    LOADING = "loading"
    MAPPING = "mapping"
    COMPILING = "compiling"
    PROFILING = "profiling"
    CAPTURING = "capturing"
    READY = "ready"
    SLEEPING = "sleeping"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"
    FAILED = "failed"
    LOST = "lost"
    ORPHANED = "orphaned"


STARTING = (
    Phase.IMPORTING,
    Phase.CONFIGURING,
    Phase.LOADING,
    Phase.MAPPING,
    Phase.COMPILING,
    Phase.PROFILING,
    Phase.CAPTURING,
)
ENDED = (Phase.EXITED, Phase.FAILED, Phase.LOST)


class Verdict(StrEnum):
    """What became of the weights at a start."""

    MAPPED = "mapped"
    COPIED = "copied"
    FALLBACK = "fallback"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why weights were not mapped, or why a start is expected not to map them.

    `category` is a name of categories.md (`wc_fallback.key_mismatch`); `fields` are
    (field, value of the daemon, value of the engine). `maps_again`, of weights whose daemon is
    gone: whether another has taken its place, so that the next start maps; None: not known."""

    category: str
    hint: str
    line: str = ""
    fields: tuple[tuple[str, str, str], ...] = ()
    maps_again: bool | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A counted step inside a phase: weight shards, captured graphs."""

    label: str
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """One phase of a start: seconds from the run's start, and how long it took (None: running)."""

    phase: Phase
    start_s: float
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause of a failed run (see `stoker why`)."""

    category: str
    hint: str
    line: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankLoad:
    """Scheduler state of one data-parallel rank. Rates in tokens/s, usage 0..1, times seconds.

    `percentiles` is {"ttft": {"p50": …}}; those named in `over` ("ttft.p99") lie above the
    histogram's last edge, so that the value is only a lower bound (shown as "> 60 s"), those in
    `under` below its first edge, which is given ("< 300 ms"). `means` are exact."""

    engine: str
    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: dict[str, int] = field(default_factory=dict)
    kv_cache_usage: float | None = None
    prefix_hit_rate: float | None = None
    prompt_tokens_per_second: float | None = None
    tokens_per_second: float | None = None
    preemptions_per_second: float | None = None
    preemptions: int | None = None
    sleep_state: str | None = None
    percentiles: dict[str, dict[str, float]] = field(default_factory=dict)
    over: tuple[str, ...] = ()
    under: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What /metrics said about one engine, summed over ranks where that makes sense (KV usage is
    the fullest rank's). `at` is wall-clock seconds of the answer. `stalled_s`: for how long
    requests have been there while no token moved. `history` has one value a second, NaN where
    unknown."""

    at: float
    ranks: tuple[RankLoad, ...] = ()
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    healthy: bool | None = None
    rejections: dict[str, float] = field(default_factory=dict)
    stalled_s: float | None = None
    stats_disabled: bool = False
    history: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnitView:
    """One row of the deck: a unit (engine, preload, standby) and its current run.

    `live` names each change that needs no restart ("lora load", "sleep", …) with what stands
    against it in a line, "" where nothing does; None where it is not known. `profile_problem`
    says why the profile cannot be read now; `url` is where clients find it, `unix:PATH` for a Unix
    socket; `sweep` is the interrupted sweep whose point runs;
    `owed`: the restart policy's next start was lost with the shim that was to make it; `doing`:
    an operation is at work on it, and `note` says what it is at."""

    unit: str
    kind: Kind
    profile: str
    phase: Phase | None = None
    phase_s: float | None = None
    typical_s: float | None = None
    progress: Progress | None = None
    verdict: Verdict | None = None
    reasons: tuple[Reason, ...] = ()
    model: str | None = None
    host: str | None = None
    port: int | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    load: EngineLoad | None = None
    uptime_s: float | None = None
    start_s: float | None = None
    elapsed_s: float | None = None
    run: str | None = None
    log: str | None = None
    drift: tuple[str, ...] = ()
    profile_problem: str = ""
    cause: Cause | None = None
    hints: tuple[str, ...] = ()
    note: str = ""
    memory_bytes: int | None = None
    runtime: str | None = None
    live: dict[str, str] | None = None
    sweep: str = ""
    owed: bool = False
    url: str | None = None
    doing: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that holds memory of a GPU. `role` is one of weights, engine, standby, orphan,
    other; `bytes` is None where the driver does not say (unified memory, containers). `parts`
    are weights, kv, graphs, activations and rest as far as the engine's log tells. `fits` is the
    gpu_memory_utilization with which this engine would start again now."""

    pid: int
    role: str
    bytes: int | None
    unit: str | None = None
    run: str | None = None
    user: str | None = None
    command: str | None = None
    parts: tuple[tuple[str, int], ...] = ()
    fits: float | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU (or MIG instance) at one moment. Bytes, watts, degrees Celsius, percent, MHz.

    `index` is NVML's; `total` is what CUDA can use (without the driver's reserve); `unknown` is
    memory in use whose owner the driver does not name; `fits` is the gpu_memory_utilization with
    which one more engine would start now."""

    index: int
    uuid: str
    name: str
    total: int | None
    used: int | None
    free: int | None
    holders: tuple[Holder, ...] = ()
    utilisation: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie: str | None = None
    nvlink: str | None = None
    mig: bool = False
    notes: tuple[str, ...] = ()
    unified: bool = False
    unknown: int | None = None
    fits: float | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """The machine: memory in bytes, load in percent of all cores, NUMA nodes."""

    hostname: str
    cores: int
    cpu_percent: float | None
    memory_total: int
    memory_available: int
    numa_nodes: tuple[tuple[int, int, int], ...] = ()
    driver: str | None = None
    nvml_note: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `severity` is info, warning or error; `by` who did it."""

    at: float
    unit: str | None
    text: str
    severity: str = "info"
    by: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something wrong right now that a key can mend. `action` is an id of the action registry."""

    text: str
    action: str | None = None
    unit: str | None = None
    severity: str = "warning"
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the console shows, at one moment. `at` is wall-clock seconds."""

    at: float
    host: HostView
    units: tuple[UnitView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    events: tuple[Event, ...] = ()
    alerts: tuple[Alert, ...] = ()
    runtimes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
