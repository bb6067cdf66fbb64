"""A directory of each run's own for the sockets between vLLM's processes, which leaves them there.

vLLM binds `ipc://` sockets named by a UUID in VLLM_RPC_BASE_PATH (the temporary directory, where
that is not set) and unlinks none of them, however it ends. So a run gets a short directory (a Unix
socket has 107 bytes for its path); `runs/<n>/sockets` is a link to it, and says to whoever settles
the run, when all of its processes are gone, what to remove. Not for Ray, which takes the variable
to other machines.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import stat

from engine_ctl.supervise import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "VLLM_RPC_BASE_PATH"
LINK = "sockets"
PREFIX = "stoker-r-"
_SHARED = "/tmp"
_LIMIT = 107
_NAME = 1 + 36  # a slash and a UUID
# Mooncake's store: lookup_rpc_port_<port>_host_<host>_dp_rank<n>
_LOOKUP = 1 + len("lookup_rpc_port_65535_host__dp_rank9999")
_KINDS = ("engine", "preload", "bench")


def provide(env: dict[str, str], spec: Mapping[str, Any], run_dir: str) -> dict[str, str]:
    """A process's environment with the run's directory in it, which is made. Unchanged where the
    operator says himself where, and where no directory can be made: then vLLM's default holds."""
    words = spec.get("argv") or []
    if spec.get("kind") not in _KINDS or VARIABLE in env or _may_use_ray(words):
        return env
    path = _existing(run_dir) or _make(run_dir, env, _longest(words))
    return env if path is None else {**env, VARIABLE: path}


def remove(run_dir: str) -> bool:
    """Take the run's directory away, of whose processes none is left. False where there is none,
    or one of its sockets is in use (this run directory is a copy of one that lives)."""
    link = f"{run_dir}/{LINK}"
    try:
        path = os.readlink(link)
    except OSError:
        return False
    if _is_ours(path):
        if _in_use(path):
            return False
        for name in os.listdir(path):
            disk.remove(f"{path}/{name}")
        try:
            os.rmdir(path)
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


def _is_ours(path: str) -> bool:
    """Whether it is a directory as `_make` makes it: links can be written by a restored backup."""
    if not os.path.basename(path).startswith(PREFIX):
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
