"""One unit over time: its current run, log, metrics and history, as a `UnitView`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine_ctl.errors import Failed, NotFound
from engine_ctl.model import (
    STARTING,
    EngineLoad,
    Kind,
    Phase,
    PhaseMark,
    Progress,
    Reason,
    UnitView,
    Verdict,
)
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe.phase import note_of, phase_of
from engine_ctl.observe.telling import tail_tells
from engine_ctl.state import doing
from engine_ctl.state.records import RunSpec, UnitRecord
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise.liveness import Liveness, gather, judge

if TYPE_CHECKING:
    from engine_ctl.metrics.connection import Endpoint
    from engine_ctl.metrics.sample import Parser
    from engine_ctl.metrics.scrape import Answer
    from engine_ctl.metrics.window import EngineWindow
    from engine_ctl.observe.facts import RunFacts, Typical
    from engine_ctl.observe.runlog import RunLog

LIMITS = ("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens")
# Without an answer for so long the last figures are no longer shown.
STALE_S = 10.0
# vLLM prints a line every 10 s (VLLM_LOG_STATS_INTERVAL) while it has something to do.
STATISTICS_STALE_S = 25.0


class UnitWatch:
    """What is kept of a unit between two looks. One thread owns it."""

    def __init__(self, store: Store, unit: str, *, remember: bool = True) -> None:
        """`remember`: a thread samples again and again, so medians of earlier starts and
        facts that nobody derived yet are worth their cost."""
        self.unit = unit
        self.record: UnitRecord | None = None
        self.run: Run | None = None
        self.spec: RunSpec | None = None
        self.life: Liveness | None = None
        self.facts: RunFacts | None = None
        self.problem = ""
        self.drift: tuple[str, ...] = ()
        self.drift_known = False
        self.profile_problem = ""
        self.sweep = ""
        self.window: EngineWindow | None = None
        self.weights_now: tuple[Reason, ...] = ()
        self._live: dict[str, str] | None = None
        self._store = store
        self._remember = remember
        self._log: RunLog | None = None
        self._parser: Parser | None = None
        self._typical: Typical | None = None
        self._limits: dict[str, float] | None = None
        self._answer: Answer | None = None
        self._answered: tuple[float, float] | None = None
        self._settled = False
        self._statistics: tuple[bytes, float] | None = None
        self._doing: str | None = None

    # ------------------------------------------------------------------ looking

    def look(self, record: UnitRecord, boot: str) -> None:
        """The unit's current run and whether it lives. Damaged records become `problem`."""
        self.record = record
        self.problem = ""
        self._doing = doing.read(self._store, self.unit)
        try:
            run = self._store.current(self.unit)
            if run != self.run:
                self._turn_to(run)
            if run is None or self.spec is None:
                return
            if not self._settled:
                life = judge(gather(run, self.spec.kind, boot=boot))
                if life.forsaken and self._store.current(self.unit) != run:
                    return  # the next run was made just now
                self.life = life
                self._settled = life.ended and not (life.restarting or life.forsaken)
        except (Failed, NotFound) as error:
            self.problem = str(error)

    def _turn_to(self, run: Run | None) -> None:
        self.run, self.spec, self.life, self.facts = run, None, None, None
        self._log, self._typical, self._limits = None, None, None
        self._answer, self._answered, self._settled = None, None, False
        self._statistics = None
        self.drift, self.drift_known, self.sweep = (), False, ""
        self.weights_now = ()
        self._live = None
        if self.window is not None:
            self.window.restart()
        if run is not None:
            self.spec = run.spec()

    def endpoint(self) -> Endpoint | None:
        """Where to ask for /health and /metrics now; None while there is nothing to ask."""
        life, spec = self.life, self.spec
        if life is None or spec is None or life.ended or not life.ready:
            return None
        if spec.kind not in (Kind.ENGINE, Kind.PRELOAD):
            return None
        return endpoint_of(spec)

    def read_log(self) -> None:
        """Follow the log, and derive the facts once the run is ready and once it is over."""
        run, spec, life = self.run, self.spec, self.life
        if run is None or spec is None or life is None:
            return
        due = life.ready or life.ended
        if due and (self.facts is None or (life.ended and not self.facts.ended)):
            known = run_facts.load(run.dir)
            if known is None or (life.ended and not known.ended):
                known = run_facts.refresh(run.dir) or known
            self.facts = known
            if known is not None and known.verdict is Verdict.FALLBACK and not life.ended:
                from engine_ctl.observe.repeated import tell_repeated

                tell_repeated(self._store, run)
        if life.ended or spec.kind is Kind.STANDBY:
            return
        known_start = life.ready and self.facts is not None
        if self._log is None and known_start and not self._remember and not tail_tells(run.log):
            return
        if self._log is None:
            from engine_ctl.observe.runlog import RunLog

            self._log = RunLog(run.dir, spec.kind, spec.runtime_version, known=known_start)
            if spec.kind is Kind.BENCH:
                from engine_ctl.inside.standby_bench import ALSO
                from engine_ctl.tune.progress import ProgressReader

                self._log.bench = ProgressReader(1 + spec.argv.count(ALSO))
        self._log.poll(life.ready)
        if self._remember and self._typical is None and not life.ready:
            self._typical = run_facts.typical(self._store, run, spec, derive=True)

    def take(self, answer: Answer | None, now: float, wall: float) -> None:
        """An answer of the scraper (None: none in this tick) at monotonic time `now`."""
        if answer is None:
            return
        self._answer = answer
        if answer.metrics is None:
            return
        from engine_ctl.metrics.sample import Parser
        from engine_ctl.metrics.window import EngineWindow

        if self._parser is None:
            self._parser = Parser()
        if self.window is None:
            self.window = EngineWindow()
        self.window.add(self._parser.parse(answer.metrics), answer.at)
        self._answered = (now, wall)

    # ------------------------------------------------------------------ showing

    def view(self, now: float, wall: float) -> UnitView:
        """The unit at monotonic time `now`. A watch that remembers takes it for the next second
        of its history."""
        record = self.record
        profile = record.profile if record is not None else ""
        kind = record.kind if record is not None else Kind.ENGINE
        run, spec, life = self.run, self.spec, self.life
        if run is None or spec is None or life is None:
            return UnitView(
                self.unit,
                kind,
                profile,
                note=self.problem or self._doing or "",
                doing=self._doing is not None and not self.problem,
                run=None if run is None else run.id,
                profile_problem=self.profile_problem,
            )
        load = self.load(now, wall)
        if self._remember:
            load = self._remembered(load)
        healthy = self.healthy
        log_phase = self._log.phase if self._log is not None else None
        phase = phase_of(life, log_phase, healthy, load)
        who = life.facts.identity
        alive = not life.ended
        elapsed = now - who.monotonic if who is not None and alive else None
        marks = self._marks()
        verdict, reasons = self._weights()
        now_said = {reason.category for reason in self.weights_now}
        # The log says that a daemon went, the look at the daemons what has become of it since.
        reasons = tuple(r for r in reasons if r.category not in now_said) + self.weights_now
        error = self._answer.error if self._answer is not None else ""
        owed = life.forsaken and record is not None and record.desired == "running"
        return UnitView(
            unit=self.unit,
            kind=kind,
            profile=spec.profile or profile,
            phase=phase,
            phase_s=self._phase_s(phase, marks, elapsed, wall),
            typical_s=self._typical_s(phase),
            progress=self._progress(phase),
            verdict=verdict,
            reasons=reasons,
            model=spec.served_name or spec.model,
            host=spec.client_host,
            port=spec.client_port,
            url=spec.client_url,
            pid=who.leader.pid if who is not None and alive else None,
            gpus=tuple(gpu for gpu in spec.gpus if isinstance(gpu, int)),
            load=load,
            uptime_s=elapsed if life.ready else None,
            start_s=self._start_s(),
            elapsed_s=elapsed,
            run=run.id,
            log=str(run.log),
            drift=self.drift,
            profile_problem=self.profile_problem,
            cause=self.facts.cause if self.facts is not None and life.ended else None,
            hints=self._hints(load) if phase is Phase.READY or phase is Phase.SLEEPING else (),
            doing=self._doing is not None and not self.problem,
            note=self.problem or self._doing or note_of(life, phase, kind, healthy, error, owed),
            owed=owed,
            runtime=spec.runtime,
            sweep=self.sweep if alive else "",
            live=self._changes(run, spec) if alive and kind is Kind.ENGINE else None,
        )

    @property
    def healthy(self) -> bool | None:
        """Whether /health said 200; None when it was not asked or did not answer."""
        if self._answer is None or self._answer.health is None:
            return None
        return self._answer.health == 200

    def load(self, now: float, wall: float) -> EngineLoad | None:
        """Figures of the last answer; when /metrics gives none, those of the log's last line of
        statistics. None when neither is there or both are too old."""
        if self.life is None or self.life.ended:
            return None
        if self.window is not None and self._answered is not None:
            at, answered = self._answered
            if now - at <= STALE_S:
                return self.window.load(answered, now, self.healthy)
        return self._load_of_log(now, wall)

    def _load_of_log(self, now: float, wall: float) -> EngineLoad | None:
        log = self._log
        if log is None or not log.statistics:
            return None
        if self._statistics is None or self._statistics[0] != log.statistics:
            # The first line seen may be old: then the file was last written long ago.
            self._statistics = (log.statistics, now - max(0.0, wall - log.written))
        line, at = self._statistics
        if now - at > STATISTICS_STALE_S:
            return None
        from engine_ctl.logs.engine_stats import load_of, stats_of

        load = load_of(stats_of(line), wall - (now - at))
        return None if load is None else replace(load, healthy=self.healthy)

    def _remembered(self, load: EngineLoad | None) -> EngineLoad | None:
        """One second of history, also while there is nothing to record."""
        if self.window is None:
            return load
        self.window.tick(load)
        return None if load is None else replace(load, history=self.window.recent())

    @property
    def start_facts(self) -> dict[str, Any]:
        """What the log states about itself, as far as it was read."""
        if self.facts is not None:
            return self.facts.start
        if self._log is None:
            return {}
        from engine_ctl.observe.runlog import plain_facts

        return plain_facts(self._log.start.timeline.facts)

    def _marks(self) -> tuple[PhaseMark, ...]:
        if self._log is not None and not (self.facts is not None and self.facts.phases):
            return self._log.start.timeline.marks()
        return self.facts.phases if self.facts is not None else ()

    def _weights(self) -> tuple[Verdict | None, tuple[Reason, ...]]:
        """The verdict of the start, and what the log said about the weights since."""
        verdict, reasons = (
            (self.facts.verdict, self.facts.reasons) if self.facts is not None else (None, ())
        )
        if self._log is None:
            return verdict, reasons
        later, more = self._log.start.weights.result()
        if self.facts is None:
            return later, more
        return verdict, reasons + tuple(reason for reason in more if reason not in reasons)

    def _start_s(self) -> float | None:
        life = self.life
        if life is not None and life.facts.ready is not None:
            return life.facts.ready.seconds
        return self.facts.start_s if self.facts is not None else None

    def _phase_s(
        self, phase: Phase, marks: tuple[PhaseMark, ...], elapsed: float | None, wall: float
    ) -> float | None:
        life = self.life
        assert life is not None
        if elapsed is None:
            return None
        if phase is Phase.READY:
            ready = life.facts.ready
            return None if ready is None else max(0.0, elapsed - ready.seconds)
        if phase in (Phase.STOPPING, Phase.DRAINING) and life.facts.request is not None:
            return max(0.0, wall - life.facts.request.at)
        for mark in reversed(marks):
            if mark.phase is phase:
                return max(0.0, elapsed - mark.start_s)
        return elapsed if phase is Phase.IMPORTING else None

    def _typical_s(self, phase: Phase) -> float | None:
        return None if self._typical is None else self._typical.phases.get(phase)

    def _progress(self, phase: Phase) -> Progress | None:
        if self._log is None or phase not in STARTING:
            return None
        if self._log.bench is not None:
            now = self._log.bench.now
            return Progress(now.stage, *now.overall)
        return self._log.start.timeline.progress

    def _changes(self, run: Run, spec: RunSpec) -> dict[str, str] | None:
        """What stands against each change without a restart; None when nobody watches on."""
        if self._live is None and self._remember:
            from engine_ctl.live.requirements import refusals
            from engine_ctl.operations import snapshots

            try:
                self._live = refusals(spec, snapshots.load(run))
            except Failed:
                self._live = {}
        return self._live

    def _hints(self, load: EngineLoad | None) -> tuple[str, ...]:
        if load is None or not self._remember:
            return ()
        from engine_ctl.metrics.hints import hints, words

        if self._limits is None:
            self._limits = self._read_limits()
        return tuple(words(hint) for hint in hints(load, self._limits))

    def _read_limits(self) -> dict[str, float]:
        """Scheduler limits that the engine was started with, from its own log line."""
        import ast

        text = self.start_facts.get("args")
        try:
            args = ast.literal_eval(text) if isinstance(text, str) else {}
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
        if not isinstance(args, dict):
            return {}
        return {
            name: float(args[name])
            for name in LIMITS
            if isinstance(args.get(name), int) and not isinstance(args[name], bool)
        }


