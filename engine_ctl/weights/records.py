"""What is kept of weights with a run: the keys it was started with, and its files' identity.

`weights.json` in a run's directory; writer: the operation that starts the run. For a preload run
it says what the daemon holds, for an engine run what it will ask for, and of which daemon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.state.store import Run
from engine_ctl.weights.content import ContentRecord

NAME = "weights.json"


class RankKey(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's fingerprint of one rank and role, as the runtime computed it. `fields` are those of
    the installed version, as text. `device` and `socket` are None where there is none."""

    role: str = "target"
    rank: int = 0
    local_rank: int = 0
    device: str | None = None
    socket: str | None = None
    fields: dict[str, str | None] = msgspec.field(default_factory=dict)


class WeightsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`content` identifies the target's files, `draft` those of a draft model that has daemons of
    its own. `mode` and `fallback` are the engine's; `daemon` is the preload run that was found
    behind the sockets at the start; `note` why there are no or fewer keys."""

    schema: int = 1
    keys: list[RankKey] = msgspec.field(default_factory=list)
    content: ContentRecord | None = None
    draft: ContentRecord | None = None
    mode: str = "zero_copy"
    fallback: bool = True
    health_port: int | None = None
    daemon: str | None = None
    note: str = ""

    @property
    def sockets(self) -> tuple[str, ...]:
        return tuple(key.socket for key in self.keys if key.socket is not None)


def keys_of(check: Mapping[str, Any]) -> tuple[RankKey, ...]:
    """The keys in a `check` answer of the standby or the probe (`keys`, or a dict around it)."""
    found = check.get("keys") or []
    if isinstance(found, Mapping):
        found = found.get("keys") or []
    return tuple(msgspec.convert(item, RankKey) for item in found)


def write(run: Run, record: WeightsRecord) -> None:
    atomic.write_record(run.dir / NAME, record)


def read(run: Run) -> WeightsRecord | None:
    """None when the run kept none. Raises CorruptRecord."""
    return atomic.read_record(run.dir / NAME, WeightsRecord)
