"""`stoker profile …` and `stoker args`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from console.commands import completing
from console.commands.output import confirm, emit_json, examples, json_option, table, yes_option
from engine_ctl.errors import Failed, NotFound, Usage


@click.group(
    epilog=examples(
        "stoker profile import --name chat < run.sh",
        "stoker profile show chat --check",
        "stoker profile diff chat throughput",
        "stoker profile export chat --kind systemd",
    )
)
def profile() -> None:
    """Show, lint, compare, import, export and edit profiles.

    A NAME is a profile in the configuration directory, a built-in one, or the path of a file.
    """


@profile.command("list")
@json_option
def list_(as_json: bool) -> None:
    """All profiles: yours first, then the built-in ones."""
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context

    found = catalogue.summaries(Context())
    if as_json:
        emit_json({"profiles": found})
        return
    rows = [
        (p.name, "built-in" if p.builtin else "yours", p.model or "–", p.problem or p.notes)
        for p in found
    ]
    print(table(rows, ("profile", "whose", "model", "notes")))


@profile.command(
    short_help="Every value with its origin; the command line.",
    epilog=examples(
        "stoker profile show chat",
        "stoker profile show chat --check",
        "stoker profile show chat --all",
    ),
)
@click.argument("name", shell_complete=completing.profile)
@click.option("--check", "ask", is_flag=True, help="Ask the installed vLLM's own parser, too.")
@click.option("--all", "everything", is_flag=True, help="Include vLLM's defaults.")
@json_option
def show(name: str, ask: bool, everything: bool, as_json: bool) -> int:
    """Every value with where it came from, the exact command line and environment."""
    from engine_ctl.operations import catalogue, checking
    from engine_ctl.operations.context import Context

    ctx = Context()
    shown = catalogue.effective(ctx, name)
    checked = checking.check(ctx, name) if ask else None
    if as_json:
        emit_json({**shown.document(), **({"check": checked.document()} if checked else {})})
    else:
        print(shown.text(everything))
        if checked:
            print(checked.text())
    return 1 if checked and checked.errors else 0


@profile.command(
    epilog=examples(
        "stoker profile lint chat",
        "stoker profile lint chat --target 0.33",
        "stoker profile lint chat --from 0.32 --target 0.33",
    )
)
@click.argument("name", shell_complete=completing.profile)
@click.option(
    "--target",
    metavar="VERSION",
    help="The vLLM version to check against (default: the runtime's).",
)
@click.option(
    "--from",
    "before",
    metavar="VERSION",
    help="The version that it comes from (default: the oldest).",
)
@json_option
def lint(name: str, target: str | None, before: str | None, as_json: bool) -> int:
    """What is wrong, and with --target what breaks on that version. Exit code 1: it won't start."""
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context
    from profiles.lint import known
    from profiles.schema import SHIPPED

    for option, version in (("target", target), ("from", before)):
        if version is not None and known(version) is None:
            raise Usage(
                f"{version!r} is no vLLM version that can be told: name a release from 0.24 on, "
                f"e.g. --{option} {SHIPPED[-1]}"
            )
    if before is not None and target is None:
        raise Usage("--from goes with --target: the version that it is to run on")
    findings = catalogue.lint(Context(), name, target, before)
    if as_json:
        emit_json({"findings": findings})
    elif not findings:
        print("nothing found")
    else:
        for f in findings:
            print(f"{f.severity:5} {f.place or f.key}: {f.message}  [{f.rule}, {f.versions}]")
            if f.instead:
                print(f"      instead: {f.instead}")
    return 1 if any(f.severity in ("error", "fail") for f in findings) else 0


@profile.command(
    epilog=examples("stoker profile diff chat throughput", "stoker profile diff unit:chat-8b chat")
)
@click.argument("old", shell_complete=completing.compared)
@click.argument("new", shell_complete=completing.compared)
@json_option
def diff(old: str, new: str, as_json: bool) -> None:
    """What differs and what each change costs. `unit:NAME` is what a unit runs with now."""
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context

    changes = catalogue.diff(Context(), old, new)
    if as_json:
        emit_json({"changes": changes})
    elif not changes:
        print("no difference")
    else:
        rows = [(c.key, f"{c.old} → {c.new}", c.cost, c.note) for c in changes]
        print(table(rows, ("key", "change", "cost", "")))


