"""`stoker live UNIT …`: change a running engine without a restart."""

from __future__ import annotations

from typing import Any

import click

from console.commands import completing
from console.commands.output import confirm, emit_json, examples, json_option, yes_option

UNIT = "stoker.live.unit"


class _UnitFirst(click.Group):
    """`stoker live lora load …`, the unit forgotten, is told so."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        unit = str(ctx.params.get("unit"))
        if unit in self.commands and args and args[0] not in self.commands:
            words = " ".join((unit, *args))
            raise click.UsageError(f"the unit comes first: stoker live UNIT {words}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_UnitFirst,
    epilog=examples(
        "stoker live chat-8b status",
        "stoker live chat-8b lora load red ./red",
        "stoker live chat-8b sleep --level 1",
    ),
)
@click.argument("unit", shell_complete=completing.unit)
@click.pass_context
def live(ctx: click.Context, unit: str) -> None:
    """Change UNIT's running engine without a restart.

    Adapters need env VLLM_ALLOW_RUNTIME_LORA_UPDATING and enable_lora; the others
    VLLM_SERVER_DEV_MODE on a loopback host. What is missing is said.
    """
    ctx.meta[UNIT] = unit


def _unit() -> str:
    unit: str = click.get_current_context().meta[UNIT]
    return unit


def _report(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(done)
    else:
        print(f"{done['unit']}: {done['done']}")


@live.group(
    epilog=examples(
        "stoker live chat-8b lora load red ./red", "stoker live chat-8b lora unload red"
    )
)
def lora() -> None:
    """Load and unload adapters."""


@lora.command()
@click.argument("name")
@click.argument("path", type=click.Path())
@json_option
def load(name: str, path: str, as_json: bool) -> None:
    """Load the adapter in PATH; clients ask for it as model NAME."""
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context

    _report(operations.lora_load(Context(), _unit(), name, path), as_json)


@lora.command()
@click.argument("name")
@json_option
def unload(name: str, as_json: bool) -> None:
    """Unload the adapter NAME."""
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context

    _report(operations.lora_unload(Context(), _unit(), name), as_json)


@live.command("reset-prefix-cache")
@json_option
def reset_prefix_cache(as_json: bool) -> None:
    """Empty the prefix cache, as for a fair measurement."""
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context

    _report(operations.reset_prefix_cache(Context(), _unit()), as_json)


@live.command()
@click.option(
    "--level",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="As above.",
)
@yes_option
@json_option
def sleep(level: int, yes: bool, as_json: bool) -> None:
    """Free GPU memory without ending the process.

    Level 1 keeps the weights in host memory, 2 drops them, 0 only stops scheduling. Requests that
    run are aborted.
    """
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.load import running_requests
    from engine_ctl.operations.runs import require_live

    ctx = Context()
    running = running_requests(require_live(ctx, _unit()))
    if running:
        confirm(f"{running} requests run and are aborted; put {_unit()} to sleep?", yes)
    _report(operations.sleep(ctx, _unit(), level), as_json)


@live.command()
@json_option
def wake(as_json: bool) -> None:
    """Wake a sleeping engine."""
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context

    _report(operations.wake(Context(), _unit()), as_json)


@live.command(short_help="Adapters, sleep, and what can be changed.")
@json_option
def status(as_json: bool) -> None:
    """Adapters, sleep, and what can be changed live (or what the profile lacks for it)."""
    from engine_ctl.live import operations
    from engine_ctl.operations.context import Context

    found = operations.status(Context(), _unit())
    if as_json:
        emit_json(found)
        return
    state = {True: "sleeping", False: "awake", None: "does not say whether it sleeps"}
    print(f"{found['unit']}: {found['run']}, {state[found['sleeping']]}")
    for adapter in found["adapters"]:
        print(f"  adapter {adapter['name']}  {adapter['path'] or ''}")
    width = max(len(name) for name in found["actions"])
    for name, answer in found["actions"].items():
        print(f"  {name:{width}}  {'possible' if answer['possible'] else answer['why']}")
