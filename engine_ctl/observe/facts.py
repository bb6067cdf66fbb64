"""What is known of a run once it is ready or over: facts.json, derived from its log and records.

A cache: anybody may derive it again. What was derived at readiness stays when the run is over,
since by then the start of a big log may have been trimmed away.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.model import (
    STARTING,
    Cause,
    Kind,
    Phase,
    PhaseMark,
    Reason,
    Verdict,
)
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise.liveness import Life, look

if TYPE_CHECKING:
    from engine_ctl.answers import KernelChoice
    from engine_ctl.state.records import ExitRecord, RunSpec

FILE = "facts.json"
# A start prints some 50 KB; a cause is looked for there and in what was printed last.
START_BYTES = 16 << 20
HEAD_BYTES = 1 << 19
TAIL_BYTES = 1 << 20
TYPICAL_OF = 5
_LOOK_BACK = 20


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one run. Seconds count from its start.

    `ended`: derived when the run was over. `start_s` is the time to readiness, `seconds` the
    whole life. `phases` are all marks, stopping included; `silent` are (name, start, seconds) of
    stretches without output. `start` holds what the log states about itself (the fields of
    logs.facts.StartFacts that are known). `standby`: the process was forked by a standby."""

    schema: int = 1
    run: str
    kind: Kind = Kind.ENGINE
    ended: bool = False
    start_s: float | None = None
    seconds: float | None = None
    phases: tuple[PhaseMark, ...] = ()
    silent: tuple[tuple[str, float, float], ...] = ()
    verdict: Verdict | None = None
    reasons: tuple[Reason, ...] = ()
    kernels: tuple[dict[str, str], ...] = ()
    cause: Cause | None = None
    start: dict[str, Any] = msgspec.field(default_factory=dict)
    standby: bool | None = None
    log_bytes: int = 0

    @property
    def plan(self) -> str | None:
        """The startup plan: applied, saved or refused."""
        value = self.start.get("plan")
        return value if isinstance(value, str) else None

    @property
    def compile_cache(self) -> str | None:
        """The compile cache: hit, miss or again."""
        value = self.start.get("compile_cache")
        return value if isinstance(value, str) else None

    def start_phases(self) -> tuple[PhaseMark, ...]:
        """The phases up to readiness."""
        return tuple(mark for mark in self.phases if mark.phase in STARTING)


class Typical(msgspec.Struct, frozen=True):
    """Median seconds of earlier starts, whole and by phase."""

    start_s: float | None = None
    phases: dict[Phase, float] = msgspec.field(default_factory=dict)


def load(run_dir: Path) -> RunFacts | None:
    """facts.json as it is; None when it is not there or cannot be read (it is only a cache)."""
    try:
        return atomic.read_record(run_dir / FILE, RunFacts)
    except Failed:
        return None


def derive_facts(run_dir: Path) -> RunFacts:
    """Facts of the run in `run_dir` as they are now; writes nothing.

    Raises NotFound when the run has no spec, CorruptRecord when a record is damaged."""
    run = run_at(run_dir)
    spec = run.spec()
    life = look(run, spec.kind)
    ready, exit_record = life.facts.ready, life.facts.exit
    known = load(run_dir)
    log = _Log(run.log)
    try:
        if known is not None and not known.log_bytes and log.size:
            known = None  # taken before a word was written
        if known is not None and known.ended:
            return known
        if known is None or known.start_s is None:
            known = _from_log(run, spec, log)
        if ready is not None:
            known = msgspec.structs.replace(known, start_s=ready.seconds)
        if not life.ended:
            return known
        lived = exit_record.seconds if exit_record is not None else None
        unasked = life.life is Life.FAILED or (
            life.life is Life.LOST and life.facts.same_boot and not life.facts.original
        )
        return msgspec.structs.replace(
            known,
            ended=True,
            seconds=lived,
            cause=_cause(log, spec, exit_record) if unasked else None,
            phases=_closed(known.phases, lived),
        )
    finally:
        log.close()


def refresh(run_dir: Path) -> RunFacts | None:
    """Derive the facts and keep them. Called once when a run is ready, once when it is over;
    those of a run that is still starting are not kept, whoever asks: they are not final.

    None when they cannot be had; that they cannot be written (disk full) is no error."""
    try:
        facts = derive_facts(run_dir)
    except Failed:
        return None
    if facts.start_s is None and not facts.ended:
        return facts
    with contextlib.suppress(OSError):
        atomic.write_record(run_dir / FILE, facts)
    return facts


def run_at(run_dir: Path) -> Run:
    """The run of a directory `units/<unit>/runs/<n>`."""
    return Run(run_dir.parents[1].name, int(run_dir.name), run_dir)


def kernel_choices(facts: RunFacts) -> tuple[KernelChoice, ...]:
    """What runs underneath, as typed answers."""
    from engine_ctl.answers import KernelChoice

    return tuple(KernelChoice(**kernel) for kernel in facts.kernels)


