"""Ended runs that nothing points at are forgotten after a while; the history keeps their rows.

Kept are the newest `keep` ended runs of each unit (runs.yaml), every run that lives or whose end
nobody saw, the current one, what `undo` and a rollback go back to, and whatever a bench, a sweep, a
swap, a live run or a front names.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import StokerError, Usage
from engine_ctl.identity import boot_id
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness, orphans, remains
from engine_ctl.supervise.liveness import Life
from engine_ctl.swap.good import placed, settled_runs
from profiles.diff import diff

NAME = "runs.yaml"
_RUN = re.compile(rb'"([a-z0-9][a-z0-9_.-]{0,63}/[1-9][0-9]*)"')
_REFERRING = (
    "units/*/current.json",
    "units/*/swap.json",
    "units/*/front.json",
    "tune/benches/*/bench.json",
    "tune/sweeps/*/sweep.json",
    "tune/sweeps/*/journal.jsonl",
)
_GRAVE = ".forgotten-"


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """runs.yaml in the configuration directory. `keep`: ended runs of each unit; or "all"."""

    keep: int | Literal["all"] = 50


def settings(dirs: Dirs) -> RunSettings:
    """The operator's, the defaults without a file. Raises Usage with the file's name."""
    path = dirs.config / NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return RunSettings()
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    import yaml

    try:
        found = msgspec.convert(yaml.safe_load(text) or {}, RunSettings)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise Usage(f"{path}: {error}") from None
    if isinstance(found.keep, int) and found.keep < 1:
        raise Usage(f"{path}: keep is at least 1, or all")
    return found


def prune(ctx: Context) -> list[str]:
    """Forget what may be forgotten, of every unit; the ids. Never fails the start that calls it."""
    forgotten: list[str] = []
    try:
        orphans.tidy(ctx.store)
        keep = settings(ctx.dirs).keep
        if keep != "all":
            forgotten = _prune(ctx, keep)
    except Usage as error:
        ctx.event(None, str(error), "warning")
    except (StokerError, OSError):
        pass
    return forgotten


def _prune(ctx: Context, keep: int) -> list[str]:
    many = {
        record.unit: runs
        for record in ctx.store.list_units().units
        if len(runs := ctx.store.runs(record.unit)) > keep
    }
    if not many:
        return []
    named = references(ctx)
    dead: list[Run] = []
    for unit, runs in many.items():
        ended = [run for run in runs if _is_over(run)]
        wanted = named | {run.id for run in _good(ctx, unit)}
        dead += [run for run in ended[:-keep] if run.id not in wanted]
    if not dead:
        return []
    _enter(ctx)
    gone = [run for run in dead if _forget(run)]
    for unit in sorted({run.unit for run in gone}):
        count = sum(run.unit == unit for run in gone)
        ctx.event(unit, f"forgot {count} old run{'s' if count > 1 else ''} ({NAME}: keep {keep})")
    return [run.id for run in gone]


def references(ctx: Context) -> set[str]:
    """Ids of runs that records of other things name."""
    found: set[str] = set()
    for pattern in _REFERRING:
        for path in ctx.store.root.glob(pattern):
            found |= _named_in(path)
    for record in ctx.store.list_units().units:
        for run in ctx.store.runs(record.unit):
            if not (run.dir / "exit.json").exists() and not _is_over(run):
                found.add(run.id)
                for name in ("spec.json", "weights.json"):
                    found |= _named_in(run.dir / name)
    return found


def _named_in(path: Path) -> set[str]:
    try:
        return {match.decode() for match in _RUN.findall(atomic.regular_bytes(path))}
    except OSError:
        return set()


def _is_over(run: Run) -> bool:
    """True when the end is known and nothing of the run can be alive."""
    try:
        life = liveness.look(run)
    except StokerError:
        return False  # damaged: for the operator to look at
    facts = life.facts
    if facts.shim_holds or facts.leader_alive:
        return False
    if life.life is Life.LOST:
        return facts.identity is not None and not facts.same_boot
    here = facts.exit is not None and facts.exit.boot == boot_id()
    return life.ended and not (here and facts.exit is not None and facts.exit.remaining)


def _good(ctx: Context, unit: str) -> Iterable[Run]:
    """The newest good run, and the newest with something else: what `undo` may lead to."""
    first = None
    for run, profile in settled_runs(ctx.store, unit):
        shown = placed(profile, run)
        if first is None:
            first = shown
            yield run
        elif shown.name != first.name or diff(shown, first):
            yield run
            return


def _enter(ctx: Context) -> None:
    """Every start into the history, whose rows stay. Raises Failed when that cannot be done."""
    from engine_ctl.tune import history

    with history.opened(ctx.dirs) as book:
        book.add_starts(ctx.store)


def _forget(run: Run) -> bool:
    grave = run.dir.with_name(f"{_GRAVE}{run.number}")
    remains.remove(str(run.dir))
    try:
        run.dir.rename(grave)
    except OSError:
        return False
    for path in run.dir.parent.glob(f"{_GRAVE}*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(path, ignore_errors=True)
    return True
