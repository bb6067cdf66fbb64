"""Values on a command line as vLLM's parser reads them: JSON, sizes, numbers, dotted keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from profiles.schema import Argument

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])\Z")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


def scalar(argument: Argument, value: str) -> Any:
    """One value of an argument, in the author's spelling where types allow it."""
    kind = argument.kind
    if kind in ("json", "json_or_text"):
        return _json(value, kind)
    if kind in ("int", "size", "size_or_auto"):
        return int(value) if _INT.match(value) else value
    if kind == "float":
        return float(value) if _FLOAT.match(value) else value
    return value


def item(argument: Argument, value: str) -> Any:
    """One of the values of an argument that takes several."""
    if argument.kind == "lora" and value.lstrip().startswith("{"):
        return _json(value, "json_or_text")
    if argument.kind in ("int", "float"):
        return scalar(argument, value)
    return value


def _json(value: str, kind: str) -> Any:
    """JSON becomes plain data; what is none stays text, as it was written. So do true and null: no
    argument's value is that alone, and as words they would be Python's."""
    stripped = value.strip()
    if kind == "json_or_text" and not (stripped.startswith("{") and stripped.endswith("}")):
        return value
    for text in (stripped, stripped.replace('\\"', '"'), sizes(stripped)):
        try:
            data = json.loads(text)
        except ValueError:
            continue
        return value if data is None or isinstance(data, bool) else data
    return value


def update(target: dict[str, Any], data: Mapping[str, Any]) -> None:
    """Dotted keys of one spelling become one value: maps merged, lists joined."""
    for key, value in data.items():
        known = target.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            update(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            target[key] = known + value
        else:
            target[key] = value


def loose_value(value: str) -> Any:
    """A dotted key's value: JSON, a size with its suffix, else text. `True` stays text there and
    vLLM's configuration takes it as a boolean."""
    try:
        return json.loads(value)
    except ValueError:
        pass
    size = _size(value)
    if size is not None:
        return size
    return {"True": True, "False": False}.get(value, value)


def _size(value: str) -> int | None:
    """`32k` is 32000, `32K` is 32768."""
    match = _SIZE.match(value)
    if match is None:
        return None
    if match[2].islower():
        return int(float(match[1]) * 1000 ** _POWER[match[2]])
    return int(match[1]) * 1024 ** _POWER[match[2].lower()] if match[1].isdigit() else None


def sizes(text: str) -> str:
    """JSON with its bare human-readable numbers written out; strings are left alone."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b",
            lambda m: str(_size(m.group(0)) or m.group(0)),
            parts[place],
        )
    return "".join(parts)


def mapping_of(value: str) -> dict[str, Any] | None:
    """`image=4,video=2`, as older versions wrote it."""
    pairs = [item.partition("=") for item in value.split(",")]
    if not all(key.strip() and sep for key, sep, _ in pairs):
        return None
    return {key.strip(): plain_number(text.strip()) for key, _, text in pairs}


def plain_number(value: str) -> Any:
    """A number only where its text survives a round trip."""
    return int(value) if _INT.match(value) and value != "-0" else value
