"""The `stoker` command: a lazy group, so that `stoker --help` imports no command."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from console import terminal
from engine_ctl.errors import StokerError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo:demo", "Serve a tiny real model under supervision and open the console on it."),
    "start": ("lifecycle:start", "Start units (with --profile: make the unit first)."),
    "stop": ("lifecycle:stop", "Stop units by the stop ladder and verify that nothing is left."),
    "restart": ("lifecycle:restart", "Restart units with their profile files as they are now."),
    "remove": ("lifecycle:remove", "Forget stopped units, with their runs and logs."),
    "ps": ("look:ps", "Every unit and its current run."),
    "runs": ("look:runs", "The history of a unit's runs."),
    "logs": ("look:logs", "A unit's log (-f to follow)."),
    "why": ("look:why", "Why a run failed or fell back: cause, line and the knob to turn."),
    "starts": ("look:starts", "Every start by phases, and what mapping saved against disk."),
    "phases": ("look:phases", "Where the seconds of a start went."),
    "events": ("look:events", "What happened and who did it."),
    "memory": ("state:memory", "Who holds what on each GPU, and what would start now."),
    "queues": ("state:queues", "Scheduler queues of running engines, by rank."),
    "kernels": ("state:kernels", "What runs underneath an engine."),
    "reap": ("lifecycle:reap", "End processes whose run is over and that still hold memory."),
    "forecast": ("swapping:forecast", "What a start would meet, before anything is stopped."),
    "swap": ("swapping:swap", "Replace a unit's engine by one with another profile, or go back."),
    "undo": ("swapping:undo", "Swap back to the previous profile."),
    "live": ("live:live", "Change a running engine without a restart: LoRA, sleep, wake, cache."),
    "weights": ("weights:weights", "Preload daemons, fingerprints and verdicts."),
    "preload": ("weights:preload", "Start, stop, reload or release a unit's preload daemon."),
    "standby": ("standby:standby", "Processes with vLLM imported, waiting to fork an engine."),
    "profile": ("profile:profile", "Show, lint, compare, import, export and edit profiles."),
    "args": ("profile:args", "Search the arguments of the installed vLLM."),
    "runtime": ("runtime:runtime", "Add, list, check and remove vLLM installations."),
    "bench": ("tuning:bench", "Measure a running engine with vLLM's own benchmark."),
    "sweep": ("tuning:sweep", "Try many settings through the swap path and compare them."),
    "compare": ("tuning:compare", "Benches and sweeps side by side; HTML and Markdown reports."),
    "history": ("history:history", "Every start and bench, searchable; CSV export."),
}


INTERRUPTED = (
    "interrupted; an engine that was started goes on, and a swap is finished by the next command: "
    "stoker ps"
)


class LazyGroup(click.Group):
    """Commands by name from COMMANDS, imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        loaded = getattr(importlib.import_module(f"console.commands.{module}"), attribute)
        assert isinstance(loaded, click.Command)
        loaded.help = loaded.help or COMMANDS[name][1]
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " See: stoker --help"
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First: stoker demo, or stoker runtime add PYTHON and stoker profile import. "
    "Examples are in each help: stoker start --help.\n\n"
    'Names on TAB, in bash: eval "$(_STOKER_COMPLETE=bash_source stoker)" (or zsh, fish).',
)
@click.option("--unit", help="Open the console with this unit selected.")
@click.version_option(package_name="stoker")
@click.pass_context
def stoker(ctx: click.Context, unit: str | None) -> None:
    """Operator console for vLLM. Without a command: the console.

    Leaving the console never stops an engine.
    """
    if ctx.invoked_subcommand is None:
        from console.commands.console import open_console

        open_console(unit)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors are one line on stderr, exit codes as in engine_ctl.errors."""
    for stream in (sys.stdout, sys.stderr):
        # Not every locale has a dash or an arrow.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=terminal.NEAREST)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, terminal.Terminal(stream))
    sys.exit(_with_output(run(sys.argv[1:] if argv is None else argv)))


def _with_output(status: int) -> int:
    """The exit status, once all is written or its reader has gone."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        print(f"stoker: {_in_words(error)}", file=sys.stderr)
        _drop_output()
        return status or 1
    return status


def _drop_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def run(argv: list[str]) -> int:
    stdout, stderr = sys.stdout, sys.stderr
    try:
        result: Any = stoker.main(args=argv, prog_name="stoker", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except StokerError as error:
        print(f"stoker: {terminal.shown(str(error))}", file=sys.stderr)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        print(f"stoker: {_asked_wrongly(error)}", file=sys.stderr)
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print(f"stoker: {INTERRUPTED}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except SystemExit:
        if sys.stdout is stdout:
            raise
        # Click ends the process when the reader of its output has gone, with streams of its own.
        sys.stdout, sys.stderr = stdout, stderr
        _drop_output()
        return 0
    except OSError as error:
        print(f"stoker: {_in_words(error)}", file=sys.stderr)
        return 1
    except Exception as error:
        if os.environ.get("STOKER_TRACEBACK"):
            raise
        print(f"stoker: {_as_fault(error)}", file=sys.stderr)
        return 1


def _asked_wrongly(error: click.ClickException) -> str:
    """What click refused, and where the usage is told when it names no remedy itself."""
    said = " ".join(error.format_message().split())
    ctx = getattr(error, "ctx", None)
    if ctx is None or ctx.parent is None or "Did you mean" in said:
        return said
    return f"{said.rstrip('.')}; see: {ctx.command_path} --help"


def _as_fault(error: Exception) -> str:
    """A mistake of Stoker's own, in one line that can be reported."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    said = " ".join(str(error).split())
    return (
        f"a fault of Stoker's: {type(error).__name__}: {said}{place}; "
        "the same command with STOKER_TRACEBACK=1 prints what a report needs"
    )


def _in_words(error: OSError) -> str:
    """What the file system refused: the file, the reason, and what to do where that is known."""
    where = f"{error.filename}: " if error.filename else ""
    hint = {
        errno.ENOSPC: "; free some space and try again",
        errno.EDQUOT: "; the quota is used up: free some space and try again",
        errno.EROFS: "; the XDG variables move Stoker's directories",
        errno.EMFILE: "; raise the limit with: ulimit -n 4096",
    }.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{hint}"


if __name__ == "__main__":
    main()
