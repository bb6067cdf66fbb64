"""LoRA adapters as profiles write them (`args.lora_modules`), one reading of every form. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Adapter:
    """`base` is base_model_name, which only a start can set."""

    name: str
    path: str
    base: str | None = None
    is_3d: bool = False


def adapters_of(value: Any) -> dict[str, Adapter] | None:
    """By name. Forms: `name=path`, JSON text, a mapping with name and path, a mapping of names to
    paths, or a list of these. None when it cannot be read: vLLM then decides."""
    try:
        return {adapter.name: adapter for adapter in _read(value)}
    except (ValueError, KeyError, TypeError):
        return None


def _read(value: Any) -> Iterable[Adapter]:
    if value is None or value == "":
        return
    if isinstance(value, Mapping):
        if "name" in value and "path" in value:
            yield _from_mapping(value)
        else:
            for name, path in value.items():
                if not isinstance(path, str):
                    raise ValueError(f"adapter {name}: {path!r} is no path")
                yield Adapter(str(name), path)
    elif isinstance(value, str):
        if "=" in value and "," not in value:
            name, _, path = value.partition("=")
            yield Adapter(name, path)
        else:
            yield from _read(json.loads(value))
    else:
        for item in value:
            yield from _read(item)


def _from_mapping(value: Mapping[str, Any]) -> Adapter:
    known = {"name", "path", "base_model_name", "is_3d_lora_weight"}
    if set(value) - known:
        raise ValueError(f"adapter {value['name']}: {sorted(set(value) - known)} is not known")
    return Adapter(
        str(value["name"]),
        str(value["path"]),
        value.get("base_model_name"),
        bool(value.get("is_3d_lora_weight", False)),
    )
