"""Checks 3 and 4: restarts against starts by hand, and twenty in a row."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.gpu.machine import LEN, Machine, complete, first_token
from tests.gpu.parts_failures import ledger

PORT_BIG, PORT_HAND = 8100, 8200


PLAN = "VLLM_ENABLE_STARTUP_PLAN"
TOTAL_MIB = 143_771  # of an H200


class Turns:
    """Figures of one part: what is measured runs in turns, each figure is written at once."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.seconds: dict[str, list[float]] = {}

    def take(self, name: str, run: Callable[[], float]) -> None:
        self.seconds.setdefault(name, []).append(round(run(), 2))
        self.m.note("figure", name=name, s=self.seconds[name][-1])

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def shares(self, of: str) -> dict[str, float]:
        return {name: round(self.median(name) / self.median(of), 3) for name in self.seconds}

    def by_hand(
        self, *words: str, plan: bool = False, look: Callable[[], None] | None = None
    ) -> float:
        """`vllm serve` as an operator types it, from the start to the first token; then ended.

        `look` runs while it serves."""
        m = self.m
        line = [m.python, "-m", "vllm.entrypoints.cli.main", "serve", m.big]
        line += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(PORT_HAND)]
        env = {**m.env, "CUDA_VISIBLE_DEVICES": "0", **({PLAN: "1"} if plan else {})}
        hand = m.work / "hand"
        hand.mkdir(exist_ok=True)
        with (hand / f"{int(time.time())}.log").open("wb") as log:
            began = time.monotonic()
            process = subprocess.Popen(
                [*line, "--max-model-len", str(LEN), *words],
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
            try:
                first_token(PORT_HAND, "m", alive=lambda: process.poll() is None)
                took = time.monotonic() - began
                if look is not None:
                    look()
                return took
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)

    def cache(self) -> tuple[str, ...]:
        """Words that let `vllm serve` map what Stoker's daemon of the big model holds."""
        rows = self.m.stoker("weights")["daemons"]
        socket = next(d["socket"] for d in rows if d["unit"] == "big-weights" and d["socket"])
        where = json.dumps({"socket_dir": os.path.dirname(socket)})
        return ("--load-format", "ipc_cache", "--model-loader-extra-config", where)

    def ours(self, profile: str) -> float:
        """`stoker restart`, or a swap where the unit runs another profile; its stop included."""
        m = self.m
        if m.unit("big").get("phase") != "ready":
            m.stoker("start", "big", "--wait")
        same = m.unit("big")["profile"] == profile
        began = time.monotonic()
        if same:
            m.stoker("restart", "big", "--wait")
        else:
            m.stoker("swap", "big", profile)
        complete(PORT_BIG, "m")
        return time.monotonic() - began


def part_ratios(m: Machine, gpus: int) -> None:
    """Check 3: A B A B after warm-up starts; the engine of the other side is stopped first."""
    turns = Turns(m)
    turns.take("warm-up: stoker", lambda: turns.ours("big"))
    cache = turns.cache()
    m.stoker("stop", "big")
    turns.take("warm-up: by hand", lambda: turns.by_hand(*cache))
    turns.take("warm-up: by hand, plan", lambda: turns.by_hand(*cache, plan=True))
    for _ in range(2):
        turns.take("by hand", lambda: turns.by_hand(*cache))
        turns.take("by hand, plan", lambda: turns.by_hand(*cache, plan=True))
        m.stoker("start", "big", "--wait")
        turns.take("stoker restart", lambda: turns.ours("big"))
        m.stoker("stop", "big")

    def ratios() -> dict[str, Any]:
        shares = turns.shares("by hand")
        ok = shares["stoker restart"] <= 0.30
        return {"ok": ok, "seconds": turns.seconds, "share_of_by_hand": shares}

    m.check("3 restart ratios", ratios)


def part_levers(m: Machine, gpus: int) -> None:
    """Check 3, the rest: each lever alone, and by hand from disk."""
    turns = Turns(m)
    turns.ours("big-noplan")
    for _ in range(2):
        turns.take("stoker restart, no plan", lambda: turns.ours("big-noplan"))
        turns.take("stoker swap to eager", lambda: turns.ours("big-eager"))
        turns.take("stoker restart, eager", lambda: turns.ours("big-eager"))
        turns.take("stoker swap to fast-iteration", lambda: turns.ours("big-fast"))
        turns.take("stoker restart, fast-iteration", lambda: turns.ours("big-fast"))
        turns.take("stoker swap to big", lambda: turns.ours("big"))
        turns.take("stoker restart", lambda: turns.ours("big"))
        if "stoker swap to big without a standby" not in turns.seconds:
            turns.take("stoker swap to big without a standby", lambda: turns.ours("big-nostandby"))
        turns.ours("big-noplan")
    cache = turns.cache()
    m.stoker("stop", "big")
    turns.take("by hand", lambda: turns.by_hand(*cache))
    m.stoker("preload", "stop", "big", "--yes")
    foreign: dict[str, Any] = {}

    def look() -> None:
        foreign.update(ledger(m, strangers=True))
        m.screens("big", "g")

    turns.take("by hand, disk", lambda: turns.by_hand(look=look))
    m.check("5 ledger with an engine started by hand", lambda: foreign)

    def levers() -> dict[str, Any]:
        shares = turns.shares("by hand")
        fast = max(shares["stoker restart, eager"], shares["stoker restart, fast-iteration"])
        return {"ok": fast <= 0.15, "seconds": turns.seconds, "share_of_by_hand": shares}

    m.check("3 levers", levers)


def part_endurance(m: Machine, gpus: int) -> None:
    """Check 4: twenty restarts with changing arguments, memory back after each."""
    other = 1 if gpus > 1 else 0

    def twenty() -> dict[str, Any]:
        if m.unit("small").get("phase") != "ready":
            m.stoker("start", "small", "--wait")
        used: dict[float, list[int]] = {}
        seconds, standby, outcomes = [], [], set()
        for n in range(20):
            share = round(0.2 + 0.02 * (n % 5), 2)
            args = {"max_num_seqs": 8 + 8 * (n % 4), "gpu_memory_utilization": share}
            m.profile("small-loop", extends="small", args=args)
            began = time.monotonic()
            outcomes.add(m.stoker("swap", "small", "small-loop", ok=False).get("outcome"))
            seconds.append(round(time.monotonic() - began, 2))
            used.setdefault(share, []).append(m.used()[other])
            if n % 5 == 0:
                standby.append(m.stoker("standby", "list")["standbys"][0]["memory_bytes"] >> 20)
        m.stoker("stop", "small")
        time.sleep(1)
        left, pids = m.used()[other], m.smi()[other]
        spread = max(max(figures) - min(figures) for figures in used.values())
        total = TOTAL_MIB * 0.02
        shares = sorted(used)
        steps = [min(used[b]) - min(used[a]) for a, b in itertools.pairwise(shares)]
        return {
            # The same for the same arguments, and as much more as the utilization says.
            "ok": outcomes == {"committed"}
            and spread < 64
            and all(abs(step - total) < 256 for step in steps)
            and left - sum(pids.values()) < 64
            and max(standby) - min(standby) < 64,
            "used_mib": used,
            "steps_mib": steps,
            "standby_mib": standby,
            "median_s": statistics.median(seconds),
            "total_s": round(sum(seconds), 1),
            "after_stop_mib": left,
            "pids": pids,
        }

    m.check("4 twenty restarts", twenty)
