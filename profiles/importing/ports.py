"""Published ports of a container: where the host serves what the engine serves inside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from profiles.importing.mounts import fields

DEFAULT_PORT = 8000
ALL_INTERFACES = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Published:
    """`address` is "" for all interfaces; `port` is None when the host chooses one."""

    address: str
    port: int | None


def number(text: Any) -> int | None:
    """A port's number: `8000`, or the default of `${NAME:-8000}`; else None."""
    found = re.fullmatch(r"(?:\$\{\w+:?-)?(\d{1,5})\}?", str(text).strip())
    return int(found[1]) if found else None


def published(item: Any, inside: int) -> Published | None:
    """Where one entry of docker's `-p` or compose's `ports` publishes the port `inside`, or None.

    A protocol other than TCP and a range that does not hold the port are None, too."""
    if isinstance(item, dict):
        if str(item.get("protocol", "tcp")) != "tcp" or number(item.get("target")) != inside:
            return None
        return Published(str(item.get("host_ip") or ""), number(item.get("published")))
    text, _, protocol = str(item).partition("/")
    if protocol not in ("", "tcp"):
        return None
    *front, target = fields(text)
    targets = _range(target)
    if targets is None or inside not in targets:
        return None
    outer = _range(front[-1]) if front and front[-1] else None
    address = ":".join(front[:-1]).strip("[]")
    if outer is None:
        return Published(address, None)
    place = targets.index(inside)
    return Published(address, outer[place] if len(outer) == len(targets) else None)


def _range(text: str) -> range | None:
    single = number(text)
    if single is not None:
        return range(single, single + 1)
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    return range(int(found[1]), int(found[2]) + 1) if found else None


def shown(items: list[Any]) -> str:
    """Port mappings on one line."""
    return ", ".join(
        f"{item.get('published', '')}:{item.get('target', '')}"
        if isinstance(item, dict)
        else str(item)
        for item in items
    )
