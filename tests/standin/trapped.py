"""A `stoker` command that meets its end at a chosen place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def killed(env: Mapping[str, str], code: str, words: tuple[str, ...], timeout_s: float) -> int:
    """Run a `stoker` command in which `code` has set a trap; its exit status, as subprocess says
    it (-9: it was killed)."""
    program = f"import sys\n{code}\nfrom console.main import run\nsys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[2],
    )
    print(done.stderr.decode(errors="replace")[-2000:])  # shown when the test fails
    return done.returncode
