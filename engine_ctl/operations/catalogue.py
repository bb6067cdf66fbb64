"""Profiles as commands and screens show them: lists, effective view, lint, difference, saving."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.answers import (
    ArgumentHelp,
    ChangeView,
    LintFinding,
    ProfileDetail,
    ProfileSummary,
    ProvenanceRow,
)
from engine_ctl.errors import NotFound, StokerError, Usage
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.machine_facts import machine_facts
from engine_ctl.operations.planning import added_words
from engine_ctl.operations.runs import run_of
from engine_ctl.runtimes.store import Runtime, choose
from profiles import diff as difference
from profiles.costs import NEW_RUNTIME
from profiles.effective import Effective
from profiles.effective import effective as effective_of
from profiles.importing import document
from profiles.lint import Finding
from profiles.lint import lint as lint_profile
from profiles.loading import Resolved
from profiles.model import Profile
from profiles.schema import Argument, ArgumentSchema


@dataclass(frozen=True, slots=True)
class Shown:
    """A profile's effective view, to print or to hand to scripts. `added`: the words that Stoker
    adds to the command line where a profile says nothing about them."""

    effective: Effective
    added: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The effective view, and in `added_argv` the words that a start has beside `argv`."""
        return {**self.effective.to_json(), "added_argv": list(self.added)}

    def text(self, everything: bool) -> str:
        rows = [row for row in self.effective.rows if everything or row.given]
        width = max((len(row.key) for row in rows), default=0)
        lines = [f"{row.key:{width}}  {_value(row.value)}  ({row.origin})" for row in rows]
        if self.effective.problem:
            lines.append(f"problem: {self.effective.problem}")
        if self.effective.argv is not None:
            lines += ["", _shell(["vllm", *self.effective.argv])]
        if self.added:
            lines.append(f"and, by Stoker: {_shell(list(self.added))}")
        if self.effective.preload_argv is not None:
            lines.append(_shell(["vllm", *self.effective.preload_argv]))
        lines += [f"{name}={value}" for name, value in self.effective.env.items()]
        return "\n".join(lines)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shell(words: list[str]) -> str:
    import shlex

    return shlex.join(words)


def runtime_of(ctx: Context, resolved: Resolved) -> Runtime | None:
    """The profile's runtime where there is one."""
    try:
        return choose(ctx.runtimes.all()[0], resolved.profile.runtime)
    except NotFound:
        return None


def effective(ctx: Context, name: str) -> Shown:
    from engine_ctl.weights.socket_dir import shown

    resolved = shown(ctx.store, ctx.profiles.load(name), os.environ)
    runtime = runtime_of(ctx, resolved)
    schema = ctx.schema_for(runtime)
    added = added_words(resolved.profile, runtime, schema) if runtime is not None else []
    return Shown(effective_of(resolved, schema), tuple(added))


def lint(
    ctx: Context, name: str, target: str | None, before: str | None = None
) -> tuple[Finding, ...]:
    """Findings for `target`, by default the version of the profile's own runtime; with `before`
    without the notes on what changed up to that version."""
    return lint_resolved(ctx, ctx.profiles.load(name), target, before)


def lint_resolved(
    ctx: Context, resolved: Resolved, target: str | None, before: str | None = None
) -> tuple[Finding, ...]:
    runtime = runtime_of(ctx, resolved)
    current = runtime.version if runtime else None
    facts = machine_facts(resolved.profile, runtime)
    if target is not None or current is None:
        return lint_profile(resolved, target, facts=facts, current=before)
    # On its own runtime, what behaves differently since older versions is no news.
    schema = ctx.schema_for(runtime)
    news = {f.rule for f in lint_profile(resolved, current, schema, facts, current=current)}
    found = lint_profile(resolved, current, schema, facts)
    return tuple(f for f in found if f.severity != "note" or f.rule in news)


def side(ctx: Context, name: str) -> Profile:
    """A profile by name or file; `unit:NAME` is what that unit runs with now."""
    if name.startswith("unit:"):
        return snapshots.require(run_of(ctx, name.removeprefix("unit:")))
    return ctx.profiles.load(name).profile


def diff(ctx: Context, old: str, new: str) -> tuple[ChangeView, ...]:
    found = changes(side(ctx, old), side(ctx, new), None)
    return with_installations(found, _installation(ctx, old), _installation(ctx, new))


