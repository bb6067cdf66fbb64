"""From what an importer found to a profile: the one place that decides what goes where."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from profiles.importing.arguments import Parsed, parse_arguments
from profiles.importing.credentials import environment_value, secret_arguments
from profiles.importing.daemon import preload_section
from profiles.importing.draft import Draft
from profiles.importing.mounts import HostPaths
from profiles.importing.ports import ALL_INTERFACES, DEFAULT_PORT, published, shown
from profiles.importing.references import Command, Reference, parse
from profiles.importing.secrets import mask, masked
from profiles.importing.visible import visible_gpus
from profiles.model import EnvRef, Profile, Restart
from profiles.schema import ArgumentSchema


def build(draft: Draft, schema: ArgumentSchema, name: str | None) -> Profile:
    """The profile of a draft; the draft's report is completed. Raises Usage without a model."""
    parsed = parse_arguments(draft.words, schema, "serve", draft.read_config)
    draft.unrepresented += [n for n in parsed.notes if n not in draft.unrepresented]
    args = parsed.args
    model = _model(draft, parsed)
    paths = HostPaths([]) if draft.as_written else HostPaths(draft.mounts, draft.inside)
    inside, model = model, str(paths.argument("model", model))
    draft.env = paths.environment(draft.env)
    args = {key: paths.argument(key, value) for key, value in args.items()}
    env = _env(draft)
    secret_arguments(draft, args, env)
    served = args.pop("served_model_name", ())
    if model != inside and not served:
        served = inside
        draft.notes.append(f"served_name {inside}: what its clients ask for stays as it was")
    port = _port(draft, args.pop("port", None))
    host = str(args.pop("host", "") or "")
    if not host:
        host = "127.0.0.1" if draft.loopback else ALL_INTERFACES
    if draft.takes_ports():
        host, port = _published(draft, host, port)
    for key, value in {"model": model, **args}.items():
        _note_open(draft, key, value)
    preload = None
    if draft.preload_words is not None:
        preload = preload_section(draft, args, schema, env, paths)
    _mounts(draft, paths)
    if parsed.extra:
        draft.origin["extra_words"] = parsed.extra
    gpus = visible_gpus(draft, env)
    served_name = tuple(map(str, served)) if isinstance(served, list) else (str(served),)
    served_name = served_name if served else ()
    chosen = name or str(draft.name or "") or _name(served_name[0] if served_name else model)
    draft.unrepresented = [mask(text, draft.secrets) for text in draft.unrepresented]
    draft.notes = [mask(text, draft.secrets) for text in draft.notes]
    return Profile(
        name=_name(chosen),
        model=model,
        served_name=served_name,
        gpus=gpus,
        host=host,
        port=port,
        args=_scrubbed(args, draft.secrets),
        env=env,
        preload=preload,
        restart=draft.restart or Restart(),
        origin=masked(draft.origin, draft.secrets),
    )


def _model(draft: Draft, parsed: Parsed) -> str:
    option = parsed.args.pop("model", None)
    if option is not None and parsed.positional is not None:
        from_config = parsed.config is not None and "--model" not in draft.words
        kept, dropped = (parsed.positional, option) if from_config else (option, parsed.positional)
        if re.fullmatch(r"\$\{\w+\}", str(dropped)):
            draft.note(f"what {dropped} adds to the command is not here: it was left out")
        elif kept != dropped:
            draft.note(f"two models are given; {kept} counts, {dropped} was left out")
        return str(kept)
    model = parsed.positional if option is None else option
    if model is None and draft.preload_words is not None:
        words = draft.preload_words
        model = next((b for a, b in itertools.pairwise(words) if a == "--model"), None)
    if model is None:
        # A config file that is not at hand may name it.
        if "config" not in parsed.args:
            draft.note("no model is given; set `model:` before a start")
        return ""
    if model in ("${@}", "${*}"):
        draft.note("the model is among the script's own arguments; set `model:`")
        return ""
    return str(model)


