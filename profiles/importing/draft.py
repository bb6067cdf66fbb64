"""What one text says about an engine, before it is a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.importing.launching import SERVER_MODULES, Invocation
from profiles.importing.mounts import Mount
from profiles.model import Restart


@dataclass
class Draft:
    """What one text says, before it is a profile. Texts are in the profile's notation.

    `command` is serve or server (the API server's module). `unrepresented` are the sentences for
    the report, `notes` those on what was rewritten; `secrets` the literal values that must not be
    written anywhere. `base` is the folder from which relative mounts count. `as_written`: the text
    is an export, whose paths and ports are the host's already. `inside` are the commands that a
    shell in the container runs, so that their files are the container's."""

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
    inside: set[str] = field(default_factory=set)
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
