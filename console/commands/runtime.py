"""`stoker runtime …`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from console import terminal
from console.commands import completing
from console.commands.output import confirm, emit_json, examples, json_option, table, yes_option
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.progress import Report


@click.group(
    epilog=examples(
        "stoker runtime add /opt/vllm/bin/python",
        "stoker runtime add vllm==0.33.0",
        "stoker runtime check vllm-0.33.0",
    )
)
def runtime() -> None:
    """Add, list, check and remove vLLM installations."""


@contextmanager
def progress_report(title: str, quiet: bool = False) -> Iterator[Report]:
    """A progress bar on stderr; a line per step where stderr is no terminal."""
    if quiet:
        yield lambda text, share: None
        return
    if not sys.stderr.isatty():
        last = [""]

        def line(text: str, share: float) -> None:
            step = text.split(" ")[0]
            if step != last[0]:
                last[0] = step
                print(f"{title}: {text} ({share:.0%})", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(file=terminal.raw(sys.stderr)),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1.0, title=title)
        yield lambda text, share: bar.update(task, completed=share, description=text)


@runtime.command(
    short_help="Install vLLM, or remember one that is there.",
    epilog=examples(
        "stoker runtime add /opt/vllm/bin/python",
        "stoker runtime add vllm==0.33.0",
        "stoker runtime add cpu",
    ),
)
@click.argument("spec", metavar="cpu|vllm==VERSION|PYTHON")
@click.option("--name", help="How to call it (default: made from the version).")
@json_option
def add(spec: str, name: str | None, as_json: bool) -> None:
    """Add a runtime: install vLLM into a venv of its own, or remember an interpreter as it is.

    `cpu` is the CPU build from PyPI (about 2 minutes and 4 GB of disk, 6 GB free while it
    installs); `vllm==VERSION` the CUDA build (15 GB); a path is an interpreter that can import
    vLLM, its environment, or the `vllm` command there; nothing of it is changed.
    """
    from engine_ctl.runtimes import manage

    with progress_report(f"runtime {spec}", quiet=as_json) as report:
        made = manage.add(Dirs.from_env(), spec, report, name)
    if as_json:
        emit_json({"runtime": made})
    else:
        print(f"{made.name}: vLLM {made.version} ({made.platform}), {made.python}")


@runtime.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Known runtimes, and what could be added."""
    from engine_ctl.runtimes import manage
    from engine_ctl.runtimes.store import ADD, RuntimeStore, missing

    dirs = Dirs.from_env()
    store = RuntimeStore(dirs)
    runtimes, problems = store.all()
    unfinished = store.interrupted()
    found = manage.offer(dirs)
    if as_json:
        rows = [
            {
                "name": r.name,
                "version": r.version,
                "platform": r.platform,
                "python": r.python,
                "managed": r.managed,
                "problem": missing(r),
            }
            for r in runtimes
        ]
        offer = {"python": found[0], "why": found[1]} if found else None
        document = {"runtimes": rows, "problems": problems, "offer": offer}
        emit_json({**document, "interrupted": unfinished})
        return
    if runtimes:
        rows_ = [
            (r.name, r.version, r.platform, "managed" if r.managed else "yours", _state(r))
            for r in runtimes
        ]
        print(table(rows_, ("runtime", "vllm", "platform", "whose", "state")))
    else:
        print(f"no runtime yet; {ADD}")
    for problem in problems:
        print(f"damaged: {problem}", file=sys.stderr)
    for name in unfinished:
        print(
            f"{name}: its install goes on or was interrupted; run `stoker runtime add` again to "
            f"finish it, or: stoker runtime remove {name}",
            file=sys.stderr,
        )
    if found:
        print(f"{found[1]}; add it with: stoker runtime add {found[0]}")


def _state(runtime: object) -> str:
    from engine_ctl.runtimes.manage import is_stale
    from engine_ctl.runtimes.store import Runtime, missing

    assert isinstance(runtime, Runtime)
    if missing(runtime):
        return "gone"
    return (
        f"changed underneath; run: stoker runtime check {runtime.name}"
        if is_stale(runtime)
        else "ok"
    )


@runtime.command()
@click.argument("name", shell_complete=completing.runtime)
@json_option
def check(name: str, as_json: bool) -> None:
    """Import vLLM again and say what changed."""
    from engine_ctl.runtimes import manage

    fresh, changed = manage.check(Dirs.from_env(), name)
    if as_json:
        emit_json({"runtime": fresh, "changed": changed})
        return
    print(f"{fresh.name}: vLLM {fresh.version} ({fresh.platform}), torch {fresh.torch}: works")
    for line in changed:
        print(f"  {line}")


@runtime.command()
@click.argument("name", shell_complete=completing.runtime)
@yes_option
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Forget a runtime; one that Stoker installed is deleted from disk."""
    from engine_ctl.errors import Busy
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import users_of_runtime
    from engine_ctl.runtimes import manage
    from engine_ctl.runtimes.store import RuntimeStore

    dirs = Dirs.from_env()
    store = RuntimeStore(dirs)
    if name in store.interrupted():
        confirm(f"delete what the interrupted install of {name} left?", yes)
        manage.discard(dirs, name)
        if as_json:
            emit_json({"removed": name})
        else:
            print(f"{name}: deleted what the interrupted install left")
        return
    record = store.load(name)
    users = users_of_runtime(Context(dirs), record)
    if users:
        raise Busy(f"runtime {name} is used by {', '.join(users)}; stop them first")
    what = "delete" if record.managed else "forget"
    confirm(f"{what} runtime {name} ({record.python})?", yes)
    store.remove(name)
    if as_json:
        emit_json({"removed": name})
    else:
        print(f"{name}: {'deleted' if record.managed else 'forgotten'}")
