"""Where Stoker keeps things: the XDG directories, one small object so that tests can move them."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.errors import Failed

APP = "stoker"


@dataclass(frozen=True, slots=True)
class Dirs:
    """Stoker's directories. `state` holds units and runs, `data` managed runtimes and models,
    `config` profiles, `cache` argument schemas and derived facts, `sockets` short Unix sockets."""

    state: Path
    data: Path
    config: Path
    cache: Path
    sockets: Path

    @classmethod
    def from_env(cls, env: dict[str, str] | None = None) -> Dirs:
        """Directories by the XDG base directory specification; relative values are ignored."""
        env = dict(os.environ) if env is None else env
        home = _home(env)

        def base(variable: str, fallback: Path) -> Path:
            value = env.get(variable, "")
            return (Path(value) if value.startswith("/") else fallback) / APP

        state = base("XDG_STATE_HOME", home / ".local" / "state")
        runtime = env.get("XDG_RUNTIME_DIR", "")
        sockets = Path(runtime) / APP if runtime.startswith("/") else state / "s"
        return cls(
            state=state,
            data=base("XDG_DATA_HOME", home / ".local" / "share"),
            config=base("XDG_CONFIG_HOME", home / ".config"),
            cache=base("XDG_CACHE_HOME", home / ".cache"),
            sockets=sockets,
        )

    @property
    def units(self) -> Path:
        return self.state / "units"

    @property
    def runtimes(self) -> Path:
        return self.data / "runtimes"

    @property
    def profiles(self) -> Path:
        return self.config / "profiles"


def _home(env: dict[str, str]) -> Path:
    """$HOME, or the password database's where that is unset, empty or relative."""
    value = env.get("HOME", "")
    if value.startswith("/"):
        return Path(value)
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        raise Failed(
            f"HOME is not set and uid {os.geteuid()} is no known user; set HOME to a directory"
        ) from None


def ensure_private(path: Path) -> Path:
    """Make `path` (mode 0700) or check it: ours, a real directory, not writable by others.

    Raises Failed when somebody else could write there: state read from it would be theirs.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise Failed(f"{path} is not a directory") from None
    except OSError as error:
        raise Failed(f"{path} cannot be made: {error.strerror}") from error
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise Failed(f"{path} is not a directory")
    if info.st_uid != os.geteuid():
        raise Failed(f"{path} belongs to uid {info.st_uid}; refusing to use it as state")
    if info.st_mode & 0o022:
        raise Failed(
            f"{path} is writable by others (mode {info.st_mode & 0o777:o}); run: chmod go-w {path}"
        )
    return path
