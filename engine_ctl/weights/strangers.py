"""Weight daemons on this machine that this Stoker did not start: by hand, by another user, or by
another Stoker. Looked at only; nobody connects to them."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.atomic import CorruptRecord
from engine_ctl.state.store import Run
from engine_ctl.supervise import procs
from engine_ctl.weights import records, sockets
from engine_ctl.weights.records import RankKey

# A hash of the device's UUID, and the role of a draft model's daemon.
_NAME = re.compile(r"vllm_weight_cache_([0-9a-f]{32,64})(_draft)?\.sock")
CPU_DEVICES = tuple(f"CPU-{number}" for number in range(64))
_ABOVE = 4


@dataclass(frozen=True, slots=True)
class Stranger:
    """One rank of a daemon that is not ours; None where it cannot be seen.

    `device` is the identity whose hash the socket is named after, `model` from the command line of
    its launcher, `key` its fingerprint where another Stoker of this user keeps it, and `run` that
    Stoker's run. `left`: of a run of this Stoker's, which has ended without it."""

    socket: str
    role: str
    device: str | None = None
    pid: int | None = None
    uid: int | None = None
    user: str | None = None
    model: str | None = None
    key: RankKey | None = None
    run: str | None = None
    left: bool = False

    @property
    def words(self) -> str:
        """Who it is, in one line."""
        if self.left:
            who = "" if self.pid is None else f"pid {self.pid}, "
            return f"{who}left by {self.run}, which has ended; run: stoker reap"
        if self.run is not None:
            whose = f"another Stoker's ({self.run})"
        elif self.user is not None and self.uid != os.geteuid():
            whose = f"of user {self.user}"
        else:
            whose = "started by hand"
        parts = [
            f"not this Stoker's: {whose}",
            "" if self.pid is None else f"pid {self.pid}",
            "" if self.model is None else f"model {self.model}",
            "" if self.key is not None else "its fingerprint is not known",
        ]
        return ", ".join(filter(None, parts))


def strangers(
    ours: Collection[str], devices: Iterable[str], units: Path | None = None
) -> tuple[Stranger, ...]:
    """Every listening weight-cache socket of this network namespace that is not among `ours`.
    `devices` are identities (GPU UUIDs) of this machine, `units` this Stoker's own directory."""
    found = {}
    names = {}
    for device in devices:
        names[hashlib.md5(device.encode(), usedforsecurity=False).hexdigest()] = device
        names[hashlib.sha256(device.encode()).hexdigest()] = device
    for path in sockets.listening_paths():
        match = _NAME.fullmatch(os.path.basename(path))
        if match is not None and path not in ours:
            found[path] = _look(path, match, names, units)
    return tuple(found[path] for path in sorted(found))


def _look(
    path: str, match: re.Match[str], devices: Mapping[str, str], units: Path | None
) -> Stranger:
    facts = sockets.look(path, strict=False)
    pid = facts.lock_pid
    proc = procs.look(pid) if pid is not None else None
    uid = facts.socket.uid if facts.socket.uid is not None else proc.uid if proc else None
    directory = None if pid is None else procs.run_dir_of(pid)
    run, key = _recorded(directory, path)
    return Stranger(
        socket=path,
        role="draft" if match[2] else "target",
        device=devices.get(match[1]),
        pid=pid,
        uid=uid,
        user=None if uid is None else _user(uid),
        model=None if pid is None else _model(pid),
        key=key,
        run=run,
        left=units is not None and directory is not None and units in Path(directory).parents,
    )


def _recorded(directory: str | None, path: str) -> tuple[str | None, RankKey | None]:
    """(run, fingerprint) as the Stoker that started it recorded them."""
    if directory is None:
        return None, None
    where = Path(directory)
    run = Run(where.parents[1].name, int(where.name) if where.name.isdecimal() else 0, where)
    try:
        record = records.read(run)
    except (CorruptRecord, OSError):
        record = None
    keys = record.keys if record is not None else []
    return run.id, next((key for key in keys if key.socket == path), None)


def _model(pid: int) -> str | None:
    """What `vllm preload` above the rank was told to load."""
    for _ in range(_ABOVE):
        words = [word.decode(errors="replace") for word in procs.command_line(pid)]
        if "preload" in words:
            return _option(words[words.index("preload") + 1 :])
        proc = procs.look(pid)
        if proc is None or proc.ppid <= 1:
            return None
        pid = proc.ppid
    return None


def _option(words: list[str]) -> str | None:
    for position, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name in ("--model", "--model-tag"):
            return value if joined else next(iter(words[position + 1 :]), None)
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
