"""Start, stop, restart and remove units; waiting for what was started."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from engine_ctl.front import lifecycle as fronts
from engine_ctl.live.requirements import dev_mode_problem
from engine_ctl.model import Kind, Verdict
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.endpoints import endpoint_for
from engine_ctl.operations.local_files import files_problem
from engine_ctl.operations.planning import (
    model_problem,
    refuse_if,
)
from engine_ctl.operations.runs import is_live
from engine_ctl.operations.side_ports import side_port_problem
from engine_ctl.runtimes.store import Runtime, missing
from engine_ctl.state.doing import doing
from engine_ctl.state.records import UnitRecord
from engine_ctl.state.store import Run
from engine_ctl.supervise import copies, liveness, orphans
from engine_ctl.supervise import stop as ladder
from engine_ctl.swap import journal
from engine_ctl.swap.making import make_run, refuse_weights
from engine_ctl.swap.room import memory_ahead, refuse_memory
from engine_ctl.swap.starting import begin, prepare, refuse_errors
from engine_ctl.swap.weighing import weigh
from profiles.loading import Resolved

Tell = Callable[[str], None]


class PortTaken(Failed):
    """Another program has the port that was free when the run was made."""


# How often a start that is waited for looks at who listens on its port.
LISTENER_S = 1.0


def unit_for(ctx: Context, unit: str, profile: str | None) -> UnitRecord:
    """The unit's record; makes the unit when a profile is named, or is called like the unit."""
    if ctx.store.exists(unit):
        record = _engine_unit(ctx, unit)
        if profile and profile != record.profile:
            wanted = ctx.profiles.reference(ctx.profiles.load(profile).profile)
            record = msgspec.structs.replace(record, profile=wanted)
        return record
    name = profile or unit
    try:
        name = ctx.profiles.reference(ctx.profiles.load(name).profile)
    except NotFound:
        if profile:
            raise
        raise NotFound(
            f"there is no unit {unit!r} and no profile of that name; "
            f"make one with: stoker start {unit} --profile NAME"
        ) from None
    return ctx.store.create(unit, Kind.ENGINE, name, ctx.by)


def _engine_unit(ctx: Context, unit: str) -> UnitRecord:
    record = ctx.store.load(unit)
    if record.kind is Kind.FRONT:
        of = unit.removesuffix(fronts.SUFFIX)
        raise Usage(f"{unit} is the front of {of} and comes and goes with it: stoker restart {of}")
    if record.kind is Kind.STANDBY:
        raise Usage(f"{unit} is a standby; make one with: stoker standby start PROFILE")
    if record.kind is not Kind.ENGINE:
        raise Usage(f"{unit} is no engine; see: stoker {record.kind} --help")
    return record


def _is_daemon(ctx: Context, unit: str) -> bool:
    with suppress(CorruptRecord):
        return ctx.store.exists(unit) and ctx.store.load(unit).kind is Kind.PRELOAD
    return False


def start(
    ctx: Context,
    unit: str,
    profile: str | None = None,
    tell: Tell = lambda _: None,
    avoid: frozenset[int] = frozenset(),
) -> Run:
    """Start the unit with its profile file as it is now; returns once the process exists. `avoid`:
    ports that are not to be chosen where the profile names none.

    Raises Busy when it runs already or another operation holds it, Failed with the first thing
    that is in the way, before anything is started. A preload daemon's unit starts its daemon.
    """
    if profile is None and _is_daemon(ctx, unit):
        from engine_ctl.operations.weights import preload_start

        return preload_start(ctx, unit, tell)
    record = unit_for(ctx, unit, profile)
    resolved = snapshots.of_unit(ctx, record)
    with ctx.store.lock(unit), doing(ctx.store, unit, "preparing the start", tell) as tell:
        current = ctx.store.current(unit)
        ladder.settle_unbegun(current)
        if current is not None and is_live(current):
            raise Busy(f"unit {unit} runs already ({current.id}); use: stoker restart {unit}")
        _give_up_swap(ctx, unit, f"{unit} was started")
        run = launch_engine(ctx, record, resolved, current, tell, avoid)
    ctx.event(unit, f"started with profile {record.profile}")
    return run


