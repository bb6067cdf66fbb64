"""Keeping what a comparison found: reports, and the best point as a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_ctl import atomic
from engine_ctl.errors import Failed, NotFound, StokerError, Usage
from engine_ctl.operations import catalogue
from engine_ctl.operations.context import Context
from engine_ctl.tune import journal, records
from engine_ctl.tune.points import BENCH, ENV, label, profile_of
from engine_ctl.tune.report import html, markdown
from engine_ctl.tune.rows import Comparison, Row
from engine_ctl.tune.settings import describe


def context_of(ctx: Context, found: Comparison) -> dict[str, str]:
    """What a report says of the runtime, the machine and the benchmark: of the first point."""
    for row in found.rows:
        if row.bench is None:
            continue
        try:
            record = records.load_bench(ctx.dirs, row.bench)
        except StokerError:
            continue
        hardware = record.hardware
        gpus = [str(gpu.get("name")) for gpu in hardware.get("gpus", ())]
        machine = ", ".join(gpus) or str(hardware.get("cpu") or "")
        return {
            "model": str(record.profile.get("model") or ""),
            "profile": record.profile_name,
            "runtime": f"vLLM {record.runtime.get('version')} ({record.runtime.get('platform')})",
            "machine": f"{hardware.get('host')}: {machine}",
            "benchmark": describe(record.settings),
        }
    return {}


def write_report(ctx: Context, found: Comparison, path: Path) -> None:
    """Write the report; the suffix says which kind (.html, .md). Raises Usage, Failed."""
    kinds = {".html": html, ".htm": html, ".md": markdown, ".markdown": markdown}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise Usage(f"{path}: a report is a .html or a .md file")
    try:
        atomic.write_bytes(path, kind(found, context_of(ctx, found)).encode(), mode=0o644)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror or error}") from None


def save_best(ctx: Context, found: Comparison, name: str, force: bool = False) -> str:
    """Write the best point as a profile of that name; its path.

    It extends the profile that was tuned and says only what differs, so that later changes of
    that profile reach it. Raises NotFound when nothing met the goal, Usage when the name is
    taken."""
    best = found.best
    if best is None:
        raise NotFound(found.sentence())
    path = catalogue.own_path(ctx, name)
    if path.exists() and not force:
        raise Usage(f"there is a profile {name!r} already ({path}); choose another name")
    if found.sweep is not None:
        return _extending(ctx, found.sweep, best, path)
    return _whole(ctx, best, name, force)


def _extending(ctx: Context, sweep: str, best: Row, path: Path) -> str:
    from profiles.writing import create, new_text

    made = journal.load(ctx.dirs, sweep)
    base = made.base.name
    if base not in ctx.profiles.names():
        base = made.base.path or base
    if base == path.stem:
        raise Usage(f"{path.stem!r} is the profile that was tuned; choose another name")
    values: dict[str, Any] = {"extends": base}
    sections: dict[str, dict[str, Any]] = {}
    for key, value in best.point.items():
        section, _, rest = key.partition(".")
        if key.startswith((BENCH, ENV)):
            sections.setdefault(section, {})[rest] = value
        else:
            sections.setdefault("args", {})[key] = value
    text = new_text(values | sections, f"best of sweep {sweep} for {made.goal}")
    if path.exists():
        path.unlink()
    create(path, text)
    # A parent may have changed since: what was measured must be what is saved.
    saved = ctx.profiles.load(path).profile
    wanted = profile_of(made.base, best.point, None)
    differs = [k for k, v in wanted.args.items() if saved.args.get(k) != v]
    if differs:
        raise Failed(
            f"{path} was saved, but {base} has changed since the sweep: "
            f"{', '.join(differs)} differ from what was measured ({label(best.point)})"
        )
    return str(path)


def _whole(ctx: Context, best: Row, name: str, force: bool) -> str:
    """Of a bench: the profile of the run that it measured."""
    from engine_ctl.operations import snapshots

    record = records.load_bench(ctx.dirs, best.bench or "")
    profile = snapshots.require(ctx.store.run(record.engine_run))
    return catalogue.save_profile(ctx, profile, name, force)
