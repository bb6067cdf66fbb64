"""The argument schema of `vllm serve` and `vllm preload`, read out of vLLM's own parser."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

PARSER_HOMES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
KINDS = ("serve", "preload")
DEFAULT_LIMIT = 4000


class Refused(Exception):
    """What vLLM's parser said instead of parsing, in one line."""


def command(kind: str) -> Any:
    """vLLM's own object for a sub-command (`serve`, `preload`). Raises LookupError: it has none."""
    try:
        module = importlib.import_module(f"vllm.entrypoints.cli.{kind}")
    except ModuleNotFoundError:
        raise LookupError(f"this vLLM has no `vllm {kind}`") from None
    for candidate in module.cmd_init():
        if candidate.name == kind:
            return candidate
    raise LookupError(f"this vLLM has no `vllm {kind}`")


def parser_home() -> str:
    """The module that holds `make_arg_parser`, which moved between versions."""
    for name in PARSER_HOMES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "make_arg_parser"):
            return name
    raise LookupError("make_arg_parser is nowhere this Stoker knows; is this vLLM too new?")


def build_parser(kind: str) -> tuple[Any, Any, Any]:
    """(top parser, parser of the sub-command, the sub-command), as the `vllm` command has them.

    The top parser is the one to parse with: it alone knows `serve MODEL` and `--config FILE`.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # The command imports both before it builds a parser, which loads plugins: those may reach for
    # either.
    for name in KINDS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"vllm.entrypoints.cli.{name}")
    sub = command(kind)
    top = FlexibleArgumentParser(prog="vllm", description="vLLM CLI")
    subparsers = top.add_subparsers(required=False, dest="subparser")
    parser = sub.subparser_init(subparsers)
    parser.set_defaults(dispatch_function=sub.cmd)
    return top, parser, sub


def describe(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every argument as JSON types; `default` is Python's repr, as help texts show it."""
    groups: dict[int, str] = {}
    for group in parser._action_groups:
        for action in group._group_actions:
            groups[id(action)] = group.title or ""
    return [_describe(action, groups.get(id(action), "")) for action in parser._actions]


def _describe(action: argparse.Action, group: str) -> dict[str, Any]:
    choices = None if action.choices is None else [str(choice) for choice in action.choices]
    metavar = action.metavar
    return {
        "dest": action.dest,
        "options": list(action.option_strings),
        "nargs": action.nargs,
        "choices": choices,
        "default": repr(action.default)[:DEFAULT_LIMIT],
        "action": type(action).__name__,
        "group": group,
        "metavar": list(metavar) if isinstance(metavar, tuple) else metavar,
        "type": _type_name(action),
        "required": action.required,
        "help": _help(action),
        "deprecated": bool(getattr(action, "deprecated", False)),
    }


def _type_name(action: argparse.Action) -> str | None:
    """The converter's name: int, float, str, json.loads, human_readable_int, …"""
    kind: Any = action.type
    if kind is None:
        return None if action.nargs == 0 else "str"
    name: str = getattr(kind, "__name__", type(kind).__name__)
    if name in ("<lambda>", "partial"):
        return "custom"
    # optional_type(int) and union_dict_and_str are closures that say little by their own name
    for cell in getattr(kind, "__closure__", None) or ():
        inner = cell.cell_contents
        if callable(inner) and hasattr(inner, "__name__") and name.startswith(("_", "optional")):
            return f"{inner.__name__}"
    return name


def _help(action: argparse.Action) -> str | None:
    text = action.help
    if text is None or text == argparse.SUPPRESS:
        return None
    try:
        return text % {"default": action.default, "prog": "vllm", **vars(action)}
    except (TypeError, ValueError, KeyError):
        return text


@contextlib.contextmanager
def with_help_texts() -> Iterator[None]:
    """vLLM collects its help texts only for a command line that asks for help (they cost time):
    pretend that this one does while a parser is built, where this version has the switch."""
    try:
        module: Any = importlib.import_module("vllm.engine.arg_utils")
    except ImportError:
        yield
        return
    before = getattr(module, "NEEDS_HELP", None)
    forget = getattr(getattr(module, "_compute_kwargs", None), "cache_clear", None)
    if before is None or forget is None:
        yield
        return
    module.NEEDS_HELP = True
    forget()
    try:
        yield
    finally:
        module.NEEDS_HELP = before
        forget()


def schema() -> dict[str, Any]:
    """`{"vllm", "platform", "parser", "serve": [...], "preload": [...] or None}`."""
    import vllm
    from vllm.platforms import current_platform

    out: dict[str, Any] = {
        "vllm": str(vllm.__version__),
        "platform": platform_name(current_platform),
        "parser": parser_home(),
    }
    for kind in KINDS:
        try:
            with with_help_texts():
                out[kind] = describe(build_parser(kind)[1])
        except LookupError:
            out[kind] = None
    return out


def platform_name(platform: Any) -> str:
    """cuda, rocm, cpu, or another name of vLLM's."""
    for name in ("cuda", "rocm", "cpu"):
        if getattr(platform, f"is_{name}")():
            return name
    return str(getattr(platform, "device_type", "") or type(platform).__name__.lower())
