"""`stoker start | stop | restart | remove | reap`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from console.commands import completing
from console.commands.output import confirm, emit_json, examples, json_option, yes_option
from engine_ctl.errors import Busy, Failed, StokerError, Usage

units_argument = click.argument(
    "units", nargs=-1, required=True, metavar="UNIT...", shell_complete=completing.unit
)
wait_option = click.option(
    "--wait/--no-wait", default=None, help="Wait until it serves (default: on a terminal)."
)


def each(units: tuple[str, ...], as_json: bool, do: Callable[[str], dict[str, Any]]) -> int:
    """Do it for every unit; a failure of one does not keep the others from their turn."""
    done: list[dict[str, Any]] = []
    failed: StokerError | None = None
    for unit in units:
        try:
            done.append(do(unit))
        except StokerError as error:
            if len(units) == 1:
                raise
            failed = failed or error
            if not as_json:
                print(f"stoker: {unit}: {error}", file=sys.stderr)
            done.append({"unit": unit, "error": str(error)})
    if as_json:
        emit_json({"units": done})
    return failed.exit_code if failed else 0


def operands(units: tuple[str, ...], as_json: bool) -> tuple[tuple[str, ...], bool]:
    """`--json` also after `--`, where it would be a name that no unit can have."""
    named = tuple(unit for unit in units if unit != "--json")
    return (named, True) if named and named != units else (units, as_json)


def say(as_json: bool) -> Callable[[str], None]:
    return (lambda text: None) if as_json else (lambda text: print(text, flush=True))


@click.command(
    epilog=examples("stoker start chat-8b --profile chat", "stoker start chat-8b small-1b --wait")
)
@click.argument(
    "units",
    nargs=-1,
    required=True,
    metavar="UNIT...",
    shell_complete=completing.startable,
)
@click.option(
    "--profile",
    metavar="PROFILE",
    help="Make the unit from this profile (name or file), or change it.",
    shell_complete=completing.profile,
)
@wait_option
@json_option
def start(units: tuple[str, ...], profile: str | None, wait: bool | None, as_json: bool) -> int:
    """Start units with their profile files as they are now.

    A name that is no unit yet but is a profile makes a unit of that name.
    """
    from engine_ctl.operations import lifecycle
    from engine_ctl.operations.context import Context

    units, as_json = operands(units, as_json)
    if profile and len(units) > 1:
        raise Usage("--profile makes one unit; name one")
    ctx = Context()
    tell = say(as_json)

    def one(unit: str) -> dict[str, Any]:
        run = lifecycle.start(ctx, unit, profile, tell)
        return lifecycle.finish_start(ctx, run, _waits(wait), tell)

    return each(units, as_json, one)


def _waits(wait: bool | None) -> bool:
    return sys.stdout.isatty() if wait is None else wait


@click.command(epilog=examples("stoker stop chat-8b", "stoker stop chat-8b small-1b --yes"))
@units_argument
@click.option(
    "--yes", "-y", is_flag=True, help="Interrupt a swap or start of the unit without asking."
)
@json_option
def stop(units: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Stop units: drain if the profile says so, ask, ask again, kill, verify.

    A swap, restart or start that goes on is interrupted, after a question.
    """
    from engine_ctl.operations import interrupting, lifecycle
    from engine_ctl.operations.context import Context

    units, as_json = operands(units, as_json)
    ctx = Context()
    tell = say(as_json)

    def one(unit: str) -> dict[str, Any]:
        try:
            return lifecycle.stop(ctx, unit, tell)
        except Busy as busy:
            found = interrupting.holder(ctx, unit)
            if found is None:
                raise
            if not yes and not sys.stdin.isatty():
                why = str(busy).removesuffix("; try again")
                raise Busy(f"{why}; to interrupt that: stoker stop {unit} --yes") from None
            doing = f"{found.command!r} (pid {found.who.pid}) is not over"
            confirm(f"{unit}: {doing}; interrupt it and stop?", yes)
            interrupting.interrupt(ctx, unit, found, tell)
            return lifecycle.stop(ctx, unit, tell)

    return each(units, as_json, one)


@click.command(epilog=examples("stoker restart chat-8b"))
@units_argument
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Of a unit that was down (default: on a terminal); one that runs is always waited for, "
    "since it may have to go back.",
)
@json_option
def restart(units: tuple[str, ...], wait: bool | None, as_json: bool) -> int:
    """Restart units with their profile files as they are now.

    The new configuration is checked first; if the new engine does not come up, the last good one
    is started again.
    """
    from engine_ctl.operations import lifecycle
    from engine_ctl.operations.context import Context

    units, as_json = operands(units, as_json)
    ctx = Context()
    tell = say(as_json)
    return each(units, as_json, lambda unit: lifecycle.restart(ctx, unit, tell, _waits(wait)))


@click.command()
@units_argument
@yes_option
@json_option
def remove(units: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Forget stopped units, with their runs and logs. Profiles stay."""
    from engine_ctl.operations import lifecycle
    from engine_ctl.operations.context import Context

    units, as_json = operands(units, as_json)
    ctx = Context()
    if not yes:
        for unit in units:
            lifecycle.known(ctx, unit)
    confirm(f"forget {', '.join(units)} with all runs and logs?", yes)
    return each(units, as_json, lambda unit: lifecycle.remove(ctx, unit, say(as_json)))


@click.command()
@yes_option
@json_option
def reap(yes: bool, as_json: bool) -> int:
    """End processes whose run is over and that still live (and may hold GPU memory)."""
    from engine_ctl.operations import reaping
    from engine_ctl.operations.context import Context

    ctx = Context()
    found = reaping.orphans(ctx)
    if not found:
        copied = reaping.of_an_original(ctx)
        if copied:
            raise Failed(copied)
        tidied = reaping.tidy(ctx)
        if as_json:
            emit_json({"reaped": [], "left": [], "tidied": tidied})
            return 0
        print("nothing to reap: every process of a run belongs to a live run")
        if tidied:
            print(f"removed sockets and shared memory that {', '.join(tidied)} had left")
        return 0
    if not as_json:
        for orphan in found:
            print(f"  {reaping.describe(orphan)}")
    confirm(f"end {len(found)} process{'es' if len(found) > 1 else ''}?", yes)
    reaped, left = reaping.reap(ctx, found)
    tidied = reaping.tidy(ctx)
    if as_json:
        emit_json({"reaped": reaped, "left": left, "tidied": tidied})
    else:
        print(f"ended {len(reaped)}" + (f"; still there: {left}" if left else ""))
    return 1 if left else 0
