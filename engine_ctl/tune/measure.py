"""One bench as a run: `vllm bench serve` under its own shim, watched to its end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine_ctl import identity
from engine_ctl.atomic import regular_bytes, regular_file
from engine_ctl.errors import Failed, StokerError
from engine_ctl.inside import standby_bench
from engine_ctl.model import Kind
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import is_live
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.client import Refused, Unavailable
from engine_ctl.standby.lifecycle import Wanted
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness
from engine_ctl.supervise import stop as ladder
from engine_ctl.supervise.launch import launch
from engine_ctl.tune.progress import BenchProgress, ProgressReader, last_words
from engine_ctl.tune.results import BenchResult, parse_result
from engine_ctl.tune.sampling import Sampler
from engine_ctl.tune.settings import result_name
from profiles.model import EnvRef, Restart, Stop

SCRIPT = Path(standby_bench.__file__)
STOP = Stop(ask_s=2.0, ask_again_s=2.0, kill_s=3.0)
LOOK_S = 0.1
# The shim writes its record within a moment of the end of the process.
RECORD_S = 0.005
ENGINE_LOOK_S = 0.5
# How long a server whose engine core was killed takes to end.
ENGINE_ENDS_S = 20.0
LAST_BYTES = 1 << 16
UNIT_NAME_LIMIT = 64


class EngineEnded(Failed):
    """The engine ended, or was replaced, while it was measured."""


def bench_unit(unit: str) -> str:
    """The unit under which the benches of an engine run."""
    return f"bench-{unit}"[:UNIT_NAME_LIMIT]


def engine_problem(engine: Run) -> str | None:
    """Why the engine cannot be measured (any more), in words; None while it lives."""
    life = liveness.look(engine)
    if not life.ended:
        return None
    if life.facts.request is not None:
        by = life.facts.request.by or "somebody"
        return f"the engine {engine.id} was stopped by {by} during the bench"
    known = run_facts.refresh(engine.dir)
    cause = known.cause if known is not None else None
    why = f": {cause.category}: {cause.hint}" if cause is not None else ""
    return f"the engine {engine.id} ended during the bench{why}; see: stoker why {engine.unit}"


def spec_for(
    engine: RunSpec,
    unit: str,
    words: list[str],
    runtime: Runtime,
    key: EnvRef | str | None,
    by: str,
) -> RunSpec:
    """The run of the benchmark, in the engine's environment so that the same standby serves it.

    `key`: the API key that the engine asks for, by reference where the profile has one."""
    env, refs = dict(engine.env), dict(engine.env_refs)
    if isinstance(key, EnvRef):
        refs["OPENAI_API_KEY"] = key
    elif key is not None:
        env["OPENAI_API_KEY"] = key
    return RunSpec(
        unit=unit,
        kind=Kind.BENCH,
        argv=[runtime.python, str(SCRIPT), *words],
        display_argv=["vllm", *words],
        env=env,
        env_refs=refs,
        env_unset=list(engine.env_unset),
        runtime=runtime.name,
        python=runtime.python,
        runtime_version=runtime.version,
        platform=runtime.platform,
        profile=engine.profile,
        model=engine.model,
        served_name=engine.served_name,
        ready_url=None,
        ready_timeout_s=0.0,
        restart=Restart(policy="never"),
        stop=STOP,
        predecessor=engine.run,
        tied_to=identity.identify(os.getpid()),
        by=by,
    )


class Measurement:
    """One run of the benchmark against `engine`: `repeats` measurements in one process, each of
    which leaves a result file in `directory`."""

    def __init__(
        self,
        ctx: Context,
        engine: Run,
        runtime: Runtime,
        sampler: Sampler,
        directory: Path,
        repeats: int,
    ) -> None:
        self.ctx = ctx
        self.engine = engine
        self.runtime = runtime
        self.sampler = sampler
        self.directory = directory
        self.repeats = repeats
        self.run: Run | None = None
        self.life_s = 0.0
        self.results: list[BenchResult] = []

    def begin(self, spec: RunSpec) -> Run:
        """Start it: forked from the engine's standby (seconds less), else as a new process."""
        store = self.ctx.store
        wanted = Wanted.of(self.runtime, spec)
        standing = standbys.find(store, wanted.identity(), brief=True)
        if standing is not None and standing.ready:
            spec = msgspec.structs.replace(spec, via="standby", standby=standing.run.id)
        with store.lock(spec.unit):
            run = store.new_run(spec)
            store.set_current(run)
            self.run = run
            if standing is None or not standing.ready:
                launch(run)
                return run
            try:
                standbys.become(standing, run)
            except (Refused, Unavailable):
                if run.identity() is not None:
                    raise
                launch(run)
        return run

    def watch(self, stall_s: float, told: Callable[[BenchProgress], None]) -> None:
        """Wait for the end; `results` are those of the measurements that came to theirs.

        Raises EngineEnded, or Failed saying why results are missing; whatever is raised, nothing
        of the benchmark runs on."""
        run = self.run
        assert run is not None
        reader = ProgressReader(self.repeats)
        try:
            self._wait(run, reader, stall_s, told)
        except BaseException:
            self.stop()
            self._take()
            raise
        record = run.exit()
        self.life_s = (record.seconds if record is not None else None) or 0.0
        self._take()
        self._judge(run)
        before, last = reader.now, self.results[-1]
        if reader.finish(last.completed + last.failed) != before:
            told(reader.now)

    def _take(self) -> None:
        """Read the results that are complete."""
        self.results = []
        for repeat in range(self.repeats):
            path = self.directory / result_name(repeat)
            try:
                self.results.append(parse_result(regular_bytes(path)))
            except (OSError, Failed):
                return

    def stop(self) -> None:
        """End the benchmark, if it lives."""
        if self.run is not None and is_live(self.run):
            ladder.stop(self.run, by=self.ctx.by, reason="the bench was given up")

    def _wait(
        self,
        run: Run,
        reader: ProgressReader,
        stall_s: float,
        told: Callable[[BenchProgress], None],
    ) -> None:
        offset, said = 0, None
        moved = time.monotonic()
        look_at_engine = moved + ENGINE_LOOK_S
        while True:
            ended = liveness.look(run, Kind.BENCH).ended
            if not ended:
                self.sampler.tick()
            while data := _read(run.log, offset):
                offset += len(data)
                reader.feed(data)
                moved = time.monotonic()
            now = reader.now
            if now != said:
                told(now)
                said = now
            if ended:
                return
            if time.monotonic() >= look_at_engine:
                look_at_engine = time.monotonic() + ENGINE_LOOK_S
                problem = engine_problem(self.engine)
                if problem:
                    raise EngineEnded(problem)
            if time.monotonic() - max(moved, self.sampler.moved_at) > stall_s:
                raise Failed(
                    f"the bench hangs: no request and no token for {stall_s:.0f} s "
                    f"({now.done} of {now.total or '?'} requests done); it was ended"
                )
            _rest(run)

    def _judge(self, run: Run) -> None:
        """Why results are missing, if they are."""
        record = run.exit()
        code = record.code if record is not None else None
        if record is not None and record.error:
            raise Failed(f"the bench could not run: {record.error}")
        if record is not None and record.requested:
            raise Failed(f"the bench {run.id} was stopped by {self._who(run)}")
        if code != 0 or len(self.results) < self.repeats:
            self._engine_ends()
            words = last_words(_read_end(run.log))
            missing = re.search(r"No module named '([\w.]+)'", words)
            if missing is not None:
                raise Failed(
                    f"vLLM needs {missing[1]} for this benchmark and the runtime has none; "
                    f"run: {self.runtime.python} -m pip install {missing[1]}"
                )
            raise Failed(f"vllm bench serve failed: {words}; see {run.log}")
        if any(result.failed or not result.completed for result in self.results):
            self._engine_ends()
        if not any(result.completed for result in self.results):
            failed = sum(result.failed for result in self.results)
            raise Failed(f"all {failed} requests of the bench failed: {_error_of(run)}")

    @staticmethod
    def _who(run: Run) -> str:
        request = run.request()
        return (request.by if request is not None else "") or "somebody"

    def _engine_ends(self) -> None:
        """Requests failed: when the engine answers no more, wait for its end and say so."""
        from engine_ctl.metrics.scrape import scrape_once
        from engine_ctl.observe.units import endpoint_of

        endpoint = endpoint_of(self.engine.spec())
        deadline = time.monotonic() + ENGINE_ENDS_S
        while True:
            problem = engine_problem(self.engine)
            if problem:
                raise EngineEnded(problem)
            if endpoint is None or time.monotonic() > deadline:
                return
            if scrape_once({"engine": endpoint}, 2.0, metrics=False)["engine"].health == 200:
                return
            time.sleep(0.1)


