"""The forecast: what a start of a profile would meet, said before anything is stopped."""

from __future__ import annotations

from engine_ctl.answers import ForecastView, MemoryNeed
from engine_ctl.errors import NotFound, StokerError
from engine_ctl.front import lifecycle as fronts
from engine_ctl.live.operations import way_for
from engine_ctl.live.requirements import dev_mode_problem
from engine_ctl.model import Phase, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations import catalogue, snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.local_files import disk_problem, files_problem
from engine_ctl.operations.planning import Endpoint, model_problem
from engine_ctl.operations.runs import is_live
from engine_ctl.operations.side_ports import side_port_problem
from engine_ctl.operations.weights_ready import DaemonAhead, Way, daemon_ahead, keys_ahead
from engine_ctl.state.store import Run
from engine_ctl.swap import levers, past
from engine_ctl.swap.caches import Caches, PlanUse, compiled_key, plan_use
from engine_ctl.swap.caches import ahead as caches_ahead
from engine_ctl.swap.execute import last_good_profile, no_way_back, swap_endpoint
from engine_ctl.swap.past import Past
from engine_ctl.swap.room import HOST, kv_ahead, memory_ahead, memory_lines, smallest_total
from engine_ctl.swap.seconds import Conditions, Prediction, again
from engine_ctl.swap.starting import Prepared, prepare
from engine_ctl.swap.weighing import Weighed, weigh
from profiles.loading import Resolved
from profiles.model import Profile

GIB = 1 << 30


def forecast(ctx: Context, unit: str, profile: str | None = None) -> ForecastView:
    """What a start or swap of `unit` with `profile` (None: its own) would meet. Touches nothing,
    but may start a standby to ask. Raises NotFound, or the profile's own error."""
    known = ctx.store.exists(unit)
    record = ctx.store.load(unit) if known else None
    name = profile or (record.profile if record else unit)
    try:
        own = record is not None and name == record.profile
        resolved = snapshots.of_unit(ctx, record) if own and record else ctx.profiles.load(name)
    except NotFound:
        if known or profile:
            raise
        raise NotFound(
            f"there is no unit {unit!r} and no profile of that name; see: stoker ps"
        ) from None
    current = ctx.store.current(unit) if record else None
    live = current if current is not None and is_live(current) else None
    before = _running(live)
    errors: list[str] = []
    warnings: list[str] = []
    checks = (model_problem, files_problem, dev_mode_problem)
    problems = (check(resolved.profile) for check in checks)
    errors += [problem for problem in problems if problem]
    here = (side_port_problem(ctx, resolved.profile, live), disk_problem(ctx.dirs.state))
    errors += [problem for problem in here if problem]
    way = way_for(live, resolved.profile) if live is not None and before is not None else None
    if way is not None and way.live is not None:
        warnings.append(way.why)
    prepared = None
    try:
        prepared = _prepared(ctx, unit, resolved, live, current)
    except StokerError as error:
        errors.append(str(error))
    if prepared is not None and prepared.error:
        errors.append(f"vLLM {prepared.runtime.version} refuses it: {prepared.error}")
    weighed, daemon = None, DaemonAhead(Way.NONE_WANTED)
    if prepared is not None and not errors:
        daemon, weighed = _weighed(ctx, unit, resolved, live, prepared)
        _weights_words(weighed, errors, warnings)
        warnings += [f"no daemon is made: {daemon.why}"] if daemon.why else []
    for finding in catalogue.lint_resolved(ctx, resolved, None):
        said = f"{finding.message} ({finding.place or finding.key})"
        if finding.severity == "error" and (prepared is None or prepared.check is None):
            errors.append(said)
        elif finding.severity == "fail":
            # vLLM was asked for its configuration only: not what servers and workers then refuse.
            warnings.append(f"{said}; instead: {finding.instead}")
    if prepared is not None and prepared.check is not None:
        # How often the hub was asked in vain says nothing beside that it could not be reached.
        warnings += [w for w in prepared.check.warnings if not w.startswith("Retrying in ")]
    changes = catalogue.changes(before, resolved.profile, None) if before else ()
    if live is not None and prepared is not None:
        running_on = live.spec().runtime
        changes = catalogue.with_installations(changes, running_on, prepared.runtime.name)
    needs: tuple[MemoryNeed, ...] = ()
    caches = Caches()
    before_it = Past(ctx, unit)
    expected, next_time = Prediction(), None
    if prepared is not None and not errors:
        alike = before_it.of(past.runtime_of(prepared), compiled_key(prepared.spec))
        caches = caches_ahead(prepared, alike, changes)
        # What a daemon will hold by then is still free now, and counts in the engine's budget.
        needs = memory_ahead(ctx, prepared, None if daemon.note else weighed, live)
        _memory_words(needs, errors, warnings)
        verdict = weighed.forecast.verdict if weighed else None
        ahead = past.conditions_ahead(prepared, verdict, caches)
        stops = live is not None
        expected = before_it.predicted(ahead, stops=stops)
        then = _again(prepared, ahead, caches)
        next_time = before_it.predicted(then, stops=stops).total if then else None
    good = last_good_profile(ctx, record, live) if record else None
    no_return = no_way_back(good) if good is not None and live is not None else None
    warnings += [no_return] if no_return else []
    return ForecastView(
        unit=unit,
        profile=resolved.profile.name,
        from_profile=before.name if before else None,
        changes=changes,
        errors=tuple(dict.fromkeys(errors)),
        warnings=tuple(dict.fromkeys(warnings)),
        checked_by=_checker(prepared),
        verdict=weighed.forecast.verdict if weighed else None,
        reasons=weighed.forecast.reasons if weighed else (),
        weights_note=", ".join(filter(None, (daemon.note, _weights_note(weighed)))),
        kv_bytes=_kv_ahead(prepared, live),
        kv_bytes_now=_kv_bytes(live),
        port_note=_port_note(prepared, live),
        in_flight=_in_flight(live),
        drain_s=_drain_s(ctx, live) or resolved.profile.stop.drain_s or None,
        expected_s=expected.total,
        expected=expected.parts,
        next_time_s=next_time,
        rollback_profile=good.name if good else None,
        rollback_s=_rollback_s(before_it, good.name) if good else None,
        live=way is not None and way.live is not None,
        memory=needs,
        compile_note=caches.compile,
        plan_note=levers.plan_note(prepared, caches) if prepared else "",
        standby_note=levers.standby_note(prepared) if prepared else "",
        optimization_note=levers.optimization_note(prepared) if prepared else "",
    )


