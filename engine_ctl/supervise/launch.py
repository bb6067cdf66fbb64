"""Starting a shim over a run: a new run, or one whose shim has died (adoption)."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Busy, Failed
from engine_ctl.state.records import ExitRecord, RunIdentity, RunSpec
from engine_ctl.state.store import Run
from engine_ctl.supervise import base_environment, disk, procs, remains

SHIM = Path(__file__).with_name("shim.py")
LAUNCH_TIMEOUT_S = 30.0
_LOCK_PATIENCE_S = 1.0


def shim_command(run: Run, *options: str, python: str | None = None) -> list[str]:
    """The command line of a run's shim: `options` as in shim.py (`--child PID`), `python` the
    interpreter (default: ours). For a standby that becomes a shim by execv."""
    return [python or sys.executable, "-I", "-S", str(SHIM), str(run.dir), *options]


def launch(run: Run, *, env: Mapping[str, str] | None = None) -> RunIdentity:
    """Start a run under its own shim, which outlives this process.

    `env` is the base of the process's environment (default: ours). Returns when the process
    executes its command. Raises Failed with the reason when it does not (the run has an exit
    record then), Busy when a shim watches the run already."""
    _start_shim(run, [], dict(os.environ) if env is None else dict(env))
    identity = run.identity()
    if identity is None:
        raise Failed(f"run {run.id} was started but left no identity.json; see: stoker runs")
    return identity


def adopt(run: Run) -> bool:
    """Put a new shim over a process whose shim has died: its end will be recorded (with unknown
    exit status) and the restart policy applied. False when there is nothing to adopt, somebody
    else was faster, or the process is that of another state directory, of which this one is a
    copy. Raises Failed when no shim could be started."""
    if _is_of_another_state(run):
        return False
    try:
        _start_shim(run, ["--watch"], base_environment.restored(str(run.dir), os.environ))
    except Busy:
        return False
    except Failed:
        if _is_over(run):
            return False
        raise
    return True


def restart_ended(run: Run) -> None:
    """Put a new shim over a run that has ended, whose own shim is gone and owed the next run: it
    makes and starts that when it is due. Returns at once. Raises Busy, Failed."""
    _start_shim(run, ["--again"], base_environment.restored(str(run.dir), os.environ))


def lacks_secret(spec: RunSpec) -> str | None:
    """Which secret of a run a shim that is made here and now could not give to the next start."""
    return base_environment.missing(msgspec.to_builtins(spec.env_refs), os.environ)


def _is_of_another_state(run: Run) -> bool:
    """True when the run's directory is a copy: its shim lives and holds the lock elsewhere, or its
    process was started for a run of another state directory. False where neither is known."""
    from engine_ctl.identity import alive

    identity = run.identity()
    if identity is None:
        return False
    if alive(identity.shim):
        return True
    mark = procs.run_dir_of(identity.leader.pid)
    # A standby's fork carries the mark of the standby, which is another run of the same state.
    return bool(mark) and not _same(procs.units_of(str(mark)), procs.units_of(str(run.dir)))


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _is_over(run: Run) -> bool:
    from engine_ctl.identity import alive

    identity = run.identity()
    return identity is None or not alive(identity.leader)


def _start_shim(run: Run, options: list[str], env: dict[str, str]) -> None:
    # Makes their bytecode exist: a shim that has to compile them keeps 2 MB more for its life.
    from engine_ctl.supervise import again, watcher  # noqa: F401

    lock = hold_shim_lock(run)
    reader, writer = os.pipe()
    inherited = ["--detach", "--lock", str(lock), "--report", str(writer)]
    try:
        try:
            errors = _errors_of(run)
        except OSError as error:
            raise Failed(f"cannot write in {run.dir}: {error.strerror}") from error
        try:
            process = subprocess.Popen(
                shim_command(run, *options, *inherited),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Marks of a run that we ourselves may be part of are not the new run's.
                env={key: value for key, value in env.items() if not key.startswith("STOKER_RUN")},
                cwd="/",
                pass_fds=(lock, writer),
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"cannot start the shim of {run.id}: {error.strerror}") from error
        finally:
            os.close(errors)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
        os.close(lock)
    try:
        report = _read_line(reader, LAUNCH_TIMEOUT_S)
    finally:
        os.close(reader)
    process.wait()
    if report == "ok":
        return
    if report.startswith("error "):
        raise Failed(f"{run.id}: {report.removeprefix('error ')}")
    raise Failed(f"the shim of {run.id} {_last_words(run)}")


def _errors_of(run: Run) -> int:
    try:
        return os.open(run.dir / "shim.err", disk.APPEND, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EISDIR):  # a pipe or a directory in its place
            raise
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def hold_shim_lock(run: Run, patience_s: float = _LOCK_PATIENCE_S) -> int:
    """An open shim.lock that is held, for the caller to close. Raises Busy while a shim lives."""
    path = run.dir / "shim.lock"
    deadline = time.monotonic() + patience_s
    try:
        fd = atomic.open_lock(path)
    except OSError as error:
        raise Failed(f"cannot open {path}: {error.strerror}") from error
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise Busy(f"a shim watches run {run.id} already") from None
            time.sleep(0.02)


def end_unbegun(run: Run, record: ExitRecord) -> bool:
    """Write down the end of a run that was made and never begun: from then on nothing can begin in
    it. False when something has begun. Raises Busy while a shim lives, OSError on a full disk."""
    lock = hold_shim_lock(run)
    try:
        if (run.dir / "identity.json").exists():
            return False
        disk.fill(str(run.dir / "exit.json"), msgspec.to_builtins(record))
        remains.remove(str(run.dir))
    finally:
        os.close(lock)
    return True


def _read_line(fd: int, seconds: float) -> str:
    data = b""
    deadline = time.monotonic() + seconds
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            break
        chunk = os.read(fd, 4096)
        if not chunk:
            break
        data += chunk
    return data.decode(errors="replace").strip()


def _last_words(run: Run) -> str:
    try:
        words = atomic.regular_bytes(run.dir / "shim.err").decode(errors="replace")
        lines = words.strip().splitlines()
    except OSError:
        lines = []
    return f"did not start: {lines[-1]}" if lines else "did not start, and said nothing"