def _installation(ctx: Context, name: str) -> str | None:
    """The runtime that a side of a difference runs on, or would."""
    if name.startswith("unit:"):
        return run_of(ctx, name.removeprefix("unit:")).spec().runtime
    runtime = runtime_of(ctx, ctx.profiles.load(name))
    return runtime.name if runtime is not None else None


def with_installations(
    found: tuple[ChangeView, ...], before: str | None, after: str | None
) -> tuple[ChangeView, ...]:
    """The changes with what becomes of the runtime: a profile that names none may run on the same
    one as before, or on one that was added since."""
    if before is None or after is None:
        return found
    others = tuple(change for change in found if change.key != "runtime")
    named = tuple(change for change in found if change.key == "runtime")
    if before != after:
        return (named or (ChangeView("runtime", before, after, NEW_RUNTIME),)) + others
    note = f"{after} for both"
    return others + tuple(replace(change, cost="unchanged", note=note) for change in named)


def changes(
    before: Profile, after: Profile, schema: ArgumentSchema | None
) -> tuple[ChangeView, ...]:
    """Differences with what each costs, dearest first."""
    return tuple(
        ChangeView(
            key=change.key,
            old=_value(change.before) if change.before is not None else "–",
            new=_value(change.after) if change.after is not None else "–",
            cost=change.cost,
            note="; ".join(
                filter(None, (change.note, "compile cache misses" if change.compile_miss else ""))
            ),
        )
        for change in difference.diff(before, after, schema)
    )


def yaml_text(profile: Profile) -> str:
    import yaml

    return yaml.safe_dump(document(profile), sort_keys=False, allow_unicode=True, width=100)


def plain(value: Any) -> Any:
    """A record as plain data; secrets in arguments and environment are masked."""
    from profiles.diff import masked
    from profiles.effective import mask_arguments

    data = msgspec.to_builtins(value)
    if isinstance(value, Profile):
        data["args"] = mask_arguments(data["args"])
        data["env"] = {name: masked(name, item) for name, item in data["env"].items()}
    return data


def save_profile(ctx: Context, profile: Profile, name: str, force: bool) -> str:
    """Write a new profile file; returns its path. Raises Usage when there is one."""
    from profiles.writing import create

    path = own_path(ctx, name)
    if _there(path) and not force:
        raise Usage(f"there is a profile {name!r} already ({path}); use --force to replace it")
    create(path, yaml_text(profile), replace=force)
    return str(path)


def save_text(ctx: Context, name: str, text: str) -> str:
    """Write the operator's own file of that name whole, after checking that it can be read."""
    from profiles.writing import create

    path = own_path(ctx, name)
    create(path, text, replace=True)
    return str(path)


def own_file(ctx: Context, name: str) -> Path:
    """The operator's file to edit; for a built-in or new name one that extends it is made."""
    if "/" in name:
        return ctx.profiles.path_of(name)
    from profiles.writing import create

    path = own_path(ctx, name)
    if not path.exists():
        create(path, f"extends: {name}\n" if name in ctx.profiles.names() else "model: \n")
    return path


def removable(ctx: Context, name: str) -> Path:
    """The operator's file of that name. Raises NotFound; built-in profiles cannot be removed."""
    path = own_path(ctx, name)
    if not path.exists():
        if name in ctx.profiles.names():
            raise Usage(f"{name} is built in and stays; your own are in {path.parent}")
        raise NotFound(f"no profile {name} of yours; see: stoker profile list")
    return path


def own_path(ctx: Context, name: str) -> Path:
    """The operator's file of that name, there or not. Raises Usage for what is no name."""
    plain = re.fullmatch(r"\w[\w.-]*", name) is not None
    path = ctx.dirs.profiles / f"{name.removesuffix('.yaml')}.yaml"
    other = path.with_suffix(".yml")
    path = other if _there(other) and not _there(path) else path
    # A file that an operator named otherwise can still be edited and removed.
    if "/" in name or name.startswith((".", "-")) or not (plain or _there(path)):
        raise Usage(
            f"{name!r} cannot name a profile: use letters, digits, . _ - (not . or - first)"
        )
    return path


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def summaries(ctx: Context) -> tuple[ProfileSummary, ...]:
    """All profiles, the operator's own first; one that does not read says why."""
    users: dict[str, list[str]] = {}
    for record in ctx.store.list_units().units:
        users.setdefault(record.profile, []).append(record.unit)
    own = {path.stem for path in ctx.profiles.user_files()}
    found = [
        _summary(ctx, path, path.stem in own and ctx.profiles.is_builtin(path), users)
        for path in (*ctx.profiles.user_files(), *ctx.profiles.builtin_files())
    ]
    return tuple(found)


