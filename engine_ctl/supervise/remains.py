"""What vLLM leaves outside of its run's directory, and its removal once all its processes are gone.

vLLM binds `ipc://` sockets named by a UUID in VLLM_RPC_BASE_PATH (the temporary directory, where
that is not set) and unlinks none of them, however it ends. So a run gets a short directory (a Unix
socket has 107 bytes for its path); `runs/<n>/sockets` is a link to it, and says to whoever settles
the run, when all of its processes are gone, what to remove. Not for Ray, which takes the variable
to other machines. The file by which torch's processes find each other is named in the log; what
ranks on the CPU share in /dev/shm is named after it. Other shared memory, which nobody unlinks when
all are killed at once, is noted when the run is ready (`shared.json`).

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import stat

from engine_ctl.supervise import disk, segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

VARIABLE = "VLLM_RPC_BASE_PATH"
LINK, SHARED = "sockets", "shared.json"
PREFIX = "stoker-r-"
_SHARED = "/tmp"
_LIMIT = 107
_NAME = 1 + 36  # a slash and a UUID
# Mooncake's store: lookup_rpc_port_<port>_host_<host>_dp_rank<n>
_LOOKUP = 1 + len("lookup_rpc_port_65535_host__dp_rank9999")
_KINDS = ("engine", "preload", "bench")
_INIT = b"distributed_init_method=file://"
_MEETING = "vllm_dist_"
_BEGINNING = 1 << 20  # of the log: it is said before anything is loaded


def provide(env: dict[str, str], spec: Mapping[str, Any], run_dir: str) -> dict[str, str]:
    """A process's environment with the run's directory in it, which is made. Unchanged where the
    operator says himself where, and where no directory can be made: then vLLM's default holds."""
    words = spec.get("argv") or []
    if spec.get("kind") not in _KINDS or VARIABLE in env or _may_use_ray(words):
        return env
    path = _existing(run_dir) or _make(run_dir, env, _longest(words))
    return env if path is None else {**env, VARIABLE: path}


def note(run_dir: str, pids: Iterable[int]) -> None:
    """Keep which shared memory the run's processes map. Raises OSError."""
    mapped: dict[str, int] = {}
    segments.note(mapped, pids)
    if mapped:
        disk.write_json(f"{run_dir}/{SHARED}", {"schema": 1, "mapped": mapped})


def noted(run_dir: str) -> bool:
    """Whether there is something to remove once the run has ended."""
    return os.path.islink(f"{run_dir}/{LINK}") or os.path.exists(f"{run_dir}/{SHARED}")


def remove(run_dir: str) -> bool:
    """Take what the run's processes left, of which none is alive. False where nothing was noted, or
    a socket is in use (this run directory is a copy of one that lives). Never fails: the record of
    the run's end is still to be written, and others may be at it too."""
    link = f"{run_dir}/{LINK}"
    try:
        path = os.readlink(link)
    except OSError:
        path = ""
    if _is_ours(path) and _in_use(path):
        return False
    for meeting in _meetings(f"{run_dir}/log"):
        disk.remove(meeting)
        segments.remove_named(os.path.basename(meeting) + "-")
    mapped = (disk.read_json(f"{run_dir}/{SHARED}") or {}).get("mapped")
    if isinstance(mapped, dict):
        segments.remove_abandoned(mapped)
    disk.remove(f"{run_dir}/{SHARED}")
    if not path:
        return bool(mapped)
    if _is_ours(path):
        try:
            for name in os.listdir(path):
                disk.remove(f"{path}/{name}")
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            return False
    disk.remove(link)
    return True


def _may_use_ray(words: list[str]) -> bool:
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--config":
            value = _text(value or "".join(words[number + 1 : number + 2]))
        elif "backend" not in name:
            continue
        else:
            value = value or "".join(words[number + 1 : number + 2])
        if "ray" in [each.strip("'\",") for each in value.split()]:
            return True
    return False


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _longest(words: list[str]) -> int:
    connected = any(word.startswith("--kv") for word in words)
    return _LOOKUP + len(os.uname().nodename) if connected else _NAME


def _existing(run_dir: str) -> str | None:
    """That of a start of this run which came to nothing."""
    try:
        path = os.readlink(f"{run_dir}/{LINK}")
    except OSError:
        return None
    return path if _is_ours(path) else None


def _make(run_dir: str, env: Mapping[str, str], longest: int) -> str | None:
    for place in (env.get("TMPDIR", ""), _SHARED):
        path = f"{place.rstrip('/')}/{PREFIX}{os.urandom(4).hex()}"
        if not place.startswith("/") or len(os.fsencode(path)) + longest > _LIMIT:
            continue
        try:
            os.mkdir(path, 0o700)
        except OSError:
            continue
        link = f"{run_dir}/{LINK}"
        try:
            disk.remove(link)
            os.symlink(path, link)
        except OSError:  # nobody would know that it is there
            os.rmdir(path)
            return None
        return path
    return None


def _meetings(log: str) -> set[str]:
    """Files that vLLM said it made for its processes to meet at, which are there and ours."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return set()
    try:
        said = os.pread(fd, _BEGINNING, 0).split(_INIT)[1:]
    except OSError:  # no regular file
        return set()
    finally:
        os.close(fd)
    found = set()
    for words in said:
        path = os.fsdecode(words[:4096].split(maxsplit=1)[0]) if words.strip() else ""
        name = os.path.basename(path)
        try:
            info = os.lstat(path)
        except (OSError, ValueError):
            continue
        ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
        if ours and name.startswith(_MEETING):
            found.add(path)
    return found


def _is_ours(path: str) -> bool:
    """Whether it is a directory as `_make` makes it: links can be written by a restored backup."""
    if not (os.path.isabs(path) and os.path.basename(path).startswith(PREFIX)):
        return False
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()


def _in_use(directory: str) -> bool:
    """Whether a process of this machine has a socket bound there (proc(5))."""
    place = b" " + os.fsencode(directory) + b"/"
    try:
        with open("/proc/net/unix", "rb") as file:
            return any(place in line for line in file)
    except OSError:
        return False
