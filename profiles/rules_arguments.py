"""Lint rules that ask the argument schema: unknown names, wrong choices, wrong types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from profiles.importing.references import has_references
from profiles.rules import ERROR, NOTE, Hit, Rule, View, former_names, shown, version
from profiles.schema import Argument

# vLLM compares these without regard to case, dashes being underscores.
_LENIENT = ("moe_backend", "linear_backend", "sparse_indexer_topk_backend")
_SIZE = re.compile(r"-?\d+|\d+[KMGT]|\d+(\.\d+)?[kmgt]")
_BARE_HUMAN = re.compile(r'("(?:[^"\\]|\\.)*")|\b(\d+(?:\.\d+)?)[kKmMgGtT]\b')


def _known(view: View) -> Iterator[tuple[str, Argument, Any]]:
    for key, name, value in view.places:
        found = view.schema.find(name)
        if found is not None and "." not in name:
            yield key, found, value


def _misspelt(view: View) -> Iterator[Hit]:
    for key, name, _ in view.places:
        near = None if _plainly_known(view, name) else view.schema.nearest(name)
        if near is not None:
            yield key, f"did you mean {near}?"


def _plainly_known(view: View, name: str) -> bool:
    return view.schema.find(name) is not None or name.partition(".")[0] in former_names()


def _unknown(view: View) -> Iterator[Hit]:
    for key, name, _ in view.places:
        if not _plainly_known(view, name) and view.schema.nearest(name) is None:
            yield key, name


def _daemon_lacks(view: View) -> Iterator[Hit]:
    for name in view.preload_args:
        found = view.schema.find(name)
        if found is not None and "preload" not in found.commands:
            yield f"preload.args.{name}", "only vllm serve has it"


def _choice(view: View) -> Iterator[Hit]:
    if view.version is not None and view.version != version(view.schema.version):
        return  # another version may have other choices
    for key, argument, value in _known(view):
        if not argument.choices:
            continue
        for item in value if isinstance(value, list) else [value]:
            text = str(item)
            lenient = text.lower().replace("-", "_") if argument.name in _LENIENT else text
            none = text in ("None", "") and "None" in argument.choices
            if lenient not in argument.choices and not none and not has_references(text):
                yield key, f"{shown(text)} is none of {', '.join(argument.choices)}"


def _type(view: View) -> Iterator[Hit]:
    for key, argument, value in _known(view):
        for item in value if argument.many and isinstance(value, list) else [value]:
            if isinstance(item, str) and has_references(item):
                continue
            wanted = _wanted(argument, item)
            if wanted is not None:
                yield key, f"{shown(item)} is not {wanted}"


def _wanted(argument: Argument, value: Any) -> str | None:
    """What the argument wants, when this value is not it."""
    kind = argument.kind
    if kind in ("flag", "switch"):
        return None if isinstance(value, bool) else "true or false (unquoted)"
    if isinstance(value, bool):
        return None if argument.optional_value or kind == "text" else f"a value of type {kind}"
    if value in ("", "None"):
        return None
    if kind == "int" and not _matches(int, value):
        return "a whole number" + _spelt(value)
    if kind == "float" and not _matches(float, value):
        return "a number"
    if kind in ("size", "size_or_auto"):
        auto = kind == "size_or_auto" and str(value).lower() in ("auto", "-1")
        if not auto and not _is_size(value):
            return "a whole number, 32k (decimal) or 32K (binary)" + _spelt(value)
    if kind == "json" and not _is_json(argument, value):
        return "JSON; write a map or a list"
    if kind == "text" and isinstance(value, dict | list) and not argument.many:
        return None if argument.append else "text"
    return None


def _matches(convert: type, value: Any) -> bool:
    if isinstance(value, float) and convert is int:
        return False
    if isinstance(value, dict | list):
        return False
    try:
        convert(value)
    except ValueError:
        return False
    return True


def _is_size(value: Any) -> bool:
    """What vLLM reads as a count: decimals only before a decimal suffix, as in 1.5k."""
    if isinstance(value, str):
        return _SIZE.fullmatch(value.strip()) is not None
    return isinstance(value, int)


def _is_json(argument: Argument, value: Any) -> bool:
    if isinstance(value, str):
        plain = _BARE_HUMAN.sub(lambda match: match[1] or match[2], value)
        try:
            value = json.loads(plain)
        except ValueError:
            return False
    return isinstance(value, dict | list) or not argument.name.endswith("_config")


def _spelt(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[eE]\d+", value):
        return f"; write {int(float(value))} (YAML reads {value} as text)"
    return ""


def _dotted_and_map(view: View) -> Iterator[Hit]:
    for key, name, _ in view.places:
        head, dot, _tail = name.partition(".")
        args = view.args if key.startswith("args.") else view.preload_args
        if dot and args.get(head) is not None:
            yield key, head


RULES = (
    Rule(
        id="argument-misspelt",
        severity=ERROR,
        when=_misspelt,
        what="no such argument: {detail}",
        effect="the argument parser stops (exit code 2)",
        instead="the right name; a plugin's argument may stay",
        source="vLLM's own parser",
    ),
    Rule(
        id="argument-unknown",
        severity=NOTE,
        when=_unknown,
        what="no known vLLM has this argument",
        effect="the argument parser stops unless a plugin adds it",
        instead="check the name; a plugin's argument may stay",
        source="vLLM's own parser",
    ),
    Rule(
        id="daemon-argument",
        severity=ERROR,
        when=_daemon_lacks,
        what="`vllm preload` has no such argument: {detail}",
        effect="the daemon does not start (exit code 2)",
        instead="move it to args",
        source="vLLM's own parser",
    ),
    Rule(
        id="argument-choice",
        severity=ERROR,
        when=_choice,
        what="{detail}",
        effect="the argument parser stops (exit code 2)",
        instead="one of the values named",
        source="vLLM's own parser",
    ),
    Rule(
        id="argument-type",
        severity=ERROR,
        when=_type,
        what="{detail}",
        effect="the argument parser stops (exit code 2)",
        instead="a value of the right type",
        source="vLLM's own parser",
    ),
    Rule(
        id="dotted-and-map",
        severity=NOTE,
        when=_dotted_and_map,
        what="{detail} is set both as a map and by a dotted argument",
        effect="vLLM drops the map and keeps the dotted argument only",
        instead="write everything in the map",
        source="vllm/utils/argparse_utils.py",
    ),
)
