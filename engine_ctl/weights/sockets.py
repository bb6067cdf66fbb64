"""The Unix socket of a weight-cache daemon, looked at without connecting.

The protocol behind it is pickle: whoever can put a socket there can run code in whoever connects.
vLLM's own rules for the directory (strict for its default one, owner and symlink only for one
that was asked for) decide what an engine will do; Stoker's are stricter for its own connections.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from engine_ctl.model import Reason

_LISTENING = 0x10000


@dataclass(frozen=True, slots=True)
class Node:
    """What lstat says of one path. `kind` is missing, directory, socket, symlink or other."""

    kind: str
    uid: int | None = None
    mode: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A daemon's socket at one moment.

    `strict`: vLLM checks permissions of the directory (it is vLLM's default one). `listening`:
    the kernel has a listener of that path in this network namespace, None when it would not say.
    `lock_held`: some process holds the daemon's lock; `lock_pid` which, where it can be seen."""

    path: str
    directory: Node
    socket: Node
    strict: bool
    euid: int
    listening: bool | None = None
    lock_held: bool | None = None
    lock_pid: int | None = None


@dataclass(frozen=True, slots=True)
class SocketJudgement:
    """`refusal`: why an engine will not map through this socket (None: it will connect).
    `warnings`: said by name, but no reason for vLLM. `may_connect`: Stoker may talk to it."""

    refusal: Reason | None
    warnings: tuple[str, ...] = field(default=())
    may_connect: bool = False


def judge(facts: SocketFacts) -> SocketJudgement:
    """What an engine makes of the socket before it connects, and whether Stoker may connect."""
    directory = os.path.dirname(facts.path)
    refusal = _directory_refusal(directory, facts) or _socket_refusal(facts)
    warnings = []
    mode = facts.directory.mode
    if facts.directory.kind == "directory" and mode is not None and mode & 0o022:
        who = "every user" if mode & 0o002 else "its group"
        warnings.append(
            f"{directory} is writable by {who} (mode {mode:o}): others could plant a socket "
            f"there; run: chmod 700 {directory}"
        )
    return SocketJudgement(
        refusal=refusal, warnings=tuple(warnings), may_connect=refusal is None and not warnings
    )


def _directory_refusal(directory: str, facts: SocketFacts) -> Reason | None:
    node = facts.directory
    if node.kind == "missing":
        return Reason(
            "wc_fallback.socket_missing",
            "no daemon runs here: start it, or check TMPDIR and the socket directory",
            f"{directory} does not exist",
        )
    if node.error:
        return Reason(
            "wc_fallback.permissions",
            "run daemon and engine as the same user",
            f"{directory} cannot be looked at: {node.error}",
        )
    if node.kind == "symlink":
        return Reason(
            "wc_fallback.permissions",
            "use a real directory of your own",
            f"{directory} is a symlink",
        )
    if node.kind != "directory":
        return Reason("wc_fallback.permissions", "remove it", f"{directory} is no directory")
    if node.uid != facts.euid:
        return Reason(
            "wc_fallback.permissions",
            "run daemon and engine as the same user",
            f"{directory} belongs to uid {node.uid}",
        )
    if facts.strict and node.mode is not None and node.mode & 0o077:
        return Reason(
            "wc_fallback.permissions",
            f"run: chmod 700 {directory}",
            f"{directory} is open to others (mode {node.mode:o})",
        )
    return None


def _socket_refusal(facts: SocketFacts) -> Reason | None:
    node = facts.socket
    if node.kind == "missing":
        if facts.lock_held:
            return Reason(
                "wc_fallback.not_ready",
                "wait for the daemon to be ready, or set fallback: false to wait for it",
                f"{facts.path} is not there yet, but its daemon holds the lock",
            )
        return Reason(
            "wc_fallback.socket_missing",
            "start the preload daemon of this device",
            f"{facts.path} does not exist",
        )
    if node.error:
        return Reason("wc_fallback.permissions", "run as the daemon's user", node.error)
    if node.kind == "symlink":
        return Reason(
            "wc_fallback.permissions",
            "remove it and restart the daemon",
            f"{facts.path} is a symlink",
        )
    if node.uid != facts.euid:
        return Reason(
            "wc_fallback.permissions",
            "run daemon and engine as the same user",
            f"{facts.path} belongs to uid {node.uid}",
        )
    if node.kind != "socket":
        return Reason(
            "wc_fallback.stale_socket",
            "remove it and restart the daemon",
            f"{facts.path} is no socket",
        )
    if facts.listening is False:
        return Reason(
            "wc_fallback.stale_socket",
            "the daemon died: start it again",
            f"nobody listens on {facts.path}",
        )
    return None


def look(path: str, *, strict: bool) -> SocketFacts:
    """Look at a socket, its directory and its lock without touching any of them."""
    socket_node = _node(path)
    lock_held, lock_pid = _lock(f"{path}.lock")
    return SocketFacts(
        path=path,
        directory=_node(os.path.dirname(path)),
        socket=socket_node,
        strict=strict,
        euid=os.geteuid(),
        listening=_listening(path) if socket_node.kind == "socket" else None,
        lock_held=lock_held,
        lock_pid=lock_pid,
    )


def _node(path: str) -> Node:
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Node("missing")
    except OSError as error:
        return Node("other", error=f"{path}: {error.strerror}")
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISSOCK, "socket"), (stat.S_ISLNK, "symlink"))
    kind = next((name for test, name in kinds if test(info.st_mode)), "other")
    return Node(kind, info.st_uid, stat.S_IMODE(info.st_mode))


def listening_paths() -> tuple[str, ...]:
    """Paths of every listening Unix socket in this network namespace, as they were bound."""
    return tuple(_listeners() or ())


def _listening(path: str) -> bool | None:
    """Whether the kernel's table of Unix sockets has a listener bound to `path`.

    A socket bound under another spelling of the path counts only where the spelling agrees, so
    an absence is None when some listener has the same file name."""
    paths = _listeners()
    if paths is None or path in paths:
        return None if paths is None else True
    name = os.path.basename(path)
    return None if any(os.path.basename(other) == name for other in paths) else False


def _listeners() -> list[str] | None:
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return None
    columns = (line.split(None, 7) for line in lines)
    return [row[7] for row in columns if len(row) > 7 and int(row[3], 16) & _LISTENING]


def _lock(path: str) -> tuple[bool | None, int | None]:
    """(held, pid) of a flock from /proc/locks. Taking it to find out would make a daemon that
    starts at that moment fail."""
    try:
        info = os.stat(path)
        text = Path("/proc/locks").read_text()
    except FileNotFoundError:
        return False, None
    except OSError:
        return None, None
    inode = f":{info.st_ino}"
    device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}"
    for line in text.splitlines():
        columns = line.split()
        if "->" in columns or len(columns) < 6 or columns[1] != "FLOCK":
            continue
        if columns[5] == device + inode:
            pid = int(columns[4])
            return True, pid if pid > 0 else None
    return False, None