def launch_engine(
    ctx: Context,
    record: UnitRecord,
    resolved: Resolved,
    current: Run | None,
    tell: Tell,
    avoid: frozenset[int] = frozenset(),
) -> Run:
    """Make and start the unit's next run, from a standby where the profile allows one. The caller
    holds the unit's lock."""
    profile = resolved.profile
    runtime = usable_runtime(ctx, resolved)
    refuse_if([model_problem(profile), files_problem(profile), dev_mode_problem(profile)])
    endpoint = endpoint_for(ctx, record.unit, profile, avoid)
    refuse_if([side_port_problem(ctx, profile)])
    if profile.preload is not None:
        from engine_ctl.operations.weights_ready import ensure_daemon

        ensure_daemon(ctx, record.unit, resolved, tell)
    before = current.id if current else None
    prepared = prepare(ctx, record.unit, profile, runtime, endpoint, before, tell)
    refuse_errors(prepared)
    weighed = weigh(ctx, prepared)
    refuse_weights(weighed)
    memory = memory_ahead(ctx, prepared, weighed, None)
    refuse_memory(memory)
    fronts.settle(ctx, prepared.spec, profile, tell)
    run = make_run(ctx, record, prepared, weighed, memory=memory)
    spec = prepared.spec
    tell(f"{run.unit}: run {run.number}, {runtime.name} on {spec.client_place}")
    try:
        begin(ctx, run, prepared, tell)
    except StokerError as error:
        ctx.event(run.unit, f"could not be started: {error}", "error")
        raise
    return run


def usable_runtime(ctx: Context, resolved: Resolved) -> Runtime:
    """The profile's runtime, or Failed in one line when it vanished."""
    runtime = ctx.runtime_for(resolved)
    refuse_if([missing(runtime)])
    return runtime


def wait_ready(ctx: Context, run: Run, tell: Tell, poll_s: float = 0.03) -> None:
    """Wait until the run serves. Raises Failed with the cause when it ends or takes too long,
    PortTaken when that is another program on its port."""
    from engine_ctl.operations.watching import StartWatch

    watch = StartWatch(run)
    began = time.monotonic()
    deadline, look_at = began + (run.spec().ready_timeout_s or 1e9), began + LISTENER_S
    while True:
        for line in watch.news():
            tell(line)
        life = liveness.look(run)
        if life.ready and not life.ended:
            _say_repeated_fallback(ctx, run)
            return
        if life.ended:
            cause = watch.cause()
            ctx.event(run.unit, f"failed to start: {cause}", "error")
            own = cause.startswith((f"port_in_use: port {run.spec().port} ", "port_in_use: the "))
            kind = PortTaken if own else Failed
            raise kind(f"{run.id} failed: {cause}; see: stoker why {run.unit}")
        now = time.monotonic()
        if now > look_at:
            look_at = now + LISTENER_S
            problem = other_listener(ctx, run)
            if problem:
                raise PortTaken(problem)
        if now > deadline:
            raise Failed(f"{run.id} is not ready yet; it goes on: stoker logs {run.unit} -f")
        time.sleep(poll_s)


def ready_run(ctx: Context, run: Run, tell: Tell) -> Run:
    """As `wait_ready`; the run that serves. Where the profile leaves the port open and another
    program took it after it had been chosen, that is once more, on the next free one."""
    try:
        wait_ready(ctx, run, tell)
        return run
    except PortTaken as taken:
        again = _elsewhere(ctx, run, tell, taken)
    wait_ready(ctx, again, tell)
    return again


def _elsewhere(ctx: Context, run: Run, tell: Tell, taken: PortTaken) -> Run:
    profile, port = snapshots.load(run), run.spec().port
    if profile is None or profile.port is not None or port is None:
        raise taken
    with ctx.store.lock(run.unit):
        if ctx.store.current(run.unit) != run or ctx.store.load(run.unit).desired != "running":
            raise taken
        if is_live(run):
            stop_run(ctx, run, tell, reason=f"another program has port {port}")
    tell(f"{run.unit}: another program took port {port} meanwhile; once more on the next free one")
    return start(ctx, run.unit, None, tell, frozenset({port}))


