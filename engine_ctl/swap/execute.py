"""The swap: check → stop → start → prove → commit, or back to the last good engine.

Each step is journalled before it begins and may be repeated: `resume` goes on with a swap whose
`stoker` was killed at any point. The unit ends with the new or the last good engine, never with
two, and with none only when both failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine_ctl.answers import MemoryNeed
from engine_ctl.errors import Failed, StokerError
from engine_ctl.front import lifecycle as fronts
from engine_ctl.live import operations as live_changes
from engine_ctl.live.requirements import dev_mode_problem
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.endpoints import behind_front, endpoint_for
from engine_ctl.operations.lifecycle import stop_run, usable_runtime, wait_ready
from engine_ctl.operations.local_files import disk_problem, files_problem
from engine_ctl.operations.planning import (
    DEFAULT_PORT,
    Endpoint,
    endpoint_of,
    model_problem,
    refuse_if,
)
from engine_ctl.operations.ports import port_problem
from engine_ctl.operations.runs import is_live
from engine_ctl.operations.side_ports import side_port_problem
from engine_ctl.operations.weights_ready import ensure_daemon
from engine_ctl.runtimes.store import Runtime, choose, missing
from engine_ctl.state.doing import doing
from engine_ctl.state.records import UnitRecord
from engine_ctl.state.store import Run, is_locked
from engine_ctl.supervise import copies, liveness
from engine_ctl.swap import memory, proof
from engine_ctl.swap.good import NEW, OLD, good_runs, mark
from engine_ctl.swap.journal import Journal, Outcome, Step, SwapRecord, new_id, read
from engine_ctl.swap.making import make_run, refuse_weights
from engine_ctl.swap.room import memory_ahead, refuse_memory
from engine_ctl.swap.starting import Prepared, begin, prepare, refuse_errors
from engine_ctl.swap.weighing import Weighed, weigh
from profiles.loading import Resolved
from profiles.model import Profile

Tell = Callable[[str], None]
# How long a run that was being started when its stoker was killed may take to show itself.
APPEAR_S = 10.0

_STEPS = {
    Step.CHECKED: "checked",
    Step.STOPPING: "stopping {old}",
    Step.STARTING: "starting the new engine",
    Step.PROVING: "waiting for {new} to serve",
    Step.ROLLING_BACK: "going back",
    Step.PROVING_OLD: "waiting for the last good engine to serve",
}


def swap(
    ctx: Context,
    unit: str,
    resolved: Resolved,
    tell: Tell = lambda _: None,
    rollback: bool = True,
    what: str = "swap",
) -> SwapRecord:
    """Replace the unit's engine by one with the resolved profile, as it is now.

    Raises Failed, Busy or Usage before the running engine is touched when the new configuration
    cannot start; afterwards the outcome is in the returned record.
    """
    with ctx.store.lock(unit), doing(ctx.store, unit, f"{what}: checking", tell) as tell:
        record = ctx.store.load(unit)
        _go_on_first(ctx, unit, tell)
        current = ctx.store.current(unit)
        if current is not None:
            copies.refuse(current, f"stoker {what} {unit}")
        live = current if current is not None and is_live(current) else None
        profile = resolved.profile
        runtime = usable_runtime(ctx, resolved)
        refuse_if([model_problem(profile), files_problem(profile), dev_mode_problem(profile)])
        if live is not None and what != "restart":
            done = _live(ctx, live, profile, tell, what)
            if done is not None:
                return done
        endpoint = swap_endpoint(ctx, unit, profile, live)
        refuse_if([side_port_problem(ctx, profile, live), disk_problem(ctx.dirs.state)])
        prepared = prepare(
            ctx, unit, profile, runtime, endpoint, current.id if current else None, tell
        )
        refuse_errors(prepared)
        ensure_daemon(ctx, unit, resolved, tell, live, prepared.sockets)
        weighed = weigh(ctx, prepared)
        refuse_weights(weighed)
        needs = memory_ahead(ctx, prepared, weighed, live)
        refuse_memory(needs)
        good = last_good_profile(ctx, record, live)
        no_return = no_way_back(good) if good is not None and rollback else None
        if no_return:
            tell(f"{unit}: {no_return}")
        journal = Journal(
            ctx.store,
            SwapRecord(
                id=new_id(),
                unit=unit,
                by=ctx.by,
                started=time.time(),
                step=Step.CHECKED,
                profile=profile,
                old_profile=good,
                from_run=current.id if current else None,
                rollback=rollback,
                what=what,
            ),
        )
        ctx.event(unit, f"{what} to {profile.name}: {_STEPS[Step.CHECKED]}")
        return _Swap(ctx, journal, tell, weighed, needs).run_from(Step.STOPPING, prepared)


def _go_on_first(ctx: Context, unit: str, tell: Tell) -> None:
    pending = read(ctx.store, unit)
    if pending is not None and pending.outcome is None:
        tell(f"{unit}: finishing an interrupted {pending.what} first")
        resume_locked(ctx, pending, tell)


def _live(ctx: Context, run: Run, profile: Profile, tell: Tell, what: str) -> SwapRecord | None:
    """Take the way into the running engine where there is one. None: it takes a restart."""
    before = snapshots.load(run)
    if before is None or run.ready() is None:
        return None
    way = live_changes.way_for(run, profile)
    if way.live is None:
        return None
    record = SwapRecord(
        id=new_id(),
        unit=run.unit,
        by=ctx.by,
        started=time.time(),
        step=Step.CHECKED,
        profile=profile,
        old_profile=before,
        from_run=run.id,
        new_run=run.id,
        what=what,
        live=way.why,
    )
    journal = Journal(ctx.store, record)
    try:
        live_changes.apply(ctx, run, way.live, profile, tell)
    except StokerError as error:
        journal.end(Outcome.ABANDONED, str(error))
        tell(f"{run.unit}: {error}; restarting instead")
        ctx.event(run.unit, f"{way.why} failed: {error}; restarting instead", "warning")
        return None
    unit = ctx.store.load(run.unit)
    ctx.store.save(msgspec.structs.replace(unit, profile=ctx.profiles.reference(profile)))
    done = journal.end(Outcome.COMMITTED)
    ctx.event(run.unit, f"{what}: {before.name} → {profile.name} {way.why}")
    return done


def swap_endpoint(ctx: Context, unit: str, profile: Profile, live: Run | None) -> Endpoint:
    """The new engine's address. Without a port in the profile the running engine's is kept, so
    that clients find it; one that the running engine holds counts as free."""
    old = live.spec() if live is not None else None
    own = endpoint_of(profile, profile.host, profile.port or DEFAULT_PORT)
    if not own.addressed:
        if old is None or own.uds != old.uds or own.headless:
            return endpoint_for(ctx, unit, profile)
        refuse_if([fronts.front_problem(profile)])
        return own
    port = old.client_port if old is not None else None
    if port is not None and profile.port in (None, port):
        return behind_front(ctx, unit, profile, Endpoint(profile.host, port))
    return endpoint_for(ctx, unit, profile)


def last_good_profile(ctx: Context, record: UnitRecord, live: Run | None) -> Profile | None:
    """What to go back to: the running engine's profile when it has been ready, else that of the
    last run that was."""
    if live is not None and live.ready() is not None:
        return snapshots.load(live)
    return next((profile for _, profile in good_runs(ctx.store, record.unit)), None)


def no_way_back(good: Profile) -> str | None:
    """Why a rollback to what was good would fail from here, in a sentence; None: it may not."""
    problem = model_problem(good) or files_problem(good)
    return f"it could not go back: {problem}" if problem else None


class _Swap:
    """One swap under the unit's lock."""

    def __init__(
        self,
        ctx: Context,
        journal: Journal,
        tell: Tell,
        weighed: Weighed | None = None,
        needs: tuple[MemoryNeed, ...] = (),
    ) -> None:
        self.needs = needs
        self.weighed = weighed
        self.ctx = ctx
        self.journal = journal
        self.tell = tell
        self.unit = journal.record.unit

    def run_from(self, step: Step, prepared: Prepared | None) -> SwapRecord:
        """Go on from `step` to the outcome."""
        try:
            if step is Step.STOPPING:
                self._stop_old()
                step = Step.STARTING
            if step in (Step.STARTING, Step.PROVING):
                self._start_new(step, prepared)
                return self._commit()
        except StokerError as error:
            self._give_up(str(error))
        return self._roll_back()

    def _to(self, step: Step, **changes: Any) -> None:
        """Journal the step that begins, and say it among the events."""
        self.journal.to(step, **changes)
        record = self.journal.record
        words = _STEPS[step].format(old=record.from_run or "nothing", new=record.new_run)
        self.ctx.event(self.unit, f"{record.what} to {record.profile.name}: {words}")

    def _stop_old(self) -> None:
        self._to(Step.STOPPING)
        run = self.ctx.store.current(self.unit)
        if run is None:
            return
        before = memory.used_by(self.ctx, run)
        stop_run(self.ctx, run, self.tell, self.journal.record.what, drain=True)
        waited = memory.wait_back(before)
        if waited:
            self.tell(f"{self.unit}: {waited}")

    def _start_new(self, step: Step, prepared: Prepared | None) -> None:
        record = self.journal.record
        run = self._found(record.new_run, NEW) if step is not Step.STOPPING else None
        if run is None:
            self._to(Step.STARTING)
            run = self._launch(record.profile, NEW, prepared)
        self._to(Step.PROVING, new_run=run.id)
        self._prove(run)

    def _launch(self, profile: Profile, role: str, prepared: Prepared | None) -> Run:
        """Make and start a run; its spec carries this swap's id, so that it can be found again."""
        ctx, operation = self.ctx, mark(self.journal.record.id, role)
        if prepared is None:
            runtime = _runtime(ctx, profile)
            came_from = self.journal.record.from_run
            old = ctx.store.run(came_from).spec() if came_from else None
            port = profile.port or (old.client_port if old is not None else None)
            endpoint = (
                behind_front(ctx, self.unit, profile, Endpoint(profile.host, port))
                if port
                else endpoint_for(ctx, self.unit, profile)
            )
            prepared = prepare(
                ctx,
                self.unit,
                profile,
                runtime,
                endpoint,
                None,
                self.tell,
                as_recorded=role != OLD,
            )
            self.weighed = weigh(ctx, prepared)
        spec = prepared.spec
        fronts.settle(ctx, spec, profile, self.tell)
        if spec.port is not None:
            refuse_if([port_problem(spec.host or profile.host, spec.port)])
        unit = ctx.store.load(self.unit)
        unit = msgspec.structs.replace(unit, profile=ctx.profiles.reference(profile))
        purpose = self.journal.record.what
        run = make_run(ctx, unit, prepared, self.weighed, operation, self.needs, purpose)
        self.needs = ()
        begin(ctx, run, prepared, self.tell)
        self.tell(f"{self.unit}: run {run.number} on {spec.client_place}")
        return run

    def _found(self, noted: str | None, role: str) -> Run | None:
        """The run that an interrupted swap had started, when it lives or has been ready."""
        ctx = self.ctx
        operation = mark(self.journal.record.id, role)
        run = ctx.store.run(noted) if noted else None
        for candidate in reversed(ctx.store.runs(self.unit)) if run is None else ():
            try:
                if candidate.spec().operation == operation:
                    run = candidate
                    break
            except StokerError:
                continue
        if run is None:
            return None
        deadline = time.monotonic() + APPEAR_S
        while _may_appear(run) and time.monotonic() < deadline:
            time.sleep(0.05)
        life = liveness.look(run)
        if life.pending or (life.ended and run.identity() is None):
            return None
        ctx.store.set_current(run)
        return run

    def _prove(self, run: Run) -> None:
        wait_ready(self.ctx, run, self.tell)
        found = proof.prove(run)
        self.journal.note(proof=found.kind)
        if found.kind is None:
            text = f"{run.id} is ready, and no more is proven: {found.why}"
            self.tell(f"{self.unit}: {text}")
            self.ctx.event(self.unit, text, "warning")

    def _commit(self) -> SwapRecord:
        record = self.journal.record
        run = self.ctx.store.run(record.new_run or "")
        done = self.journal.end(Outcome.COMMITTED)
        old = record.old_profile.name if record.old_profile else "nothing"
        change = f"{old} → {record.profile.name}" if record.what != "restart" else run.id
        proven = f", proven by a {record.proof}" if record.proof else ""
        self.ctx.event(self.unit, f"{record.what}: {change} in {done.seconds:.1f} s{proven}")
        return done

    def _give_up(self, reason: str) -> None:
        """The new engine failed: end what is left of it and say why."""
        self.tell(f"{self.unit}: {reason}")
        current = self.ctx.store.current(self.unit)
        record = self.journal.record
        if current is not None and current.id == record.from_run and is_live(current):
            # The old engine could not be stopped: nothing new may be started beside it.
            raise Failed(self._fail(f"the old engine could not be stopped: {reason}"))
        self._to(Step.ROLLING_BACK, reason=reason)
        self.ctx.event(self.unit, f"{record.what} failed: {reason}", "error")
        if current is not None:
            stop_run(self.ctx, current, self.tell, "rollback", drain=True)

    def _roll_back(self) -> SwapRecord:
        record = self.journal.record
        if not record.rollback or record.old_profile is None:
            why = "told not to" if not record.rollback else "nothing had been ready before"
            self._fail(f"{record.reason} (no rollback: {why})")
            return self.journal.record
        try:
            run = self._found(record.old_run, OLD)
            if run is None:
                self.tell(f"{self.unit}: going back to {record.old_profile.name}")
                run = self._launch(record.old_profile, OLD, None)
            self._to(Step.PROVING_OLD, old_run=run.id)
            self._prove(run)
        except StokerError as error:
            self._fail(f"{record.reason}; and the rollback failed: {error}")
            return self.journal.record
        done = self.journal.end(Outcome.ROLLED_BACK, record.reason)
        self.ctx.event(
            self.unit,
            f"went back to {record.old_profile.name} in {done.seconds:.1f} s: {record.reason}",
            "warning",
        )
        return done

    def _fail(self, reason: str) -> str:
        self.journal.end(Outcome.FAILED, reason)
        self.ctx.event(self.unit, f"{self.journal.record.what} failed: {reason}", "error")
        return reason


