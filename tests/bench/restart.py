"""A restart by hand against `stoker restart`, from the request to the first token, in turns.

    .venv/bin/python -m tests.bench.restart [--rounds 3] [--twenty]

The real CPU runtime and the tiny model of the tests, eager. By hand: SIGTERM to `vllm serve`, wait
until it has ended, start it with the same arguments, ask until a completion comes. `--twenty` adds
twenty restarts with changing max_num_seqs in a row, with the standby's memory before and after.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes.install import install, recipe
from engine_ctl.standby.lifecycle import listing
from tests.engine.conftest import CpuRuntime, cache
from tests.engine.world import World, complete, free_port, world


def hand(world: World, port: int) -> subprocess.Popen[bytes]:
    words = ["serve", str(world.model), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8"]
    return subprocess.Popen(
        [str(world.runtime.python), "-m", "vllm.entrypoints.cli.main", *words],
        env=world.runtime.full_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def first_token(world: World, port: int) -> None:
    deadline = time.monotonic() + 180
    while True:
        try:
            complete(port, str(world.model), 1)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def measure(here: World, rounds: int, twenty: bool) -> dict[str, Any]:
    here.profile("bench")
    here.document("start", "bench", "--wait")
    port = here.current("bench").spec().port or 0
    other = free_port()
    process = hand(here, other)
    first_token(here, other)
    figures: dict[str, list[float]] = {"by hand": [], "stoker restart": []}
    try:
        for _ in range(rounds):
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            process = hand(here, other)
            first_token(here, other)
            figures["by hand"].append(time.monotonic() - began)
            began = time.monotonic()
            here.document("restart", "bench", "--wait")
            first_token(here, port)
            figures["stoker restart"].append(time.monotonic() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    out: dict[str, Any] = {
        "seconds": {name: [round(v, 2) for v in values] for name, values in figures.items()},
        "ratio": round(medians["stoker restart"] / medians["by hand"], 3),
    }
    if twenty:
        before = [s.cost for s in listing(here.ctx.store)]
        began = time.monotonic()
        for n in range(20):
            here.profile("bench", args={"max_num_seqs": 4 + n % 5})
            here.document("restart", "bench", "--wait")
        out["twenty_s"] = round(time.monotonic() - began, 1)
        out["twenty_by_hand_s"] = round(20 * medians["by hand"], 1)
        out["standby_mib"] = [
            [(cost or 0) >> 20 for cost in before],
            [(s.cost or 0) >> 20 for s in listing(here.ctx.store)],
        ]
        out["live_runs"] = here.live_runs("bench")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--twenty", action="store_true")
    given = parser.parse_args()
    root = ensure_private(cache())
    base = Dirs.from_env({"HOME": str(root), "XDG_DATA_HOME": str(root / "data")})
    what = recipe("cpu")
    assert what is not None
    made = install(base, what, lambda text, share: None)
    runtime = CpuRuntime(Path(made.python), made.environment({}), made, base.data)
    with world(runtime, root / "models" / "tiny-llama") as here:
        print(json.dumps(measure(here, given.rounds, given.twenty), indent=1))


if __name__ == "__main__":
    main()
