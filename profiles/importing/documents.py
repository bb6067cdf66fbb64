"""YAML texts that others wrote, read safely: one clear line for what is broken."""

from __future__ import annotations

import datetime
import json
from typing import Any

import yaml

from engine_ctl.errors import Usage
from profiles.importing.secrets import masked, scrub

MAX_NODES = 100_000


def load_yaml(text: str) -> Any:
    """One document as plain data. Raises Usage with the line number."""
    documents = load_all(text)
    return documents[0] if documents else None


def load_all(text: str) -> list[Any]:
    """All documents of a text, empty ones left out. Raises Usage with the line number."""
    try:
        nodes = [n for n in yaml.compose_all(text, Loader=yaml.SafeLoader) if n is not None]
        for node in nodes:
            _check_size(node)
        return [_data(node) for node in nodes]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise Usage(f"line {line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise Usage(f"line 1: not YAML: {error}") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"line 1: not usable YAML: {error}") from None


def _data(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return plain_data(loader.construct_document(node))
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}
    active: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in active:
            raise Usage(f"line {node.start_mark.line + 1}: an alias contains itself")
        if id(node) not in sizes:
            active.add(id(node))
            children = (
                [part for pair in node.value for part in pair]
                if isinstance(node, yaml.MappingNode)
                else node.value
            )
            sizes[id(node)] = 1 + sum(map(size, children))
            active.discard(id(node))
        if sizes[id(node)] > MAX_NODES:
            raise Usage(f"line {node.start_mark.line + 1}: aliases expand to too much")
        return sizes[id(node)]

    size(root)


def plain_data(value: Any) -> Any:
    """Dates, sets and bytes as text, so that the data can be written anywhere."""
    if isinstance(value, dict):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain_data(item) for item in value]
    if isinstance(value, datetime.date | bytes):
        return str(value)
    return value


def plain(value: Any) -> str:
    """A value on one line, for a report, without secrets."""
    if isinstance(value, str):
        return scrub(" ".join(value.split()))
    return scrub(json.dumps(masked(value), ensure_ascii=False, default=str))