def _may_appear(run: Run) -> bool:
    """Whether somebody may be about to begin this run: its shim, or a standby that was asked to."""
    if run.identity() is not None or run.exit() is not None:
        return False
    return is_locked(run.dir / "shim.lock") or run.spec().via == "standby"


def resume_locked(ctx: Context, record: SwapRecord, tell: Tell) -> SwapRecord:
    """Go on with an interrupted swap; the caller holds the unit's lock."""
    journal = Journal(ctx.store, record)
    if record.step is Step.CHECKED:
        untouched = "interrupted before anything was touched"
        between = "interrupted while the running engine was changed; it goes on, see: stoker live"
        done = journal.end(Outcome.ABANDONED, between if record.live else untouched)
        ctx.event(record.unit, f"{record.what} to {record.profile.name} given up: {done.reason}")
        return done
    ctx.event(record.unit, f"going on with an interrupted {record.what} ({record.step})")
    going = _Swap(ctx, journal, tell)
    if record.step in (Step.ROLLING_BACK, Step.PROVING_OLD):
        current = ctx.store.current(record.unit)
        if current is not None and current.id == record.new_run:
            stop_run(ctx, current, tell, "rollback")
        return going._roll_back()
    return going.run_from(record.step, None)


def resume(ctx: Context, unit: str, tell: Tell = lambda _: None) -> SwapRecord | None:
    """Go on with the unit's interrupted swap. None when there is none (any more)."""
    with ctx.store.lock(unit):
        record = read(ctx.store, unit)
        if record is None or record.outcome is not None:
            return None
        return resume_locked(ctx, record, tell)


def _runtime(ctx: Context, profile: Profile) -> Runtime:
    runtime = choose(ctx.runtimes.all()[0], profile.runtime)
    refuse_if([missing(runtime)])
    return runtime
