"""The root cause of a failed or ended run, from its log and what else is known of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.logs.errors import (
    CONSEQUENCE,
    HANDLED,
    REPORTED,
    Candidate,
    Survey,
    joined,
    survey,
)
from engine_ctl.logs.excerpt import excerpt, shortened
from engine_ctl.logs.lines import Record, records_of
from engine_ctl.logs.milestones import Step
from engine_ctl.logs.observations import RunFacts, cause_of_facts, cause_of_notes
from engine_ctl.logs.rules import CONSEQUENCES, NOTICES, RULES, Context, Rule
from engine_ctl.logs.rules.advice import advice
from engine_ctl.logs.rules.weights import stopped_by_cache
from engine_ctl.logs.starts import last_start, shared_port
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.logs.verdict import verdict_of_records
from engine_ctl.model import Cause, Phase, Verdict

LONGEST = 2000
LONGEST_TEXT = 8000
_HEADS = (
    "non-default args: ",
    "vLLM server version",
    "vLLM API server version",
    "Resolved architecture",
    "Using max model len",
    "Found ulimit of ",
    "Enforce eager set",
)


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where the start was at one record."""

    phase: Phase
    capturing: bool
    kv_sized: bool


@dataclass(frozen=True, slots=True)
class _Story:
    """One start: its records, their milestones, and where the start was at each."""

    records: Sequence[Record]
    steps: Sequence[Step | None]
    moments: Sequence[_Moment]
    timeline: StartTimeline


def classify(data: bytes | str, facts: RunFacts | None = None) -> Cause | None:
    """The root cause, None when the log is that of a healthy (or healthily stopped) run.

    `unknown` carries the first root exception as its line. Several starts in one log: the last
    one counts. `facts` are observations from outside the log (exit record, NVML, ports)."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    run = facts or RunFacts()
    records = list(records_of(shortened(raw)))
    shared = shared_port(records)
    if shared is not None:
        return shared
    story = _told(joined(last_start(records)))
    found = _from_log(story, run)
    if found is not None and found.category != "unknown":
        return found
    observed = cause_of_facts(run)
    if observed is not None:
        return observed
    if found is None and not any(r.shape in ("record", "json", "bar") for r in story.records):
        return cause_of_notes(raw.decode("utf-8", "replace"))
    return found


def classify_file(path: Path, facts: RunFacts | None = None) -> Cause | None:
    """The root cause from a log file of any size (see `excerpt` for what is read of a big one).

    Raises OSError when the file cannot be read."""
    return classify(excerpt(path), facts)


def _told(records: Sequence[Record]) -> _Story:
    timeline = StartTimeline()
    steps: list[Step | None] = []
    moments: list[_Moment] = []
    capturing = False
    for record in records:
        step = timeline.take(record)
        steps.append(step)
        if record.shape == "bar":
            capturing = record.message.lower().startswith("capturing")
        elif step is not None and step is not Step.FAILED:
            capturing = False
        if "rofiling CUDA graph memory" in record.message:
            capturing = True
        moments.append(_Moment(timeline.starting_phase, capturing, timeline.kv_sized))
    return _Story(records, steps, moments, timeline)


def _from_log(story: _Story, run: RunFacts) -> Cause | None:
    found = survey(story.records, story.steps)
    cause = _root(found, story, run)
    if cause is not None:
        dead = cause.category == "unknown" and found.ready_index is not None
        return (_still_serving(found.candidates, story) if dead else None) or cause
    for item in found.overcome:
        context = _context(item, story, run)
        for rule in RULES:
            match = rule.match(_bounded(item.text), context) if rule.serving else None
            if match is not None:
                return _cause(rule.category, rule.advice(match, context), item, story)
    if not _whole(story, found) and (stopped := _stopped(found, story)) is not None:
        return stopped
    return _noticed(story, found)


def _whole(story: _Story, found: Survey) -> bool:
    """True for the log of a complete healthy start: from its configuration to ready."""
    ready = found.ready_index
    return ready is not None and any(
        record.message.startswith(_HEADS) or "█" in record.message
        for record in story.records[:ready]
    )


def _context(item: Candidate, story: _Story, run: RunFacts) -> Context:
    moment = story.moments[item.index]
    text = " ".join((story.timeline.facts.args or "", story.timeline.facts.load_format or ""))
    return Context(
        item,
        moment.phase,
        moment.capturing,
        moment.kv_sized,
        story.timeline.facts,
        run,
        text,
    )


def _root(found: Survey, story: _Story, run: RunFacts) -> Cause | None:
    """The cause of the first candidate; when no rule knows that one, only what was reported
    before it may speak instead of it."""
    direct = [item for item in found.candidates if item.tier != CONSEQUENCE]
    for item in direct:
        known = _by_rules(item, RULES, story, run)
        if known is not None:
            return known
        if item.tier not in (REPORTED, HANDLED):
            earlier = (
                _by_rules(other, RULES, story, run)
                for other in direct
                if other.index < item.index and other.tier in (REPORTED, HANDLED)
            )
            return next((cause for cause in earlier if cause is not None), None) or _unknown(
                item, story
            )
    followers = [item for item in found.candidates if item.tier == CONSEQUENCE]
    if direct and not _engine_lost_first(followers, direct):
        return _unknown(direct[0], story)
    for item in followers:
        known = _by_rules(item, (*CONSEQUENCES, *_WRAPPED), story, run)
        if known is not None:
            return known
    if followers:
        return _dead_engine(followers, found, story)
    return None


_WRAPPED = tuple(rule for rule in RULES if rule.category not in ("bad_value", "env_unknown"))


def _engine_lost_first(followers: list[Candidate], direct: list[Candidate]) -> bool:
    return bool(followers) and followers[0].index < direct[0].index


def _by_rules(item: Candidate, rules: Sequence[Rule], story: _Story, run: RunFacts) -> Cause | None:
    context = _context(item, story, run)
    texts = [item.text] if not item.header else [item.text, f"{item.header}\n{item.text}"]
    for text in map(_bounded, texts):
        stopped = stopped_by_cache(text)
        for rule in rules:
            match = rule.match(text, context)
            if match is not None:
                return _cause(rule.category, rule.advice(match, context), item, story)
            if stopped is not None and rule.category == "wc_daemon_duplicate":
                return _cause(stopped[0], stopped[1], item, story)
    return None


def _bounded(text: str) -> str:
    """Patterns search a text of limited length: its beginning and its end say the cause."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - 2000]}\n{text[-2000:]}"


