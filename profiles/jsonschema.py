"""The JSON Schema of profile files, for completion and checks in editors. Generated."""

from __future__ import annotations

from typing import Any

import msgspec

from profiles.model import EnvRef, Preload, Profile, Restart, Stop
from profiles.schema import Argument, ArgumentSchema, shipped

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIZE = r"^\d+(\.\d+)?[kKmMgGtT]?$"


def json_schema(schema: ArgumentSchema | None = None) -> dict[str, Any]:
    """JSON Schema (2020-12) of a profile file; arguments are those of `schema`, or of the newest
    vLLM that Stoker knows. Argument names with underscores and with dashes are both offered."""
    schema = schema or shipped()
    root = msgspec.json.schema(Profile)
    definitions = root["$defs"]
    properties = dict(definitions.pop("Profile")["properties"])
    for own in ("name", "path"):
        del properties[own]
    texts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    properties |= {
        "extends": {**texts, "description": "Parents: names of profiles, or files."},
        "served_name": texts,
        "tags": texts,
        "schema": {"const": 1},
        "port": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "null"}]},
        "gpus": {
            "description": "Indices or UUIDs of the GPUs to use.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string"},
                {"type": "array", "items": {"type": ["integer", "string"]}},
            ],
        },
        "env": {
            "type": "object",
            "description": "Environment; secrets by reference only.",
            "additionalProperties": {
                "anyOf": [
                    {"type": ["string", "number", "boolean", "null"]},
                    {"$ref": "#/$defs/EnvRef"},
                ]
            },
        },
        "args": _arguments(schema, "serve"),
        "preload": {
            "anyOf": [{"type": ["boolean", "null"]}, {"$ref": "#/$defs/Preload"}],
        },
    }
    _refine(definitions, schema)
    return {
        "$schema": DIALECT,
        "title": "Stoker profile",
        "description": f"How to run one model; arguments of vLLM {schema.version}.",
        "type": "object",
        "properties": {key: _nullable(value) for key, value in properties.items()},
        "additionalProperties": False,
        "$defs": definitions,
    }


def _refine(definitions: dict[str, Any], schema: ArgumentSchema) -> None:
    for record in (EnvRef, Preload, Restart, Stop):
        definitions[record.__name__]["additionalProperties"] = False
    preload = definitions["Preload"]["properties"]
    preload["mode"] = {"enum": ["zero_copy", "copy"], "default": "zero_copy"}
    preload["args"] = _arguments(schema, "preload")
    restart = definitions["Restart"]["properties"]
    restart["policy"] = {"enum": ["never", "on-failure", "always"], "default": "never"}


def _arguments(schema: ArgumentSchema, command: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for argument in schema.arguments.values():
        if command not in argument.commands or argument.name in (
            "model",
            "served_model_name",
            "host",
            "port",
        ):
            continue
        described = _argument(argument)
        properties[argument.name] = described
        if "_" in argument.name:
            properties[argument.name.replace("_", "-")] = described
    return {
        "type": "object",
        "description": f"Arguments of vllm {command}; plugins may add others.",
        "properties": properties,
        "additionalProperties": True,
    }


def _argument(argument: Argument) -> dict[str, Any]:
    out = _nullable(_value(argument))
    text = argument.help or f"{argument.option} ({argument.group})"
    out["description"] = text
    if argument.default is not None:
        out["default"] = argument.default
    return out


def _value(argument: Argument) -> dict[str, Any]:
    kind = argument.kind
    if argument.choices:
        words = [choice for choice in argument.choices if choice != "None"]
        numbers = [int(word) for word in words if word.isdecimal()]
        one: dict[str, Any] = {"enum": [*words, *numbers]}
    elif kind in ("flag", "switch"):
        one = {"type": "boolean"}
    elif kind == "int":
        one = {"type": "integer"}
    elif kind == "float":
        one = {"type": "number"}
    elif kind in ("size", "size_or_auto"):
        pattern = _SIZE if kind == "size" else rf"{_SIZE}|^(auto|-1)$"
        one = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": pattern}]}
    elif kind in ("json", "json_or_text", "lora"):
        one = {"type": ["object", "array", "string"]}
    else:
        one = {"type": ["string", "number", "boolean"]}
    if argument.many or argument.append or kind == "csv":
        return {"anyOf": [one, {"type": "array", "items": one}]}
    return one


def _nullable(value: dict[str, Any]) -> dict[str, Any]:
    """null removes an inherited key anywhere."""
    if {"type": "null"} in value.get("anyOf", ()):
        return dict(value)
    return {"anyOf": [value, {"type": "null"}]}