def endpoint_of(spec: RunSpec) -> Endpoint | None:
    """Where a run answers /health, out of its spec; None when it answers nowhere."""
    from engine_ctl.metrics.connection import Endpoint

    uds = _option(spec.argv, "--uds")
    if uds is not None and spec.kind is Kind.ENGINE:
        return Endpoint("", 0, tls=spec.tls, uds=uds)
    url = spec.ready_url or ""
    if url.startswith("tcp://"):
        return None  # it takes certificates of its clients, or speaks gRPC
    scheme, found, rest = url.partition("://")
    if found and scheme in ("http", "https"):
        place = rest.partition("/")[0]
        host, _, port = place.rpartition(":")
        if port.isdecimal():
            tls = scheme == "https" or _option(spec.argv, "--ssl-keyfile") is not None
            return Endpoint(host.strip("[]"), int(port), tls=tls)
    if spec.port is not None and spec.kind is not Kind.PRELOAD:
        return Endpoint(spec.host or "", spec.port)
    return None


def _option(argv: list[str], name: str) -> str | None:
    for index, argument in enumerate(argv):
        if argument == name and index + 1 < len(argv):
            return argv[index + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def with_memory(view: UnitView, size: int | None, gpus: tuple[int, ...]) -> UnitView:
    """The view with what its processes hold, and the GPUs that they hold it on."""
    if size is None and not gpus:
        return view
    return replace(view, memory_bytes=size, gpus=gpus or view.gpus)
