"""Layers of a profile (parents first) merged into one, remembering who set what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.schema import canonical
from profiles.yaml_source import KeyPath, Source


@dataclass(frozen=True, slots=True)
class Layer:
    """One file's share: `data` with canonical argument names; `spelled` maps a canonical key
    path back to the file's own spelling."""

    path: Path
    source: Source
    data: dict[str, Any]
    spelled: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def line(self, key: str) -> int | None:
        return self.source.line(*self.written(tuple(key.split("."))))

    def written(self, keys: KeyPath) -> KeyPath:
        """The file's own spelling of a canonical key path."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.spelled:
                return (*self.spelled[keys[:end]], *keys[end:])
        return keys


@dataclass(slots=True)
class Merged:
    data: dict[str, Any] = field(default_factory=dict)
    owners: dict[str, Layer] = field(default_factory=dict)


def normalise(path: Path, source: Source, data: dict[str, Any]) -> Layer:
    """A layer with one spelling for each argument.

    Raises BadProfile when a file sets the same argument under two spellings."""
    spelled: dict[KeyPath, KeyPath] = {}
    out = dict(data)
    if isinstance(out.get("args"), dict):
        out["args"] = _arguments(source, ("args",), out["args"], spelled)
    preload = out.get("preload")
    if isinstance(preload, dict) and isinstance(preload.get("args"), dict):
        named = _arguments(source, ("preload", "args"), preload["args"], spelled)
        out["preload"] = {**preload, "args": named}
    if isinstance(out.get("env"), dict):
        out["env"] = {
            key: value if isinstance(value, dict) else source.texts.get(("env", key))
            for key, value in out["env"].items()
        }
    return Layer(path, source, out, spelled)


def _arguments(
    source: Source, at: KeyPath, args: dict[str, Any], spelled: dict[KeyPath, KeyPath]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in args.items():
        name, meant = canonical(key, value)
        if name in out:
            earlier = spelled[*at, *name.split(".")][-1]
            raise source.error(f"sets {name}, which {earlier} sets already", *at, key)
        spelled[*at, *name.split(".")] = (*at, key)
        out[name] = meant
    return out


def merge(layers: Sequence[Layer]) -> Merged:
    """Merge layers, weakest first: maps deeply, everything else replaced, null removes. Inside of
    a JSON argument null removes what is inherited, else it is JSON's null.

    Environment values are whole: a reference replaces a value. A dotted argument overrides
    inside an inherited map (vLLM itself would drop the map)."""
    merged = Merged()
    for layer in layers:
        _merge(merged, layer, merged.data, layer.data, ())
    return merged


def _merge(
    merged: Merged, layer: Layer, into: dict[str, Any], new: dict[str, Any], at: KeyPath
) -> None:
    for key, value in new.items():
        here = (*at, key)
        if at in (("args",), ("preload", "args")):
            key, value = _undotted(into, key, value)
            here = (*at, *key.split(".")) if isinstance(value, dict) else here
        own_null = value is None and _in_json(at) and into.get(key) is None
        if (value is None and not own_null) or (here == ("preload",) and value is False):
            into.pop(key, None)
            _forget(merged, here)
            continue
        if here == ("preload",) and value is True:
            value = {}
        whole = at == ("env",)
        if isinstance(value, dict) and not whole:
            if not isinstance(into.get(key), dict):
                into[key] = {}
                _forget(merged, here)
                merged.owners[".".join(here)] = layer
            _merge(merged, layer, into[key], value, here)
        else:
            into[key] = value
            _forget(merged, here)
            merged.owners[".".join(here)] = layer


def _in_json(at: KeyPath) -> bool:
    """Whether keys at this place are those of an argument's own value."""
    return (at[:1] == ("args",) and len(at) > 1) or (at[:2] == ("preload", "args") and len(at) > 2)


def _undotted(into: dict[str, Any], key: str, value: Any) -> tuple[str, Any]:
    """`a.b: v` as `a: {b: v}` when a map `a` was inherited, else unchanged."""
    head, dot, tail = key.partition(".")
    if not dot or not isinstance(into.get(head), dict) or tail.endswith("+"):
        return key, value
    for part in reversed(tail.split(".")):
        value = {part: value}
    return head, value


def _forget(merged: Merged, here: KeyPath) -> None:
    name = ".".join(here)
    for key in [key for key in merged.owners if key == name or key.startswith(name + ".")]:
        del merged.owners[key]
