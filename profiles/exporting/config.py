"""A `vllm serve --config` file.

vLLM drops `x: false` silently, hands every item of a list on as one word, and takes no reference:
so `no-x: true` is written for false and quoted JSON for lists inside one value. What is no
argument (environment, GPUs, daemon) is said in comments."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from profiles.argv import serve_arguments
from profiles.exporting.command import ALL_INTERFACES, Export, env_text
from profiles.exporting.documents import dump
from profiles.exporting.quoting import shell
from profiles.importing.references import Literal, has_references, parse
from profiles.model import EnvRef
from profiles.schema import canonical


def export_config(export: Export) -> str:
    profile = export.profile
    data: dict[str, Any] = {}
    if profile.model:
        data["model"] = _text(profile.model)
    if profile.served_name:
        data["served-model-name"] = [_text(name) for name in profile.served_name]
    if profile.host != ALL_INTERFACES:
        data["host"] = _text(profile.host)
    if profile.port is not None:
        data["port"] = profile.port
    for field in ("model", "served_name", "host"):
        if _misread(msgspec.to_builtins(getattr(profile, field))):
            export.keep[field] = msgspec.to_builtins(getattr(profile, field))
    comments: list[str] = []
    for key, value in serve_arguments(profile).items():
        _argument(export, data, comments, key, value)
    if profile.gpus:
        export.keep["gpus"] = msgspec.to_builtins(profile.gpus)
    if profile.env:
        export.keep["env"] = msgspec.to_builtins(profile.env)
    if profile.preload is not None:
        export.keep["preload"] = msgspec.to_builtins(profile.preload)
    for name, given in export.environment().items():
        shown = (
            ""
            if isinstance(given, EnvRef) and given.from_env == name
            else ("=" + shell(env_text(given)))
        )
        comments.append(f"environment: {name}{shown}".replace("\n", "\\n"))
    head = [export.header(), *(f"# {comment}" for comment in comments)]
    return "\n".join(head) + "\n" + dump(data)


def _argument(
    export: Export, data: dict[str, Any], comments: list[str], key: str, raw: Any
) -> None:
    name, value = canonical(key, raw, export.schema)
    argument = None if "." in name else export.schema.find(name)
    option = argument.option[2:] if argument else name.replace("_", "-")
    if isinstance(value, bool):
        if value:
            data[option] = True
        elif argument is None or argument.kind == "flag":
            data[f"no-{option}"] = True
    elif isinstance(value, dict):
        data[option] = _plain(value)
    elif isinstance(value, list):
        if argument is not None and argument.append:
            data[option] = _text(_word(value[0])) if value else None
            if len(value) > 1:
                export.keep.setdefault("arguments", {})[name] = value
                rest = " ".join(f"--{option} {shell(_word(v))}" for v in value[1:])
                comments.append(f"a file can say {option} once; add to the command line: {rest}")
            if not value:
                del data[option]
        elif argument is not None and argument.kind == "csv":
            data[option] = ",".join(_text(_word(v)) for v in value)
        elif argument is not None and not argument.many:
            data[option] = json.dumps(_plain(value), ensure_ascii=False)
        else:
            data[option] = [_text(_word(v)) for v in value]
    elif isinstance(value, str):
        data[option] = _text(value)
    else:
        data[option] = value
    unknown = argument is None and not isinstance(value, bool) and value is not None
    if unknown or _misread(value):
        export.keep.setdefault("arguments", {})[name] = raw


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """What vLLM must read: no escape for a dollar, and references for whoever fills them in."""
    if has_references(text):
        return text
    return "".join(piece.text for piece in parse(text) if isinstance(piece, Literal))


def _misread(value: Any) -> bool:
    """Whether a literal in the value would be taken for a reference when it is read again."""
    if isinstance(value, dict):
        return any(map(_misread, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_misread, value))
    return isinstance(value, str) and _text(value) != value
