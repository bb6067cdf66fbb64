"""Comparing values as vLLM would parse them: 0.90 is .9, 32k is 32000, JSON has no order."""

from __future__ import annotations

import json
import re
from typing import Any

from profiles.schema import Argument

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parsed(value: Any, argument: Argument | None) -> Any:
    """The value as vLLM's parser makes it of the profile's spelling; text where it cannot.

    For arguments that are unset by default, the texts `None` and nothing mean unset."""
    kind = argument.kind if argument is not None else "text"
    if value in ("None", "") and argument is not None and argument.default is None:
        return None
    if argument is not None and argument.many and not argument.append:
        items = value if isinstance(value, list) else [value]
        unset = "None" in argument.choices
        return [None if unset and item == "None" else _one(item, kind) for item in items]
    if kind == "csv":
        return value.split(",") if isinstance(value, str) else [str(v) for v in _items(value)]
    if argument is not None and argument.append:
        return _items(value)
    return _one(value, kind)


def same(left: Any, right: Any, argument: Argument | None = None) -> bool:
    """Whether two spellings mean the same to vLLM. True and 1 differ."""
    return bool(_frozen(parsed(left, argument)) == _frozen(parsed(right, argument)))


def size(text: str) -> int | None:
    """`32k` is 32000, `32K` 32768, `1.5k` 1500; None for what vLLM would refuse."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else None
    number, suffix = match.groups()
    if suffix.islower():
        return int(float(number) * 1000 ** _POWERS[suffix])
    return None if "." in number else int(number) * 1024 ** _POWERS[suffix.lower()]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _one(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        if kind in ("size", "size_or_auto"):
            if kind == "size_or_auto" and value.strip().lower() == "auto":
                return -1
            counted = size(value)
            return value if counted is None else counted
        if kind in ("int", "float"):
            try:
                return float(value)
            except ValueError:
                return value
        if kind in ("json", "lora") or (kind == "json_or_text" and value.lstrip()[:1] == "{"):
            try:
                return json.loads(value)
            except ValueError:
                return value
        return value
    if isinstance(value, bool) or kind not in ("text", "csv"):
        return value
    return str(value) if isinstance(value, int | float) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return ("map", tuple(sorted((key, _frozen(item)) for key, item in value.items())))
    if isinstance(value, list | tuple):
        return ("list", tuple(_frozen(item) for item in value))
    if isinstance(value, bool) or value is None:
        return ("plain", str(value))
    if isinstance(value, int | float):
        return ("number", float(value))
    return ("text", value)
