"""Typed answers to what a detail screen or a command asks: starts, kernels, failure card, forecast,
daemons, profiles.

Apart from `model`, which every command loads: a dataclass costs half a millisecond to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine_ctl.model import Cause, Phase, PhaseMark, Reason, Verdict

if TYPE_CHECKING:
    from engine_ctl.state.aftermath import MemoryRecord


@dataclass(frozen=True, slots=True)
class LastStart:
    """How a unit's last start went: `run` None before the first. `outcome` is ready or what its
    life is (running, failed, …), `category` and `hint` of its failure, of its weights' first
    reason, or of the swap that was taken back; both "" when nothing was wrong."""

    unit: str
    run: str | None = None
    outcome: str | None = None
    verdict: Verdict | None = None
    category: str = ""
    hint: str = ""


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
    start; `ended` wall-clock seconds; `log_offset` bytes, where the first cause stands in `log`.
    `memory` says in lines what memory was then, `memory_then` what the shim recorded of it;
    `leftovers` what is there of the run though it has ended, and the remedy."""

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
    memory_then: MemoryRecord | None = None
    leftovers: tuple[str, ...] = ()
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
class MemoryNeed:
    """What a start asks of one device (`where`: GPU 0, host). Bytes: `needed` beside the `weights`
    that a daemon holds there already, `free` once the running engine is gone. `fits` None: not
    known, or too close to tell; `note` says why it does not fit or is not known."""

    where: str
    needed: int
    free: int | None
    weights: int = 0
    fits: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """What one phase of a start is expected to take. `seconds` None: not known; `basis` says, in
    words, which earlier starts it is the median of, or which are missing."""

    phase: Phase
    seconds: float | None
    basis: str = ""


@dataclass(frozen=True, slots=True)
class ForecastView:
    """What a start of `profile` on `unit` would meet, said before anything is stopped. Times are
    seconds, memory bytes; `kv_bytes` are those of one rank. The notes name every lever of a fast
    start: `standby_note` what is imported, `compile_note` what is compiled again, `plan_note`
    whether the startup plan applies, `optimization_note` vLLM's level. `expected` are the phases
    of `expected_s`, the running engine's stop first; one unknown phase makes the sum unknown. Any
    entry in `errors` means that the start is refused."""

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
    memory: tuple[MemoryNeed, ...] = ()
    compile_note: str = ""
    plan_note: str = ""
    expected: tuple[PhaseSeconds, ...] = ()
    standby_note: str = ""
    optimization_note: str = ""


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
    it; `verdicts` counts the starts against it; `since_s` seconds since it was ready; `reload` says
    why it may not hold what its profile says now. `foreign`: who it is when it is not this
    Stoker's; then it has no unit."""

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
    reload: tuple[str, ...] = ()
    foreign: str = ""
    pid: int | None = None
    user: str | None = None


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
    environment (secrets masked), what Stoker adds to the command, and the linter's findings."""

    summary: ProfileSummary
    text: str
    values: tuple[ProvenanceRow, ...] = ()
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()
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
