"""`stoker weights` and `stoker preload …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from console.commands import completing
from console.commands.lifecycle import say, wait_option
from console.commands.output import (
    confirm,
    emit_json,
    examples,
    json_option,
    looked_at,
    table,
    yes_option,
)
from console.view.numbers import size

if TYPE_CHECKING:
    from engine_ctl.operations.weights_plan import PreloadPlan


@click.command(epilog=examples("stoker weights", "stoker weights --fields"))
@click.option("--fields", is_flag=True, help="The fingerprints, field by field.")
@json_option
def weights(fields: bool, as_json: bool) -> None:
    """Preload daemons: ranks, sockets, fingerprints, clients and verdicts."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.weights_views import views

    found = views(Context())
    if as_json:
        emit_json({"daemons": found})
        return
    if not found:
        print("no preload daemon; a profile with `preload: {}` gets one at its unit's start")
        return
    rows = [
        (
            d.name,
            "–" if d.gpu is None else str(d.gpu),
            d.phase or "–",
            size(d.weights_bytes),
            d.socket_state,
            ", ".join(d.clients) or "–",
            ", ".join(f"{count} {name}" for name, count in d.verdicts) or "–",
        )
        for d in found
    ]
    print(table(rows, ("daemon", "gpu", "state", "weights", "socket", "clients", "verdicts"), (3,)))
    for daemon in found:
        if daemon.foreign:
            print(f"  {daemon.name}: {daemon.foreign}: {daemon.socket}")
        for reason in daemon.reload:
            print(
                f"  {daemon.name}: reload needed? {reason}; see: stoker preload plan {daemon.unit}"
            )
    for daemon in found if fields else ():
        print(f"\n{daemon.name}  {daemon.socket}")
        for row in daemon.fields:
            other = "  ".join(f"{unit}: {'=' if v is None else v}" for unit, v in row.engines)
            print(f"  {row.field:28} {row.daemon}  {other}".rstrip())


@click.group(
    epilog=examples(
        "stoker preload plan chat-8b",
        "stoker preload start chat-8b",
        "stoker preload reload chat-8b --yes",
    )
)
def preload() -> None:
    """Start, stop, reload or release the daemon that keeps a unit's weights warm.

    UNIT is an engine unit, a profile, or the daemon's own unit (`UNIT-weights`).
    """


@preload.command(short_help="What the daemon would be; starts nothing.")
@looked_at
@click.option("--fields", is_flag=True, help="The fingerprints, field by field.")
@json_option
def plan(unit: str | None, fields: bool, as_json: bool) -> int:
    """What the daemon would be: every rank's GPU, the fingerprints, each node's command, what is
    in the way, and why the running one would have to be loaded again. Starts nothing."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit
    from engine_ctl.operations.weights_plan import preload_plan

    ctx = Context()
    found = preload_plan(ctx, unit or only_unit(ctx))
    if as_json:
        emit_json(found)
    else:
        _print_plan(found, fields)
    return 1 if found.problems else 0


def _print_plan(found: PreloadPlan, fields: bool) -> None:
    import shlex

    print(f"{found.unit}: profile {found.profile}, {found.nodes} node{'s' * (found.nodes > 1)}")
    rows = [
        (str(r.node), str(r.local_rank), str(r.global_rank), r.label, str(r.gpu))
        for r in found.ranks
    ]
    print(table(rows, ("node", "local", "rank", "place", "gpu"), (0, 1, 2)))
    for key in found.keys:
        print(f"  {key.role} {key.rank}: {key.device or '–'}  {key.socket or 'no socket'}")
        for name, value in key.fields.items() if fields else ():
            print(f"    {name:28} {value}")
    for node in found.commands if found.nodes > 1 else found.commands[:1]:
        for words in (node.preload, node.serve):
            # A reference such as "$TOKEN" is for the shell; it is quoted already.
            text = " ".join(w if w.startswith('"$') else shlex.quote(w) for w in words)
            print(f"  node {node.node}: {text}")
    for line in found.problems:
        print(f"  in the way: {line}")
    for line in found.warnings:
        print(f"  note: {line}")
    if found.running is not None:
        for line in found.reload:
            print(f"  reload needed: {line}")
        if not found.reload and not found.problems:
            print(f"  {found.running} holds these weights")


@preload.command()
@click.argument("unit", shell_complete=completing.unit)
@wait_option
@json_option
def start(unit: str, wait: bool | None, as_json: bool) -> None:
    """Start the daemon of the unit's profile."""
    from console.commands.lifecycle import _waits
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.weights import preload_start

    run = preload_start(Context(), unit, say(as_json), _waits(wait))
    _report(as_json, {"unit": run.unit, "run": run.id, "ready": run.ready() is not None})


@preload.command(short_help="Stop the daemon; engines keep serving.")
@click.argument("unit", shell_complete=completing.unit)
@yes_option
@json_option
def stop(unit: str, yes: bool, as_json: bool) -> None:
    """Stop the daemon; engines that map its weights keep serving and own the memory then."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.weights import consequences, preload_stop

    ctx = Context()
    follows = consequences(ctx, unit)
    if follows:
        confirm(f"stop the daemon? {'; '.join(follows)}", yes)
    done = preload_stop(ctx, unit, confirmed=True, tell=say(as_json))
    if as_json:
        emit_json(done)


@preload.command(short_help="Load again what the profile says now.")
@click.argument("unit", shell_complete=completing.unit)
@yes_option
@wait_option
@json_option
def reload(unit: str, yes: bool, wait: bool | None, as_json: bool) -> None:
    """Load again what the profile says now; planned in full before the old daemon is ended."""
    from console.commands.lifecycle import _waits
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.weights import consequences, preload_reload

    ctx = Context()
    follows = consequences(ctx, unit)
    if follows:
        confirm(f"reload? {'; '.join(follows)}", yes)
    run = preload_reload(ctx, unit, True, say(as_json), _waits(wait))
    _report(as_json, {"unit": run.unit, "run": run.id, "ready": run.ready() is not None})


@preload.command(short_help="Let the daemon drop its weights.")
@click.argument("unit", shell_complete=completing.unit)
@yes_option
@json_option
def release(unit: str, yes: bool, as_json: bool) -> None:
    """Let the daemon drop its weights without ending it; the next start loads from disk."""
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.weights import known, preload_release

    ctx = Context()
    known(ctx, unit)
    confirm(f"release the weights of {unit}? the next start loads from disk", yes)
    done = preload_release(ctx, unit)
    _report(as_json, {"unit": unit, "states": [d.state for d in done]})
    if not as_json:
        print(f"{unit}: the daemon holds no weights now; again: stoker preload reload {unit}")


def _report(as_json: bool, document: dict[str, Any]) -> None:
    if as_json:
        emit_json(document)