def _running(live: Run | None) -> Profile | None:
    return snapshots.load(live) if live is not None else None


def _prepared(
    ctx: Context, unit: str, resolved: Resolved, live: Run | None, current: Run | None
) -> Prepared:
    runtime = usable_runtime(ctx, resolved)
    profile = resolved.profile
    endpoint: Endpoint = swap_endpoint(ctx, unit, profile, live)
    return prepare(ctx, unit, profile, runtime, endpoint, current.id if current else None)


def _weighed(
    ctx: Context, unit: str, resolved: Resolved, live: Run | None, prepared: Prepared
) -> tuple[DaemonAhead, Weighed]:
    """What is done about the daemon first, and the verdict after that."""
    try:
        daemon = daemon_ahead(ctx, unit, resolved, live, prepared.sockets)
        keys = keys_ahead(ctx, unit, resolved, daemon)
    except StokerError as error:
        return DaemonAhead(Way.NO_ROOM, str(error)), weigh(ctx, prepared)
    return daemon, weigh(ctx, prepared, keys)


def _checker(prepared: Prepared | None) -> str | None:
    if prepared is None or prepared.check is None:
        return None
    return f"vLLM {prepared.runtime.version} ({prepared.runtime.platform})"


def _weights_words(weighed: Weighed, errors: list[str], warnings: list[str]) -> None:
    found = weighed.forecast
    if weighed.problem:
        warnings.append(f"the weights could not be forecast: {weighed.problem}")
    if found.refuse is not None:
        errors.append(f"{found.refuse.line}: {found.refuse.hint}")
    if found.fails:
        errors += [f"{r.line or r.category}: {r.hint}" for r in found.reasons]
    if found.waits_s is not None:
        warnings.append(f"the start waits up to {found.waits_s:.0f} s for the daemon")
    warnings += found.warnings


def _weights_note(weighed: Weighed | None) -> str:
    if weighed is None or not weighed.forecast.ranks:
        disk = weighed is not None and weighed.forecast.verdict is Verdict.DISK
        return "no preload in the profile" if disk else ""
    ranks = weighed.forecast.ranks
    fields = sum(len(rank.rows) for rank in ranks)
    equal = sum(row.equal for rank in ranks for row in rank.rows)
    daemon = weighed.record.daemon if weighed.record else None
    agree = f"{equal} of {fields} fields agree" if fields else "nothing to compare with"
    return f"daemon {daemon}, {agree}" if daemon else agree


def _port_note(prepared: Prepared | None, live: Run | None) -> str:
    if prepared is None:
        return ""
    return fronts.port_note(live.spec() if live is not None else None, prepared.spec)


def _drain_s(ctx: Context, live: Run | None) -> float | None:
    """How long the running engine's front lets its requests finish; None without a front."""
    found = fronts.drain(ctx, live) if live is not None else None
    return found[0].drain_s if found is not None else None


