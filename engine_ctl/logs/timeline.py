"""Where a start is and how long each phase took, from its log.

Forward only: phases may be missing, configuration lines come twice, and of several ranks the
slowest one counts. Pure: bytes in, immutable marks out; times come from the run's clock file,
from the caller (`at_s`), from a column of elapsed seconds, or from the log's own stamps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine_ctl.logs.clock import Clock
from engine_ctl.logs.facts import StartFacts, learn
from engine_ctl.logs.lines import Record, RecordReader, bar_of, clean
from engine_ctl.logs.milestones import Step, from_parent, step_of
from engine_ctl.logs.stamps import Stamps
from engine_ctl.model import STARTING, Kind, Phase, PhaseMark, Progress

_ORDER = {
    phase: rank
    for rank, phase in enumerate(
        (*STARTING, Phase.READY, Phase.SLEEPING, Phase.DRAINING, Phase.STOPPING, Phase.FAILED)
    )
}
_AFTER_LOAD = (Phase.COMPILING, Phase.PROFILING)
SHORTEST_GAP_S = 1.0
LONG_SILENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without output whose work is known: seconds from the run's start."""

    name: str
    start_s: float
    seconds: float


@dataclass(slots=True)
class _Mark:
    phase: Phase
    start_s: float
    note: str = ""
    sure: bool = True


