"""`stoker demo`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

import click

from console.commands.console import open_console, unable
from console.commands.output import emit_json, json_option
from console.commands.runtime import progress_report
from console.commands.steps import Steps
from engine_ctl.runtimes.progress import Report


@click.command()
@click.option("--headless", is_flag=True, help="Print instead of opening the console.")
@click.option("--down", is_flag=True, help="Stop the demo and remove all that it made.")
@json_option
def demo(headless: bool, down: bool, as_json: bool) -> int:
    """Serve a tiny real model under supervision and open the console on it.

    Installs the CPU build of vLLM where there is none (about 2 minutes and 4 GB of disk, 6 GB free
    while it installs), once. Without a terminal, or with --headless, prints the phases, one
    completion and the address, and leaves the engine running.
    """
    from engine_ctl.operations import demo as operation
    from engine_ctl.operations.context import Context

    ctx = Context()

    steps = Steps(sys.stderr if as_json else sys.stdout)
    if down:
        with steps:
            removed = operation.down(ctx, steps)
        if as_json:
            emit_json({"removed": removed})
        else:
            print("removed: " + (", ".join(removed) or "nothing was there"))
        return 0

    def progress(title: str) -> AbstractContextManager[Report]:
        steps.settle()
        return progress_report(title, quiet=as_json)

    with steps:
        shown = operation.up(ctx, steps, progress)
    spec = shown.run.spec()
    if not as_json and not headless and unable() is None:
        open_console(operation.UNIT)
        return 0
    other = operation.fall_back(ctx)
    if as_json:
        emit_json(
            {
                "unit": operation.UNIT,
                "run": shown.run.id,
                "url": shown.url,
                "model": spec.served_name,
                "start_s": shown.start_s,
                "prompt": operation.PROMPT,
                "completion": shown.text,
                "fallback": other,
            }
        )
        return 0
    print(f"completion of {operation.PROMPT!r}: {shown.text!r}")
    print(f"address: {shown.url}/v1 (model {spec.served_name})")
    if other is not None:
        reason = other.reasons[0]
        differ = "; ".join(f"{name}: daemon {d}, engine {e}" for name, d, e in reason.fields)
        print(f"a swap to {operation.OTHER} would load from disk: {differ or reason.category}")
    print("it goes on running; stoker ps shows it, stoker demo --down removes all of it")
    return 0
