"""`stoker standby …`"""

from __future__ import annotations

import click

from console.commands import completing
from console.commands.lifecycle import say
from console.commands.output import emit_json, examples, json_option, table


@click.group(
    epilog=examples("stoker standby list", "stoker standby start chat", "stoker standby stop")
)
def standby() -> None:
    """Processes with vLLM imported, from which engines start in seconds."""


@standby.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Live standbys and what each costs."""
    from engine_ctl.operations.context import Context
    from engine_ctl.standby.lifecycle import listing

    found = listing(Context().store)
    if as_json:
        emit_json(
            {
                "standbys": [
                    {
                        "unit": s.unit,
                        "runtime": s.runtime,
                        "ready": s.ready,
                        "memory_bytes": s.cost,
                        "pid": s.hello.pid if s.hello else None,
                    }
                    for s in found
                ]
            }
        )
        return
    rows = [
        (
            s.unit,
            s.runtime,
            "ready" if s.ready else "importing",
            "–" if s.cost is None else f"{s.cost / (1 << 30):.1f} GiB",
        )
        for s in found
    ]
    print(table(rows, ("standby", "runtime", "state", "memory"), (3,)) if rows else "no standby")


@standby.command()
@click.argument("profile", shell_complete=completing.profile)
@json_option
def start(profile: str, as_json: bool) -> None:
    """Make the standby that PROFILE needs, and wait until it answers."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.standbys import for_profile

    found = for_profile(Context(), profile, say(as_json))
    if as_json:
        emit_json({"unit": found.unit, "ready": found.ready, "memory_bytes": found.cost})
    else:
        print(f"{found.unit}: ready")


@standby.command()
@click.argument("units", nargs=-1, metavar="[UNIT...]", shell_complete=completing.unit)
@json_option
def stop(units: tuple[str, ...], as_json: bool) -> None:
    """End standbys (all of them when none is named). Engines go on."""
    from engine_ctl.operations.context import Context
    from engine_ctl.standby import lifecycle

    ctx = Context()
    for name in units:
        ctx.store.load(name)
    names = units or tuple(s.unit for s in lifecycle.listing(ctx.store))
    ended = [name for name in names if lifecycle.stop(ctx.store, name, by=ctx.by)]
    if as_json:
        emit_json({"stopped": ended})
    else:
        print("stopped: " + (", ".join(ended) or "none was running"))