def other_listener(ctx: Context, run: Run) -> str | None:
    """Why the run's port cannot become its own: another program answers there. Its shim then never
    calls it ready. None when the listener is the run's, or cannot be known."""
    from engine_ctl.supervise import listener
    from engine_ctl.supervise.orphans import owners

    spec = run.spec()
    if not spec.port:
        return None
    mine = {pid for pid, owner in owners(ctx.store).items() if owner == run.id}
    pid = listener.stranger(spec.host or "", spec.port, mine)
    if pid is None or liveness.look(run).ended:
        return None
    command = listener.command_of(pid)
    return (
        f"port {spec.port} is answered by pid {pid} ({command}), not by {run.id}; set another port"
    )


def _say_repeated_fallback(ctx: Context, run: Run) -> None:
    """An event when the unit's last two starts loaded from disk for the same reason."""
    from engine_ctl.observe import facts
    from engine_ctl.observe.repeated import tell_repeated

    if facts.refresh(run.dir) is not None:
        tell_repeated(ctx.store, run, ctx.by)


def _say_fallback(run: Run, tell: Tell) -> None:
    """Weights that came from disk although a daemon was wanted, and what to do about it."""
    from engine_ctl.observe import facts

    known = facts.load(run.dir) or facts.refresh(run.dir)
    if known is not None and known.verdict is Verdict.FALLBACK:
        why = ", ".join(dict.fromkeys(r.category for r in known.reasons)) or "no reason named"
        tell(f"{run.unit}: its weights came from disk ({why}), see: stoker why {run.unit}")


def finish_start(ctx: Context, run: Run, wait: bool, tell: Tell) -> dict[str, Any]:
    """What `start` reports; waits for readiness when asked."""
    if wait:
        run = ready_run(ctx, run, tell)
    spec, ready = run.spec(), run.ready()
    if ready:
        where = f"on {spec.client_url}" if spec.answers else "(headless: it serves no API)"
        tell(f"{run.unit}: ready in {ready.seconds:.1f} s {where}")
        _say_fallback(run, tell)
    return {
        "unit": run.unit,
        "run": run.id,
        "host": spec.client_host,
        "port": spec.client_port,
        "url": spec.client_url,
        "ready": ready is not None,
        "start_s": ready.seconds if ready else None,
    }


