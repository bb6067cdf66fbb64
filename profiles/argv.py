"""The exact command lines and environment that a profile means, in vLLM's own spelling.

Facts about the parser that shape the output (vLLM 0.32 and 0.33): words that begin with a dash
and hold a dot are taken for dotted options even where they are values, so such values are joined
with `=`; options that take several values end at the next option; `--no-x` exists for every
boolean in every version, `--disable-x` only from 0.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from profiles.importing.references import expand, sole_name
from profiles.model import EnvRef, Preload, Profile
from profiles.schema import Argument, ArgumentSchema, canonical, shipped

IPC_KEYS = (
    "socket_path",
    "socket_dir",
    "mode",
    "fallback",
    "connect_timeout_s",
    "state_timeout_s",
)
_HUMAN = re.compile(r"\d+(\.\d+)?[kKmMgGtT]|\d+")


def serve_argv(profile: Profile, schema: ArgumentSchema | None = None) -> list[str]:
    """`vllm serve`'s arguments, without the leading `vllm`.

    Raises Usage when the profile has no model or a value cannot be said on a command line."""
    argv = ["serve", _model(profile)]
    if profile.served_name:
        argv += ["--served-model-name", *profile.served_name]
    argv += ["--host", profile.host]
    if profile.port is not None:
        argv += ["--port", str(profile.port)]
    return argv + argument_words(serve_arguments(profile), schema)


def preload_argv(
    profile: Profile, schema: ArgumentSchema | None = None, seed_token: str | None = None
) -> list[str]:
    """`vllm preload`'s arguments for the same weights, without the leading `vllm`.

    Arguments that only `vllm serve` has are left out. `seed_token` is the resolved value of
    `preload.seed_token`: vLLM takes it on the command line only, where `ps` shows it.
    Raises Usage when the profile has no model, no preload section, or the version lacks an
    argument that the section needs."""
    schema = schema or shipped()
    if profile.preload is None:
        raise Usage(f"profile {profile.name} has no preload section; add `preload: true`")
    argv = ["preload", "--model", _model(profile)]
    argv += argument_words(preload_arguments(profile, schema), schema)
    section = profile.preload
    extra: list[tuple[str, str | None]] = [
        ("--weight-cache-socket-dir", section.socket_dir),
        ("--weight-cache-health-port", _text_or_none(section.health_port)),
        # vLLM's default would listen on every interface.
        ("--weight-cache-health-host", "127.0.0.1" if section.health_port is not None else None),
        ("--seed-token", seed_token),
    ]
    for option, value in extra:
        if value is None or _given(section.args, option):
            continue
        if schema.find(option, "preload") is None:
            raise Usage(f"vllm preload of version {schema.version} has no {option}")
        argv += _valued(option, [value])
    return argv


def serve_arguments(profile: Profile) -> dict[str, Any]:
    """The engine's arguments: `args`, and what a preload section adds to them."""
    args = {name: value for name, value in profile.args.items() if value is not None}
    if profile.preload is None:
        return args
    extra = _ipc_config(profile.preload) | _split_extra(args)[0]
    return {**args, "load_format": "ipc_cache", "model_loader_extra_config": extra}


def preload_arguments(profile: Profile, schema: ArgumentSchema | None = None) -> dict[str, Any]:
    """The daemon's arguments: those of `args` that `vllm preload` knows, overridden by
    `preload.args` (null removes one)."""
    schema = schema or shipped()
    args = dict(profile.args)
    disk = _split_extra(args)[1]
    args.pop("model_loader_extra_config", None)
    if disk:
        args["model_loader_extra_config"] = disk
    if args.get("load_format") == "ipc_cache":
        del args["load_format"]
    kept = {name: value for name, value in args.items() if schema.find(name, "preload") is not None}
    own = profile.preload.args if profile.preload is not None else {}
    merged = kept | {canonical(name, value, schema)[0]: value for name, value in own.items()}
    return {name: value for name, value in merged.items() if value is not None}


def argument_words(args: Mapping[str, Any], schema: ArgumentSchema | None = None) -> list[str]:
    """Command-line words for arguments; names that the schema lacks are passed on as they are."""
    schema = schema or shipped()
    words: list[str] = []
    for key, raw in args.items():
        name, value = canonical(key, raw, schema)
        if value is None:
            continue
        head, dot, tail = name.partition(".")
        argument = schema.find(head)
        option = argument.option if argument else "--" + head.replace("_", "-")
        if dot:
            words += _dotted(f"{option}.{tail}", value)
        elif argument is None:
            words += _unknown(option, value)
        else:
            words += _known(argument, option, value)
    return words


