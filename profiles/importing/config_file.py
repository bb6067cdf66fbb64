"""A `vllm serve --config` file as the words that vLLM makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.documents import load_all
from profiles.importing.references import Literal, literal, parse
from profiles.schema import ArgumentSchema


def config_words(text: str, notes: list[str], schema: ArgumentSchema) -> list[str]:
    """A `--config` file as the words that vLLM makes of it. Raises Usage for what is no YAML or
    more than one document of it."""
    documents = load_all(text.removeprefix("\ufeff"))
    if len(documents) > 1:
        raise Usage("a --config file is one YAML document; this one has several")
    data = documents[0] if documents else None
    return mapping_words(data, notes, schema) if isinstance(data, dict) else []


def mapping_words(data: Mapping[Any, Any], notes: list[str], schema: ArgumentSchema) -> list[str]:
    """The words of a map that was read already."""
    words: list[str] = []
    for key, value in data.items():
        option = f"--{key}"
        if value is True:
            words.append(option)
        elif value is False:
            notes.append(
                f"{key}: false: vLLM drops it from a --config file; it is kept as false here"
            )
            words.append(f"{option}=false")
        elif isinstance(value, list):
            argument = schema.find(str(key))
            if argument is not None and argument.kind == "json" and not argument.many:
                notes.append(f"{key}: vLLM wants a list here as quoted JSON; it became one")
                words += [option, json.dumps(_leaves(value))]
            elif value:
                words += [option, *(_config_item(item) for item in value)]
        elif isinstance(value, dict):
            words += [option, json.dumps(_leaves(value))]
        else:
            words.append(f"{option}={_text(str(value))}")
    return words


def _config_item(item: Any) -> str:
    return json.dumps(_leaves(item)) if isinstance(item, dict) else _text(str(item))


def _leaves(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _leaves(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_leaves(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """References in a config file are the author's templating; other dollars are literal."""
    return text if any(not isinstance(p, Literal) for p in parse(text)) else literal(text)
