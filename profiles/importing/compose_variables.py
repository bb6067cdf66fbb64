"""compose's variables out of files: a service's `env_file`, and the `.env` beside the file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from profiles.importing.beside import compose_variables, plain_variables, read_beside
from profiles.importing.draft import Draft
from profiles.importing.interpolation import interpolated
from profiles.importing.references import Piece, Reference, literal, parse, render
from profiles.importing.secrets import is_secret


def service_variables(draft: Draft, body: dict[str, Any]) -> list[tuple[str, str]]:
    """The variables of the service's `env_file`s; what is not here is said."""
    files = body.get("env_file")
    out: dict[str, str] = {}
    for item in files if isinstance(files, list) else [] if files is None else [files]:
        name = item.get("path") if isinstance(item, dict) else item
        raw = isinstance(item, dict) and item.get("format") == "raw"
        if draft.as_written:
            continue  # An export has their values in its environment.
        text = read_beside(str(name), draft.base)
        if text is None:
            draft.note(f"env_file {name}: is not here, its values were not read")
            continue
        draft.notes.append(f"env_file {name}: was read, its values are in `env`")
        if raw:
            found = [(key, literal(value or "")) for key, value in plain_variables(text)]
        else:
            found = [(key, interpolated(value)) for key, value in compose_variables(text)]
        out |= dict(found)
    return list(out.items())


def fill_defaults(draft: Draft) -> None:
    """What `.env` beside the file gives becomes the default of `${NAME}`: for compose, too, the
    caller's environment comes first. Secrets are said, not stored."""
    text = None if draft.as_written else read_beside(".env", draft.base)
    if text is None:
        return
    known = dict(compose_variables(text))
    used: dict[str, None] = {}

    def piece(found: Piece) -> Piece:
        if not isinstance(found, Reference) or found.name not in known:
            return found
        if found.rest and not re.match(r":?[-?]", found.rest):
            return found
        if is_secret(found.name):
            draft.note(f".env beside the file gives {found.name}: set it where the engine starts")
            return found
        value = interpolated(known[found.name])
        if not value and found.rest.startswith(":"):
            return found  # compose takes an empty value for none
        filled = Reference(found.name, ":-" + value)
        if parse(render([filled])) != (filled,):
            draft.note(f".env beside the file gives {found.name}: set it where the engine starts")
            return found
        used[found.name] = None
        return filled

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return render(piece(found) for found in parse(value))
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    draft.words = filled(draft.words)
    draft.preload_words = filled(draft.preload_words)
    draft.env = filled(draft.env)
    draft.ports = filled(draft.ports)
    draft.mounts = [replace(mount, source=filled(mount.source)) for mount in draft.mounts]
    container = draft.origin.get("container")
    if isinstance(container, dict) and "ports" in container:
        container["ports"] = filled(container["ports"])
    if used:
        draft.notes.append(f".env beside the file gives {', '.join(used)}")
