"""vLLM's benchmark in a fork of the standby: `vllm bench serve` without its 12 s of imports.

`bench serve WORDS --also WORDS…` measures several times in one process: each `--also` repeats the
first words with others added, which win. Without a standby this file is run as a script.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

COMMAND = ["bench", "serve"]
ALSO = "--also"


def is_bench(argv: list[str]) -> bool:
    """Whether this is the one benchmark that may be run from a standby: it starts no engine and
    touches no GPU."""
    return argv[:2] == COMMAND


def measurements(words: list[str]) -> list[list[str]]:
    """The words of each measurement (without `bench serve`)."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ALSO:
            parts.append([])
        else:
            parts[-1].append(word)
    first, *others = parts
    return [first, *(first + other for other in others)]


def body() -> Callable[[], Any]:
    """What the process runs, with `sys.argv` set as for vLLM's own command.

    That command builds the parsers of all benchmarks; here only this one is imported, if this
    vLLM has it where 0.32 and 0.33 have it."""
    each = measurements(sys.argv[3:])
    try:
        serve = importlib.import_module("vllm.benchmarks.serve")
        parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
        add_arguments, main = serve.add_cli_args, serve.main
    except (ImportError, AttributeError):
        return lambda: _whole_command(each)

    def run() -> None:
        for words in each:
            parser = parser_class(prog="vllm bench serve")
            add_arguments(parser)
            main(parser.parse_args(words))
            sys.stdout.flush()

    return run


def _whole_command(each: list[list[str]]) -> None:
    main = importlib.import_module("vllm.entrypoints.cli.main").main
    for words in each:
        sys.argv[1:] = [*COMMAND, *words]
        main()


def script() -> None:
    """As a process of its own: nothing beside this file is importable by accident."""
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]
    sys.argv[0] = "vllm"
    body()()


if __name__ == "__main__":
    script()
