"""`stoker ps | runs | logs | why | phases | events`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console import terminal
from console.commands import completing
from console.commands.output import (
    emit_json,
    emit_json_line,
    examples,
    json_option,
    limit_option,
    looked_at,
    plain,
    table,
)
from console.view.numbers import wall
from engine_ctl.errors import Usage

if TYPE_CHECKING:
    from engine_ctl.answers import LastStart
    from engine_ctl.model import Event


@click.command(epilog=examples("stoker ps", "stoker ps chat-8b --json"))
@click.argument("units", nargs=-1, metavar="[UNIT...]", shell_complete=completing.unit)
@json_option
def ps(units: tuple[str, ...], as_json: bool) -> None:
    """Every unit and its current run."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.listing import ps as look

    found = look(Context(), units)
    if as_json:
        emit_json(found)
        return
    for problem in found["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    if not found["units"]:
        print("no unit yet; try: stoker demo, or stoker start UNIT --profile NAME")
        return
    heads = ("unit", "kind", "profile", "phase", "weights", "port", "run", "wait", "kv%", "tok/s")
    rows = [
        (
            u["unit"],
            u["kind"],
            u["profile"] + ("!" if u["profile_problem"] else "*" if u["drift"] else ""),
            u["phase"] or "–",
            u["verdict"] or "–",
            _cell(u["port"] or ("socket" if (u["url"] or "").startswith("unix:") else None)),
            _cell(u["running"]),
            _cell(u["waiting"]),
            _cell(u["kv_cache_usage"], "{:.0%}"),
            _cell(u["tokens_per_second"], "{:.0f}"),
            _span(u["uptime_s"]),
            _cell(u["start_s"], "{:.1f} s"),
        )
        for u in found["units"]
    ]
    print(table(rows, (*heads, "up", "start"), right=range(5, 12)))
    for unit in found["units"]:
        if unit["profile_problem"]:
            print(f"  {unit['unit']}: its profile cannot be read: {unit['profile_problem']}")
        if unit["note"] not in ("", unit["phase"]):
            print(f"  {unit['unit']}: {unit['note']}")
        for reason in unit["reasons"]:
            print(f"  {unit['unit']}: {reason['category']}: {reason['hint']}")
        if unit["cause"]:
            print(f"  {unit['unit']}: {unit['cause']}; see: stoker why {unit['unit']}")


def _cell(value: Any, form: str = "{}") -> str:
    return "–" if value is None else form.format(value)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} m {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} m"


@click.command(epilog=examples("stoker runs chat-8b", "stoker logs chat-8b --run 3"))
@looked_at
@limit_option()
@json_option
def runs(unit: str | None, limit: int | None, as_json: bool) -> None:
    """The history of a unit's runs, newest first."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.listing import runs as look
    from engine_ctl.operations.runs import only_unit

    ctx = Context()
    found = look(ctx, unit or only_unit(ctx), limit)
    if as_json:
        emit_json(found)
        return
    rows = []
    for run in found["runs"]:
        if "problem" in run:
            rows.append((run["run"], "damaged", "–", "–", "–", "–", run["problem"]))
            continue
        when = wall(run["started"], "%m-%d %H:%M:%S")
        cause = run["cause"]["category"] if run["cause"] else ""
        rows.append(
            (
                run["run"],
                run["phase"],
                run["profile"] or "–",
                when,
                _cell(run["start_s"], "{:.1f} s"),
                run["verdict"] or "–",
                cause,
            )
        )
    print(table(rows, ("run", "phase", "profile", "started", "start", "weights", "cause"), (4,)))


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C is how following ends: nothing is to be said of it."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


@click.command(epilog=examples("stoker logs chat-8b -f", "stoker logs chat-8b --run 3 -n 100"))
@looked_at
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows.")
@click.option(
    "--run", "reference", metavar="RUN", help="A run's number or id (default: the current one)."
)
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines.")
@json_option
def logs(
    unit: str | None, follow: bool, reference: str | None, lines: int | None, as_json: bool
) -> None:
    """A unit's log."""
    from engine_ctl.operations import logfile
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit, run_of

    ctx = Context()
    run = run_of(ctx, unit or only_unit(ctx, reference), reference)
    if as_json:
        if follow:
            raise Usage("--json prints one document; leave --follow out")
        text = b"".join(logfile.tail(run.log, lines)).decode(errors="replace")
        emit_json({"run": run.id, "log": str(run.log), "lines": text.splitlines()})
        return
    out = terminal.Log(sys.stdout)
    with until_interrupted(), contextlib.closing(out):
        for chunk in logfile.follow(run, lines) if follow else logfile.tail(run.log, lines):
            out.write(chunk)


