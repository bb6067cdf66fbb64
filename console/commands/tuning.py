"""`stoker bench | sweep | compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from console import terminal
from console.commands import completing
from console.commands.output import emit_json, examples, json_option, table
from engine_ctl.errors import Usage

if TYPE_CHECKING:
    from engine_ctl.tune.progress import BenchProgress

# option -> field of BenchSettings
_SETTINGS = (
    *("dataset", "path", "requests", "input_len", "output_len", "request_rate", "concurrency"),
    *("warmups", "repeats", "seed", "stall_s"),
)


def bench_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that override the `bench:` section of the unit's profile."""
    for option in reversed(
        (
            click.option(
                "--dataset",
                type=click.Choice(("random", "sharegpt", "recorded")),
                help="Random tokens, a ShareGPT file, or recorded requests (see --path).",
            ),
            click.option(
                "--path",
                type=click.Path(exists=True, dir_okay=False, resolve_path=True),
                help="ShareGPT JSON, or JSON lines with a prompt each.",
            ),
            click.option("--requests", "-n", type=int, help="Requests of one measurement."),
            click.option("--input-len", type=int, help="Prompt tokens (random)."),
            click.option("--output-len", type=int, help="Tokens to generate."),
            click.option("--request-rate", type=float, help="Requests per second (else: at once)."),
            click.option("--concurrency", "-c", type=int, help="Most requests in flight."),
            click.option("--warmups", type=int, help="Requests before the measurement."),
            click.option("--repeats", type=int, help="Measurements; their median counts."),
            click.option("--seed", type=int, help="Of the random prompts (else: new prompts)."),
            click.option(
                "--stall", "stall_s", type=float, help="Give up when nothing moves for so many s."
            ),
            click.option(
                "--goodput",
                multiple=True,
                metavar="NAME:MS",
                help="Count requests within limits: ttft:500, itl:40, e2el:8000.",
            ),
            click.option(
                "--arg",
                "extra",
                multiple=True,
                metavar="NAME=VALUE",
                help="A further argument of vllm bench serve.",
            ),
        )
    ):
        command = option(command)
    return command


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as fields of BenchSettings; takes them out of `given`."""
    options = {name: value for name in _SETTINGS if (value := given.pop(name)) is not None}
    limits: dict[str, float] = {}
    for text in given.pop("goodput"):
        name, _, value = text.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            raise Usage(f"--goodput {text!r}: write NAME:MILLISECONDS, as ttft:500") from None
    if limits:
        options["goodput"] = limits
    extra = dict(_pair(text, "--arg") for text in given.pop("extra"))
    if extra:
        options["extra"] = extra
    return options


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Usage(f"{option} {text!r}: write NAME=VALUE")
    return name, value


def _say(as_json: bool) -> Callable[[str], None]:
    """What happens goes to stderr, so that the result alone is on stdout."""
    return (lambda text: None) if as_json else (lambda text: print(text, file=sys.stderr))


def _rewrite(text: str) -> None:
    """The last line of the terminal, anew."""
    terminal.raw(sys.stderr).write(f"\r\x1b[K{terminal.shown(text)}")
    sys.stderr.flush()


class _Bar:
    """Progress on one line of a terminal."""

    def __init__(self, as_json: bool) -> None:
        self._shows = not as_json and sys.stderr.isatty()

    def __call__(self, now: BenchProgress) -> None:
        if not self._shows:
            return
        which = f"{now.repeat} of {now.repeats}: " if now.repeats > 1 else ""
        count = f" {now.done} of {now.total}" if now.total else ""
        _rewrite(f"{which}{now.stage}{count}")

    def clear(self) -> None:
        if self._shows:
            _rewrite("")


@click.command(
    epilog=examples(
        "stoker bench chat-8b",
        "stoker bench chat-8b --requests 128 --concurrency 32 --goodput ttft:500",
        "stoker bench chat-8b --path asked.jsonl",
    )
)
@click.argument("unit", shell_complete=completing.unit)
@bench_options
@json_option
def bench(unit: str, as_json: bool, **given: Any) -> int:
    """Measure a running engine with vLLM's own benchmark.

    Settings come from the `bench:` section of the unit's profile; options override it. The whole
    result is kept: see `stoker history`.
    """
    from engine_ctl.operations.context import Context
    from engine_ctl.tune import operation, records

    ctx = Context()
    bar = _Bar(as_json)
    problems: list[str] = []
    tell = problems.append if as_json else _say(False)
    try:
        done = operation.bench(ctx, unit, _settings(given), tell, bar)
    finally:
        bar.clear()
    path = records.directory(ctx.dirs, done.id) / "bench.json"
    if as_json:
        for problem in problems:
            if "could not be kept" in problem or "damaged" in problem:
                print(f"stoker: {problem}", file=sys.stderr)
        emit_json(operation.document(done, path))
        if done.problem:
            print(f"stoker: {unit}: {operation.summary(done)}", file=sys.stderr)
    else:
        print(_bench_text(done))
    return 1 if done.problem else 0


def _bench_text(done: Any) -> str:
    from engine_ctl.tune.caveats import caveats
    from engine_ctl.tune.operation import summary

    lines = [f"{done.unit}: {summary(done)}", ""]
    rows = []
    for name, unit in (
        ("throughput", "tok/s out"),
        ("total_throughput", "tok/s in and out"),
        ("requests", "requests/s"),
        ("goodput", "requests/s within limits"),
    ):
        found = done.stats.get(name)
        if found is not None:
            rows.append((name, f"{found.median:.1f}", _spread(found), unit))
    for name in ("ttft", "tpot", "itl", "e2el"):
        for quantity in ("p50", "p95", "p99"):
            found = done.stats.get(f"{name}_{quantity}")
            if found is not None:
                rows.append((f"{name} {quantity}", f"{found.median:.1f}", _spread(found), "ms"))
    lines.append(table(rows, ("figure", "median", "spread", ""), (1, 2)))
    notes = caveats(done)
    if notes:
        lines += ["", *(f"note: {text}" for text in notes)]
    lines += ["", f"kept as {done.id}; compare with: stoker compare {done.id} OTHER"]
    return "\n".join(lines)


def _unit(metric: str) -> str:
    if metric.endswith("throughput"):
        return "tok/s"
    if metric.endswith("_s"):
        return "s"
    return "ms" if metric.partition("_")[0] in ("ttft", "tpot", "itl", "e2el") else ""


def _spread(found: Any) -> str:
    if found.spread is None:
        return "–"
    return f"±{found.spread:.1%}" if found.spread < 10 else "over ±999%"


@click.command(
    epilog=examples(
        "stoker sweep chat-8b --set max_num_seqs=64,128,256 --dry-run",
        "stoker sweep chat-8b --set attention_backend=FLASH_ATTN,FLASHINFER --keep best",
        "stoker sweep chat-8b --set bench.concurrency=8,32 --goal 'throughput where itl_p95<40ms'",
        "stoker sweep --resume s1",
    )
)
@click.argument("unit", required=False, shell_complete=completing.unit)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=V,V", help="A setting and the values to try."
)
@click.option(
    "--goal",
    metavar="GOAL",
    default="throughput",
    show_default=True,
    help="What to look for: 'throughput where ttft_p95<500ms'.",
)
@click.option(
    "--mode",
    type=click.Choice(("grid", "list", "halving")),
    default="grid",
    show_default=True,
    help="All combinations; the first values together, then the second; or the better half twice.",
)
@click.option(
    "--keep",
    type=click.Choice(("best", "last-good")),
    default="last-good",
    show_default=True,
    help="What the unit runs at the end.",
)
@click.option("--resume", "resume_id", metavar="ID", help="Go on with a stopped or killed sweep.")
@click.option("--list", "listing", is_flag=True, help="The sweeps that there are.")
@click.option("--dry-run", is_flag=True, help="Show points, order and restarts; touch nothing.")
@bench_options
@json_option
def sweep(
    unit: str | None,
    sets: tuple[str, ...],
    goal: str,
    mode: str,
    keep: str,
    resume_id: str | None,
    listing: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Try settings on UNIT, one restart each through the swap path, and compare them.

    NAME is an argument of vllm serve, `env.NAME`, or `bench.NAME` (a setting of the benchmark,
    which restarts nothing). Ctrl-C stops after putting the unit back; --resume goes on.
    """
    from engine_ctl.operations.context import Context
    from engine_ctl.tune import journal, planning, rows
    from engine_ctl.tune import sweep as sweeps
    from engine_ctl.tune.stopper import Stopper

    ctx = Context()
    options = _settings(given)
    if listing:
        return _sweeps(ctx, unit, as_json)
    bar = _Bar(as_json)
    stopper = Stopper()

    def tell(text: str) -> None:
        bar.clear()
        _say(as_json)(text)

    try:
        if resume_id is not None:
            if sets or options:
                raise Usage("--resume goes on with the sweep as planned; leave the others out")
            made = journal.load(ctx.dirs, resume_id)
            if unit is not None and made.unit != unit:
                raise Usage(f"sweep {resume_id} is one of unit {made.unit}")
            sweeps.resume(ctx, resume_id, tell, bar, stopper)
        else:
            if unit is None:
                raise Usage("name the unit to tune, or --resume ID")
            made = planning.plan(ctx, unit, sets, goal, mode, keep, options)
            if dry_run:
                return _dry_run(ctx, made, as_json)
            made = sweeps.start(ctx, made, tell, bar, stopper)
    finally:
        bar.clear()
    found = rows.of_sweep(ctx, made.id)
    if as_json:
        emit_json(rows.document(found))
    else:
        print(_comparison_text(found))
    return 1 if stopper.asked or found.best is None else 0


