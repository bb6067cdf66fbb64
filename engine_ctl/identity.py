"""Who a process is: (boot id, pid, start time). A bare pid is never trusted or signalled."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import msgspec


class Identity(msgspec.Struct, frozen=True):
    """One process for all time. `start_ticks` is field 22 of /proc/PID/stat (clock ticks since
    boot, see proc(5)); `boot` is the kernel's random boot id."""

    boot: str
    pid: int
    start_ticks: int


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from `state` on (index 0 = field 3), or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Identity | None:
    """The identity of a live (or zombie) process, None when there is none."""
    fields = stat_fields(pid)
    return None if fields is None else Identity(boot_id(), pid, int(fields[19]))


def alive(identity: Identity) -> bool:
    """True while that very process exists and is not a zombie."""
    fields = stat_fields(identity.pid)
    return (
        fields is not None
        and fields[0] not in "ZX"
        and int(fields[19]) == identity.start_ticks
        and identity.boot == boot_id()
    )


def open_pidfd(identity: Identity) -> int | None:
    """A pidfd of exactly this process (checked after opening), None when it is gone.

    The caller closes it.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OSError):
        return None
    if alive(identity):
        return fd
    os.close(fd)
    return None


def send_signal(identity: Identity, signum: signal.Signals) -> bool:
    """Signal exactly this process through a pidfd. False when it is gone already."""
    fd = open_pidfd(identity)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def wait_gone(identity: Identity, seconds: float) -> bool:
    """Wait until the process has ended; False when `seconds` ran out."""
    fd = open_pidfd(identity)
    if fd is None:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)