def environment(profile: Profile) -> tuple[dict[str, str], dict[str, EnvRef]]:
    """(plain values, references to resolve at the start) of the process environment.

    `gpus` become CUDA_VISIBLE_DEVICES, in PCI order when they are indices, so that an index means
    what the driver's tools mean by it. An explicit `env` value wins; `--device-ids` (0.24 and
    later) counts within what is visible. A value that is nothing but `${NAME}` is a reference."""
    values: dict[str, str] = {}
    if profile.gpus:
        values["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, profile.gpus))
        if isinstance(profile.gpus[0], int):
            values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    refs: dict[str, EnvRef] = {}
    for name, value in profile.env.items():
        variable = None if isinstance(value, EnvRef) else sole_name(value)
        if variable is not None:
            value = EnvRef(from_env=variable)
        if isinstance(value, EnvRef):
            refs[name] = value
            values.pop(name, None)
        else:
            values[name] = value
    return values, refs


def expanded(profile: Profile, env: Mapping[str, str]) -> Profile:
    """The profile with `${NAME}`, `${NAME:-default}` and `$${` in its text values filled in.

    To be called with the operator's environment before a start. Values of `env` that are nothing
    but a reference stay one, so that no secret is written anywhere. Raises Usage naming the key
    and the variable that is not set; commands, `$(…)`, are never run."""

    def fill(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: fill(item, f"{key}.{name}") for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(fill(item, key) for item in value)
        if not isinstance(value, str) or "$" not in value:
            return value
        text, missing = expand(value, env)
        if missing:
            raise Usage(
                f"profile {profile.name}: {key} needs {', '.join(missing)}, which is not set"
            )
        return text

    section = profile.preload
    if section is not None:
        section = msgspec.structs.replace(
            section,
            socket_dir=fill(section.socket_dir, "preload.socket_dir"),
            args=fill(section.args, "preload.args"),
        )
    return msgspec.structs.replace(
        profile,
        model=fill(profile.model, "model"),
        served_name=fill(profile.served_name, "served_name"),
        host=fill(profile.host, "host"),
        args=fill(profile.args, "args"),
        env={
            name: value
            if isinstance(value, EnvRef) or sole_name(value) is not None
            else fill(value, f"env.{name}")
            for name, value in profile.env.items()
        },
        preload=section,
    )


def _model(profile: Profile) -> str:
    if not profile.model:
        raise Usage(f"profile {profile.name} names no model; set `model:`")
    return profile.model


def _ipc_config(section: Preload) -> dict[str, Any]:
    config: dict[str, Any] = {"mode": section.mode, "fallback": section.fallback}
    for key in ("socket_dir", "connect_timeout_s", "state_timeout_s"):
        value = getattr(section, key)
        if value is not None:
            config[key] = value
    return config


def _split_extra(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An explicit loader config as (what the engine's ipc_cache loader takes, what the daemon's
    loader from disk takes)."""
    value = args.get("model_loader_extra_config")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Usage("args.model_loader_extra_config is no JSON map") from None
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        raise Usage("args.model_loader_extra_config is no map")
    engine = {key: item for key, item in value.items() if key in IPC_KEYS}
    return engine, {key: item for key, item in value.items() if key not in IPC_KEYS}


def _known(argument: Argument, option: str, value: Any) -> list[str]:
    if argument.kind == "flag" and isinstance(value, bool):
        return [option if value else "--no-" + option.removeprefix("--")]
    if argument.kind == "switch" and isinstance(value, bool):
        return [option] if value else []
    if argument.optional_value and isinstance(value, bool):
        return [option] if value else []
    if argument.append:
        items = value if isinstance(value, list) else [value]
        return [word for item in items for word in _valued(option, [_word(item)])]
    if argument.many:
        items = value if isinstance(value, list) else [value]
        return _valued(option, [_word(item) for item in items])
    if argument.kind == "csv" and isinstance(value, list):
        return _valued(option, [",".join(map(_word, value))])
    return _valued(option, [_word(value)])


def _unknown(option: str, value: Any) -> list[str]:
    """An argument that the schema lacks, by the shape of its value: the usual argparse forms."""
    if isinstance(value, bool):
        return [option if value else "--no-" + option.removeprefix("--")]
    items = value if isinstance(value, list) else [value]
    return _valued(option, [_word(item) for item in items])


def _dotted(option: str, value: Any) -> list[str]:
    if option.endswith("+") and isinstance(value, list):
        return _valued(option, [",".join(map(_word, value))])
    if isinstance(value, str) and not option.endswith("+") and _reads_otherwise(value):
        return _valued(option, [json.dumps(value)])
    return _valued(option, [value if isinstance(value, str) else _json(value)])


def _reads_otherwise(text: str) -> bool:
    """True where a dotted option would make something else than text of this text."""
    try:
        json.loads(text)
    except ValueError:
        return _HUMAN.fullmatch(text.strip()) is not None
    return True


def _valued(option: str, values: list[str]) -> list[str]:
    if not values:
        return []
    if not any(value.startswith("-") for value in values):
        return [option, *values]
    if len(values) == 1:
        return [f"{option}={values[0]}"]
    raise Usage(
        f"{option.removeprefix('--')}: a value that begins with a dash cannot stand in a list "
        "on vLLM's command line"
    )


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return _json(value)
    return str(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _given(args: Mapping[str, Any], option: str) -> bool:
    name = option.removeprefix("--").replace("-", "_")
    return any(key.lstrip("-").replace("-", "_") == name for key in args)