@click.command(
    epilog=examples(
        "stoker why chat-8b", "stoker why chat-8b --bundle .", "stoker why --log some/other.log"
    )
)
@looked_at
@click.option(
    "--run",
    "reference",
    metavar="RUN",
    help="A run's number or id (default: the newest that failed).",
)
@click.option("--log", "file", type=click.Path(path_type=Path), help="Any log file instead.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Write a redacted .tar.gz.")
@json_option
def why(
    unit: str | None, reference: str | None, file: Path | None, bundle: Path | None, as_json: bool
) -> int:
    """Why a run failed or fell back: the cause, the line, and the knob to turn.

    Without UNIT: the only one, or of several how the last start of each went."""
    from engine_ctl.operations import explain
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import engine_units, only_unit

    _refuse_both(unit, file)
    if file is not None:
        found = explain.why_file(file)
        if as_json:
            emit_json(found)
        elif found is None:
            print("nothing is wrong in this log")
        else:
            print(f"{found['category']}: {found['hint']}\n  {found['line']}")
        return 0
    ctx = Context()
    if unit is None:
        if reference is None and bundle is None and len(engine_units(ctx)) > 1:
            return _last_starts(explain.last_starts(ctx), as_json)
        unit = only_unit(ctx, reference)
    card = explain.why(ctx, unit, reference)
    # What the current run says comes before the failure of one before it.
    reasons = explain.fell_back(ctx, unit, reference, card)
    back = explain.went_back(ctx, unit, card) if reference is None else None
    if bundle is not None:
        from engine_ctl.operations.bundle import write_bundle

        told = card.run if card is not None and not (reasons or back) else reference
        path = write_bundle(ctx, unit, told, bundle)
        if not as_json:
            print(f"wrote {path}")
    if as_json:
        cause = card.cause if card else None
        first = reasons[0] if reasons else None
        emit_json(
            None
            if card is None and first is None and back is None
            else {
                "category": first.category,
                "hint": first.hint,
                "line": first.line,
                "evidence": [f"{name}: daemon {d}, engine {e}" for name, d, e in first.fields],
                "card": None,
            }
            if first is not None
            else {"category": "went_back", "hint": back, "line": "", "evidence": [], "card": None}
            if back is not None
            else {
                "category": cause.category if cause else "unknown",
                "hint": cause.hint if cause else "",
                "line": cause.line if cause else "",
                "evidence": list(cause.evidence) if cause else [],
                "card": card,
            }
        )
        return 0
    for reason in reasons:
        print(f"{unit} fell back to disk: {reason.category}\n  {reason.line or reason.hint}")
        for field, daemon, engine in reason.fields:
            print(f"  {field}: daemon {daemon}, engine {engine}")
        print(f"  do this: {reason.hint}")
    if back is not None:
        print(back)
    if card is None:
        if not reasons and back is None:
            print(f"nothing to explain: no run of {unit} failed")
        return 0
    if reasons or back is not None:
        print(f"before it: {card.run} {card.outcome}; see: stoker why {unit} --run {card.run}")
        return 0
    print(f"{card.run} {card.outcome}" + (f" while {card.phase}" if card.phase else ""))
    since = explain.since(ctx, unit, card)
    if since is not None:
        print(f"  {since}")
    if card.cause:
        print(f"  {card.cause.category}: {card.cause.hint}\n  {card.cause.line}")
    for fix in card.fixes:
        print(f"  do this: {fix.key} {fix.now} → {fix.proposed}")
    for text in card.leftovers:
        print(f"  left over: {text}")
    for text in card.memory:
        print(f"  memory then: {text}")
    for change in card.changed:
        print(f"  changed since the last good run: {change.key} {change.now} → {change.proposed}")
    print(f"  log: {card.log}")
    return 0


def _last_starts(found: Sequence[LastStart], as_json: bool) -> int:
    if as_json:
        emit_json({"units": found})
        return 0
    rows = [
        (
            start.unit,
            start.run or "–",
            start.outcome or "–",
            start.verdict or "–",
            ": ".join(filter(None, (start.category, start.hint))) or "–",
        )
        for start in found
    ]
    print(table(rows, ("unit", "run", "now", "weights", "why")))
    print("all of one: stoker why UNIT")
    return 0


def _refuse_both(unit: str | None, file: Path | None) -> None:
    if unit is not None and file is not None:
        raise Usage("name a unit, or a file with --log")


