"""Which names hold secrets, and how literal secrets are kept out of everything that is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SECRET = re.compile(
    r"(?:^|_)(?:api_?key|apikey|secret(?:_?(?:access_?)?key)?|access_key|password|passwd|passphrase"
    r"|pwd_?secret|credentials?|private_key|auth_?token|access_?token|hf_?token|hub_token|token"
    r"|api_?token|bearer)(?:_[0-9]+)?\Z",
    re.I,
)
_NOT_SECRET = re.compile(
    r"(?:^|_)(?:pad|eos|bos|unk|stop|mask|start|end|image|video|audio|think|per)_token\Z", re.I
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{6,}|ghp_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{12,}|ey[A-Za-z0-9_-]{12,}\.[\w-]{8,}\.[\w-]{8,})"
)
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<sep>\s*[=:]\s*|\s+)"
    r"(?P<value>\"[^\"$]+\"|'[^']+'|[^\s\"'$;|&,}\]]+)"
)
_BEARER = re.compile(r"(?P<how>\b(?:Bearer|Basic)\s+)(?P<value>[^\s\"'$]+)", re.I)
_URL = re.compile(r"(?P<scheme>\b\w+://[^\s:/@]*:)(?P<value>[^\s/@$]+)@")

ARGUMENT_ENV = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN", "seed_token": "VLLM_SEED_TOKEN"}


def is_secret(name: str) -> bool:
    """Whether a variable, option or key of this name holds a secret."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-"))
    plain = plain.replace("-", "_").replace(".", "_")
    return bool(_SECRET.search(plain)) and not _NOT_SECRET.search(plain)


def looks_secret(value: str) -> bool:
    """Whether a value has the shape of a well-known kind of token."""
    return bool(_SHAPES.search(value))


def not_stored(name: str, variable: str | None = None) -> str:
    """The report's sentence for a literal secret that became a reference."""
    return f"{name}: the secret was not stored; the profile reads it from ${variable or name}"


def mask(text: str, known: Iterable[str] = ()) -> str:
    """The text without `known` secret values and without anything of a token's shape."""
    for value in sorted({v for v in known if len(v) > 5}, key=len, reverse=True):
        text = text.replace(value, "***")
    return _SHAPES.sub("***", text)


def without_password(text: str, by: str = "***") -> str:
    """The text with the passwords of URLs (`http://me:password@proxy`) replaced."""
    return _URL.sub(lambda m: f"{m['scheme']}{by}@", text)


def scrub(text: str, known: Iterable[str] = ()) -> str:
    """`mask`, and what is assigned to secret names or given to secret options in a command."""
    text = mask(text, known)
    text = _BEARER.sub(lambda m: m["how"] + "***", text)
    text = without_password(text)

    def assigned(match: re.Match[str]) -> str:
        spaced = not match["sep"].strip()
        before = text[max(0, match.start() - 2) : match.start()]
        option = before.endswith("-")
        if not is_secret(match["name"]) or (spaced and not option):
            return match.group(0)
        if match["value"].startswith(("-", "***", "{", "[")):
            return match.group(0)
        return f"{match['name']}{match['sep']}***"

    return _ASSIGNED.sub(assigned, text)


def masked(value: Any, known: Iterable[str] = (), key: str = "") -> Any:
    """Plain data without secrets: by the names of keys, of `NAME=value` items, and by shape."""
    if isinstance(value, Mapping):
        named = str(value.get("name", "")) if "value" in value else ""
        hidden = value.get("kind") == "Secret"
        out: dict[str, Any] = {}
        for name, item in value.items():
            owner = named if name == "value" else str(name)
            if hidden and name in ("data", "stringData") and isinstance(item, Mapping):
                out[str(name)] = dict.fromkeys(item, "***")
            else:
                out[str(name)] = masked(item, known, owner)
        return out
    if isinstance(value, list | tuple):
        return _listed(value, known)
    if not isinstance(value, str):
        return value
    if is_secret(key) and value and "$" not in value:
        return "***"
    return scrub(value, known)


def _listed(items: Iterable[Any], known: Iterable[str]) -> list[Any]:
    """A list without secrets; in one of words, what stands behind a secret option is one."""
    known, out, option = tuple(known), [], ""
    for item in items:
        given = isinstance(item, str) and not item.startswith("-")
        out.append(masked(item, known, option if given else ""))
        named = isinstance(item, str) and re.fullmatch(r"--?[A-Za-z][\w.-]*", item)
        option = str(item) if named else ""
    return out
