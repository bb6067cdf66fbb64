"""Literal secrets of a text: what is kept of them is where they come from."""

from __future__ import annotations

import re
from typing import Any

from profiles.importing.draft import Draft
from profiles.importing.references import (
    Command,
    Literal,
    names,
    parse,
    read_file,
    sole_name,
)
from profiles.importing.secrets import ARGUMENT_ENV, is_secret, looks_secret, not_stored, scrub
from profiles.model import EnvRef


def environment_value(draft: Draft, name: str, value: str) -> str | EnvRef:
    """A value or, for a sole reference and for everything secret, where it comes from."""
    source = sole_name(value)
    if source is not None:
        return EnvRef(from_env=source)
    path = read_file(value)
    if path is not None:
        return EnvRef(from_file=path)
    hidden = scrub(value)
    if value and (is_secret(name) or looks_secret(value) or hidden != value):
        named = names(value)
        if named and is_secret(name):
            draft.note(f"{name}: its default is not kept, only the reference to {named[0]}")
            draft.secrets |= {p.text for p in parse(value) if isinstance(p, Literal)}
            return EnvRef(from_env=named[0])
        draft.secrets.add(value)
        draft.note(not_stored(name))
        return EnvRef(from_env=name)
    return value


def secret_arguments(draft: Draft, args: dict[str, Any], env: dict[str, str | EnvRef]) -> None:
    """Secrets on the command line become references: to the variable that vLLM reads itself
    where there is one, so that the value never shows in `ps`."""
    for name in list(args):
        value = args[name]
        option = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            args[name] = _secret_fields(draft, name, value, secret=False)
            continue
        if isinstance(value, str) and not is_secret(name) and scrub(value) != value:
            draft.note(f"{option}: the secret in its value was not stored (***): put it back")
        if not is_secret(name) or isinstance(value, bool):
            continue
        items = value if isinstance(value, list) else [value]
        wanted = ARGUMENT_ENV.get(name, re.sub(r"\W", "_", name).upper())
        refs = [reference_for(draft, option, str(v), wanted, i) for i, v in enumerate(items)]
        sole = sole_name(refs[0]) if len(refs) == 1 else None
        path = read_file(refs[0]) if len(refs) == 1 else None
        if name in ("api_key", "hf_token") and (sole is not None or path is not None):
            del args[name]
            env.setdefault(wanted, EnvRef(from_env=sole, from_file=path))
        else:
            args[name] = refs if isinstance(value, list) else refs[0]


def reference_for(draft: Draft, option: str, value: str, wanted: str, index: int) -> str:
    pieces = parse(value)
    sole = sole_name(value)
    if sole is not None or (len(pieces) == 1 and isinstance(pieces[0], Command)):
        return value if sole is None else "${" + sole + "}"
    found = names(value)
    variable = found[0] if found else wanted if index == 0 else f"{wanted}_{index + 1}"
    draft.secrets |= {p.text for p in parse(value) if isinstance(p, Literal)}
    draft.note(not_stored(option, variable))
    return "${" + variable + "}"


def _secret_fields(draft: Draft, path: str, value: Any, secret: bool) -> Any:
    """Secrets inside JSON values, such as a connector's password or a watermark key."""
    if isinstance(value, dict):
        return {
            key: _secret_fields(
                draft,
                f"{path}_{key}",
                item,
                is_secret(str(key)) or (path == "watermark_config" and "key" in str(key)),
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_secret_fields(draft, path, item, secret) for item in value]
    if not isinstance(value, str) and not (secret and isinstance(value, int)):
        return value
    if isinstance(value, bool) or not value:
        return value
    text = str(value)
    if sole_name(text) is None and (secret or looks_secret(text)):
        variable = re.sub(r"\W", "_", path).upper()
        draft.secrets.add(text)
        draft.note(not_stored(path, variable))
        return "${" + variable + "}"
    return value
