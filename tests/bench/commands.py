"""Times of `stoker --help` and `stoker ps --json` with three units, and the PSS of a shim.

    .venv/bin/python tests/bench/commands.py

Whole processes, spawn to exit, median of 7 after one warm-up. The units are stand-in processes
under real shims (no engine is needed to list units).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Store
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop

STOKER = Path(sys.executable).with_name("stoker")
RUNS = 7


def timed(*words: str, env: dict[str, str]) -> float:
    seconds = []
    for _ in range(RUNS + 1):
        began = time.monotonic()
        subprocess.run([STOKER, *words], env=env, check=True, capture_output=True)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:])


def pss(pid: int) -> int:
    """Proportional set size in KiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"no Pss of {pid}")


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        names = ("STATE_HOME", "DATA_HOME", "CONFIG_HOME", "CACHE_HOME")
        xdg = {f"XDG_{name}": f"{root}/{name.lower()}" for name in names}
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | xdg
        store = Store(Dirs.from_env(env))
        runs = []
        for n in range(3):
            store.create(f"u{n}", Kind.ENGINE, "p")
            spec = RunSpec(unit=f"u{n}", kind=Kind.ENGINE, argv=["/bin/sleep", "600"])
            run = store.new_run(spec)
            store.set_current(run)
            launch(run)
            runs.append(run)
        try:
            identities = [run.identity() for run in runs]
            figures = {
                "help_ms": round(timed("--help", env=env) * 1000),
                "ps_json_3_units_ms": round(timed("ps", "--json", env=env) * 1000),
                "shim_pss_kib": [pss(i.shim.pid) for i in identities if i is not None],
            }
        finally:
            for run in runs:
                stop(run)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
