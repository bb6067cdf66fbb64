"""What a file format has no words for travels in one comment line of an exported file.

`# stoker: {"kind": …, "keep": {…}, "chosen": {…}}`: the form of the file, profile fields, and what
the exporter had to choose itself (an image, a port mapping), so that an import does not take it
for the author's wish."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from profiles.importing.daemon import LOADER_KEYS
from profiles.model import Profile

_LINE = re.compile(r"^[#;]\s*stoker:\s*(\{.*\})\s*$", re.M)
KEPT = (
    "name", "schema", "runtime", "standby", "front", "restart", "stop", "ready_timeout_s",
    "bench", "notes", "tags",
)  # fmt: skip


def carried_line(keep: dict[str, Any], chosen: dict[str, Any], kind: str) -> str:
    data = {
        key: value for key, value in (("kind", kind), ("keep", keep), ("chosen", chosen)) if value
    }
    return "# stoker: " + json.dumps(data, ensure_ascii=True, separators=(",", ":"))


def kept_fields(profile: Profile, *more: str) -> dict[str, Any]:
    """The fields that differ from a bare profile's, among those that no format can say."""
    data: dict[str, Any] = msgspec.to_builtins(profile)
    plain: dict[str, Any] = msgspec.to_builtins(Profile(name=""))
    return {
        key: data[key]
        for key in (*KEPT, "origin", *more)
        if key == "name" or data[key] != plain[key]
    }


def digest(value: Any) -> str:
    """A short name for a long value that the exporter chose (a whole manifest)."""
    text = json.dumps(value, sort_keys=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def read_carried(text: str) -> tuple[str, dict[str, Any]]:
    """The text without the comment line, and what the line says."""
    match = _LINE.search(text)
    if match is None:
        return text, {}
    try:
        data = json.loads(match[1])
    except ValueError:
        data = None
    if not isinstance(data, dict):
        line = text.count("\n", 0, match.start()) + 1
        raise Usage(f"line {line}: the stoker comment is damaged; remove it or export again")
    return text[: match.start()] + text[match.end() :], data


def apply_carried(profile: Profile, data: dict[str, Any]) -> Profile:
    """The profile with what its file carried."""
    if not data:
        return profile
    plain: dict[str, Any] = msgspec.to_builtins(profile)
    keep = dict(data.get("keep") or {})
    found = _less(plain["origin"], data.get("chosen") or {})
    origin = keep.pop("origin", {})
    plain["origin"] = _over(origin, found) if isinstance(origin, dict) else found
    plain["args"] |= keep.pop("arguments", {})
    for name, source in keep.pop("references", {}).items():
        if name in plain["env"]:
            plain["env"][name] = source
    chosen_port = (data.get("chosen") or {}).get("health_port")
    if plain["preload"] and plain["preload"]["health_port"] == chosen_port:
        plain["preload"]["health_port"] = None
    if keep.get("preload") and plain["preload"] is None:
        _without_loader(plain["args"])
    for key, value in keep.items():
        if key in Profile.__struct_fields__:
            plain[key] = value
    try:
        return msgspec.convert(plain, Profile)
    except msgspec.ValidationError as error:
        raise Usage(f"the stoker comment does not fit: {error}") from None


def _without_loader(args: dict[str, Any]) -> None:
    """The engine's half of a preload section, which the exporter wrote as arguments."""
    if args.get("load_format") == "ipc_cache":
        del args["load_format"]
    extra = args.get("model_loader_extra_config")
    if isinstance(extra, dict):
        left = {key: value for key, value in extra.items() if key not in LOADER_KEYS}
        del args["model_loader_extra_config"]
        if left:
            args["model_loader_extra_config"] = left


def _less(found: Any, chosen: Any) -> Any:
    """`found` without what the exporter chose."""
    if not isinstance(found, dict) or not isinstance(chosen, dict):
        return found
    out = {}
    for key, value in found.items():
        if key in chosen and chosen[key] in (value, digest(value)):
            continue
        rest = _less(value, chosen[key]) if key in chosen else value
        if rest != {} or value == {}:
            out[key] = rest
    return out


def _over(origin: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    out = dict(origin)
    for key, value in found.items():
        before = out.get(key)
        out[key] = (
            _over(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
        )
    return out