def typical(store: Store, run: Run, spec: RunSpec, derive: bool = False) -> Typical:
    """Medians of the newest TYPICAL_OF ready starts before `run`: those with the same profile
    and way of starting (standby or not) if there are any, else those with the same way.

    With `derive` missing facts are derived and kept (reads logs)."""
    alike: list[RunFacts] = []
    similar: list[RunFacts] = []
    earlier = [other for other in store.runs(run.unit) if other.number < run.number]
    for other in reversed(earlier[-_LOOK_BACK:]):
        if len(alike) >= TYPICAL_OF:
            break
        try:
            theirs = other.spec()
        except Failed:
            continue
        if theirs.kind is not spec.kind:
            continue
        facts = load(other.dir)
        if facts is None and derive:
            facts = refresh(other.dir)
        if facts is None or facts.start_s is None or theirs.via != spec.via:
            continue
        similar.append(facts)
        if theirs.profile == spec.profile:
            alike.append(facts)
    return medians(alike or similar[:TYPICAL_OF])


def medians(starts: Sequence[RunFacts]) -> Typical:
    """Medians over starts; a phase counts only where it occurred. Pure."""
    whole = [facts.start_s for facts in starts if facts.start_s is not None]
    by_phase: dict[Phase, list[float]] = {}
    for facts in starts:
        for mark in facts.start_phases():
            if mark.seconds is not None:
                by_phase.setdefault(mark.phase, []).append(mark.seconds)
    return Typical(
        start_s=_median(whole) if whole else None,
        phases={phase: _median(seconds) for phase, seconds in by_phase.items()},
    )


def _median(values: Sequence[float]) -> float:
    # The statistics module costs 7 ms to import, which `stoker ps` would pay.
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


class _Log:
    """Head and tail of a log file of any size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self.size = 0
        try:
            self._fd = atomic.regular_fd(path)
            self.size = os.fstat(self._fd).st_size
        except OSError:
            pass

    def read(self, offset: int, count: int) -> bytes:
        if self._fd is None:
            return b""
        try:
            return os.pread(self._fd, count, offset)
        except OSError:
            return b""

    def ends(self) -> bytes:
        """Head and tail, or all of a log that is not larger than both, with what may be an error
        between them."""
        from engine_ctl.logs.excerpt import excerpt

        try:
            return excerpt(self._path, HEAD_BYTES, TAIL_BYTES)
        except OSError:
            return b""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _from_log(run: Run, spec: RunSpec, log: _Log) -> RunFacts:
    from engine_ctl.observe.runlog import StartReader

    reader = StartReader(run.dir, spec.kind, spec.runtime_version)
    start = b""
    offset = 0
    while offset < START_BYTES and not reader.timeline.ready_seen:
        chunk = log.read(offset, 1 << 16)
        if not chunk:
            break
        offset += len(chunk)
        start += chunk
        reader.feed(chunk)
    if offset >= log.size:
        reader.finish()
    facts = reader.facts(run.id, standby=spec.via == "standby", log_bytes=log.size)
    return msgspec.structs.replace(
        facts, kernels=_kernels(start), reasons=_refined(run, facts.reasons)
    )


def _refined(run: Run, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Reasons of a fall back with what the log cannot know: that the daemon was loading, and the
    daemon's values of the fields that differ."""
    if not reasons:
        return reasons
    from engine_ctl.state.expected import expected_reasons, expected_values
    from engine_ctl.weights.forecast import refine

    loading = "wc_fallback.not_ready" in expected_reasons(run)
    return refine(reasons, loading, expected_values(run))


def _kernels(start: bytes) -> tuple[dict[str, str], ...]:
    """The fields of answers.KernelChoice for each kernel that the start names."""
    from engine_ctl.logs.kernels import kernels_of

    return tuple(
        {"what": fact.topic, "choice": fact.value, "line": fact.line, "slower": fact.degraded}
        for fact in kernels_of(start)
    )


def _closed(marks: tuple[PhaseMark, ...], lived: float | None) -> tuple[PhaseMark, ...]:
    """The last phase lasted to the end of the run."""
    if not marks or lived is None or marks[-1].seconds is not None:
        return marks
    last = replace(marks[-1], seconds=round(max(0.0, lived - marks[-1].start_s), 3))
    return (*marks[:-1], last)


def _cause(log: _Log, spec: RunSpec, exit_record: ExitRecord | None) -> Cause:
    """The root cause of a run that ended unasked; what the shim said stands before the log."""
    if exit_record is not None and exit_record.error:
        return Cause("unknown", exit_record.error, exit_record.error)
    from engine_ctl.logs.classify import classify
    from engine_ctl.logs.observations import RunFacts as Observations

    code = None if exit_record is None else exit_record.code
    signum = None if exit_record is None else exit_record.signal
    data = log.ends()
    seen = Observations(
        version=spec.runtime_version, exit_code=code, exit_signal=signum, asked=False
    )
    found = classify(data, seen)
    if found is not None:
        return found
    how = "without a trace" if code is None else f"with exit status {code}"
    last = data.rstrip().rpartition(b"\n")[2].decode("utf-8", "replace").strip()
    return Cause("unknown", f"it ended {how}, unasked, and its log names no cause", last[:500])
