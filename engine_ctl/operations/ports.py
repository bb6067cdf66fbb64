"""Who listens where: an address in use is said with its owner."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

from engine_ctl.errors import Busy, Failed
from engine_ctl.model import Cause
from engine_ctl.supervise import procs, stale
from engine_ctl.supervise.listener import command_of

# sun_path of unix(7), without its end.
_LONGEST = 107


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


def port_problem(host: str, port: int) -> str | None:
    """Why the port cannot be bound now, naming who listens; None when it can."""
    try:
        if is_free(host, port):
            return None
    except OSError as error:
        return f"cannot listen on {host}:{port}: {error.strerror}"
    holder = owner(port)
    if holder is None:
        return f"port {port} is not ours to bind; choose one from 1024 up"
    who = f"pid {holder[0]} ({holder[1]})" if holder[0] else holder[1]
    return f"port {port} is in use by {who}; stop it or set another port"


def first_free(host: str, start: int = 8000, taken: frozenset[int] = frozenset()) -> int:
    """The first port from `start` that nobody listens on and that is not in `taken`."""
    for port in range(start, 65536):
        if port not in taken and is_free(host, port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {start} up")


def refuse_socket(path: str) -> None:
    """Raise Failed, or Busy where somebody listens, when an engine cannot listen on a Unix socket
    at `path`. One that nobody listens on any more is fine: the shim takes it away before the
    engine binds it."""
    if not path.startswith("/"):
        raise Failed(
            f"uds: {path} is no absolute path, and an engine starts in no directory of yours"
        )
    if len(os.fsencode(path)) > _LONGEST:
        raise Failed(
            f"uds: {path} is longer than the {_LONGEST} bytes that a socket's path may have"
        )
    if not os.path.isdir(os.path.dirname(path)):
        raise Failed(f"uds: the directory {os.path.dirname(path)} does not exist")
    if not os.path.lexists(path) or stale.is_stale(path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            # One that is bound, by an engine that still loads, refuses as a plain file does.
            if not (isinstance(error, ConnectionRefusedError) and Path(path).is_socket()):
                why = error.strerror
                raise Failed(f"uds: {path} is there already and no socket to use: {why}") from None
    raise Busy(f"uds: somebody listens on {path} already; stop it or set another path")


def owner(port: int) -> tuple[int, str] | None:
    """(pid, command) of a process that listens on the TCP port; pid 0 when it is another user's.

    None when nobody listens."""
    import psutil

    pids = [
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]
    if not pids:
        return None
    pid = next((pid for pid in pids if pid), 0)
    return pid, owner_words(pid) if pid else "another user's process"


def owner_words(pid: int) -> str:
    """The run that the process belongs to where a Stoker started it, else its command."""
    directory = procs.run_dir_of(pid)
    run = Path(directory or "")
    if len(run.parts) < 4:
        return command_of(pid)
    return f"run {run.parents[1].name}/{run.name} of Stoker's"


def named_port(cause: Cause) -> int | None:
    """The port that the cause names: the engine's own, or one at which its ranks meet."""
    found = re.match(r"port (\d{1,5})\b", cause.hint)
    return int(found[1]) if found is not None else None


def with_owner(cause: Cause, port: int | None) -> Cause:
    """The cause that a port is taken, with who listens there now, where that can be known."""
    if cause.category != "port_in_use" or port is None or " is taken: " not in cause.hint:
        return cause
    found = owner(named_port(cause) or port)
    if found is None:
        return cause
    pid, command = found
    who = f"pid {pid} ({command})" if pid else command
    hint = cause.hint.replace(" is taken: ", f" is taken (now by {who}): ", 1)
    return replace(cause, hint=hint)
