"""The effective view of a profile: every value with its origin, the argv and the environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from profiles.argv import environment, preload_argv, serve_arguments, serve_argv
from profiles.diff import MASK, masked, without_passwords
from profiles.importing.references import has_references
from profiles.importing.secrets import is_secret
from profiles.loading import Resolved
from profiles.model import EnvRef
from profiles.rules import as_map
from profiles.schema import ArgumentSchema, shipped

VLLM = "vLLM's default"
STOKER = "Stoker"


@dataclass(frozen=True, slots=True)
class Row:
    """One value. `origin` is a place (`file:line`, `built-in chat:4`), vLLM's default or Stoker;
    `given` is whether the profile sets it."""

    key: str
    value: Any
    origin: str
    given: bool
    help: str = ""


@dataclass(frozen=True, slots=True)
class Effective:
    """What a profile comes to. Secrets are masked everywhere; an argv is None when it cannot be
    made, and `problem` says why."""

    resolved: Resolved
    rows: tuple[Row, ...]
    argv: tuple[str, ...] | None
    preload_argv: tuple[str, ...] | None
    env: dict[str, str]
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """`{"profile", "argv", "env", "provenance", …}` (see DESIGN: what scripts may rely on)."""
        profile = msgspec.to_builtins(self.resolved.profile)
        profile["args"] = mask_arguments(profile["args"])
        profile["env"] = {
            name: value if isinstance(value, dict) else masked(name, value)
            for name, value in profile["env"].items()
        }
        if profile["preload"] is not None:
            profile["preload"]["args"] = mask_arguments(profile["preload"]["args"])
        return {
            "profile": profile,
            "argv": None if self.argv is None else ["vllm", *self.argv],
            "preload_argv": None if self.preload_argv is None else ["vllm", *self.preload_argv],
            "env": self.env,
            "provenance": {
                key: {"kind": o.kind, "name": o.name, "path": o.path, "line": o.line}
                for key, o in self.resolved.provenance.items()
            },
            "files": [str(path) for path in self.resolved.files],
            "unknown": list(self.resolved.unknown),
            "values": [
                {"key": row.key, "value": row.value, "origin": row.origin, "given": row.given}
                for row in self.rows
            ],
            "problem": self.problem or None,
        }


def effective(resolved: Resolved, schema: ArgumentSchema | None = None) -> Effective:
    """The effective view of a resolved profile for the runtime that `schema` describes."""
    from engine_ctl.errors import Usage

    schema = schema or shipped()
    profile = resolved.profile
    problem, argv, daemon = "", None, None
    try:
        argv = mask_argv(serve_argv(profile, schema))
        if profile.preload is not None:
            token = MASK if profile.preload.seed_token is not None else None
            daemon = mask_argv(preload_argv(profile, schema, token))
    except Usage as error:
        problem = str(error)
    values, references = environment(profile)
    env = {name: str(masked(name, value)) for name, value in values.items()}
    env |= {name: str(masked(name, reference)) for name, reference in references.items()}
    return Effective(resolved, _rows(resolved, schema), argv, daemon, env, problem)


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line that may be shown: values of secret options are replaced."""
    out: list[str] = []
    name = ""
    for word in argv:
        if not word.startswith("--"):
            out.append(_mask_value(name, word))
            continue
        option, joined, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        out.append(option + joined + _mask_value(name, value) if joined else word)
    return tuple(out)


def _mask_value(name: str, value: str) -> str:
    given = {} if is_secret(name) else dict(as_map(value))
    if not given:
        return str(_shown(name, value))
    inside = _shown(name, given)
    return value if inside == given else json.dumps(inside)


def mask_arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments that may be shown, those inside of JSON arguments too."""
    return {name: _shown(name, value) for name, value in args.items()}


def _shown(name: str, value: Any) -> Any:
    if is_secret(name) and not isinstance(value, bool):
        return [_hidden(item) for item in value] if isinstance(value, list) else _hidden(value)
    if isinstance(value, dict):
        return {
            key: _hidden(item) if (name, key) == ("watermark_config", "key") else _shown(key, item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_shown(name, item) for item in value]
    return without_passwords(value)


def _hidden(value: Any) -> str:
    return value if isinstance(value, str) and has_references(value) else MASK


def _rows(resolved: Resolved, schema: ArgumentSchema) -> tuple[Row, ...]:
    profile = resolved.profile
    rows: list[Row] = []
    for key in ("runtime", "model", "served_name", "gpus", "host", "port", "standby", "front"):
        value = getattr(profile, key)
        place = resolved.place(key)
        rows.append(
            Row(
                key,
                list(value) if isinstance(value, tuple) else value,
                place or STOKER,
                bool(place),
            )
        )
    given = mask_arguments(serve_arguments(profile))
    for name, value in given.items():
        argument = schema.find(name)
        place = resolved.place(f"args.{name}") if name in profile.args else ""
        rows.append(
            Row(f"args.{name}", value, place or STOKER, True, argument.help if argument else "")
        )
    for argument in schema.arguments.values():
        if argument.name in given or "serve" not in argument.commands:
            continue
        if argument.name in ("model", "served_model_name", "host", "port"):
            continue
        default = argument.default_text or argument.default
        rows.append(Row(f"args.{argument.name}", default, VLLM, False, argument.help))
    for name, variable in profile.env.items():
        value = masked(name, variable)
        shown = value if not isinstance(variable, EnvRef) else str(value)
        rows.append(Row(f"env.{name}", shown, resolved.place(f"env.{name}"), True))
    for section in ("preload", "restart", "stop"):
        part = getattr(profile, section)
        for name in part.__struct_fields__ if part is not None else ():
            written = resolved.provenance.get(f"{section}.{name}")
            value = masked(name, getattr(part, name))
            if name == "args":
                value = mask_arguments(value)
            rows.append(
                Row(f"{section}.{name}", value, str(written or STOKER), written is not None)
            )
    return tuple(rows)
