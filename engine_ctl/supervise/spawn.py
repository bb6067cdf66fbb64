"""Starting a run's process: its environment, its streams, and a start that cannot be half known.

The child waits until the shim has recorded who it is, and executes only then; a shim that dies in
between leaves no nameless process. Standard library only (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import os
import signal

from engine_ctl.supervise import base_environment, disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SpawnError(Exception):
    """The process could not be started. `str(error)` is one line that says why."""


def environment(spec: dict[str, Any], run_dir: str, base: dict[str, str]) -> dict[str, str]:
    """The process's environment: `base`, without `env_unset`, with `env`, the references resolved
    in `base`, and the marks that tell whose the process is. Raises SpawnError."""
    env = {key: value for key, value in base.items() if not key.startswith("STOKER_RUN")}
    for name in spec.get("env_unset") or ():
        env.pop(name, None)
    env.update(spec.get("env") or {})
    for name, reference in (spec.get("env_refs") or {}).items():
        env[name] = _resolve(name, reference, base)
    env["STOKER_RUN"] = spec["run"]
    env["STOKER_UNIT"] = spec["unit"]
    env["STOKER_RUN_DIR"] = run_dir
    return env


def _resolve(name: str, reference: dict[str, Any], base: dict[str, str]) -> str:
    source = reference.get("from_env")
    if source:
        lack = base_environment.missing({name: reference}, base)
        if lack:
            raise SpawnError(lack)
        return base[source]
    path = os.path.expanduser(reference.get("from_file") or "")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpawnError(
            f"{name} comes from the file {path!r}, which cannot be read: {why}"
        ) from None


class Child:
    """A forked process that waits for `go()`."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None, log: str) -> None:
        if not argv:
            raise SpawnError("the run has no command")
        self._argv = argv
        self._cwd = cwd
        go_read, self._go = os.pipe()
        self._failure, failure_write = os.pipe()
        try:
            log_fd = os.open(log, disk.APPEND, 0o600)
            os.set_blocking(log_fd, True)
        except OSError as error:
            raise SpawnError(f"cannot open the log {log}: {error.strerror}") from None
        self.pid = os.fork()
        if self.pid == 0:
            _child(argv, env, cwd, log_fd, go_read, failure_write, (self._go, self._failure))
        for fd in (go_read, failure_write, log_fd):
            os.close(fd)

    def go(self) -> None:
        """Let the process execute its command. Raises SpawnError when that fails."""
        try:
            os.write(self._go, b"g")
        except BrokenPipeError:
            pass
        os.close(self._go)
        report = b""
        while True:
            chunk = os.read(self._failure, 256)
            if not chunk:
                break
            report += chunk
        os.close(self._failure)
        if report:
            stage, number = report.decode().split()
            why = os.strerror(int(number))
            what = f"cannot run {self._argv[0]}"
            if stage == "cwd":
                what = f"cannot enter the directory {self._cwd}"
            raise SpawnError(f"{what}: {why}")

    def abandon(self) -> None:
        """Let the process end without having executed anything."""
        os.close(self._go)
        os.close(self._failure)


def _child(
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    log: int,
    go: int,
    failure: int,
    parents: tuple[int, ...],
) -> None:
    stage = "exec"
    try:
        for fd in parents:
            os.close(fd)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    pass
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if not os.read(go, 1):
            os._exit(125)
        if cwd:
            stage = "cwd"
            os.chdir(cwd)
            stage = "exec"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(failure, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)
