"""vLLM's benchmark in a fork of the standby: `vllm bench serve` without its 12 s of imports."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

COMMAND = ["bench", "serve"]


def is_bench(argv: list[str]) -> bool:
    """Whether this is the one benchmark that may be run from a standby: it starts no engine and
    touches no GPU."""
    return argv[:2] == COMMAND


def body() -> Callable[[], Any]:
    """What the forked process runs, with `sys.argv` set as for vLLM's own command.

    That command builds the parsers of all benchmarks; here only this one is imported."""
    try:
        serve = importlib.import_module("vllm.benchmarks.serve")
        parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
        add_arguments, main = serve.add_cli_args, serve.main
    except (ImportError, AttributeError):
        return _whole_command()
    if os.environ.get("VLLM_USE_RUST_BENCH") == "1":
        return _whole_command()

    def run() -> None:
        parser = parser_class(prog="vllm bench serve")
        add_arguments(parser)
        main(parser.parse_args(sys.argv[3:]))

    return run


def _whole_command() -> Callable[[], Any]:
    main: Callable[[], Any] = importlib.import_module("vllm.entrypoints.cli.main").main
    return main
