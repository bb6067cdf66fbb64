"""A restart by hand against `stoker restart`, from the request to the first token, in turns.

    .venv/bin/python -m tests.bench.restart [--rounds 3] [--twenty]

The real CPU runtime and the tiny model of the tests, eager. By hand: SIGTERM to `vllm serve`, wait
until it has ended, start it with the same arguments, ask until a completion comes. `--twenty` adds
twenty restarts of each, in turns, with changing max_num_seqs and gpu_memory_utilization (9
minutes), with the standby's memory before and after and what is left of processes.
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
from engine_ctl.supervise import procs
from tests.engine.conftest import CpuRuntime, cache
from tests.engine.world import World, complete, free_port, world

Changes = dict[str, Any]


def changes(n: int) -> Changes:
    """Arguments of the n-th of twenty restarts."""
    return {"max_num_seqs": 4 + n % 5, "gpu_memory_utilization": 0.5 + n % 4 * 0.1}


class Hand:
    """`vllm serve` as somebody starts and stops it at a prompt."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.port = free_port()
        self.process = self.start({})
        first_token(here, self.port)

    def start(self, more: Changes) -> subprocess.Popen[bytes]:
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        args: Changes = {"max_model_len": 512, "max_num_seqs": 8, **more}
        words = ["serve", str(self.here.model), *place, "--enforce-eager"]
        for name, value in args.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return subprocess.Popen(
            [str(self.here.runtime.python), "-m", "vllm.entrypoints.cli.main", *words],
            env=self.here.runtime.full_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def restart(self, more: Changes) -> float:
        """Seconds from the request to the first token."""
        began = time.monotonic()
        self.stop()
        self.process = self.start(more)
        first_token(self.here, self.port)
        return time.monotonic() - began

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def stoker(here: World, port: int, more: Changes) -> float:
    """Seconds of `stoker restart` from its process's start to the first token."""
    here.profile("bench", args=more)
    began = time.monotonic()
    here.document("restart", "bench", "--wait")
    first_token(here, port)
    return time.monotonic() - began


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
    by_hand = Hand(here)
    out: dict[str, Any] = {}
    try:
        out["rounds"] = in_turns(here, by_hand, port, [{} for _ in range(rounds)])
        if twenty:
            before = standby_mib(here)
            out["twenty"] = in_turns(here, by_hand, port, [changes(n) for n in range(20)])
            out["standby_mib"] = [before, standby_mib(here)]
            out["live_runs"] = here.live_runs("bench")
            out["processes"] = len(marked(here))
    finally:
        by_hand.stop()
    return out


def in_turns(here: World, by_hand: Hand, port: int, each: list[Changes]) -> dict[str, Any]:
    """A B A B: seconds of each restart, their sums, and the ratio of the medians."""
    hand, ours = [], []
    for more in each:
        hand.append(by_hand.restart(more))
        ours.append(stoker(here, port, more))
    return {
        "by_hand_s": [round(s, 2) for s in hand],
        "stoker_s": [round(s, 2) for s in ours],
        "sums_s": [round(sum(hand), 1), round(sum(ours), 1)],
        "ratio": round(statistics.median(ours) / statistics.median(hand), 3),
    }


def standby_mib(here: World) -> list[int]:
    return [(standing.cost or 0) >> 20 for standing in listing(here.ctx.store)]


def marked(here: World) -> list[int]:
    """Pids that carry a mark of a run of this unit: those of its one engine when nothing leaks."""
    runs = str(here.ctx.store.unit_dir("bench") / "runs")
    table = procs.table().values()
    return [p.pid for p in table if (procs.run_dir_of(p.pid) or "").startswith(runs)]


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