def _note_open(draft: Draft, name: str, value: Any) -> None:
    """Report what only a running shell could fill in."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            continue
        for piece in parse(item):
            if isinstance(piece, Command):
                draft.note(f"{name}: $({piece.text}) is a command; put its result there")
            elif isinstance(piece, Reference) and not piece.name[0].isidentifier():
                draft.note(
                    f"{name}: ${piece.name} is an argument of the script; it is kept as text"
                )


def _port(draft: Draft, value: Any) -> int | None:
    if value is None or isinstance(value, int):
        return value
    text = str(value)
    default = re.fullmatch(r"\$\{\w+:?-(\d+)\}", text)
    draft.origin["port"] = text
    if default is None:
        draft.note(f"port {text}: a profile's port is a number; it was left open")
        return None
    draft.note(f"port {text}: taken as {default[1]}")
    return int(default[1])


def _published(draft: Draft, host: str, port: int | None) -> tuple[str, int | None]:
    """Where the host serves the engine: on all interfaces unless told otherwise.
    `origin.container.ports` keeps only what the profile does not say; of a manifest, which its
    Services and probes refer to, the container's own port is kept."""
    inside = port if port is not None else DEFAULT_PORT
    found = [(item, published(item, inside)) for item in draft.ports]
    item, where = next(((i, p) for i, p in found if p is not None), (None, None))
    if where is None or where.port is None:
        draft.note(f"ports: {shown(draft.ports)}")
        if where is None:
            draft.notes.append(f"port {inside}, where the engine listens, is not published")
        return host, port
    rest = [other for other in draft.ports if other is not item]
    container = draft.origin.get("container")
    if isinstance(container, dict):
        container["ports"] = [o for o in container.get("ports", []) if o != item]
        if not container["ports"]:
            del container["ports"]
        if not container:
            del draft.origin["container"]
    draft.origin.pop("port", None)
    if rest:
        draft.note(f"ports: {shown(rest)}")
    address = {"localhost": "127.0.0.1", "": ALL_INTERFACES}.get(where.address, where.address)
    said = f"{where.address}:{where.port}" if where.address else str(where.port)
    manifest = draft.origin.get("kubernetes")
    if isinstance(manifest, dict):
        manifest["port"] = inside
    who = "the node's interfaces" if draft.kind == "kubernetes" else "interfaces, as docker does"
    everywhere = "" if where.address else f", on all {who}"
    draft.notes.append(
        f"host {address}, port {where.port}: {said} is published for the container's "
        f"{inside}{everywhere}"
    )
    return address, where.port


def _mounts(draft: Draft, paths: HostPaths) -> None:
    """Report the mounts, and keep for an export which of the host's paths are needed."""
    if draft.as_written:
        paths = HostPaths(draft.mounts)
    for text in paths.unsaid():
        draft.note(text)
    draft.notes += paths.said()
    if paths.sources():
        draft.origin["host_paths"] = paths.sources()


def _env(draft: Draft) -> dict[str, str | EnvRef]:
    env: dict[str, str | EnvRef] = {}
    for name, value in draft.env.items():
        env[name] = environment_value(draft, name, value)
    return env


def _scrubbed(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {key: _scrubbed(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item, secrets) for item in value]
    return value


def _name(text: str) -> str:
    """A file name for a profile: the last part of a path or repository, in lower case."""
    plain = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)
    plain = re.sub(r"\$\{[0-9@*][^}]*\}", "", plain)
    last = plain.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._").lower() or "imported"


def document(profile: Profile) -> dict[str, Any]:
    """A profile as plain data for a YAML file: what is unset is left out."""
    data: dict[str, Any] = msgspec.to_builtins(profile)
    plain: dict[str, Any] = msgspec.to_builtins(Profile(name=""))
    keep = {"schema", "model"} if profile.model else {"schema"}
    out = {
        key: value
        for key, value in data.items()
        if key in keep or (key not in ("name", "path") and value != plain[key])
    }
    out["env"] = {
        name: {k: v for k, v in value.items() if v is not None}
        if isinstance(value, dict)
        else value
        for name, value in data["env"].items()
    }
    if not out["env"]:
        del out["env"]
    if profile.preload is not None:
        out["preload"] = {
            key: (
                {k: v for k, v in value.items() if v is not None} if key == "seed_token" else value
            )
            for key, value in data["preload"].items()
            if value not in (None, {})
        }
    return out
