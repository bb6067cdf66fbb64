"""`why`, `phases`, `kernels`, `starts`: what became of a run, from its records and its log."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.answers import FailureCard, Fix, KernelChoice, LastStart, StartRecord
from engine_ctl.errors import Failed, NotFound, StokerError
from engine_ctl.logs import timeline
from engine_ctl.logs.classify import classify_file
from engine_ctl.model import STARTING, Kind, Phase, PhaseMark, Reason, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations import ports, snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.fixes import fixes_for
from engine_ctl.operations.leftovers import leftovers, words
from engine_ctl.operations.runs import engine_units, run_of
from engine_ctl.state import aftermath
from engine_ctl.state.expected import expected_memory
from engine_ctl.state.store import Run
from engine_ctl.supervise.liveness import look
from engine_ctl.swap import journal
from profiles.diff import diff

MAX_LOG = 512 << 20


def read_log(path: Path) -> bytes:
    """A log file's content. Raises NotFound and Failed in one line; of huge ones head and tail."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= MAX_LOG:
                return file.read()
            head = file.read(MAX_LOG // 2)
            file.seek(size - MAX_LOG // 2)
            return head + b"\n" + file.read()
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None


def why_file(path: Path) -> dict[str, Any] | None:
    """`{"category", "hint", "line", "evidence"}` of a log file; None when it is healthy."""
    try:
        cause = classify_file(path)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    if cause is None:
        return None
    return {
        "category": cause.category,
        "hint": cause.hint,
        "line": cause.line,
        "evidence": list(cause.evidence),
    }


def phases_file(path: Path) -> list[PhaseMark]:
    return list(timeline.phases_of_text(read_log(path)))


def facts_of(run: Run) -> run_facts.RunFacts:
    """The run's facts: kept ones when it is over, else derived now."""
    known = run_facts.load(run.dir)
    return known if known is not None and known.ended else run_facts.derive_facts(run.dir)


def why(ctx: Context, unit: str, reference: str | None = None) -> FailureCard | None:
    """The card of a run: the named one, else the unit's newest that failed or fell back.

    None when there is nothing to explain.
    """
    run = run_of(ctx, unit, reference)
    card = _card(ctx, run)
    if card is None and reference is None:
        for earlier in reversed(ctx.store.runs(unit)):
            if earlier.number < run.number and look(earlier).life.value in ("failed", "lost"):
                return _card(ctx, earlier)
    return card


def _card(ctx: Context, run: Run) -> FailureCard | None:
    known = facts_of(run)
    life = look(run)
    record = run.exit()
    note = life.note
    if known.cause is None and life.life.value in ("running", "stopping") and _failing(known):
        known = msgspec.structs.replace(known, cause=classify_file(run.log))
        note = "its process has not ended yet"
    elif known.cause is None and life.life.value not in ("failed", "lost", "orphaned"):
        return None
    spec = run.spec()
    cause = known.cause and ports.with_owner(known.cause, spec.port)
    before = _phase_before(known, life.ready, asked=life.facts.request is not None)
    changed, by = _changed(ctx, run)
    return FailureCard(
        unit=run.unit,
        run=run.id,
        cause=cause,
        profile=spec.profile or "",
        phase=before,
        after_s=record.seconds if record else None,
        ended=record.ended if record else None,
        outcome=_outcome("failed" if _failing(known) else life.life.value, note, record),
        fixes=_fixes(run, known),
        changed=changed,
        changed_by=by,
        memory=_memory(run, known),
        memory_then=_memory_then(run),
        leftovers=_leftovers(ctx, run),
        log=str(run.log),
        log_offset=_offset(run, known),
    )


def fell_back(
    ctx: Context, unit: str, reference: str | None = None, card: FailureCard | None = None
) -> tuple[Reason, ...]:
    """Why a run's weights came from disk although a daemon was to have them; () when they did
    not, and when `card` tells of the same run."""
    run = run_of(ctx, unit, reference)
    if card is not None and card.run == run.id:
        return ()
    known = facts_of(run)
    return known.reasons if known.verdict is Verdict.FALLBACK else ()


def went_back(ctx: Context, unit: str, card: FailureCard | None = None) -> str | None:
    """Why the swap that led to the unit's current run was taken back, in a sentence; None when none
    was, and when `card` tells of the run that it gave up."""
    last = journal.read(ctx.store, unit)
    run = ctx.store.current(unit)
    if last is None or run is None or last.outcome is not journal.Outcome.ROLLED_BACK:
        return None
    if last.old_run != run.id or (card is not None and card.run == last.new_run):
        return None
    return f"the {last.what} to {last.profile.name} went back to {run.id}: {last.reason}"


def since(ctx: Context, unit: str, card: FailureCard) -> str | None:
    """What the unit does now, in a sentence, where the card tells of an earlier run."""
    run = ctx.store.current(unit)
    if run is None or run.id == card.run:
        return None
    life = look(run)
    if life.ended:
        return None
    verdict = facts_of(run).verdict
    how = f" (weights {verdict})" if life.ready and verdict else ""
    return f"{run.id} {'serves' if life.ready else 'starts'} since then{how}"


def last_starts(ctx: Context) -> tuple[LastStart, ...]:
    """How the last start of every engine's unit went, in a line each."""
    found = []
    for unit in engine_units(ctx):
        try:
            run = ctx.store.current(unit)
            found.append(LastStart(unit) if run is None else _last_start(ctx, unit, run))
        except StokerError as error:
            found.append(LastStart(unit, hint=str(error)))
    return tuple(found)


def _last_start(ctx: Context, unit: str, run: Run) -> LastStart:
    life, known, card = look(run), facts_of(run), why(ctx, unit, run.id)
    outcome = "ready" if life.ready and life.phase is None else life.life.value
    told = LastStart(unit, run.id, outcome, known.verdict)
    back = went_back(ctx, unit, card)
    if card is not None:
        cause = card.cause
        category, hint = (cause.category, cause.hint) if cause else ("unknown", card.outcome)
        return replace(told, category=category, hint=hint)
    for reason in fell_back(ctx, unit, run.id):
        return replace(told, category=reason.category, hint=reason.hint)
    return told if back is None else replace(told, category="went_back", hint=back)


# torch's own account of a GPU in an out-of-memory error, and vLLM's of one at its start.
_OOM = re.compile(
    r"(GPU \d+) has a total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free\."
    r"(?:.{0,80}?this process has ([\d.]+ \w+) memory in use)?"
)
_AT_START = re.compile(
    r"Free memory on device (\S+) \(([\d.]+)/([\d.]+) GiB\) on startup is less than"
)
_HELD = (
    ("weights", "weights_gib"),
    ("mapped weights", "external_weights_gib"),
    ("KV cache", "kv_gib"),
    ("graphs", "graphs_gib"),
    ("activations", "activation_gib"),
)


def _memory(run: Run, known: run_facts.RunFacts) -> tuple[str, ...]:
    """The memory at the moment of the failure as the log told it, as the shim found it, and what
    was expected to be free at the start."""
    lines = []
    try:
        with atomic.regular_file(run.log) as file:
            file.seek(max(file.seek(0, 2) - (1 << 20), 0))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    for gpu, total, free, own in dict.fromkeys(_OOM.findall(text)):
        mine = f", {own} of this process" if own else ""
        lines.append(f"{gpu}: {free} free of {total}{mine}")
    for device, free, total in dict.fromkeys(_AT_START.findall(text)):
        lines.append(f"{device}: {free} GiB free of {total} GiB when it started")
    then = _memory_then(run)
    if then is not None:
        lines += aftermath.words(then, _pids(run))
    held = [
        f"{name} {value:.1f}"
        for name, key in _HELD
        if isinstance(value := known.start.get(key), (int, float))
    ]
    if held:
        lines.append(f"its log: {', '.join(held)} GiB")
    return (*lines, *(f"expected: {line}" for line in expected_memory(run)))


def _leftovers(ctx: Context, run: Run) -> tuple[str, ...]:
    return tuple(words(left) for left in leftovers(ctx, (run.unit,)) if left.run == run.id)


def _memory_then(run: Run) -> aftermath.MemoryRecord | None:
    try:
        return aftermath.read(run)
    except StokerError:
        return None


def _pids(run: Run) -> frozenset[int]:
    """The leader, and those that the shim had to end."""
    try:
        who, record = run.identity(), run.exit()
    except StokerError:
        return frozenset()
    return frozenset([who.leader.pid] if who else []) | frozenset(record.swept if record else [])


def _failing(known: run_facts.RunFacts) -> bool:
    """True when the log tells of a failure, be the process there or not."""
    return bool(known.phases) and known.phases[-1].phase is Phase.FAILED


_AFTERWARDS = (Phase.DRAINING, Phase.STOPPING)


def _phase_before(known: run_facts.RunFacts, ready: bool, asked: bool) -> Phase | None:
    """The phase that failed. `ready`: it was; a log need not say so (a standby's). `asked`:
    somebody asked it to end; else its stopping only followed from the failure."""
    every = [mark.phase for mark in known.phases if mark.phase is not Phase.EXITED]
    marks = every[: every.index(Phase.FAILED)] if Phase.FAILED in every else every
    while marks and marks[-1] in _AFTERWARDS and not asked:
        marks.pop()
    if ready and (not marks or marks[-1] in STARTING):
        return Phase.READY
    return marks[-1] if marks else None


def _outcome(life: str, note: str, record: Any) -> str:
    parts = [life]
    if record is not None and record.signal is not None:
        parts.append(f"signal {record.signal}")
    elif record is not None and record.code is not None:
        parts.append(f"exit status {record.code}")
    if note:
        parts.append(note)
    return ", ".join(parts)


def _offset(run: Run, known: run_facts.RunFacts) -> int | None:
    """Where the cause's line stands in the log, in bytes."""
    if known.cause is None or not known.cause.line:
        return None
    from engine_ctl.logs.index_file import LogFile
    from engine_ctl.logs.view_facts import first_line_with

    needle = known.cause.line.strip().splitlines()[0][:200]
    try:
        return first_line_with(LogFile(run.log), needle)
    except OSError:
        return None


def _changed(ctx: Context, run: Run) -> tuple[tuple[Fix, ...], str]:
    """What differs from the unit's newest earlier run that became ready."""
    now = snapshots.load(run)
    if now is None:
        return (), ""
    for earlier in reversed(ctx.store.runs(run.unit)):
        if earlier.number >= run.number or earlier.ready() is None:
            continue
        before = snapshots.load(earlier)
        if before is None:
            continue
        changes = diff(before, now)
        return tuple(Fix(c.key, _word(c.before), _word(c.after)) for c in changes), run.spec().by
    return (), ""


def _fixes(run: Run, known: run_facts.RunFacts) -> tuple[Fix, ...]:
    profile = snapshots.load(run)
    return fixes_for(known.cause, profile) if known.cause is not None and profile else ()


def _word(value: Any) -> str:
    return "–" if value is None else str(value)


def kernels(ctx: Context, unit: str, reference: str | None = None) -> tuple[KernelChoice, ...]:
    return run_facts.kernel_choices(facts_of(run_of(ctx, unit, reference)))


def starts(ctx: Context, unit: str, limit: int = 30) -> tuple[StartRecord, ...]:
    """The unit's starts, newest first, for the waterfall. `disk_s` of one is the quickest start
    of the same model from disk, of those that came the same way (standby or not) where there is
    one."""
    found: list[tuple[StartRecord, str | None]] = []
    from_disk: dict[tuple[str | None, bool], float] = {}
    for run in ctx.store.runs(unit):
        try:
            spec, known = run.spec(), facts_of(run)
            life = look(run, spec.kind)
        except StokerError:
            continue
        if spec.kind not in (Kind.ENGINE, Kind.PRELOAD):
            continue
        standby = spec.via == "standby"
        if known.verdict in (Verdict.DISK, Verdict.FALLBACK) and known.start_s is not None:
            key = (spec.model, standby)
            from_disk[key] = min(from_disk.get(key, known.start_s), known.start_s)
        record = StartRecord(
            run=run.id,
            profile=spec.profile or "",
            started=spec.created,
            phases=known.start_phases(),
            ready_s=known.start_s,
            outcome=life.phase,
            verdict=known.verdict,
            standby=standby,
        )
        found.append((record, spec.model))
    return tuple(
        replace(
            record,
            disk_s=from_disk.get(
                (model, bool(record.standby)), from_disk.get((model, not record.standby))
            ),
        )
        for record, model in found[::-1][:limit]
    )