@click.command(epilog=examples("stoker phases chat-8b", "stoker phases --log some/other.log"))
@looked_at
@click.option(
    "--run", "reference", metavar="RUN", help="A run's number or id (default: the current one)."
)
@click.option("--log", "file", type=click.Path(path_type=Path), help="Any log file instead.")
@json_option
def phases(unit: str | None, reference: str | None, file: Path | None, as_json: bool) -> None:
    """Where the seconds of a start went."""
    from engine_ctl.operations import explain
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit, run_of

    _refuse_both(unit, file)
    if file is not None:
        marks = explain.phases_file(file)
        head: dict[str, Any] = {"log": str(file)}
    else:
        ctx = Context()
        run = run_of(ctx, unit or only_unit(ctx, reference), reference)
        known = explain.facts_of(run)
        marks = list(known.phases)
        head = {"run": run.id, "start_s": known.start_s, "silent": known.silent}
    if as_json:
        rows = [
            {"phase": m.phase, "start_s": m.start_s, "seconds": m.seconds, "note": m.note}
            for m in marks
        ]
        emit_json({**head, "phases": rows})
        return
    for mark in marks:
        seconds = "–" if mark.seconds is None else f"{mark.seconds:.1f} s"
        print(f"{mark.start_s:8.1f} s  {mark.phase:12} {seconds:>8}  {mark.note}".rstrip())


@click.command(epilog=examples("stoker starts chat-8b -n 10"))
@looked_at
@limit_option(30)
@json_option
def starts(unit: str | None, limit: int, as_json: bool) -> None:
    """Every start of a unit by phases, newest first, and what mapping saved against disk."""
    from engine_ctl.operations import explain
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit

    ctx = Context()
    unit = unit or only_unit(ctx)
    ctx.store.load(unit)
    found = explain.starts(ctx, unit, limit)
    if as_json:
        emit_json({"unit": unit, "starts": found})
        return
    if not found:
        print(f"{unit} was never started")
        return
    ready = [start.ready_s for start in found if start.ready_s is not None]
    rows = []
    for start in found:
        disk = start.disk_s if start.verdict in ("mapped", "copied") else None
        saved = None if disk is None or start.ready_s is None else disk - start.ready_s
        rows.append(
            (
                start.run + (" *" if ready and start.ready_s == min(ready) else ""),
                start.profile or "–",
                _cell(start.ready_s, "{:.1f} s"),
                start.verdict or "–",
                "standby" if start.standby else "–",
                _cell(saved if saved is not None and saved > 0 else None, "{:.1f} s"),
                "  ".join(f"{m.phase} {m.seconds:.1f}" for m in start.phases if m.seconds),
            )
        )
    heads = ("run", "profile", "start", "weights", "from", "saved", "phases (s)")
    print(table(rows, heads, (2, 5)))


@click.command(
    epilog=examples(
        "stoker events --level warning+ --since 2h --unit chat-8b", "stoker events -f --kind swap"
    )
)
@click.argument("words", nargs=-1, metavar="[WORD...]")
@click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="UNIT",
    help="Only of this unit (may be repeated).",
    shell_complete=completing.unit,
)
@click.option(
    "--kind", "kinds", multiple=True, metavar="KIND", help="start, stop, failure, swap, bench, …"
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    metavar="LEVEL",
    help="info, warning, error; warning+: and up.",
)
@click.option("--by", multiple=True, metavar="WHO", help="Who did it (a part of the name).")
@click.option("--since", metavar="WHEN", help="30m, 2h, 14:05, today, 2026-11-29 14:05, …")
@click.option("--until", metavar="WHEN", help="As --since.")
@limit_option(50)
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen.")
@json_option
def events(
    words: tuple[str, ...],
    units: tuple[str, ...],
    kinds: tuple[str, ...],
    levels: tuple[str, ...],
    by: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """What happened and who did it, newest last.

    WORDs must all occur, whatever their case. With --json --follow: one event a line, without
    an end."""
    from engine_ctl.operations.context import Context
    from engine_ctl.state import event_filter
    from engine_ctl.state import events as store

    keep = event_filter.make(
        units=units, kinds=kinds, levels=levels, by=by, since=since, until=until, words=words
    )
    dirs = Context().dirs
    if follow:
        with until_interrupted():
            for event in store.follow(dirs, limit, keep.matches):
                if as_json:
                    emit_json_line(_event(event))
                else:
                    print(_event_line(event), flush=True)
        return
    found = store.last(dirs, limit, keep=keep.matches)
    if as_json:
        emit_json({"events": [_event(event) for event in found]})
        return
    if not found:
        print("nothing has happened yet" if keep == event_filter.EventFilter() else "no such event")
    for event in found:
        print(_event_line(event))


def _event(event: Event) -> dict[str, Any]:
    from engine_ctl.state.event_filter import kind_of

    return {**plain(event), "kind": kind_of(event)}


def _event_line(event: Event) -> str:
    when = wall(event.at, "%m-%d %H:%M:%S")
    mark = {"info": " ", "warning": "!", "error": "✗"}.get(event.severity, " ")
    who = f" ({event.by})" if event.by else ""
    return f"{when} {mark} {event.unit or '–':16} {event.text}{who}"
