"""The points of a sweep: which settings to try, and the profile of each. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from profiles.model import Profile
from profiles.schema import ArgumentSchema, canonical, shipped
from profiles.values import same

MAX_POINTS = 1000
BENCH, ENV = "bench.", "env."
UNSET = ("null", "default")


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
    """`max_num_seqs=64,128` as (name, values). Values are YAML scalars or maps; commas inside
    brackets and quotes belong to the value; `default` removes the setting.

    Raises Usage."""
    name, equals, rest = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals or not name or not rest.strip():
        raise Usage(f"--set {text!r}: write NAME=VALUE,VALUE as max_num_seqs=64,128")
    import yaml

    values: list[Any] = []
    for part in _split(rest):
        if part in UNSET:
            values.append(None)
            continue
        try:
            values.append(yaml.safe_load(part))
        except yaml.YAMLError:
            raise Usage(f"--set {text!r}: {part!r} is no value") from None
    return name, tuple(values)


def _split(text: str) -> list[str]:
    parts, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    found = [part.strip() for part in parts]
    if quote or depth or not all(found):
        raise Usage(f"--set: {text!r} has an empty value or an open bracket or quote")
    return found


def axes(texts: Sequence[str], schema: ArgumentSchema | None = None) -> dict[str, tuple[Any, ...]]:
    """Every `--set`, in order, by canonical name. Raises Usage for names given twice, unknown
    arguments (with the nearest) and repeated values."""
    schema = schema or shipped()
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, values = parse_axis(text)
        if not name.startswith((BENCH, ENV)):
            known = schema.find(name)
            name = canonical(name, None, schema)[0]
            if known is None:
                near = schema.nearest(name)
                hint = f"; did you mean {near}?" if near else f" (vLLM {schema.version})"
                raise Usage(f"--set {name}: vLLM has no such argument{hint}")
        if name in found:
            raise Usage(f"--set {name} is given twice; write all values at once")
        for one, other in itertools.combinations(values, 2):
            if same(one, other, schema.find(name)):
                raise Usage(f"--set {name} names {one} twice")
        found[name] = values
    if not found:
        raise Usage("name at least one setting to try: --set max_num_seqs=64,128")
    return found


def combine(found: Mapping[str, tuple[Any, ...]], mode: str) -> list[dict[str, Any]]:
    """The points: every combination (`grid`, `halving`), or the first values together, the
    second values together, … (`list`). Raises Usage."""
    if mode == "list":
        lengths = {len(values) for values in found.values()}
        if len(lengths) > 1:
            said = ", ".join(f"{name} {len(values)}" for name, values in found.items())
            raise Usage(f"--mode list needs as many values of each setting: {said}")
        rows = list(zip(*found.values(), strict=True))
    else:
        count = 1
        for values in found.values():
            count *= len(values)
        if count > MAX_POINTS:
            raise Usage(f"{count} points are too many (at most {MAX_POINTS}); name fewer values")
        rows = list(itertools.product(*found.values()))
    return [dict(zip(found, row, strict=True)) for row in rows]


def profile_of(base: Profile, point: Mapping[str, Any], schema: ArgumentSchema | None) -> Profile:
    """The base profile with the point's settings; `None` removes one."""
    args, env, bench = dict(base.args), dict(base.env), dict(base.bench)
    for key, value in point.items():
        if key.startswith(BENCH):
            _put(bench, key.removeprefix(BENCH), value)
        elif key.startswith(ENV):
            _put(env, key.removeprefix(ENV), None if value is None else _text(value))
        else:
            for spelling in [k for k in args if canonical(k, None, schema)[0] == key]:
                del args[spelling]
            _put(args, key, value)
    return msgspec.structs.replace(base, args=args, env=env, bench=bench)


def _put(into: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def label(point: Mapping[str, Any]) -> str:
    """A point in words: `max_num_seqs 64, max_num_batched_tokens 8192`."""
    return ", ".join(f"{k} {shown(v)}" for k, v in point.items()) or "as it is"


def shown(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
