"""Memory that a killed tree shares by files: noted while its processes live, removed when they are
gone and nobody else maps it.

vLLM's message queues and shared-memory collectives are files in /dev/shm. Whoever is SIGKILLed does
not unlink them, and they keep host memory until the machine is restarted. Several API servers count
in files of a temporary directory (prometheus_client's), which is left likewise. An operator's own
files in /dev/shm (weights, for quick starts) are only read, or lie in directories: never noted.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SHM = "/dev/shm/"
_GONE = " (deleted)"
_METRICS = ("counter", "gauge", "histogram", "summary")


def mapped_by(pid: int, *, shared: bool = False) -> dict[str, int]:
    """Such files that a process maps, as path → inode. Empty when it cannot be read. `shared`: only
    those that it shares with others and may write to (shm_overview(7)).

    A semaphore is mapped under a name that it had for a moment (sem_open(3)): it is looked up."""
    found: dict[str, int] = {}
    renamed: set[int] = set()
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
            for line in file:
                # address perms offset device inode path (proc(5))
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) == 6 and (fields[5].startswith(SHM) or _counts(fields[5])):
                    written = fields[1].startswith("rw") and fields[1].endswith("s")
                    if shared and not (written and _is_segment(fields[5])):
                        continue
                    if fields[5].endswith(_GONE):
                        renamed.add(int(fields[4]))
                    else:
                        found[fields[5]] = int(fields[4])
        if renamed:
            for entry in os.scandir(SHM):
                if entry.inode() in renamed:
                    found[entry.path] = entry.inode()
    except OSError:
        pass
    return found


def remove_abandoned(noted: dict[str, int]) -> list[str]:
    """Unlink those of `noted` that still exist as the same file, are ours, and that no process
    which can be seen maps. Returns what was removed. `noted` may come out of a damaged record."""
    known = {path: inode for path, inode in noted.items() if _is_segment(path)}
    left = {path: inode for path, inode in known.items() if _is_ours(path, inode)}
    if not left:
        return []
    used: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            used.update(mapped_by(int(name)))
    removed = [path for path in left if path not in used and _unlink(path)]
    for directory in {os.path.dirname(path) for path in removed if _counts(path)}:
        try:
            for name in os.listdir(directory):
                path = f"{directory}/{name}"
                if _counts(path) and path not in used:  # made later
                    _unlink(path)
            os.rmdir(directory)
        except OSError:
            pass
    return removed


def _is_segment(path: str) -> bool:
    """Whether processes may have made it to share: in directories of /dev/shm are others' files."""
    return _counts(path) or (path.startswith(SHM) and "/" not in path[len(SHM) :])


def _counts(path: str) -> bool:
    """Whether it is a process's file of metrics in a directory of tempfile's making."""
    if not path.endswith(".db"):
        return False
    directory, name = os.path.split(path)
    made = os.path.basename(directory)
    kind, _, rest = name.partition("_")
    return (
        kind in _METRICS
        and rest.rpartition("_")[2].removesuffix(".db").isdecimal()
        and made.startswith("tmp")
        and len(made) == len("tmp") + 8
    )


def remove_named(beginning: str) -> None:
    """Unlink those of ours whose name, which is nobody else's, begins so."""
    try:
        names = [name for name in os.listdir(SHM) if name.startswith(beginning)]
    except OSError:
        return
    for name in names:
        _unlink(SHM + name)


def note(into: dict[str, int], pids: Iterable[int]) -> None:
    """Add what the processes map now."""
    for pid in pids:
        into.update(mapped_by(pid, shared=True))


def _is_ours(path: str, inode: int) -> bool:
    try:
        info = os.lstat(path)
    except (OSError, ValueError):
        return False
    return info.st_ino == inode and info.st_uid == os.geteuid()


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