def _summary(ctx: Context, path: Path, hidden: bool, users: dict[str, list[str]]) -> ProfileSummary:
    builtin = ctx.profiles.is_builtin(path)
    try:
        profile = ctx.profiles.load(path).profile
    except StokerError as error:
        return ProfileSummary(path.stem, str(path), builtin, problem=str(error))
    return ProfileSummary(
        name=path.stem,
        path=str(path),
        builtin=builtin,
        model=profile.model,
        runtime=profile.runtime,
        tags=profile.tags,
        notes=profile.notes.strip().split("\n")[0],
        units=() if hidden else tuple(users.get(path.stem, ())),
        problem="hidden by your own profile of that name" if hidden else "",
    )


def detail(ctx: Context, name: str) -> ProfileDetail:
    """One profile in full, for the profile screen."""
    path = ctx.profiles.path_of(name)
    text = path.read_text(errors="replace")
    users: dict[str, list[str]] = {}
    for record in ctx.store.list_units().units:
        users.setdefault(record.profile, []).append(record.unit)
    summary = _summary(ctx, path, False, users)
    if summary.problem:
        finding = LintFinding("parse", "error", "", summary.problem)
        return ProfileDetail(summary, text, findings=(finding,))
    found = effective(ctx, str(path))
    shown = found.effective
    rows = [
        ProvenanceRow(_section(row.key), row.key, _value(row.value), row.origin)
        for row in shown.rows
        if row.given
    ]
    return ProfileDetail(
        summary=summary,
        text=text,
        values=tuple(rows),
        argv=("vllm", *(shown.argv or ())),
        added=found.added,
        env=tuple(shown.env.items()),
        findings=findings_of(lint(ctx, str(path), None)),
    )


def _section(key: str) -> str:
    return key.partition(".")[0] if "." in key else "profile"


def findings_of(found: tuple[Finding, ...]) -> tuple[LintFinding, ...]:
    severity = {"error": "error", "fail": "error", "note": "info"}
    return tuple(
        LintFinding(
            f.rule, severity.get(f.severity, f.severity), f.key, f.message, f.instead, _line(f)
        )
        for f in found
    )


def _line(finding: Finding) -> int | None:
    tail = finding.place.rpartition(":")[2]
    return int(tail) if tail.isdigit() else None


def lint_text(ctx: Context, name: str, text: str) -> tuple[LintFinding, ...]:
    """Findings for text that is not saved yet; a text that does not parse is one finding."""
    try:
        path = ctx.profiles.path_of(name)
    except StokerError:
        path = own_path(ctx, name)
    try:
        resolved = ctx.profiles.load_text(text, path)
    except StokerError as error:
        line = getattr(error, "line", None)
        return (LintFinding("parse", "error", "", str(error), line=line),)
    return findings_of(lint_resolved(ctx, resolved, None))


def arguments(
    ctx: Context, word: str, wanted: str | None = None
) -> tuple[str, tuple[Argument, ...]]:
    """(version, arguments whose name, alias or help contains `word`)."""
    runtimes = ctx.runtimes.all()[0]
    runtime = choose(runtimes, wanted) if runtimes or wanted else None
    schema = ctx.schema_for(runtime)
    return schema.version, tuple(schema.search(word))


def completions(ctx: Context, prefix: str, runtime: str | None) -> tuple[ArgumentHelp, ...]:
    """Arguments for the editor's completion."""
    _, found = arguments(ctx, prefix, runtime)
    return tuple(
        ArgumentHelp(
            name=a.name,
            type=a.kind,
            default="" if a.default is None else _value(a.default),
            choices=a.choices,
            group=a.group,
            help=a.help,
        )
        for a in found
    )