def _sweeps(ctx: Any, unit: str | None, as_json: bool) -> int:
    from engine_ctl.errors import StokerError
    from engine_ctl.tune import records, rows

    found = []
    for id in reversed(records.ids(ctx.dirs, "s")):
        try:
            one = rows.of_sweep(ctx, id)
        except StokerError as error:
            print(f"stoker: {error}", file=sys.stderr)
            continue
        if unit is None or one.unit == unit:
            found.append(one)
    if as_json:
        emit_json({"sweeps": [rows.document(one) for one in found]})
    else:
        lines = [
            (
                one.sweep or "",
                one.unit,
                one.state,
                f"{one.count('done', 'short')} of {len(one.rows)}",
                one.sentence(),
            )
            for one in found
        ]
        print(table(lines, ("sweep", "unit", "state", "points", "result")) if lines else "none yet")
    return 0


def _dry_run(ctx: Any, made: Any, as_json: bool) -> int:
    from engine_ctl.tune import order, outcomes
    from engine_ctl.tune.journal import SweepState
    from engine_ctl.tune.points import label

    expected = outcomes.forecast_of(ctx, made, SweepState())

    points = [made.points[index] for index in made.order]
    steps = order.steps(made.base, points)
    if as_json:
        emit_json(
            {
                "unit": made.unit,
                "goal": made.goal,
                "forecast_s": expected.seconds,
                "restarts": expected.restarts,
                "points": [
                    {"point": p, "restart": s.restart, "reload": s.reload, "compiles": s.compiles}
                    for p, s in zip(points, steps, strict=True)
                ],
            }
        )
        return 0
    rows = []
    for number, (point, step) in enumerate(zip(points, steps, strict=True), 1):
        words = [("restart" if step.restart else "same engine")]
        words += ["loads weights again"] * step.reload + ["compiles"] * step.compiles
        rows.append((str(number), label(point), ", ".join(words)))
    print(table(rows, ("", "point", "takes"), (0,)))
    if expected.seconds is not None:
        took = f"about {expected.seconds:.0f} s in all, judged by earlier ones"
    else:
        took = "no bench of this unit yet to judge the time by"
    print(f"\n{expected.restarts} restarts with putting back; {took}")
    return 0


