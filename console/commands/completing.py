"""What TAB offers for a UNIT, a PROFILE, a runtime: names that there are. Never an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click

    from engine_ctl.operations.context import Context

Completer = Callable[["click.Context", "click.Parameter", str], list[CompletionItem]]


def _offering(names: Callable[[Context], Iterable[str]], kind: str | None = None) -> Completer:
    """A completer that offers `names`, and where none begins so, paths of `kind` (file, dir)."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from engine_ctl.operations.context import Context

        given = ctx.params.get(param.name or "")
        used = given if isinstance(given, tuple) else ()
        try:
            found = [
                name
                for name in dict.fromkeys(names(Context()))
                if name.startswith(incomplete) and name not in used
            ]
        except Exception:
            # A state directory that is refused says so when the command runs.
            found = []
        if not found and kind is not None:
            return [CompletionItem(incomplete, type=kind)]
        return [CompletionItem(name) for name in found]

    return complete


def _units(ctx: Context) -> Iterable[str]:
    return (record.unit for record in ctx.store.list_units().units)


def _profiles(ctx: Context) -> Iterable[str]:
    return ctx.profiles.names()


def _own_profiles(ctx: Context) -> Iterable[str]:
    return (path.stem for path in ctx.profiles.user_files())


def _startable(ctx: Context) -> Iterable[str]:
    return [*_units(ctx), *_own_profiles(ctx)]


def _runtimes(ctx: Context) -> Iterable[str]:
    return [*ctx.runtimes.names(), *ctx.runtimes.interrupted()]


def _compared(ctx: Context) -> Iterable[str]:
    return [*_profiles(ctx), *(f"unit:{name}" for name in _units(ctx))]


def _measured(ctx: Context) -> Iterable[str]:
    from engine_ctl.tune.records import ids

    return [*ids(ctx.dirs, "s"), *ids(ctx.dirs, "b")]


unit = _offering(_units)
startable = _offering(_startable)
profile = _offering(_profiles, "file")
own_profile = _offering(_own_profiles)
compared = _offering(_compared, "file")
runtime = _offering(_runtimes)
measured = _offering(_measured)
