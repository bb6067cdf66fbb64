"""The socket directory of daemons whose profile names none: each state directory has its own.

vLLM's default is one directory for each user, so that two Stokers of one user (two state
directories) would serve each other's weights. Unix sockets have 107 bytes for their path, which
rules out the state directory itself in most places. /tmp comes before the user's runtime
directory: that one is removed when the last session ends, and daemons stay.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.state.store import Store
from engine_ctl.weights import sights, sockets
from profiles.argv import expanded
from profiles.loading import Origin, Resolved
from profiles.model import Profile

NOTE = "weights-sockets.json"
KEY = "preload.socket_dir"
ORIGIN = Origin("stoker", "stoker", "Stoker: this state directory's own", None)
# sun_path without its NUL, with room to spare; what vLLM calls a draft rank's socket (a hash of the
# GPU's UUID).
PATH_LIMIT = 103
SHARED = Path("/tmp")
LONGEST = f"/vllm_weight_cache_{'0' * 32}_draft.sock"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """weights-sockets.json: the directory that daemons of this state directory were started with,
    so that it does not change with the environment. Writer: the start of a daemon."""

    schema: int = 1
    path: str


def concrete(
    store: Store, profile: Profile, env: Mapping[str, str], *, reload: bool = False
) -> Profile:
    """The profile as it would be run now: `${…}` filled in, its socket directory named.

    Raises Usage for a variable that is not set."""
    return with_socket_dir(store, expanded(profile, env), env, reload=reload)


def with_socket_dir(
    store: Store, profile: Profile, env: Mapping[str, str], *, reload: bool = False
) -> Profile:
    """The profile with the private directory where it keeps weights and names no directory.

    A daemon of its weights that runs in vLLM's own default directory, started before there were
    private ones, is used where it is until a `reload`."""
    section = profile.preload
    if section is None or section.socket_dir is not None or _names_one(profile):
        return profile
    if not reload and _serves_at_default(store, profile):
        return profile
    private = str(private_dir(store.dirs, env))
    return msgspec.structs.replace(
        profile, preload=msgspec.structs.replace(section, socket_dir=private)
    )


def shown(store: Store, resolved: Resolved, env: Mapping[str, str]) -> Resolved:
    """The resolved profile with the private directory and where that comes from."""
    profile = with_socket_dir(store, resolved.profile, env)
    if profile is resolved.profile:
        return resolved
    return Resolved(profile, {**resolved.provenance, KEY: ORIGIN}, resolved.files, resolved.unknown)


def private_dir(dirs: Dirs, env: Mapping[str, str]) -> Path:
    """The directory of this state directory's sockets; it need not exist. The one that was used
    before, else the first that can be."""
    try:
        noted = atomic.read_record(dirs.state / NOTE, Chosen)
    except atomic.CorruptRecord:
        noted = None
    if noted is not None and _usable(Path(noted.path)):
        return Path(noted.path)
    places = candidates(dirs, env)
    return next((path for path in places if _usable(path)), places[0])


def candidates(dirs: Dirs, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where it may be, best first; only paths that leave room for a socket's name."""
    uid = os.geteuid()
    state = os.path.realpath(dirs.state)
    name = f"stoker-w-{hashlib.sha256(f'{uid}:{state}'.encode()).hexdigest()[:8]}"
    runtime = env.get("XDG_RUNTIME_DIR", "")
    found = [SHARED / name]
    found += [Path(runtime) / name] if runtime.startswith("/") else []
    found += [Path(f"/run/user/{uid}") / name, Path(state) / "w"]
    return tuple(p for p in found if len(os.fsencode(p)) + len(LONGEST) <= PATH_LIMIT)


def ensure(dirs: Dirs, path: str) -> None:
    """Make the private directory where `path` is it, and keep that it is used. Other directories
    are the operator's, or vLLM's to make.

    Raises Failed when it is somebody else's, a symlink, or cannot be made."""
    if path != str(private_dir(dirs, os.environ)):
        return
    directory = Path(path)
    if directory.is_symlink():
        raise Failed(f"{path} is a symlink; remove it, or set preload: {{socket_dir: …}}")
    own = directory.is_dir() and directory.stat().st_uid == os.geteuid()
    if own and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        directory.chmod(0o700)
    ensure_private(directory)
    atomic.write_record(dirs.state / NOTE, Chosen(path=path))


def discard(store: Store) -> str | None:
    """Remove the private directory when no daemon runs; returns its path when it is gone."""
    if any(daemon.alive for daemon in sights.daemons(store)):
        return None
    directory = private_dir(store.dirs, os.environ)
    if directory.is_symlink() or not directory.is_dir():
        return None
    if any(sockets.look(str(path), strict=False).listening for path in directory.glob("*.sock")):
        return None
    for entry in directory.iterdir():
        if entry.name.startswith("vllm_weight_cache_"):
            entry.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        return None
    (store.dirs.state / NOTE).unlink(missing_ok=True)
    return str(directory)


def _names_one(profile: Profile) -> bool:
    """True where arguments name a socket or a directory: they win."""
    if profile.preload is not None and "weight_cache_socket_dir" in {
        name.lstrip("-").replace("-", "_") for name in profile.preload.args
    }:
        return True
    extra = profile.args.get("model_loader_extra_config")
    if isinstance(extra, str):
        return '"socket_path"' in extra or '"socket_dir"' in extra
    return isinstance(extra, dict) and bool({"socket_path", "socket_dir"} & set(extra))


def _serves_at_default(store: Store, profile: Profile) -> bool:
    return any(
        daemon.alive
        and profile.name == daemon.spec.profile
        and not any(w.startswith("--weight-cache-socket-dir") for w in daemon.spec.argv)
        for daemon in sights.daemons(store)
    )


def _usable(path: Path) -> bool:
    """Whether it is ours alone, or can be made."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
