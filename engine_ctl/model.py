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
    (field, value of the daemon, value of the engine)."""

    category: str
    hint: str
    line: str = ""
    fields: tuple[tuple[str, str, str], ...] = ()


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
    histogram's last edge, so that the value is only a lower bound (shown as "> 60 s")."""

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
    """One row of the deck: a unit (engine, preload, standby) and its current run."""

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
    cause: Cause | None = None
    hints: tuple[str, ...] = ()
    note: str = ""
    memory_bytes: int | None = None
    runtime: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that holds memory of a GPU. `role` is one of weights, engine, standby, orphan,
    other; `bytes` is None where the driver does not say (unified memory, containers)."""

    pid: int
    role: str
    bytes: int | None
    unit: str | None = None
    run: str | None = None
    user: str | None = None
    command: str | None = None
    parts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU (or MIG instance) at one moment. Bytes, watts, degrees Celsius, percent, MHz."""

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


@dataclass(frozen=True, slots=True)
class StartRecord:
    """One start of one run, for the waterfall. `started` is wall-clock seconds; `ready_s` is the
    time from spawn to serving (None: never ready, or not yet)."""

    run: str
    profile: str
    started: float
    phases: tuple[PhaseMark, ...] = ()
    ready_s: float | None = None
    outcome: Phase | None = None
    verdict: Verdict | None = None
    standby: bool | None = None
    disk_s: float | None = None


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What runs underneath an engine: `what` (attention, MoE, …) is done by `choice`, said by log
    line `line`. `slower` says, in words, that a faster path was asked for or is possible."""

    what: str
    choice: str
    line: str = ""
    slower: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of profile keys that mends a failure: (key, value now, value proposed)."""

    key: str
    now: str
    proposed: str


@dataclass(frozen=True, slots=True)
class FailureCard:
    """Why one run failed or ended, with what an operator does next. `after_s` seconds after its
    start; `ended` wall-clock seconds; `log_offset` bytes, where the first cause stands in `log`."""

    unit: str
    run: str
    cause: Cause | None
    profile: str = ""
    phase: Phase | None = None
    after_s: float | None = None
    ended: float | None = None
    outcome: str = ""
    fixes: tuple[Fix, ...] = ()
    changed: tuple[Fix, ...] = ()
    changed_by: str = ""
    memory: tuple[str, ...] = ()
    log: str | None = None
    log_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One key that differs between two profiles, or a profile and a running engine. `cost` is
    live, restart, reload, new runtime or unchanged; `note` says more in words."""

    key: str
    old: str
    new: str
    cost: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ForecastView:
    """What a start of `profile` on `unit` would meet, said before anything is stopped. Times are
    seconds, memory bytes. Any entry in `errors` means that the start is refused."""

    unit: str
    profile: str
    from_profile: str | None = None
    changes: tuple[ChangeView, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    checked_by: str | None = None
    verdict: Verdict | None = None
    reasons: tuple[Reason, ...] = ()
    weights_note: str = ""
    kv_bytes: int | None = None
    kv_bytes_now: int | None = None
    port_note: str = ""
    in_flight: int | None = None
    drain_s: float | None = None
    expected_s: float | None = None
    next_time_s: float | None = None
    rollback_profile: str | None = None
    rollback_s: float | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class DaemonField:
    """One fingerprint field: the daemon's value and, by engine, the value that differs from it
    (None: the same)."""

    field: str
    daemon: str
    engines: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class DaemonView:
    """One rank and role of a preload daemon. `socket_state` is `0600 ok` or what is wrong with
    it; `verdicts` counts the starts against it; `since_s` seconds since it was ready."""

    name: str
    unit: str
    rank: int
    role: str
    gpu: int | None = None
    phase: Phase | None = None
    weights_bytes: int | None = None
    socket: str | None = None
    socket_state: str = ""
    clients: tuple[str, ...] = ()
    since_s: float | None = None
    fields: tuple[DaemonField, ...] = ()
    verdicts: tuple[tuple[str, int], ...] = ()
    last_fallback: str = ""


@dataclass(frozen=True, slots=True)
class ProvenanceRow:
    """One value of a resolved profile and where it came from. `section` is args, env, preload, …"""

    section: str
    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding of the profile linter. `severity` is error, warning or info."""

    rule: str
    severity: str
    key: str
    message: str
    instead: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """One line of the profile list. `builtin` profiles are read-only; `units` use it now."""

    name: str
    path: str | None
    builtin: bool
    model: str = ""
    runtime: str | None = None
    tags: tuple[str, ...] = ()
    notes: str = ""
    units: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProfileDetail:
    """One profile with the text of its file, every value's origin, the exact command and
    environment (secrets masked), and the linter's findings."""

    summary: ProfileSummary
    text: str
    values: tuple[ProvenanceRow, ...] = ()
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    findings: tuple[LintFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgumentHelp:
    """One argument of the runtime's own parser, for completion and search."""

    name: str
    type: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    group: str = ""
    help: str = ""
