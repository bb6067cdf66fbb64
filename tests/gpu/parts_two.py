"""Checks 9 and 10: tensor parallel 2, and two units swapped at the same time."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from tests.gpu.machine import LEN, Machine, complete
from tests.gpu.parts_failures import holder


def part_two(m: Machine, gpus: int) -> None:
    """Checks 9 and 10: tensor parallel 2, and two units swapped at the same time."""
    tp = {"max_model_len": LEN, "tensor_parallel_size": 2, "enforce_eager": True}
    tp["gpu_memory_utilization"] = 0.5
    m.profile("tp2", model=m.small, served_name=["s"], gpus=[0, 1], args=tp, preload={})
    plain = {"max_model_len": LEN, "enforce_eager": True, "gpu_memory_utilization": 0.3}
    for gpu in (0, 1):
        m.profile(f"solo-{gpu}", model=m.small, served_name=["s"], gpus=[gpu], args=plain)
        m.profile(f"solo-{gpu}b", extends=f"solo-{gpu}", args={"max_num_seqs": 16})

    def pair() -> dict[str, Any]:
        for unit in ("big", "small"):
            m.stoker("stop", unit, ok=False)
            m.stoker("preload", "stop", unit, "--yes", ok=False)
        done = m.stoker("start", "tp2", "--wait", timeout=400)["units"][0]
        row = m.unit("tp2")
        ranks = [d for d in m.stoker("weights")["daemons"] if d["unit"] == "tp2-weights"]
        sockets = {d["socket"] for d in ranks}
        m.screens("tp2", "w", "g")
        return {
            "ok": row["verdict"] == "mapped" and len(sockets) == 2,
            "verdict": row["verdict"],
            "start_s": done["start_s"],
            "sockets": len(sockets),
        }

    def partial() -> dict[str, Any]:
        os.kill(holder(m, 1, "weights").pid, signal.SIGKILL)
        time.sleep(3)
        text = complete(m.unit("tp2")["port"], "s", 4)
        states = [d["socket_state"] for d in m.stoker("weights")["daemons"]]
        expected = m.stoker("forecast", "tp2")
        m.screens("tp2", "w")
        return {
            "ok": bool(text) and expected["verdict"] == "fallback",
            "states": states,
            "forecast": [expected["verdict"], [r["category"] for r in expected["reasons"]]],
            "lines": [r["line"] for r in expected["reasons"]],
        }

    def both() -> dict[str, Any]:
        m.stoker("stop", "tp2")
        m.stoker("preload", "stop", "tp2", "--yes", ok=False)
        for gpu in (0, 1):
            m.stoker("start", f"solo-{gpu}", "--wait")
        results: dict[int, Any] = {}

        def swap(gpu: int) -> None:
            results[gpu] = m.stoker("swap", f"solo-{gpu}", f"solo-{gpu}b", ok=False)

        threads = [threading.Thread(target=swap, args=(gpu,)) for gpu in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = [m.unit(f"solo-{gpu}") for gpu in (0, 1)]
        texts = [complete(row["port"], "s", 2) for row in rows]
        for gpu in (0, 1):
            m.stoker("stop", f"solo-{gpu}")
        return {
            "ok": all(r.get("outcome") == "committed" for r in results.values())
            and len(texts) == 2,
            "seconds": [r.get("seconds") for r in results.values()],
        }

    m.check("9 tensor parallel 2 mapped on both ranks", pair)
    m.check("9 one daemon killed", partial)
    m.check("10 two units swapped at once", both)