def _comparison_text(found: Any) -> str:
    from engine_ctl.tune.points import shown

    metrics = ["throughput", "ttft_p95", "itl_p95", "start_s"]
    metrics += [c.metric for c in found.goal.conditions if c.metric not in metrics]
    if found.goal.metric not in metrics:
        metrics.insert(0, found.goal.metric)
    rows = []
    for row in found.rows:
        cells = ["★" if row.best else ""]
        cells += [shown(row.point.get(axis)) for axis in found.axes] or [row.label]
        for name in metrics:
            stat = row.stats.get(name)
            cell = "–" if stat is None else f"{stat.median:.4g}"
            if stat is not None and stat.spread is not None and name == found.goal.metric:
                cell += f" ±{stat.spread:.0%}"
            cells.append(cell + (" ✗" if name in row.missed else ""))
        note = row.reason if row.state != "done" or row.reason else ""
        if row.state in ("refused", "failed", "pending", "short", "trying"):
            note = f"{row.state}: {note}" if note else row.state
        elif row.noise:
            note = "within noise of ★"
        rows.append([*cells, note if len(note) < 100 else note[:99] + "…"])
    axes = list(found.axes) or ["bench"]
    heads = [f"{name} {_unit(name)}".rstrip() for name in metrics]
    right = range(1 + len(axes), 1 + len(axes) + len(metrics))
    lines = [table(rows, ("", *axes, *heads, ""), right), "", found.sentence()]
    if found.count("refused"):
        lines.append(f"vLLM refused {found.count('refused')} of {len(found.rows)} points")
    if found.count("pending", "trying") and found.sweep:
        lines.append(f"go on with: stoker sweep --resume {found.sweep}")
    lines += [f"note: {text}" for text in found.conditions]
    if found.own_share is not None:
        lines.append(
            f"{found.wall_s:.0f} s in all, of which {found.own_share:.1%} were Stoker's own"
        )
    return "\n".join(lines)


