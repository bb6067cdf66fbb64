"""`stoker history`."""

from __future__ import annotations

import csv
import sys
import time

import click

from console.commands import completing
from console.commands.output import emit_json, examples, json_option, limit_option, table
from console.view.numbers import wall
from engine_ctl.errors import Failed, Usage


@click.command(
    epilog=examples("stoker history --unit chat-8b --since 2d", "stoker history --kind bench --csv")
)
@click.argument("words", nargs=-1, metavar="[WORD...]")
@click.option("--unit", metavar="UNIT", help="Only this unit.", shell_complete=completing.unit)
@click.option(
    "--profile", metavar="PROFILE", help="Only this profile.", shell_complete=completing.profile
)
@click.option("--kind", type=click.Choice(("start", "bench")), help="Only starts, or only benches.")
@click.option("--since", metavar="WHEN", help="30m, 2h, 14:05, today, 2026-11-29 14:05, …")
@limit_option()
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, one row each.")
@json_option
def history(
    words: tuple[str, ...],
    unit: str | None,
    profile: str | None,
    kind: str | None,
    since: str | None,
    limit: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Every start and every bench, newest first. WORDs are searched in everything kept."""
    from engine_ctl.operations.context import Context
    from engine_ctl.state.event_filter import moment
    from engine_ctl.tune.history import COLUMNS, Filter, opened

    if as_csv and as_json:
        raise Usage("choose one of --csv and --json")
    after = None if since is None else moment(since, time.time())
    ctx = Context()
    wanted = Filter(unit, profile, kind, after, words, limit)
    with opened(ctx.dirs, lambda text: print(f"stoker: {text}", file=sys.stderr)) as book:
        try:
            book.add_starts(ctx.store)
        except Failed as error:
            print(f"stoker: {error}", file=sys.stderr)
        found = book.find(wanted)
    if as_json:
        emit_json({"entries": found})
        return
    if as_csv:
        # What is nested (settings, every figure) would be JSON in a cell: --json has it.
        writer = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        return
    if not found:
        print("nothing is kept that matches")
        return
    heads = (
        "when",
        "what",
        "unit",
        "profile",
        "outcome",
        "seconds",
        "tok/s",
        "ttft p95",
        "itl p95",
    )
    rows = [
        (
            wall(e["at"], "%Y-%m-%d %H:%M:%S"),
            e["id"] if e["kind"] == "bench" else f"start {e['id'].rpartition('/')[2]}",
            e["unit"],
            e["profile"] or "–",
            e["verdict"] if e["outcome"] == "ready" and e["verdict"] else e["outcome"],
            _number(e["seconds"], ".1f"),
            _number(e["throughput"], ".0f"),
            _number(e["ttft_p95"], ".0f", " ms"),
            _number(e["itl_p95"], ".1f", " ms"),
        )
        for e in found
    ]
    print(table(rows, heads, range(5, 9)))


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"
