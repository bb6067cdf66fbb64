"""Who listens where, from /proc: an address in use is said with its owner."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

LISTEN = "0A"


def is_free(host: str, port: int) -> bool:
    """Can a server bind (host, port) now? Raises OSError for a host that is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def first_free(host: str, start: int = 8000, taken: frozenset[int] = frozenset()) -> int:
    """The first port from `start` that nobody listens on and that is not in `taken`."""
    for port in range(start, 65536):
        if port not in taken and is_free(host, port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {start} up")


def owner(port: int) -> tuple[int, str] | None:
    """(pid, command) of a process that listens on the TCP port; pid 0 when it is another user's.

    None when nobody listens. Source: /proc/net/tcp and tcp6 (proc(5)), sockets by inode.
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{entry.name}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(fd.path) in inodes:
                        return int(entry.name), command_of(int(entry.name))
    return 0, "another user's process"


def command_of(pid: int) -> str:
    """The command line of a process, shortened; its name in brackets when it has none."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    text = raw.replace(b"\0", b" ").decode(errors="replace").strip()
    if not text:
        with contextlib.suppress(OSError):
            text = f"[{Path(f'/proc/{pid}/comm').read_text().strip()}]"
    return text if len(text) <= 120 else text[:119] + "…"