def stop(ctx: Context, unit: str, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Stop the unit's run by the ladder and verify that nothing of it is left. Idempotent.

    A damaged unit.json keeps nothing up. Raises Busy, saying what follows, for a preload daemon
    whose weights an engine maps."""
    with suppress(CorruptRecord):
        ctx.store.load(unit)
    if _is_daemon(ctx, unit) and ctx.store.current(unit) is not None:
        from engine_ctl.operations.weights import preload_stop

        try:
            return {**preload_stop(ctx, unit, tell=tell), "swept": []}
        except Busy as busy:
            raise Busy(f"{busy}; to go on: stoker preload stop {unit} --yes") from None
    with ctx.store.lock(unit):
        _give_up_swap(ctx, unit, f"{unit} was stopped")
        problem = ctx.store.wish_stopped(unit)
        if problem:
            tell(f"{unit}: {problem}; it is stopped all the same")
        run = ctx.store.current(unit)
        if run is None:
            tell(f"{unit}: never started")
            return {"unit": unit, "run": None, "how": "already", "seconds": 0.0, "swept": []}
        result = stop_run(ctx, run, tell)
        fronts.stop(ctx, unit, "its unit was stopped")
        if problem:
            ctx.store.wish_stopped(unit)
    unreached = _unreached(ctx, run)
    if unreached:
        tell(f"{unit}: {unreached} is reached no more; to go on: stoker restart {unreached}")
    if result.how != "already":
        after = f"; {unreached} is reached no more" if unreached else ""
        ctx.event(
            unit,
            f"stopped {run.id} ({result.how}, {result.seconds:.1f} s){after}",
            "warning" if unreached else "info",
        )
    return {
        "unit": unit,
        "run": run.id,
        "how": result.how,
        "seconds": result.seconds,
        "swept": list(result.swept),
    }


def _unreached(ctx: Context, front: Run) -> str | None:
    """The unit whose engine lives on behind a front that was stopped; None for other runs."""
    of = front.unit.removesuffix(fronts.SUFFIX)
    with suppress(StokerError):
        if front.spec().kind is Kind.FRONT and ctx.store.exists(of):
            engine = ctx.store.current(of)
            return of if engine is not None and is_live(engine) else None
    return None


def _give_up_swap(ctx: Context, unit: str, why: str) -> None:
    """An interrupted swap is not gone on with after the operator wanted something else. The caller
    holds the unit's lock. On a full disk nothing is noted: the engine is stopped all the same."""
    with suppress(OSError, CorruptRecord):
        record = journal.read(ctx.store, unit)
        if record is not None and record.outcome is None:
            journal.Journal(ctx.store, record).end(journal.Outcome.ABANDONED, why)
            what = f"{record.what} to {record.profile.name}"
            ctx.event(unit, f"{what} given up: {why}", "warning")


def stop_run(
    ctx: Context, run: Run, tell: Tell, reason: str = "", drain: bool = False
) -> ladder.Stopped:
    """Climb the ladder over one run; the caller holds the unit's lock. `drain`: first wait until
    the unit's front, where it has one, holds new requests and the running ones are done."""

    def step(step: ladder.Step) -> None:
        tell(f"{run.unit}: {step.name}: {step.detail}")

    times, drained = (fronts.drain(ctx, run) if drain else None) or (None, None)
    return ladder.stop(run, by=ctx.by, reason=reason, ladder=times, drained=drained, on_step=step)


def restart(ctx: Context, unit: str, tell: Tell, wait: bool) -> dict[str, Any]:
    """Stop and start with the file as it is now, through the swap path: checked before the
    running engine is touched, rolled back when it does not come up. Starts a unit that is down."""
    from engine_ctl.swap.execute import swap
    from engine_ctl.swap.journal import Outcome

    if _is_daemon(ctx, unit):
        from engine_ctl.operations.weights import preload_reload

        try:
            return finish_start(ctx, preload_reload(ctx, unit, tell=tell), wait, tell)
        except Busy as busy:
            raise Busy(f"{busy}; to go on: stoker preload reload {unit} --yes") from None
    record = _engine_unit(ctx, unit)
    current = ctx.store.current(unit)
    if current is not None:
        copies.refuse(current, f"stoker restart {unit}")
    resolved = snapshots.of_unit(ctx, record)
    if current is None or not is_live(current):
        return finish_start(ctx, start(ctx, unit, None, tell), wait, tell)
    done = swap(ctx, unit, resolved, tell, what="restart")
    if done.outcome is not Outcome.COMMITTED:
        raise Failed(f"{unit}: {done.outcome}: {done.reason}")
    return finish_start(ctx, ctx.store.run(done.new_run or ""), False, tell)


def known(ctx: Context, unit: str) -> None:
    """Raises NotFound when there is no unit of that name."""
    if not ctx.store.unit_dir(unit).is_dir():
        raise ctx.store.missing(unit)


def _refuse_live(ctx: Context, unit: str) -> None:
    run = ctx.store.current(unit)
    ladder.settle_unbegun(run)
    if run is not None and is_live(run):
        raise Busy(f"unit {unit} runs ({run.id}); stop it first: stoker stop {unit}")


def _forget_benches(ctx: Context, unit: str) -> None:
    from engine_ctl.tune.measure import bench_unit

    name = bench_unit(unit)
    if not ctx.store.exists(name) or ctx.store.load(name).kind is not Kind.BENCH:
        return
    with ctx.store.lock(name):
        _refuse_live(ctx, name)
        ctx.store.remove(name)


def remove(ctx: Context, unit: str, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Forget a stopped unit with its runs and logs, those of its benches too (their results stay).
    Raises Busy while it runs."""
    from engine_ctl.operations.weights import SUFFIX

    known(ctx, unit)
    with ctx.store.lock(unit):
        _refuse_live(ctx, unit)
        fronts.remove(ctx, unit)
        orphans.tidy(ctx.store)
        _forget_benches(ctx, unit)
        ctx.store.remove(unit)
    ctx.event(None, f"removed unit {unit}")
    tell(f"{unit}: removed")
    daemon = f"{unit}{SUFFIX}"
    if ctx.store.exists(daemon):
        tell(f"{unit}: its daemon stays; that is removed with: stoker remove {daemon}")
    return {"unit": unit, "removed": True}