@click.command(
    epilog=examples(
        "stoker compare",
        "stoker compare b1 b2 --report both.html",
        "stoker compare s1 --save-best chat-8b-tuned",
    )
)
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=completing.measured)
@click.option(
    "--unit", metavar="UNIT", help="The unit's newest sweep.", shell_complete=completing.unit
)
@click.option("--goal", metavar="GOAL", help="Judge by another goal than the sweep's own.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write a self-contained .html, or a .md, with commands to repeat each point.",
)
@click.option("--save-best", metavar="NAME", help="Save the best point as a profile.")
@click.option("--force", is_flag=True, help="Replace a profile of that name.")
@json_option
def compare(
    ids: tuple[str, ...],
    unit: str | None,
    goal: str | None,
    reports: tuple[str, ...],
    save_best: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """A sweep (s1), or benches (b1 b2 …), side by side. Without IDs: the newest sweep."""
    from pathlib import Path

    from engine_ctl.errors import NotFound
    from engine_ctl.operations.context import Context
    from engine_ctl.tune import journal, keeping, rows

    ctx = Context()
    if not ids:
        newest = journal.newest(ctx.dirs, unit)
        if newest is None:
            raise NotFound("there is no sweep yet; name benches: stoker compare b1 b2")
        ids = (newest,)
    found = rows.compare(ctx, ids, goal)
    for report in reports:
        keeping.write_report(ctx, found, Path(report))
    saved = keeping.save_best(ctx, found, save_best, force) if save_best else None
    if as_json:
        emit_json({**rows.document(found), "saved": saved, "reports": list(reports)})
        return 0
    print(_comparison_text(found))
    for report in reports:
        print(f"wrote {report}")
    if saved is not None:
        print(f"saved {saved}")
    return 0