def _rest(run: Run) -> None:
    """Until it is time to look again: at once when the benchmark's process ends."""
    who = run.identity()
    if who is None or identity.wait_gone(who.leader, LOOK_S):
        time.sleep(RECORD_S)


def leftover(ctx: Context, unit: str) -> Run | None:
    """A benchmark of the unit that still runs although nobody waits for it."""
    name = bench_unit(unit)
    if not ctx.store.exists(name):
        return None
    run = ctx.store.current(name)
    try:
        return run if run is not None and is_live(run) else None
    except StokerError:
        return None


def _read(path: Path, offset: int) -> bytes:
    try:
        with regular_file(path) as file:
            file.seek(offset)
            return file.read(1 << 20)
    except OSError:
        return b""


def _read_end(path: Path) -> bytes:
    try:
        return _read(path, max(0, path.stat().st_size - LAST_BYTES))
    except OSError:
        return b""


def _error_of(run: Run) -> str:
    """What vLLM's benchmark printed of the first failed request."""
    lines = _read_end(run.log).decode("utf-8", "replace").splitlines()
    for position, line in enumerate(lines):
        if line.startswith("Error 0:"):
            words = [line.removeprefix("Error 0:").strip(), *lines[position + 1 : position + 30]]
            said = [w.strip() for w in words if w.strip()]
            errors = [w for w in said if "Error" in w or "error" in w]
            return (errors[-1] if errors else said[0] if said else "no reason given")[:400]
    return f"see {run.log}"