class StartTimeline:
    """Feed it the log of one run; read `phase`, `marks()`, `progress`, `facts` at any moment."""

    def __init__(
        self,
        kind: Kind = Kind.ENGINE,
        *,
        time_of: Callable[[int], float | None] | None = None,
        silent_children: bool = False,
    ) -> None:
        """`time_of` maps a log offset to seconds (see `Clock.seconds_at`). `silent_children`:
        this version's preload daemons print nothing while they load (0.31 and 0.32)."""
        self.kind = kind
        self.facts = StartFacts()
        self.progress: Progress | None = None
        self.heartbeats = 0
        self.ready_at_s: float | None = None
        self._silent = silent_children
        self._time_of = time_of
        self._reader = RecordReader()
        self._stamps = Stamps()
        self._marks = [_Mark(Phase.IMPORTING, 0.0)]
        self._gaps: list[Gap] = []
        self._last_s = 0.0
        self._parent_s: float | None = None
        self._core_s: float | None = None
        self._engine_ready_s: float | None = None
        self._seen_children: set[str] = set()
        self._seen_servers: set[str] = set()
        self._startups = 0
        self._kv_sized = False
        self._compiled = False
        self._timed = False
        self._provisional: float | None = None

    # ------------------------------------------------------------------ reading

    @property
    def phase(self) -> Phase:
        if self._provisional is not None and self._marks[-1].phase is not Phase.FAILED:
            return Phase.FAILED
        return self._marks[-1].phase

    @property
    def ready_seen(self) -> bool:
        """The log says that every API server is up (or the daemon READY)."""
        return self.ready_at_s is not None

    @property
    def api_servers_expected(self) -> int:
        return max(1, self.facts.api_servers or 0, len(self._seen_servers))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(self._gaps)

    def marks(self) -> tuple[PhaseMark, ...]:
        """The phases so far; the last one has no `seconds`, nor has one whose end is unknown."""
        marks = list(self._marks)
        if self._provisional is not None and marks[-1].phase is not Phase.FAILED:
            marks.append(_Mark(Phase.FAILED, max(self._provisional, marks[-1].start_s)))
        out = []
        for index, mark in enumerate(marks):
            seconds = None
            if index + 1 < len(marks):
                seconds = round(marks[index + 1].start_s - mark.start_s, 3)
            note = mark.note
            if index == 0 and not self._timed and len(marks) > 1:
                seconds, note = None, "not in the log: times count from its first stamp"
            out.append(PhaseMark(mark.phase, round(mark.start_s, 3), seconds, note))
        return tuple(out)

    # ------------------------------------------------------------------ feeding

    def feed(self, chunk: bytes, at_s: float | None = None) -> None:
        """The next bytes of the log. `at_s`: seconds since the run's start when they were seen;
        None derives times from the log itself."""
        for record in self._reader.feed(chunk):
            self.take(record, at_s)
        partial = self._reader.partial
        if b"%|" in partial or b"% Completed" in partial:
            before = self._last_s
            self._bar(clean(partial[-2000:]), self._time(None, at_s), before)

    def finish(self) -> None:
        """The log has ended: take its last, unterminated line too."""
        for record in self._reader.flush():
            self.take(record, None)

    def _time(self, record: Record | None, at_s: float | None) -> float:
        when: float | None = None
        if record is not None and record.at_s is not None:
            when = record.at_s
        elif record is not None and self._time_of is not None:
            when = self._time_of(record.offset)
            if when is None:
                when = self._stamps.seconds(record.time, self._last_s)
            elif record.time is not None:
                self._stamps.anchor(record.time, when)
        elif at_s is not None:
            when = at_s
        elif record is not None:
            when = self._stamps.seconds(record.time, self._last_s)
        if when is None:
            return self._last_s
        if at_s is not None or self._time_of is not None or (record and record.at_s is not None):
            self._timed = True
        self._last_s = max(self._last_s, when)
        return self._last_s

    @property
    def starting_phase(self) -> Phase:
        """The last phase that is no end: where a start was when it failed."""
        ends = (Phase.FAILED, Phase.STOPPING, Phase.DRAINING)
        return next(mark.phase for mark in reversed(self._marks) if mark.phase not in ends)

    @property
    def kv_sized(self) -> bool:
        """The KV cache has its size: what follows is warm-up and graph capture."""
        return self._kv_sized

    def take(self, record: Record, at_s: float | None = None) -> Step | None:
        """One record (instead of `feed`). Returns what it shows."""
        before = self._last_s
        now = self._time(record, at_s)
        if record.shape == "bar":
            self._bar(record.message, now, before)
            return None
        step = step_of(record)
        if self.ready_at_s is None or step in (Step.ENGINE_READY, Step.KV_SIZED):
            self.facts = learn(self.facts, record)
            if record.process is not None:
                self._gap(record, now, before)
        if step is not None:
            self._step(step, record, now, before)
        elif (
            record.message.startswith("Traceback (most recent")
            and from_parent(record)
            and self.ready_at_s is None
        ):
            self._provisional = now
        return step

    def _gap(self, record: Record, now: float, before: float) -> None:
        name = record.process or ""
        if from_parent(record):
            if name.startswith("ApiServer"):
                self._seen_servers.add(name)
            if self._parent_s is None and self._timed and now >= SHORTEST_GAP_S:
                self._named("import of vLLM and torch", 0.0, now)
            self._parent_s = now
            return
        what, since = "EngineCore", self._parent_s
        if name.startswith("vllm-weight-cache"):
            what = "the weight cache daemon"
        elif name.startswith(("Worker", "VllmWorker")):
            what, since = "the workers", self._core_s or self._parent_s
        if what not in self._seen_children:
            self._seen_children.add(what)
            if since is not None and now - since >= SHORTEST_GAP_S:
                self._named(f"spawn and import of {what}", since, now)
        if what == "EngineCore":
            self._core_s = now

    def _quiet(self, name: str, start_s: float, end_s: float) -> None:
        if end_s - start_s >= LONG_SILENCE_S:
            self._named(name, start_s, end_s)

    def _named(self, name: str, start_s: float, end_s: float) -> None:
        seconds = round(end_s - start_s, 3)
        self._gaps.append(Gap(name, round(start_s, 3), seconds))
        mark = self._marks[0] if name.startswith("import") else self._marks[-1]
        text = name if name.startswith("import") else f"{seconds:.1f} s {name}"
        mark.note = f"{mark.note}, {text}" if mark.note else text

    # ------------------------------------------------------------------ moving

    def _advance(self, phase: Phase, now: float, *, sure: bool = True) -> None:
        current = self._marks[-1]
        self._provisional = None
        if _ORDER[phase] <= _ORDER[current.phase]:
            return
        if current.phase is Phase.COMPILING and not current.sure and not self._compiled:
            if phase is Phase.PROFILING:
                current.phase = phase  # nothing was compiled after all
                return
            self._marks.pop()
            now = min(now, current.start_s) if phase is Phase.READY else current.start_s
        self.progress = None
        self._marks.append(_Mark(phase, max(now, self._marks[-1].start_s), sure=sure))

    def _step(self, step: Step, record: Record, now: float, before: float) -> None:
        match step:
            case Step.CONFIGURING | Step.ENGINE_INIT:
                self._advance(Phase.CONFIGURING, now)
            case Step.CONFIGURED:
                self._advance(Phase.CONFIGURING, now)
                if self._silent and self.kind is Kind.PRELOAD:
                    self._advance(Phase.LOADING, now)
            case Step.LOADING:
                self._advance(Phase.LOADING, now)
            case Step.WAITING_FOR_DAEMON:
                self._advance(Phase.LOADING, now)
                self._marks[-1].note = "waiting for the weight cache daemon"
            case Step.FELL_BACK:
                self._advance(Phase.LOADING, now)
                self._marks[-1].note = "fell back to disk"
            case Step.MAPPED:
                self._advance(Phase.LOADING, before)
                self._advance(Phase.MAPPING, before)
            case Step.LOADED:
                self._loaded(now)
            case Step.COMPILING:
                self._compiled = True
                self._advance(Phase.COMPILING, now)
            case Step.PROFILING:
                self._advance(Phase.PROFILING, now)
            case Step.KV_SIZED:
                self._advance(Phase.PROFILING, now)
                self._kv_sized = True
            case Step.CAPTURED:
                self._advance(Phase.CAPTURING if self._kv_sized else Phase.PROFILING, now)
            case Step.ENGINE_READY:
                self._engine_ready_s = now
            case Step.READY | Step.DAEMON_READY:
                self._ready(step, now, before)
            case Step.HEARTBEAT:
                self.heartbeats += 1
            case Step.ASLEEP:
                self._advance(Phase.SLEEPING, now)
            case Step.AWAKE:
                if self._marks[-1].phase is Phase.SLEEPING:
                    self._marks.append(_Mark(Phase.READY, now))
            case Step.STOPPING | Step.INTERRUPTED | Step.DRAINING | Step.TEARDOWN:
                self._stopping(step, now)
            case Step.FAILED:
                if self._marks[-1].phase not in (Phase.DRAINING, Phase.STOPPING):
                    self._advance(Phase.FAILED, now)

    def _loaded(self, now: float) -> None:
        current = self._marks[-1]
        if current.phase in _AFTER_LOAD:
            previous = self._marks[-2].phase if len(self._marks) > 1 else None
            if previous in (Phase.LOADING, Phase.MAPPING):
                current.start_s = now  # a slower rank has only now finished loading
            return
        self._advance(Phase.LOADING, now)
        eager = bool(self.facts.enforce_eager)
        self._advance(Phase.PROFILING if eager else Phase.COMPILING, now, sure=False)

    def _ready(self, step: Step, now: float, before: float) -> None:
        if step is Step.READY:
            self._startups += 1
            if self._startups < self.api_servers_expected:
                return
        elif self._marks[-1].phase is Phase.CONFIGURING:
            quiet = max(self._parent_s or 0.0, self._marks[-1].start_s)
            self._marks.append(
                _Mark(Phase.LOADING, min(before, quiet), "silent: spawn, import and load")
            )
        since = self._engine_ready_s
        if since is not None and now - since >= SHORTEST_GAP_S:
            self._named("start of the API server", since, now)
        self._advance(Phase.READY, now)
        if self.ready_at_s is None:
            self.ready_at_s = now

    def _stopping(self, step: Step, now: float) -> None:
        current = self._marks[-1]
        if step is Step.DRAINING:
            if current.phase is Phase.STOPPING and now - current.start_s < SHORTEST_GAP_S:
                current.phase = Phase.DRAINING
            else:
                self._advance(Phase.DRAINING, now)
        elif current.phase is not Phase.DRAINING or step is not Step.STOPPING:
            self._advance(Phase.STOPPING, now)

    def _bar(self, text: str, now: float, before: float) -> None:
        bar = bar_of(text)
        if bar is None or self.ready_at_s is not None:
            return
        label = bar.label.lower()
        if label.startswith("capturing"):
            phase = Phase.CAPTURING if self._kv_sized else Phase.PROFILING
            if self._kv_sized and self.phase is Phase.PROFILING:
                self._quiet("warm-up of kernels", before, now)
            self._advance(phase, now)
        elif label.startswith("loading") or "shards" in label:
            self._advance(Phase.LOADING, now)
        self.progress = Progress(bar.label, bar.done, bar.total)


def marks_from_log(
    text: bytes, clock: Clock | None = None, kind: Kind = Kind.ENGINE
) -> list[PhaseMark]:
    """Phase marks of a finished log, timed by the run's clock where there is one."""
    timeline = StartTimeline(kind, time_of=clock.seconds_at if clock else None)
    timeline.feed(text)
    timeline.finish()
    return list(timeline.marks())


def phases_of_text(data: bytes, clock: Clock | None = None) -> tuple[PhaseMark, ...]:
    """Phase marks of any log: an engine's, or a preload daemon's (told apart by its lines)."""
    return tuple(marks_from_log(data, clock, kind_of_text(data)))


def kind_of_text(data: bytes) -> Kind:
    """Whose log it is, from its lines."""
    daemon = b"vllm-weight-cache-" in data or b"Weight cache daemon READY" in data
    serves = b"non-default args" in data or b"EngineCore" in data or b"startup complete" in data
    return Kind.PRELOAD if daemon and not serves else Kind.ENGINE