@profile.command(
    "import",
    short_help="Take over what you run today.",
    epilog=examples(
        "stoker profile import --name chat < run.sh",
        "stoker profile import docker-compose.yaml",
        "stoker profile import --pid 41230 --name chat",
    ),
)
@click.argument("file", required=False, type=click.Path(), metavar="[FILE]")
@click.option("--from", "source", help="The same: a file, or - for standard input.")
@click.option("--pid", type=int, help="A running engine instead.")
@click.option(
    "--kind", help="shell, docker, compose, systemd, kubernetes, config (default: recognised)."
)
@click.option("--name", help="Save it under this name (otherwise it is only printed).")
@click.option("--force", is_flag=True, help="Replace a profile of that name.")
@json_option
def import_(
    file: str | None,
    source: str | None,
    pid: int | None,
    kind: str | None,
    name: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Take over a command line, script, container, unit file, manifest or running engine.

    Without FILE, what is on standard input.
    """
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import refuse_own
    from profiles.importing import import_pid, import_profile

    if len([given for given in (file, source, pid) if given is not None]) > 1:
        raise Usage("name one of FILE, --from and --pid")
    source = source or file or "-"
    ctx = Context()
    if pid is not None:
        refuse_own(ctx, pid)
        found = import_pid(pid, name=name)
    else:
        text = _text(None if source == "-" else source)
        passed = source == "-" or source.startswith("/dev/")
        base = Path.cwd() if passed else Path(source).absolute().parent
        found = import_profile(text, kind=kind, name=name, base=base)
    saved = catalogue.save_profile(ctx, found.profile, name, force) if name else None
    if as_json:
        emit_json(
            {
                "profile": catalogue.plain(found.profile),
                "unrepresented": found.unrepresented,
                "notes": found.notes,
                "kind": found.kind,
                "path": saved,
            }
        )
        return
    if saved:
        print(f"{found.kind} → {saved}")
    else:
        print(catalogue.yaml_text(found.profile), end="")
    for line in found.unrepresented:
        print(f"not represented: {line}", file=sys.stderr)
    for line in found.notes:
        print(f"note: {line}", file=sys.stderr)


def _text(path: str | None) -> bytes:
    """A file's bytes, or standard input's; never more than an import takes."""
    from profiles.importing import MAX_BYTES

    if path is None:
        if sys.stdin.isatty():
            print("paste it here; end with Ctrl-D on a line of its own", file=sys.stderr)
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else Failed
        raise kind(f"cannot read {path}: {error.strerror}") from None


@profile.command(
    epilog=examples(
        "stoker profile export chat > run.sh",
        "stoker profile export chat --kind compose > compose.yaml",
    )
)
@click.argument("name", shell_complete=completing.profile)
@click.option(
    "--kind",
    type=click.Choice(["shell", "compose", "systemd", "kubernetes", "config"]),
    default="shell",
    show_default=True,
    help="The launcher that it is for.",
)
@json_option
def export(name: str, kind: str, as_json: bool) -> None:
    """Write the profile for somebody else's launcher. Secrets stay references."""
    from engine_ctl.operations.context import Context
    from profiles.exporting import export_profile

    ctx = Context()
    text = export_profile(ctx.profiles.load(name).profile, kind)
    if as_json:
        emit_json({"kind": kind, "text": text})
    else:
        print(text, end="" if text.endswith("\n") else "\n")


@profile.command(epilog=examples("stoker profile schema > profile.schema.json"))
@json_option
def schema(as_json: bool) -> None:
    """The JSON Schema of a profile file, for completion in editors."""
    from profiles.jsonschema import json_schema

    print(json.dumps(json_schema(), indent=1))


@profile.command()
@click.argument("name", shell_complete=completing.profile)
@json_option
def path(name: str, as_json: bool) -> None:
    """Where the profile's file is."""
    from engine_ctl.operations.context import Context

    found = Context().profiles.path_of(name)
    if as_json:
        emit_json({"path": str(found)})
    else:
        print(found)


@profile.command(short_help="Open it in $EDITOR and lint what was saved.")
@click.argument("name", shell_complete=completing.profile)
@json_option
def edit(name: str, as_json: bool) -> int:
    """Open your profile in $EDITOR and lint what was saved.

    A built-in one is extended; a name that there is not yet begins a new file, which is not kept
    where nothing was written.
    """
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context

    ctx = Context()
    if not sys.stdin.isatty():
        raise Usage(f"editing needs a terminal; the file is that of: stoker profile path {name}")
    import shlex
    import subprocess

    there = "/" in name or catalogue.own_path(ctx, name).exists()
    file = catalogue.own_file(ctx, name)
    begun = file.read_bytes()
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        subprocess.run([*editor, str(file)], check=False)
    except OSError as error:
        raise Failed(f"cannot run {editor[0]} ({error.strerror}); set EDITOR") from None
    finally:
        if not there and file.exists() and file.read_bytes() == begun:
            file.unlink()
    if not file.exists():
        raise Usage(f"nothing was written: {name} is as it was")
    findings = catalogue.lint(ctx, str(file), None)
    if as_json:
        emit_json({"path": str(file), "findings": findings})
    else:
        for f in findings:
            print(f"{f.severity:5} {f.place or f.key}: {f.message}")
    return 1 if any(f.severity in ("error", "fail") for f in findings) else 0


@profile.command()
@click.argument("name", shell_complete=completing.own_profile)
@yes_option
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Delete one of your profile files."""
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context

    ctx = Context()
    file = catalogue.removable(ctx, name)
    confirm(f"delete {file}?", yes)
    file.unlink()
    if as_json:
        emit_json({"removed": str(file)})
    else:
        print(f"deleted {file}")


@click.command(
    epilog=examples("stoker args max-num", "stoker args attention --runtime vllm-0.33.0")
)
@click.argument("word", required=False, default="")
@click.option(
    "--runtime",
    "wanted",
    metavar="RUNTIME",
    help="Which runtime's vLLM (default: the best there is).",
    shell_complete=completing.runtime,
)
@json_option
def args(word: str, wanted: str | None, as_json: bool) -> None:
    """Search the arguments of the installed vLLM: names, aliases, choices, help."""
    from engine_ctl.operations import catalogue
    from engine_ctl.operations.context import Context

    version, found = catalogue.arguments(Context(), word, wanted)
    if as_json:
        emit_json({"version": version, "arguments": [catalogue.plain(a) for a in found]})
        return
    if not found:
        raise NotFound(f"no argument of vLLM {version} contains {word!r}")
    for argument in found:
        print(f"{', '.join(argument.options)}  {_about(argument)}")
        if argument.help:
            print(f"    {' '.join(argument.help.split())[:300]}")


def _about(argument: Any) -> str:
    parts = [argument.kind + (" …" if argument.many else "")]
    if argument.choices:
        parts.append("one of " + ", ".join(argument.choices))
    default = argument.default if argument.default is not None else argument.default_text
    if default not in (None, ""):
        parts.append(f"default {default}")
    return f"({'; '.join(parts)})"
