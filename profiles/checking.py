"""Checking a profile file: known keys, types, values; every message says file, line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from profiles.importing.references import has_references
from profiles.importing.secrets import is_secret
from profiles.model import EnvRef, Preload, Profile, Restart, Stop
from profiles.yaml_source import BadProfile, Source

SCHEMA = 1
OWN_KEYS = frozenset({"name", "path"})
FILE_KEYS = ("extends", *(f for f in Profile.__struct_fields__ if f not in OWN_KEYS))
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "preload": Preload.__struct_fields__,
    "restart": Restart.__struct_fields__,
    "stop": Stop.__struct_fields__,
}
# Arguments with a place of their own in the file, so that ports, names and hosts are known.
TOP_LEVEL = {
    "model": "model",
    "model_tag": "model",
    "served_model_name": "served_name",
    "host": "host",
    "port": "port",
}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU_ID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


def check_values(source: Source) -> None:
    """Check one file before it is merged: keys, types, allowed values."""
    data = source.data
    for key in data:
        if key not in FILE_KEYS:
            raise source.error(_unknown(key, FILE_KEYS, data), key)
    for section, fields in SECTIONS.items():
        value = data.get(section)
        if isinstance(value, dict):
            for key in value:
                if key not in fields:
                    raise source.error(_unknown(key, fields, value), section, key)
    for key, check in _CHECKS.items():
        if data.get(key) is not None:
            check(source, data[key], key)


def to_profile(data: dict[str, Any], name: str, path: str, owners: Mapping[str, Source]) -> Profile:
    """The typed profile out of merged values. Raises BadProfile naming the file that set it."""
    values = dict(data)
    values["served_name"] = _many(values.get("served_name"))
    values["gpus"] = _gpus(values.get("gpus"))
    values["tags"] = _many(values.get("tags"))
    try:
        return msgspec.convert({**values, "name": name, "path": path}, Profile)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`").replace("[...]", "").partition("[")[0]
        source = owners.get(key) or owners.get(key.partition(".")[0])
        message = message[0].lower() + message[1:].replace("`", "")
        if source is None:
            raise BadProfile(message, path, None, key) from None
        raise source.error(message, *key.split(".")) from None


def _unknown(key: str, known: tuple[str, ...], siblings: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    from profiles.schema import shipped

    argument = shipped().find(key)
    if argument is not None and "args" in known:
        return f"unknown key; it is a vLLM argument: write it under args as {argument.name}"
    return f"unknown key; known are {', '.join(sorted(known))}"


def _schema(source: Source, value: Any, key: str) -> None:
    if value != SCHEMA or isinstance(value, bool):
        raise source.error(f"is {value!r}; this Stoker reads schema {SCHEMA}", key)


def _names(source: Source, value: Any, key: str) -> None:
    items = value if isinstance(value, list) else [value]
    for index, item in enumerate(items):
        if not isinstance(item, str) or not item:
            keys = (key, str(index)) if isinstance(value, list) else (key,)
            raise source.error(f"must be a name or a list of names, not {item!r}", *keys)


def _text(source: Source, value: Any, key: str) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise source.error(f"must be text, not {_shown(value)}; quote it", key)


def _model(source: Source, value: Any, key: str) -> None:
    _text(source, value, key)
    if value.startswith("-") or not value.strip():
        raise source.error("must be a path or a repository such as org/name", key)


def _port(source: Source, value: Any, key: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise source.error(f"must be a number from 1 to 65535, not {_shown(value)}", key)


def _gpu_list(source: Source, value: Any, key: str) -> None:
    gpus = _gpus(value)
    for gpu in gpus:
        number = isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0
        if not number and not (isinstance(gpu, str) and _GPU_ID.fullmatch(gpu)):
            raise source.error(
                f"must hold indices (0, 1) or UUIDs (GPU-…, MIG-…), not {_shown(gpu)}", key
            )
    if len(set(gpus)) != len(gpus):
        raise source.error("names a GPU twice", key)
    if len({type(gpu) for gpu in gpus}) > 1:
        raise source.error("must not mix indices and UUIDs", key)


def _args(source: Source, value: Any, key: str) -> None:
    _map(source, value, key)
    for name, item in value.items():
        own = TOP_LEVEL.get(name.lstrip("-").replace("-", "_"))
        if own is not None:
            raise source.error(f"write it as the top-level key {own}", key, name)
        if not re.fullmatch(r"-{0,2}[A-Za-z][\w.=+-]*", name):
            raise source.error("is no argument name", key, name)
        if isinstance(item, str) and "\0" in item:
            raise source.error("holds a NUL character", key, name)


def _env(source: Source, value: Any, key: str) -> None:
    _map(source, value, key)
    for name, item in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise source.error("is no name of an environment variable", key, name)
        if isinstance(item, dict):
            _reference(source, item, key, name)
        elif isinstance(item, list):
            raise source.error("must be one value or {from_env: NAME}", key, name)
        elif isinstance(item, str) and "\0" in item:
            raise source.error("holds a NUL character", key, name)
        elif is_secret(name) and item not in (None, "") and not has_references(str(item)):
            raise source.error(
                "is a secret; name where it is: {from_env: NAME} or {from_file: PATH}", key, name
            )


def _reference(source: Source, value: Any, *keys: str) -> None:
    if not isinstance(value, dict):
        raise source.error("must be {from_env: NAME} or {from_file: PATH}, never the value", *keys)
    for name in value:
        if name not in EnvRef.__struct_fields__:
            raise source.error(_unknown(name, EnvRef.__struct_fields__, value), *keys, name)
    if len(value) != 1 or not all(isinstance(item, str) and item for item in value.values()):
        raise source.error("must be either {from_env: NAME} or {from_file: PATH}", *keys)


def _preload(source: Source, value: Any, key: str) -> None:
    if isinstance(value, bool):
        return
    _map(source, value, key)
    _one_of(source, value, key, "mode", ("zero_copy", "copy"))
    if value.get("seed_token") is not None:
        _reference(source, value["seed_token"], key, "seed_token")
    if value.get("health_port") is not None:
        _in_section(source, value, key, "health_port", _is_port, "a number from 1 to 65535")
    if value.get("args") is not None:
        _map(source, value["args"], key, "args")


def _restart(source: Source, value: Any, key: str) -> None:
    _map(source, value, key)
    _one_of(source, value, key, "policy", ("never", "on-failure", "always"))
    for name in ("max", "backoff_s", "backoff_max_s", "reset_s"):
        _in_section(source, value, key, name, _not_negative, "a number, 0 or more")


def _stop(source: Source, value: Any, key: str) -> None:
    _map(source, value, key)
    for name in Stop.__struct_fields__:
        _in_section(source, value, key, name, _not_negative, "seconds, 0 or more")


def _seconds(source: Source, value: Any, key: str) -> None:
    if not _not_negative(value):
        raise source.error(f"must be seconds, 0 or more, not {_shown(value)}", key)


def _boolean(source: Source, value: Any, key: str) -> None:
    if not isinstance(value, bool):
        raise source.error(f"must be true or false, not {_shown(value)}", key)


def _map(source: Source, value: Any, *keys: str) -> None:
    if not isinstance(value, dict):
        raise source.error(f"must be a map (name: value), not {_shown(value)}", *keys)


def _one_of(
    source: Source, value: Mapping[str, Any], key: str, name: str, allowed: tuple[str, ...]
) -> None:
    _in_section(
        source, value, key, name, lambda item: item in allowed, "one of " + ", ".join(allowed)
    )


def _in_section(
    source: Source,
    value: Mapping[str, Any],
    key: str,
    name: str,
    accepts: Callable[[Any], bool],
    wanted: str,
) -> None:
    item = value.get(name)
    if item is not None and not accepts(item):
        raise source.error(f"must be {wanted}, not {_shown(item)}", key, name)


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def _not_negative(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false"}.get(value, "null")  # type: ignore[arg-type]
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _gpus(value: Any) -> list[Any]:
    """`0`, `[0, 1]`, `"0,1"`, a UUID or a list of them; `all` is the same as none named."""
    if value in (None, "all"):
        return []
    items = value.split(",") if isinstance(value, str) else _many(value)
    return [
        int(item) if isinstance(item, str) and item.strip().isdecimal() else item
        for item in (item.strip() if isinstance(item, str) else item for item in items)
    ]


_CHECKS: Mapping[str, Callable[[Source, Any, str], None]] = {
    "schema": _schema,
    "extends": _names,
    "runtime": _text,
    "model": _model,
    "served_name": _names,
    "gpus": _gpu_list,
    "host": _text,
    "port": _port,
    "args": _args,
    "env": _env,
    "preload": _preload,
    "standby": _boolean,
    "front": _boolean,
    "restart": _restart,
    "stop": _stop,
    "ready_timeout_s": _seconds,
    "bench": _map,
    "notes": _text,
    "tags": _names,
}
