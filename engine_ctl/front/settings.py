"""front.yaml in the configuration directory: how long and how much fronts hold."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_ctl.errors import Usage
from engine_ctl.paths import Dirs

NAME = "front.yaml"


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hold_s`: how long a request waits for an engine; `hold_requests`: how many wait at once;
    above either a client gets 503 with Retry-After. `drain_s`: how long a swap waits for requests
    that the old engine works on, also where the profile itself drains less."""

    hold_s: float = 120.0
    hold_requests: int = 1000
    drain_s: float = 10.0


def load(dirs: Dirs) -> FrontSettings:
    """The operator's settings, the defaults without a file. Raises Usage with the file's name."""
    path = dirs.config / NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return FrontSettings()
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    return parse(text, path)


def parse(text: str, path: Path) -> FrontSettings:
    import yaml

    try:
        settings = msgspec.convert(yaml.safe_load(text) or {}, FrontSettings)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise Usage(f"{path}: {error}") from None
    if settings.hold_s < 0 or settings.hold_requests < 0 or settings.drain_s < 0:
        raise Usage(f"{path}: hold_s, hold_requests and drain_s cannot be negative")
    return settings
