"""Bench: vLLM's own benchmark against a running engine, repeated, judged and kept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from engine_ctl.inside.standby_bench import ALSO
from engine_ctl.model import Kind
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe.units import endpoint_of
from engine_ctl.operations import catalogue, completion, snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.planning import Endpoint
from engine_ctl.operations.runs import require_live
from engine_ctl.runtimes import readers
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.store import Run
from engine_ctl.swap import proof
from engine_ctl.tune import hardware, history, recorded, records
from engine_ctl.tune.caveats import caveats
from engine_ctl.tune.measure import Measurement, bench_unit, leftover, spec_for
from engine_ctl.tune.progress import BenchProgress
from engine_ctl.tune.records import BenchRecord, StartSummary
from engine_ctl.tune.sampling import Sampler
from engine_ctl.tune.settings import (
    POOLING,
    RECORDED,
    BenchSettings,
    Target,
    bench_words,
    describe,
    fitted,
    repeated_words,
    settings,
)
from profiles.argv import environment
from profiles.diff import masked
from profiles.effective import mask_argv
from profiles.model import Profile

Tell = Callable[[str], None]
Told = Callable[[BenchProgress], None]


def bench(
    ctx: Context,
    unit: str,
    options: Mapping[str, Any] | None = None,
    tell: Tell = lambda _: None,
    told: Told = lambda _: None,
) -> BenchRecord:
    """Benchmark the unit's running engine with its profile's `bench:` section, overridden by
    `options` (the fields of BenchSettings).

    Raises NotFound when it does not run, Busy when it is being measured already, Usage for bad
    settings, Failed when there is no result (the reason is kept in the history)."""
    engine = require_live(ctx, unit)
    if engine.spec().kind is not Kind.ENGINE:
        raise Usage(f"{unit} is no engine and answers no requests; see: stoker ps")
    profile = snapshots.load(engine)
    asked = settings(profile.bench if profile is not None else {}, options or {})
    with measuring(ctx, unit):
        return measure(ctx, engine, asked, tell, told)


@contextlib.contextmanager
def measuring(ctx: Context, unit: str) -> Iterator[None]:
    """Nobody else measures this unit meanwhile. Raises Busy, naming who does.

    What an earlier, killed `stoker` left running is ended first."""
    name = bench_unit(unit)
    if not ctx.store.exists(name):
        with contextlib.suppress(Busy):
            ctx.store.create(name, Kind.BENCH, unit, ctx.by)
    path = ctx.store.unit_dir(name) / "bench.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed(f"cannot open {path}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 100, 0).decode(errors="replace").strip()
            raise Busy(f"unit {unit} is being measured by {holder or 'somebody'}") from None
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{ctx.by} (pid {os.getpid()})".encode(), 0)
        left = leftover(ctx, unit)
        if left is not None:
            from engine_ctl.supervise.stop import stop as stop_run

            stop_run(left, by=ctx.by, reason="left over from an interrupted bench")
        yield
    finally:
        os.close(fd)


def measure(
    ctx: Context,
    engine: Run,
    asked: BenchSettings,
    tell: Tell,
    told: Told,
    sweep: str | None = None,
    point: Mapping[str, Any] | None = None,
) -> BenchRecord:
    """One bench under `measuring`. Raises as `bench` does."""
    began = time.monotonic()
    spec = engine.spec()
    if engine.ready() is None:
        raise Failed(f"{engine.id} does not serve yet; see: stoker phases {engine.unit}")
    profile = snapshots.load(engine)
    runtime = _runtime(ctx, spec.runtime)
    made = fitted(asked, max_model_len(engine))
    if made.dataset in RECORDED:
        made = recorded.with_lengths(made)
        lacks = readers.lacking(runtime)
        if lacks:
            raise Failed(readers.remedy(runtime, lacks))
    target = _asked_for(engine, _target(engine, profile))
    unit = bench_unit(engine.unit)
    id, directory = records.allocate(ctx.dirs, "b")
    sampler = Sampler(endpoint_of(spec), spec.platform, tuple(spec.gpus))
    seed = made.seed if made.seed is not None else _measured(ctx, unit, engine.id)
    record = BenchRecord(
        id=id,
        unit=engine.unit,
        at=time.time(),
        by=ctx.by,
        profile_name=spec.profile or "",
        profile=shown_profile(profile) if profile is not None else {},
        runtime={"name": runtime.name, "version": runtime.version, "platform": runtime.platform},
        hardware=hardware.describe(sampler.readings, tuple(spec.gpus)),
        engine_run=engine.id,
        serve_command=[*repeating_env(profile), *mask_argv(spec.display_argv)],
        start=start_summary(engine),
        settings=made,
        command=["vllm", *mask_argv(bench_words(made, target, seed, ".", "result.json"))],
        sweep=sweep,
        point=dict(point or {}),
    )
    tell(f"{engine.unit}: bench {id}: {describe(made)}")
    problem: BaseException | None = None
    sampler.tick(force=True)
    one = Measurement(ctx, engine, runtime, sampler, directory, made.repeats)
    try:
        words = repeated_words(made, target, seed, str(directory))
        one.begin(
            spec_for(
                spec,
                unit,
                words,
                runtime,
                proof.key_of(profile) if profile is not None else None,
                ctx.by,
            )
        )
        one.watch(made.stall_s, told)
    except BaseException as error:
        problem = error
    results = one.results
    sampler.tick(force=True)
    sampler.close()
    failed = sum(result.failed for result in results)
    said = str(problem) or type(problem).__name__ if problem is not None else None
    if said is None and failed:
        said = f"{failed} of {failed + sum(r.completed for r in results)} requests failed"
    record = msgspec.structs.replace(
        record,
        seconds=round(time.monotonic() - began, 3),
        bench_s=round(one.life_s, 3),
        run=one.run.id if one.run is not None else "",
        results=results,
        stats=records.statistics(results),
        samples=sampler.samples,
        prefix_hit_rate=sampler.prefix_hit_rate(),
        problem=said,
        failed=problem is not None,
    )
    keep(ctx, record, tell)
    if problem is not None:
        severity = "error" if isinstance(problem, StokerError) else "warning"
        ctx.event(engine.unit, f"bench {id} failed: {said}", severity)
        raise problem
    ctx.event(engine.unit, f"bench {id}: {summary(record)}")
    return record


def shown_profile(profile: Profile) -> dict[str, Any]:
    """The profile as it may be kept and shown: secrets in arguments and environment masked."""
    shown: dict[str, Any] = catalogue.plain(profile)
    shown["env"] = {name: masked(name, value) for name, value in profile.env.items()}
    return shown


def repeating_env(profile: Profile | None) -> list[str]:
    """What goes before a command to repeat it: `env NAME=VALUE …`. Secrets are left to whoever
    repeats it."""
    values = environment(profile)[0] if profile is not None else {}
    words = [f"{name}={value}" for name, value in values.items() if masked(name, value) == value]
    return ["env", *words] if words else []


def keep(ctx: Context, record: BenchRecord, tell: Tell) -> None:
    """Write the record and enter it in the history; a full disk costs the record, not the
    result: it is said."""
    try:
        records.save_bench(ctx.dirs, record)
        with history.opened(ctx.dirs, tell) as book:
            book.add_bench(record)
    except (OSError, StokerError) as error:
        tell(f"{record.unit}: bench {record.id} could not be kept: {error}")


def _measured(ctx: Context, unit: str, engine: str) -> int:
    """Measurements so far on this engine: their prompts are in its prefix cache, so the next
    one begins with the seed after theirs."""
    count = 0
    for run in reversed(ctx.store.runs(unit)):
        try:
            spec = run.spec()
        except StokerError:
            continue
        if spec.predecessor != engine:
            break
        count += 1 + spec.argv.count(ALSO)
    return count


def _runtime(ctx: Context, name: str | None) -> Runtime:
    if name is None:
        raise NotFound("the engine's runtime is not known; start it again with a profile")
    return ctx.runtimes.load(name)


def _target(engine: Run, profile: Profile | None) -> Target:
    spec = engine.spec()
    if spec.uds is not None:
        raise Failed(f"vLLM's benchmark cannot ask a Unix socket, and {engine.id} has nothing else")
    if spec.host is None or spec.port is None or not spec.model:
        raise Failed(f"run {engine.id} has no address or no model to measure")
    if (spec.ready_url or "").startswith("tcp://"):
        raise Failed(f"vLLM's benchmark has no way to ask {engine.id}: certificates, or gRPC")
    args = profile.args if profile is not None else {}
    tokenizer, mode = args.get("tokenizer"), args.get("tokenizer_mode")
    return Target(
        host=Endpoint(spec.host, spec.port).probe_host,
        port=spec.port,
        tls=spec.tls,
        model=spec.model,
        served_name=spec.served_name or spec.model,
        tokenizer=str(tokenizer) if tokenizer else None,
        tokenizer_mode=str(mode) if mode else None,
        trust_remote_code=args.get("trust_remote_code") is True,
    )


def _asked_for(engine: Run, target: Target) -> Target:
    """The target with the way to ask it: completions, or what a pooling model has instead."""
    url, key = completion.base_url(engine.spec()), proof.api_key(engine)
    with contextlib.suppress(Failed):
        if not completion.has_route(url, target.route, 10, key):
            for backend, route in POOLING:
                if completion.has_route(url, route, 10, key):
                    return msgspec.structs.replace(target, backend=backend, route=route)
    return target


def max_model_len(engine: Run) -> int | None:
    """The engine's own limit of tokens per request, as /v1/models says it; None if it does not."""
    from engine_ctl.operations.completion import base_url
    from engine_ctl.operations.opening import opener

    headers = {}
    with contextlib.suppress(StokerError):
        key = proof.api_key(engine)
        if key:
            headers["Authorization"] = f"Bearer {key}"
    url = f"{base_url(engine.spec())}/v1/models"
    request = urllib.request.Request(url, headers=headers)
    try:
        with opener(url).open(request, timeout=10) as reply:
            value = json.load(reply)["data"][0]["max_model_len"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return value if isinstance(value, int) else None


def start_summary(engine: Run) -> StartSummary | None:
    """The waterfall of the engine's start."""
    facts = run_facts.load(engine.dir) or run_facts.refresh(engine.dir)
    if facts is None:
        return None
    return StartSummary(
        start_s=facts.start_s,
        phases=[(str(m.phase), m.start_s, m.seconds) for m in facts.start_phases()],
        verdict=str(facts.verdict) if facts.verdict else None,
        compile_cache=facts.compile_cache,
        standby=facts.standby,
        facts={k: v for k, v in facts.start.items() if isinstance(v, (int, float, str, bool))},
    )


def summary(record: BenchRecord) -> str:
    """A bench in one line: `9 812 tok/s ±1 %, ttft p95 431 ms, itl p95 21 ms`."""
    parts = []
    found = record.stats.get("throughput")
    if found is not None:
        spread = f" ±{found.spread:.0%}" if found.spread is not None else ""
        parts.append(f"{found.median:,.0f} tok/s{spread}".replace(",", " "))
    for name in ("ttft", "itl", "e2el"):
        value = record.median(f"{name}_p95")
        if value is not None:
            parts.append(
                f"{name} p95 {value:.3g} ms" if value < 100 else f"{name} p95 {value:.0f} ms"
            )
    if record.problem:
        parts.append(record.problem)
    return ", ".join(parts) or "no result"


def document(record: BenchRecord, path: Path | None = None) -> dict[str, Any]:
    """What scripts get of a bench: throughputs in tokens/s and requests/s, latencies in ms."""

    def value(name: str) -> float | None:
        return record.median(name)

    latencies: dict[str, dict[str, float]] = {}
    for name in record.stats:
        metric, _, quantity = name.partition("_")
        if metric in ("ttft", "tpot", "itl", "e2el"):
            latencies.setdefault(metric, {})[quantity] = record.stats[name].median
    return {
        "bench": record.id,
        "unit": record.unit,
        "run": record.engine_run,
        "profile": record.profile_name,
        "at": record.at,
        "seconds": record.seconds,
        "summary": summary(record),
        "throughput": {
            "output_tokens_per_s": value("throughput"),
            "total_tokens_per_s": value("total_throughput"),
            "requests_per_s": value("requests"),
            "goodput_per_s": value("goodput"),
        },
        **latencies,
        "completed": sum(result.completed for result in record.results),
        "failed": sum(result.failed for result in record.results),
        "repeats": len(record.results),
        "spread": {
            name: found.spread for name, found in record.stats.items() if found.spread is not None
        },
        "prefix_hit_rate": record.prefix_hit_rate,
        "start_s": record.start.start_s if record.start is not None else None,
        "settings": msgspec.to_builtins(record.settings),
        "command": record.command,
        "runtime": record.runtime,
        "sweep": record.sweep,
        "point": record.point,
        "problem": record.problem,
        "caveats": list(caveats(record)),
        "record": str(path) if path is not None else None,
    }
