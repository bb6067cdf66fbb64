"""Mounts of a container: the host's path of what its command and environment name inside it."""

from __future__ import annotations

import csv
import posixpath
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.importing.references import commands, literal, read_file
from profiles.importing.secrets import scrub

_HOME = "${HOME}"
_HF_HOME = "/root/.cache/huggingface"
_HF_NAMES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
# A path of the API and a name of the API, which may look like a path.
_NO_PATHS = frozenset(("root_path", "served_model_name"))


@dataclass(frozen=True, slots=True)
class Mount:
    """`target` is the path in the container; `source` the host's, or None when there is none.

    `key` and `text` are what the author wrote, for the report; `what` names a mount without a
    host path ("volume models")."""

    target: str
    source: str | None
    key: str
    text: str
    what: str = ""


def volume(text: str, base: Path | None, key: str = "volumes") -> Mount | None:
    """docker's and compose's `source:target[:options]`; None for one without a source."""
    parts = fields(text)
    if len(parts) > 1 and re.fullmatch(r"[A-Za-z]", parts[0]) and parts[1][:1] in ("\\", "/"):
        parts[:2] = [f"{parts[0]}:{parts[1]}"]
    if len(parts) < 2 or not parts[1].startswith("/"):
        return None
    return _mount(parts[0], parts[1], base, key, text)


def bind(text: str, base: Path | None) -> Mount | None:
    """docker's `--mount type=bind,source=…,target=…`; None for another type or no target."""
    try:
        row = next(csv.reader([text]), [])
    except csv.Error:
        return None
    found = dict(item.partition("=")[::2] for item in row)
    return described(found, base, "mounts", text)


def described(found: Mapping[str, Any], base: Path | None, key: str, text: str) -> Mount | None:
    """A mount given field by field (`type`, `source`, `target` and their other names)."""
    target = next((found[k] for k in ("target", "dst", "destination") if k in found), None)
    source = next((found[k] for k in ("source", "src") if k in found), None)
    kind = str(found.get("type", "volume"))
    if not target or not source or kind not in ("bind", "volume"):
        return None
    if kind == "bind":
        return _mount(str(source), str(target), base, key, text, path=True)
    return Mount(_plain(str(target)), None, key, text, f"volume {source}")


def _mount(
    source: str, target: str, base: Path | None, key: str, text: str, path: bool = False
) -> Mount:
    if "\\" in source or re.match(r"[A-Za-z]:", source):
        return Mount(_plain(target), None, key, text, f"{source} of Windows")
    if not path and not source.startswith(("/", ".", "~", "${", "$(", "`")):
        return Mount(_plain(target), None, key, text, f"volume {source}")
    return Mount(_plain(target), host_path(source, base), key, text)


def host_path(source: str, base: Path | None) -> str:
    """A mount's source as a path of the host, in the profile's notation.

    Relative ones count from `base` (a compose file's folder), if it is known."""
    if source == "~" or source.startswith("~/"):
        return _plain(_HOME + source[1:])
    if base is not None:
        source = re.sub(r"\A(?:\$\{PWD\}|\$\(\s*pwd\s*\))(?=/|\Z)", ".", source)
    if base is None or source.startswith(("/", "${", "$(")):
        return _plain(source)
    return posixpath.normpath(literal(str(base)) + "/" + source)


def fields(text: str) -> list[str]:
    """The parts between colons; `${NAME:-default}` and `[::1]` are not split."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == ":" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _below(path: str, mount: Mount) -> bool:
    return path == mount.target or path.startswith(mount.target + "/")


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"


class HostPaths:
    """Rewrites paths; remembers which mounts were used, and for what.

    `inside` are the commands that run in the container: a file that one reads is the container's
    too."""

    def __init__(self, mounts: list[Mount], inside: Collection[str] = ()) -> None:
        self.mounts = sorted(mounts, key=lambda m: len(m.target), reverse=True)
        self.inside = inside
        self.used: dict[Mount, list[str]] = {}
        self.lost: list[str] = []

    def path(self, value: str, name: str) -> str:
        """The host's path of a value that lies under a mount, else the value; of `$(cat PATH)`
        in a container's own shell alike."""
        file = read_file(value)
        if file is None:
            return self._host(value, name)
        if not any(command in self.inside for command in commands(value)):
            return value
        if not any(_below(file, mount) for mount in self.mounts):
            self.lost.append(f"{name}: {file} is a file of the container; put it on this machine")
        host = self._host(file, name)
        return value if host == file else f"$(cat {shlex.quote(host)})"

    def _host(self, value: str, name: str) -> str:
        for mount in self.mounts:
            if not _below(value, mount):
                continue
            rest = value[len(mount.target) :]
            if ".." in rest.split("/"):
                return value
            names = self.used.setdefault(mount, [])
            if name not in names:
                names.append(name)
            return value if mount.source is None else mount.source.rstrip("/") + rest
        return value

    def argument(self, name: str, value: Any) -> Any:
        """An argument's value: a path, lists, JSON and `adapter=path` alike."""
        if name in _NO_PATHS:
            return value
        if isinstance(value, dict):
            return {key: self.argument(name, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.argument(name, item) for item in value]
        if not isinstance(value, str):
            return value
        adapter = re.match(r"[^=/{}]+=(?=/)", value) if name == "lora_modules" else None
        if adapter:
            return adapter[0] + self.path(value[adapter.end() :], name)
        return self.path(value, name)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables that hold a path or a list of paths; the cache that vLLM's images keep at
        `/root/.cache/huggingface` becomes HF_HOME when it is elsewhere on the host."""
        out: dict[str, str] = {}
        for name, value in env.items():
            if read_file(value) is not None:
                out[name] = self.path(value, name)
                continue
            parts = fields(value)
            paths = value.startswith("/") and all(p.startswith("/") or not p for p in parts)
            found = [self.path(part, name) for part in parts] if paths else [value]
            out[name] = ":".join(found)
        if not any(name in out for name in _HF_NAMES):
            cache = self.path(_HF_HOME, "HF_HOME")
            if cache == _HOME + "/.cache/huggingface" or cache == _HF_HOME:
                for names in self.used.values():
                    if names[-1:] == ["HF_HOME"]:
                        names.pop()
                self.used = {mount: names for mount, names in self.used.items() if names}
            else:
                out["HF_HOME"] = cache
        return out

    def sources(self) -> dict[str, str]:
        """Targets of the mounts that were used, with the host's paths of them."""
        return {m.target: m.source for m in self.used if m.source is not None}

    def said(self) -> list[str]:
        """A sentence for every mount whose paths were rewritten."""
        return [
            f"{', '.join(names)}: {mount.target} in the container is {mount.source} on the host"
            for mount, names in self.used.items()
            if mount.source is not None
        ]

    def unsaid(self) -> list[str]:
        """What is left to report: volumes without a path, and mounts that nothing names."""
        out = [
            f"{mount.what}: has no path on the host; {', '.join(names)} under {mount.target} "
            "must be set by hand"
            for mount, names in self.used.items()
            if mount.source is None
        ]
        out += self.lost
        left: dict[str, list[str]] = {}
        for mount in reversed(self.mounts):
            if mount not in self.used:
                left.setdefault(mount.key, []).append(scrub(mount.text))
        return out + [f"{key}: {', '.join(texts)}" for key, texts in left.items()]


def compose_mount(item: Any, base: Path | None) -> Mount | None:
    """One entry of compose's `volumes`, short or long."""
    if isinstance(item, dict):
        return described(item, base, "volumes", f"{item.get('source')}:{item.get('target')}")
    return volume(str(item), base)
