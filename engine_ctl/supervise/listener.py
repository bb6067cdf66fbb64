"""Who listens where a run should: anybody can answer 200 on a port.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import _socket
import os
import sys

from engine_ctl.supervise import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_WILDCARDS = ("0" * 8, "0" * 32)
_ANY = ("", "0.0.0.0", "::", "localhost")


def stranger(host: str, port: int, mine: Collection[int]) -> int | None:
    """Pid of a process outside `mine` that answers connections to (host, port).

    None when one of `mine` does, when nobody listens, and when it cannot be known: another network
    namespace, or processes whose descriptors we may not see."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(host, port)}
    if not sockets or any(_holds(pid, sockets) for pid in mine):
        return None
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return next((pid for pid in pids if pid not in mine and _holds(pid, sockets)), None)


def command_of(pid: int) -> str:
    """The command line of a process, shortened; its name in brackets when it has none."""
    text = b" ".join(procs.command_line(pid)).decode(errors="replace").strip()
    if not text:
        proc = procs.look(pid)
        text = f"[{proc.comm}]" if proc is not None else "?"
    return text if len(text) <= 120 else text[:119] + "…"


def _inodes(host: str, port: int) -> set[str]:
    """Inodes of the sockets that the kernel would give such a connection to: the address's own,
    else those of every address."""
    exact: set[str] = set()
    every: set[str] = set()
    wanted = _written(host)
    for table in _TABLES:
        for address, number, inode in _listeners(table):
            if number != port:
                continue
            if wanted is None or address in wanted:
                exact.add(inode)
            elif address in _WILDCARDS:
                every.add(inode)
    return exact or every


def _listeners(table: str) -> list[tuple[str, int, str]]:
    try:
        with open(table) as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return []
    found = []
    for line in lines:
        columns = line.split()
        if len(columns) > 9 and columns[3] == _LISTEN and columns[9] != "0":
            address, _, port = columns[1].partition(":")
            found.append((address, int(port, 16), columns[9]))
    return found


def _written(host: str) -> set[str] | None:
    """The address as the kernel's tables write it: words of four bytes in the machine's order.
    None for a name, and for all addresses."""
    if host in _ANY:
        return None
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            packed = _socket.inet_pton(family, host)
        except OSError:
            continue
        mapped = b"\0" * 10 + b"\xff\xff" + packed
        return {_words(packed), _words(mapped)} if len(packed) == 4 else {_words(packed)}
    return None


def _words(packed: bytes) -> str:
    words = (packed[i : i + 4] for i in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _holds(pid: int, sockets: set[str]) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{directory}/{name}") in sockets:
                return True
        except OSError:
            continue
    return False
