"""`stoker forecast | swap | undo`."""

from __future__ import annotations

import click

from console.commands import completing
from console.commands.lifecycle import say
from console.commands.output import emit_json, examples, json_option, looked_at, yes_option
from engine_ctl.errors import Usage


@click.command(epilog=examples("stoker forecast chat-8b", "stoker forecast chat-8b throughput"))
@looked_at
@click.argument("profile", required=False, shell_complete=completing.profile)
@json_option
def forecast(unit: str | None, profile: str | None, as_json: bool) -> int:
    """What a start or swap would meet: changes with costs, weights verdict, seconds, errors.

    Nothing is touched. Exit code 1: the start would be refused.
    """
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit
    from engine_ctl.swap.forecast import forecast as ask
    from engine_ctl.swap.forecast import text

    ctx = Context()
    found = ask(ctx, unit or only_unit(ctx), profile)
    if as_json:
        emit_json(found)
    else:
        print(text(found))
    return 1 if found.errors else 0


@click.command(
    epilog=examples(
        "stoker swap chat-8b throughput", "stoker swap chat-8b ./next.yaml", "stoker undo chat-8b"
    )
)
@click.argument("unit", shell_complete=completing.unit)
@click.argument("profile", required=False, shell_complete=completing.profile)
@click.option("--no-rollback", is_flag=True, help="Leave the unit down if the new engine fails.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted swap.")
@json_option
def swap(unit: str, profile: str | None, no_rollback: bool, resume: bool, as_json: bool) -> int:
    """Replace UNIT's engine by one with PROFILE; if that does not come up, go back."""
    from engine_ctl.operations import swapping
    from engine_ctl.operations.context import Context

    ctx = Context()
    if resume:
        return _report(swapping.resume(ctx, unit, say(as_json)), as_json)
    if profile is None:
        raise Usage("name the profile to swap to, or --resume")
    return _report(
        swapping.swap_to(ctx, unit, profile, say(as_json), rollback=not no_rollback), as_json
    )


@click.command(epilog=examples("stoker undo chat-8b", "stoker undo chat-8b --yes"))
@click.argument("unit", shell_complete=completing.unit)
@yes_option
@json_option
def undo(unit: str, yes: bool, as_json: bool) -> int:
    """Swap UNIT back to what it ran with before."""
    from console.commands.output import confirm
    from engine_ctl.operations import swapping
    from engine_ctl.operations.context import Context

    ctx = Context()
    target = swapping.undo_target(ctx, unit)
    confirm(f"swap {unit} back to {target.profile.name}?", yes)
    return _report(swapping.undo(ctx, unit, say(as_json)), as_json)


def _report(done: object, as_json: bool) -> int:
    from engine_ctl.swap.journal import Outcome, SwapRecord

    if done is None:
        if as_json:
            emit_json({"outcome": None})
        else:
            print("nothing to resume")
        return 0
    assert isinstance(done, SwapRecord)
    if as_json:
        emit_json(
            {
                "unit": done.unit,
                "outcome": done.outcome,
                "reason": done.reason or None,
                "from": done.old_profile.name if done.old_profile else None,
                "to": done.profile.name,
                "run": done.new_run if done.outcome == Outcome.COMMITTED else done.old_run,
                "seconds": done.seconds,
                "down_s": done.down_s,
                "proof": done.proof,
            }
        )
    else:
        why = f": {done.reason}" if done.reason else ""
        print(f"{done.unit}: {done.outcome} in {done.seconds:.1f} s{why}")
    return 0 if done.outcome == Outcome.COMMITTED else 1