def _memory_words(needs: tuple[MemoryNeed, ...], errors: list[str], warnings: list[str]) -> None:
    """What does not fit is an error on a GPU, where vLLM ends the start; a warning on a host."""
    for each in needs:
        if each.fits is False:
            (warnings if each.where == HOST else errors).append(f"{each.where}: {each.note}")
        elif each.fits is None and each.note:
            warnings.append(f"{each.where}: {each.note}")


def _kv_ahead(prepared: Prepared | None, live: Run | None) -> int | None:
    if prepared is None:
        return None
    gpus = prepared.runtime.platform != "cpu"
    return kv_ahead(prepared, live, smallest_total(prepared) if gpus else None)


def _kv_bytes(live: Run | None) -> int | None:
    known = run_facts.load(live.dir) if live is not None else None
    value = known.start.get("kv_gib") if known is not None else None
    return int(value * GIB) if isinstance(value, (int, float)) else None


def _in_flight(live: Run | None) -> int | None:
    """Requests that run on the engine now, by its own count; None when it does not say."""
    if live is None:
        return None
    from engine_ctl.operations.load import running_requests

    return running_requests(live)


def _again(prepared: Prepared, ahead: Conditions, caches: Caches) -> Conditions | None:
    """The conditions of the start after this one; None when it will take as long."""
    if not ahead.eager and ahead.compiled is None:
        return None
    then = again(ahead, plan=plan_use(prepared) is not PlanUse.OFF and not caches.refused)
    return then if then != ahead else None


def _rollback_s(before_it: Past, good: str) -> float | None:
    """Seconds of going back: the last good profile as it was started last, found compiled."""
    last = next((start for start in before_it.own if start.profile == good), None)
    if last is None:
        return None
    planned = last.plan in ("applied", "saved")
    return before_it.predicted(again(last.conditions, plan=planned)).total


def text(found: ForecastView) -> str:
    """The forecast in words, for a terminal."""
    lines = []
    head = f"{found.unit}: {found.profile}"
    if found.from_profile and found.from_profile != found.profile:
        head = f"{found.unit}: {found.from_profile} → {found.profile}"
    lines.append(head)
    width = max((len(c.key) for c in found.changes), default=0)
    for change in found.changes:
        note = f", {change.note}" if change.note else ""
        lines.append(f"  {change.key:{width}}  {change.old} → {change.new}  {change.cost}{note}")
    for error in found.errors:
        lines.append(f"  refused: {error}")
    if found.checked_by and not found.errors:
        lines.append(f"  {found.checked_by} accepts it")
    if found.verdict is not None:
        note = f" ({found.weights_note})" if found.weights_note else ""
        lines.append(f"  weights: {found.verdict}{note}")
    for reason in found.reasons:
        differ = "; ".join(f"{f}: daemon {d}, engine {e}" for f, d, e in reason.fields)
        lines.append(f"    {reason.category}: {differ or reason.hint}")
    lines += [f"  memory: {line}" for line in memory_lines(found.memory)]
    if found.kv_bytes is not None:
        was = f" (now {_gib(found.kv_bytes_now)})" if found.kv_bytes_now is not None else ""
        lines.append(f"  KV cache: ~{_gib(found.kv_bytes)}{was}")
    notes = (
        found.standby_note,
        found.compile_note,
        found.plan_note,
        found.optimization_note,
        found.port_note,
    )
    lines += [f"  {note}" for note in notes if note]
    if found.in_flight:
        drain = f"drain up to {found.drain_s:.0f} s" if found.drain_s else "they are aborted"
        lines.append(f"  {found.in_flight} requests in flight: {drain}")
    lines += [f"  note: {warning}" for warning in found.warnings]
    lines += _seconds_words(found)
    if found.rollback_profile:
        about = f" (about {found.rollback_s:.1f} s)" if found.rollback_s is not None else ""
        lines.append(f"  if it fails: back to {found.rollback_profile}{about}")
    return "\n".join(lines)


def _seconds_words(found: ForecastView) -> list[str]:
    """The sum and each phase with the starts that it is the median of."""
    if found.live or not found.expected:
        return []
    if found.expected_s is not None:
        then = f", next time {found.next_time_s:.1f} s" if found.next_time_s is not None else ""
        lines = [f"  expected: {found.expected_s:.1f} s, by the phases of earlier starts{then}"]
    else:
        lines = ["  expected: unknown, not every phase has an earlier start to go by"]
    for part in found.expected:
        name = "answering" if part.phase is Phase.READY else part.phase
        seconds = "unknown" if part.seconds is None else f"{part.seconds:.1f} s"
        lines.append(f"    {name:12} {seconds:>8}  {part.basis}")
    return lines


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
