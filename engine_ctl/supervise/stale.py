"""A Unix socket whose server was killed stays in its directory, and whoever binds its path next is
told that the address is in use.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import _socket
import os
import stat


def is_stale(path: str) -> bool:
    """Whether `path` is a socket that nobody has: an engine that still loads has bound its own and
    does not listen yet."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except OSError:
        return False
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        return not _is_bound(path)
    except OSError:
        pass
    finally:
        probe.close()
    return False


def _is_bound(path: str) -> bool:
    """Whether a process of this machine has bound a socket at `path`, as proc(5) lists them."""
    ending = b" " + os.fsencode(path)
    try:
        with open("/proc/net/unix", "rb") as file:
            return any(line.rstrip(b"\n").endswith(ending) for line in file)
    except OSError:
        return False


def remove(path: str) -> None:
    """Take it away when it is stale; anything else is left for the server to complain about."""
    if is_stale(path):
        try:
            os.unlink(path)
        except OSError:
            pass
