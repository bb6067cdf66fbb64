"""compose's `extends`: a service on top of another, of this file or of one beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.beside import read_beside
from profiles.importing.documents import load_yaml
from profiles.importing.draft import Draft
from profiles.importing.interpolation import scalar

_MAX_DEPTH = 50
_LISTS = ("volumes", "ports", "devices", "secrets", "env_file", "tmpfs", "cap_add", "expose")
_PAIRS = ("environment", "labels")
_WHOLE = ("command", "entrypoint", "healthcheck")


def extended(
    name: str,
    body: dict[str, Any],
    services: dict[str, Any],
    draft: Draft,
    below: tuple[tuple[str, str], ...] = (),
    folder: Path | None = None,
    here: str = "",
) -> dict[str, Any]:
    """The service with what it extends, also in a file beside this one; what is not there is said.

    `below` are the (file, service) that extend this one, which is of the file `here` in `folder`.
    Raises Usage for a cycle."""
    parent = body.get("extends")
    folder = draft.base if folder is None else folder
    if parent is None:
        return body
    target = str(parent.get("service") if isinstance(parent, dict) else parent)
    file = parent.get("file") if isinstance(parent, dict) else None
    there = here if not file else os.path.normpath(os.path.join(folder or "", str(file)))
    chain = (*below, (here, name))
    if (there, target) in chain:
        raise Usage(f"service {name} extends {target}, which extends it again")
    if len(chain) > _MAX_DEPTH:
        raise Usage(f"service {name} extends more than {_MAX_DEPTH} services in a row")
    if file:
        found = _services(str(file), folder)
        if found is None:
            draft.note(f"service {name} extends {target} of {file}: not part of the text")
            return body
        services = found
    above = services.get(target)
    if not isinstance(above, dict):
        raise Usage(f"service {name} extends {target}, which {file or 'the file'} does not have")
    next_folder = Path(there).parent if file else folder
    above = extended(target, above, services, draft, chain, next_folder, there)
    if file:
        above = _moved(above, os.path.dirname(str(file)))
        draft.notes.append(f"service {name}: {file} beside the file was read for {target}")
    own = {key: value for key, value in body.items() if key != "extends"}
    return _merged(above, own)


def with_included(
    document: dict[str, Any], draft: Draft, folder: Path | None = None, depth: int = 0
) -> dict[str, Any]:
    """The document with the services of the files that it includes, where they are beside it; the
    others stay under `include`."""
    items = document.get("include")
    if not isinstance(items, list) or draft.as_written:
        return document
    folder = draft.base if folder is None else folder
    services = dict(document["services"]) if isinstance(document.get("services"), dict) else {}
    left: list[Any] = []
    for item in items:
        paths = item.get("path") if isinstance(item, dict) else item
        names = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
        texts = [read_beside(name, folder) for name in names]
        if depth > 8 or any(text is None for text in texts):
            left.append(item)
            continue
        for name, text in zip(names, texts, strict=True):
            found = load_yaml(text or "")
            below = Path(os.path.normpath(os.path.join(folder or "", name))).parent
            if isinstance(found, dict):
                found = with_included(found, draft, below, depth + 1)
                for key, body in (found.get("services") or {}).items():
                    moved = _moved(body, os.path.dirname(name)) if isinstance(body, dict) else body
                    services.setdefault(key, moved)
            draft.notes.append(f"include {name}: was read beside the file")
    rest = {key: value for key, value in document.items() if key != "include"}
    return {**rest, "services": services, **({"include": left} if left else {})}


def _services(file: str, folder: Path | None) -> dict[str, Any] | None:
    text = read_beside(file, folder)
    if text is None:
        return None
    document = load_yaml(text)
    services = document.get("services") if isinstance(document, dict) else None
    return services if isinstance(services, dict) else {}


def _moved(body: dict[str, Any], folder: str) -> dict[str, Any]:
    """A service of another folder as this one sees it: relative paths count from there."""

    def moved(path: Any) -> Any:
        if isinstance(path, dict):
            key = "path" if "path" in path else "source"
            return {**path, key: moved(path[key])} if key in path else path
        if isinstance(path, str) and path.startswith(("./", "../")):
            found = os.path.normpath(os.path.join(folder, path))
            return found if os.path.isabs(found) else f"./{found}"
        return path

    out = dict(body)
    if not folder:
        return out
    above = out.get("extends")
    if isinstance(above, dict) and isinstance(above.get("file"), str):
        out["extends"] = {**above, "file": os.path.join(folder, above["file"])}
    if isinstance(out.get("volumes"), list):
        out["volumes"] = [moved(item) for item in out["volumes"]]
    files = out.get("env_file")
    if files is not None:
        items = files if isinstance(files, list) else [files]
        plain = [f"./{i}" if isinstance(i, str) and i[:1] not in "./~" else i for i in items]
        out["env_file"] = [moved(item) for item in plain]
    return out


def _merged(above: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Maps are merged, lists of mounts and the like joined, all else is replaced."""
    out = {**above, **own}
    for key, value in own.items():
        old = above.get(key)
        if key in _PAIRS and old is not None:
            out[key] = {**dict(pairs(old)), **dict(pairs(value))}
        elif isinstance(old, dict) and isinstance(value, dict) and key not in _WHOLE:
            out[key] = _merged(old, value)
        elif isinstance(old, list) and isinstance(value, list) and key in _LISTS:
            out[key] = [*old, *(item for item in value if item not in old)]
    return out


def pairs(value: Any) -> list[tuple[str, str]]:
    """Environment as map or list; a name without a value passes the caller's variable on."""
    out: list[tuple[str, str]] = []
    if isinstance(value, dict):
        for name, item in value.items():
            text = "${" + str(name) + "}" if item is None else scalar(item)
            out.append((str(name), text))
    elif isinstance(value, list):
        for item in value:
            name, equals, text = str(item).partition("=")
            out.append((name.strip(), text if equals else "${" + name.strip() + "}"))
    return out
