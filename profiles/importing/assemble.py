"""From what an importer found to a profile: the one place that decides what goes where."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from profiles.importing.arguments import Parsed, parse_arguments
from profiles.importing.launching import SERVER_MODULES, Invocation
from profiles.importing.mounts import HostPaths, Mount
from profiles.importing.ports import ALL_INTERFACES, DEFAULT_PORT, published, shown
from profiles.importing.references import (
    Command,
    Literal,
    Reference,
    names,
    parse,
    sole_name,
)
from profiles.importing.secrets import (
    ARGUMENT_ENV,
    is_secret,
    looks_secret,
    mask,
    masked,
    not_stored,
    scrub,
)
from profiles.model import EnvRef, Preload, Profile, Restart
from profiles.schema import ArgumentSchema

_GPU = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+\Z")
_PRELOAD_KEYS = {
    "weight_cache_socket_dir": "socket_dir",
    "weight_cache_health_port": "health_port",
}
LOADER_KEYS = ("mode", "fallback", "socket_dir", "connect_timeout_s", "state_timeout_s")


@dataclass
class Draft:
    """What one text says, before it is a profile. Texts are in the profile's notation.

    `command` is serve or server (the API server's module). `unrepresented` are the sentences for
    the report, `notes` those on what was rewritten; `secrets` the literal values that must not be
    written anywhere. `base` is the folder from which relative mounts count. `as_written`: the text
    is an export, whose paths and ports are the host's already."""

    kind: str
    words: list[str] = field(default_factory=list)
    command: str = "serve"
    preload_words: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    gpus: tuple[int | str, ...] | None = None
    restart: Restart | None = None
    loopback: bool = False
    name: str | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    unrepresented: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    ports: list[Any] = field(default_factory=list)
    base: Path | None = None
    as_written: bool = False
    secrets: set[str] = field(default_factory=set)
    read_config: Callable[[str], str | None] = lambda path: None

    def takes_ports(self) -> bool:
        """Whether the published ports say where the profile serves; `build` reports them then."""
        return bool(self.ports) and not self.as_written

    def note(self, text: str) -> None:
        if text not in self.unrepresented:
            self.unrepresented.append(text)


def take_invocation(draft: Draft, found: Invocation) -> None:
    """Put one start of an engine into the draft."""
    draft.words = found.words
    draft.command = "server" if found.what == "server" else "serve"
    draft.env |= found.env
    if found.what == "server":
        draft.note(f"python -m {SERVER_MODULES[0]} is written as `vllm serve`")
    elif found.program != "vllm":
        draft.origin["program"] = found.program
        draft.note(f"{found.program}: which vLLM runs is the profile's runtime, not a path")
    launcher = [w for w in found.launcher if w != "nohup"]
    if launcher:
        draft.origin["launcher"] = launcher
        draft.note(f"launcher: {' '.join(launcher)}")
    tail = " ".join([*(["nohup"] if "nohup" in found.launcher else []), found.tail]).strip()
    if tail:
        draft.origin["tail"] = tail
        draft.note(f"around the command: {tail}")


def build(draft: Draft, schema: ArgumentSchema, name: str | None) -> Profile:
    """The profile of a draft; the draft's report is completed. Raises Usage without a model."""
    parsed = parse_arguments(draft.words, schema, "serve", draft.read_config)
    draft.unrepresented += [n for n in parsed.notes if n not in draft.unrepresented]
    args = parsed.args
    model = _model(draft, parsed)
    paths = HostPaths([] if draft.as_written else draft.mounts)
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
        preload = _preload(draft, args, schema, env, paths)
    _mounts(draft, paths)
    if parsed.extra:
        draft.origin["extra_words"] = parsed.extra
    gpus = _gpus(draft, env)
    served_name = tuple(map(str, served)) if isinstance(served, list) else (str(served),)
    served_name = served_name if served else ()
    chosen = name or draft.name or _name(served_name[0] if served_name else model)
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
    """Where the host serves the engine. docker publishes on all interfaces unless told otherwise;
    `origin.container.ports` keeps only what the profile does not say."""
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
    everywhere = "" if where.address else ", on all interfaces, as docker publishes it"
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


def environment_value(draft: Draft, name: str, value: str) -> str | EnvRef:
    """A value or, for a sole reference and for everything secret, where it comes from."""
    source = sole_name(value)
    if source is not None:
        return EnvRef(from_env=source)
    path = _read_file(value)
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


def _read_file(value: str) -> str | None:
    """The path, if the text is nothing but `$(cat PATH)` or `$(< PATH)`."""
    pieces = parse(value)
    if len(pieces) != 1 or not isinstance(pieces[0], Command):
        return None
    try:
        words = shlex.split(pieces[0].text.replace("<", " < "))
    except ValueError:
        return None
    if len(words) == 2 and words[0] in ("cat", "<") and not re.search(r"[$|;&`]", words[1]):
        return words[1]
    return None


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
        refs = [_reference_for(draft, option, str(v), wanted, i) for i, v in enumerate(items)]
        sole = sole_name(refs[0]) if len(refs) == 1 else None
        path = _read_file(refs[0]) if len(refs) == 1 else None
        if name in ("api_key", "hf_token") and (sole is not None or path is not None):
            del args[name]
            env.setdefault(wanted, EnvRef(from_env=sole, from_file=path))
        else:
            args[name] = refs if isinstance(value, list) else refs[0]


def _reference_for(draft: Draft, option: str, value: str, wanted: str, index: int) -> str:
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


def _preload(
    draft: Draft,
    args: dict[str, Any],
    schema: ArgumentSchema,
    env: dict[str, str | EnvRef],
    paths: HostPaths,
) -> Preload:
    """The daemon's section: what its command says that the engine's does not."""
    parsed = parse_arguments(draft.preload_words or [], schema, "preload", draft.read_config)
    for note in parsed.notes:
        draft.note(f"vllm preload: {note}")
    own = {key: paths.argument(key, value) for key, value in parsed.args.items()}
    own.pop("model", None)
    fields: dict[str, Any] = {}
    token = own.pop("seed_token", None)
    if token is not None:
        text = _reference_for(draft, "--seed-token", str(token), "VLLM_SEED_TOKEN", 0)
        fields["seed_token"] = EnvRef(from_env=sole_name(text))
    for option, key in _PRELOAD_KEYS.items():
        if option in own and (key != "health_port" or isinstance(own[option], int)):
            fields[key] = own.pop(option)
    if own.get("weight_cache_health_host") == "127.0.0.1":
        del own["weight_cache_health_host"]
    if args.get("load_format") == "ipc_cache":
        del args["load_format"]
        extra = args.pop("model_loader_extra_config", None)
        if isinstance(extra, dict):
            for key in LOADER_KEYS:
                if key in extra and fields.get(key, extra[key]) == extra[key]:
                    fields[key] = extra.pop(key)
            if extra:
                args["model_loader_extra_config"] = extra
        elif extra is not None:
            args["model_loader_extra_config"] = extra
    else:
        draft.note("the engine does not load with --load-format ipc_cache; the profile does")
    wrapper = Draft(draft.kind, secrets=draft.secrets, unrepresented=draft.unrepresented)
    secret_arguments(wrapper, own, env)
    fields["args"] = {
        name: value
        for name, value in own.items()
        if name not in args or args[name] != value
        if name not in ("served_model_name", "host", "port")
    }
    try:
        return msgspec.convert(fields, Preload)
    except msgspec.ValidationError as error:
        raise Usage(f"the preload daemon's options do not fit: {error}") from None


def parse_gpus(text: str) -> tuple[int | str, ...] | None:
    """`0,1` or UUIDs; None when the text is neither (a reference, `all`, nothing)."""
    items = [item.strip() for item in text.split(",")]
    if items and all(item.isascii() and item.isdecimal() for item in items):
        return tuple(int(item) for item in items)
    if items and all(_GPU.match(item) for item in items):
        return tuple(items)
    return None


def _gpus(draft: Draft, env: dict[str, str | EnvRef]) -> tuple[int | str, ...]:
    """`CUDA_VISIBLE_DEVICES` becomes `gpus`; in a container it counts what the container has."""
    outer = draft.gpus
    value = env.get("CUDA_VISIBLE_DEVICES")
    inner = parse_gpus(value) if isinstance(value, str) else None
    if inner is not None and len(set(inner)) == len(inner):
        if outer is None:
            outer = inner
            del env["CUDA_VISIBLE_DEVICES"]
        elif all(isinstance(i, int) and i < len(outer) for i in inner):
            outer = tuple(outer[int(i)] for i in inner)
            del env["CUDA_VISIBLE_DEVICES"]
    if outer is None and isinstance(env.get("NVIDIA_VISIBLE_DEVICES"), str):
        outer = parse_gpus(str(env["NVIDIA_VISIBLE_DEVICES"]))
    if outer and isinstance(outer[0], int) and env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        del env["CUDA_DEVICE_ORDER"]
    return outer or ()


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
    last = plain.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._").lower() or "imported"


def document(profile: Profile) -> dict[str, Any]:
    """A profile as plain data for a YAML file: what is unset is left out."""
    data: dict[str, Any] = msgspec.to_builtins(profile)
    plain: dict[str, Any] = msgspec.to_builtins(Profile(name=""))
    keep = {"schema", "model"}
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
