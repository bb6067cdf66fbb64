"""How long a start will take, by phases: medians of those phases in starts that compare.

What governs a phase decides which starts compare: the verdict for the weights, a hit of the
compile cache for compiling, eager or not for graphs, the startup plan for memory profiling, a
standby for imports. A coarser comparison is taken where there is none of that kind, and where
there is none at all a phase is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from engine_ctl.answers import PhaseSeconds
from engine_ctl.model import Phase, Verdict

# Newest starts that a median is taken of.
NEWEST = 5
PROFILED, PLANNED, GIVEN = "profiled", "planned", "given"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What governs the phases of a start. None: not known.

    `runtime` names interpreter and version, `standby` says whether its processes are forked from
    one, `compiled` whether the compile cache has its code (None for eager ones), `memory` how
    the size of the KV cache is found: profiled, planned (vLLM's startup plan applies) or given.
    `config` is vLLM's hash of what is compiled."""

    runtime: str | None = None
    model: str | None = None
    standby: bool | None = None
    weights: Verdict | None = None
    eager: bool | None = None
    compiled: bool | None = None
    memory: str | None = None
    config: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A start that became ready. Seconds: `phases` up to readiness, `ready_s` in all, `compile_s`
    of torch.compile, `stop_s` from the request to end to its end (None: it was not asked to, or
    has not ended). `plan`: applied, saved or refused, as its log said of the startup plan, which
    Stoker keeps apart by `plan_key` where a standby made the engine; `at` wall-clock seconds of
    its making."""

    run: str
    profile: str
    conditions: Conditions
    phases: Mapping[Phase, float] = field(default_factory=dict)
    ready_s: float | None = None
    stop_s: float | None = None
    compile_s: float | None = None
    plan: str | None = None
    plan_key: str | None = None
    at: float = 0.0

    @property
    def plan_apart(self) -> str | None:
        """The key under which its plan is kept; None for vLLM's own place."""
        return self.plan_key if self.conditions.standby else None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds by phase, in order. `total` is None while one of them is unknown."""

    parts: tuple[PhaseSeconds, ...] = ()

    @property
    def total(self) -> float | None:
        known = [part.seconds for part in self.parts if part.seconds is not None]
        return sum(known) if known and len(known) == len(self.parts) else None


def weights_of(verdict: Verdict | None) -> Verdict | None:
    """A fall back reads the disk as a start without a daemon does."""
    return Verdict.DISK if verdict is Verdict.FALLBACK else verdict


# For each phase the conditions that must be the same, the closest comparison first.
_LEVELS: dict[Phase, tuple[tuple[str, ...], ...]] = {
    Phase.STOPPING: (("runtime", "model"), ("runtime",), ()),
    Phase.IMPORTING: (("runtime", "standby"), ("standby",)),
    Phase.CONFIGURING: (("runtime", "model", "standby"), ("runtime", "standby"), ("standby",)),
    Phase.LOADING: (
        ("runtime", "model", "standby", "weights"),
        ("model", "standby", "weights"),
        ("model", "weights"),
    ),
    Phase.COMPILING: (
        ("runtime", "model", "eager", "compiled", "config"),
        ("runtime", "model", "eager", "compiled"),
        ("model", "eager", "compiled"),
    ),
    Phase.PROFILING: (
        ("runtime", "model", "eager", "memory", "compiled"),
        ("runtime", "model", "eager", "memory"),
        ("model", "eager", "memory"),
    ),
    Phase.CAPTURING: (
        ("runtime", "model", "eager", "config"),
        ("runtime", "model", "eager"),
        ("model", "eager"),
    ),
    Phase.READY: (("runtime",), ()),
}
_NEVER_EAGER = (Phase.COMPILING, Phase.CAPTURING)


def predict(ahead: Conditions, earlier: Sequence[Start], *, stops: bool = False) -> Prediction:
    """The seconds of a start under `ahead`, by `earlier` starts, newest first.

    `stops`: the engine that runs is stopped first, which counts."""
    phases = [
        phase
        for phase in _LEVELS
        if (phase is not Phase.STOPPING or stops) and not (ahead.eager and phase in _NEVER_EAGER)
    ]
    return Prediction(tuple(_part(phase, ahead, earlier) for phase in phases))


def again(ahead: Conditions, *, plan: bool) -> Conditions:
    """The conditions of the next start like this one: compiled, and with its plan kept."""
    compiled = None if ahead.eager else True
    memory = PLANNED if plan and ahead.memory == PROFILED else ahead.memory
    return replace(ahead, compiled=compiled, memory=memory)


def _part(phase: Phase, ahead: Conditions, earlier: Sequence[Start]) -> PhaseSeconds:
    shown = Phase.MAPPING if phase is Phase.LOADING and ahead.weights is Verdict.MAPPED else phase
    for names in _LEVELS[phase]:
        if any(getattr(ahead, name) is None for name in names):
            continue
        found = _seconds(phase, (s for s in earlier if _alike(ahead, s.conditions, names)))
        if found:
            count = f"{len(found)} start{'s' if len(found) > 1 else ''}"
            same = ", ".join(_words(name, ahead) for name in names)
            return PhaseSeconds(shown, round(median(found), 3), f"{count}: {same}".rstrip(": "))
    wanted = next(
        (names for names in _LEVELS[phase] if all(getattr(ahead, n) is not None for n in names)),
        (),
    )
    lacking = ", ".join(_words(name, ahead) for name in wanted)
    return PhaseSeconds(shown, None, f"no start yet: {lacking}".rstrip(": "))


def _alike(ahead: Conditions, then: Conditions, names: Iterable[str]) -> bool:
    return all(getattr(ahead, name) == getattr(then, name) for name in names)


def _seconds(phase: Phase, starts: Iterable[Start]) -> list[float]:
    found: list[float] = []
    for start in starts:
        seconds = _of(phase, start)
        if seconds is not None:
            found.append(seconds)
        if len(found) == NEWEST:
            break
    return found


def _of(phase: Phase, start: Start) -> float | None:
    """What a start spent in a phase: nothing where its log shows others but not this one."""
    if phase is Phase.STOPPING:
        return start.stop_s
    if not start.phases:
        return None
    if phase is Phase.READY:
        rest = (start.ready_s or 0.0) - sum(start.phases.values())
        return None if start.ready_s is None else max(0.0, rest)
    if phase is Phase.LOADING:
        return start.phases.get(Phase.LOADING, 0.0) + start.phases.get(Phase.MAPPING, 0.0)
    return start.phases.get(phase, 0.0)


def _words(name: str, ahead: Conditions) -> str:
    value = getattr(ahead, name)
    if name == "standby":
        return "from a standby" if value else "importing anew"
    if name == "weights":
        return "weights from disk" if value is Verdict.DISK else f"weights {value}"
    if name == "eager":
        return "eager" if value else "with graphs"
    if name == "compiled":
        return "code compiled before" if value else "compiling"
    if name == "memory":
        return {PLANNED: "by startup plan", GIVEN: "KV cache given"}.get(str(value), "profiled")
    return f"same {'configuration' if name == 'config' else name}"