def _dead_engine(followers: list[Candidate], found: Survey, story: _Story) -> Cause:
    """Nothing but consequences: the engine is gone and nobody said why."""
    item = followers[0]
    alive = _still_serving(followers, story)
    if "EngineDeadError" in item.text and alive is not None:
        return alive
    if "EngineDeadError" in item.text and _ended(story):
        return _cause(
            "engine_core_killed",
            "EngineCore was killed from outside, there is no error of its own above: see dmesg "
            "(kernel OOM killer) and who sent the signal; the exit status says nothing",
            item,
            story,
        )
    return _unknown(item, story)


def _ended(story: _Story) -> bool:
    return any(
        record.message.startswith(("Shutting down", "Application shutdown", "Finished server"))
        for record in story.records
    )


_REFUSED = re.compile(r" HTTP/\d\.\d\"? 50\d")


def _still_serving(candidates: Sequence[Candidate], story: _Story) -> Cause | None:
    """The engine is dead and its API server goes on answering, with errors."""
    last = max(item.index for item in candidates)
    if _ended(story) or not any(_REFUSED.search(r.message) for r in story.records[last + 1 :]):
        return None
    return _cause(
        "engine_dead_parent_alive",
        "EngineCore is dead and the API server still answers (with errors): stop the unit and "
        "start it again; sweep what is left",
        candidates[0],
        story,
    )


def _stopped(found: Survey, story: _Story) -> Cause | None:
    """A stop that was asked for: healthy, worth a word only when it printed errors."""
    noise = [item for item in found.errors_after_stop if item.tier != REPORTED]
    if found.stop_index is None or not noise:
        return None
    while_starting = found.ready_index is None and found.interrupted
    return _cause(
        "normal_shutdown",
        "stopped on request while it was starting; the traceback is only the interruption"
        if while_starting
        else "a healthy stop: errors after the stop was asked for are none (--shutdown-timeout "
        "gives a clean drain)",
        noise[0],
        story,
    )


def _noticed(story: _Story, found: Survey) -> Cause | None:
    """What a log without a failure says: fall backs always, the rest only in excerpts."""
    whole = _whole(story, found)
    verdict, reasons = verdict_of_records(story.records)
    daemon = any((r.process or "").startswith("vllm-weight-cache") for r in story.records)
    falls = [reason for reason in reasons if reason.category.startswith("wc_fallback.")]
    if falls and (verdict is Verdict.FALLBACK or not (whole and daemon)):
        first = falls[0]
        return Cause(first.category, first.hint, first.line[:LONGEST])
    beats = 0
    for notice in NOTICES:
        if whole and not notice.always and notice.category != "worker_slow_or_hung":
            continue
        for index, record in enumerate(story.records):
            message = record.message[:LONGEST]
            if record.shape == "bar" or not notice.pattern.search(message):
                continue
            if whole and notice.category == "worker_slow_or_hung":
                beats += found.ready_index is not None and index > found.ready_index
                if beats < 2:
                    continue
            return Cause(notice.category, notice.hint, message.split("\n", 1)[0][:LONGEST])
    return None


def _cause(category: str, hint: str, item: Candidate, story: _Story) -> Cause:
    return Cause(category, hint, item.line, _evidence(item, story))


def _unknown(item: Candidate, story: _Story) -> Cause:
    hint = advice(_bounded(item.text), Context(item))
    return Cause("unknown", hint, item.line, _evidence(item, story))


_TELLING = (
    "Available KV cache memory",
    "Free memory on device",
    "Checkpoint size",
    "Filesystem type for checkpoints",
    "Weights are held outside",
    "Weight cache unusable",
    "Cannot query weight cache daemon",
    "Loading drafter model",
    "Starting to load model",
    "Worker proc ",
)


def _evidence(item: Candidate, story: _Story) -> tuple[str, ...]:
    """Lines that support the cause: who said it, what was last measured, the deepest frame."""
    lines: list[str] = []
    record = story.records[item.index]
    who = item.process or record.process
    if item.header:
        lines.append(f"{who}: {item.header}" if who else item.header)
    for earlier in reversed(story.records[: item.index]):
        if earlier.message.startswith(_TELLING) and len(lines) < 4:
            lines.append(earlier.message.split("\n", 1)[0][:500])
    ours = [frame for frame in item.frames if frame[0] != "main.py"]
    if ours:
        lines.append(f"in {ours[-1][1]} ({ours[-1][0]})")
    return tuple(lines)
