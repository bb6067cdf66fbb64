"""What vLLM reads a file of recorded requests with: its own packages do not bring it along."""

from __future__ import annotations

import subprocess

from engine_ctl.errors import Failed
from engine_ctl.runtimes.probe import clean_environment
from engine_ctl.runtimes.store import Runtime

READERS = ("pandas",)
_LOOK = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"


def lacking(runtime: Runtime) -> tuple[str, ...]:
    """Which of READERS the runtime does not have (0.1 s, nothing is imported). Raises Failed."""
    try:
        done = subprocess.run(
            [runtime.python, "-c", _LOOK, *READERS],
            cwd="/",
            env=clean_environment(runtime.environment()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60.0,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{runtime.python} cannot be run: {error}") from None
    if done.returncode:
        raise Failed(f"{runtime.python} fails: {(done.stderr.splitlines() or ['silently'])[-1]}")
    return tuple(done.stdout.split())


def remedy(runtime: Runtime, names: tuple[str, ...]) -> str:
    """One line: what is missing, what for, and the command that mends it."""
    return (
        f"runtime {runtime.name} has no {', '.join(names)}, with which vLLM reads recorded "
        f"requests; run: {runtime.python} -m pip install {' '.join(names)}"
    )
