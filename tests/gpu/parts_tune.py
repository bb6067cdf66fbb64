"""Check 7: a sweep of ten points with short benches."""

from __future__ import annotations

from typing import Any

from tests.gpu.machine import Machine


def part_tune(m: Machine, gpus: int) -> None:
    """Check 7: a sweep of ten points with short benches."""

    def sweep() -> dict[str, Any]:
        if m.unit("small").get("phase") != "ready":
            m.stoker("start", "small", "--profile", "small", "--wait")
        done = m.stoker(
            *("sweep", "small", "--set", "max_num_seqs=8,16,32,64,128"),
            *("--set", "max_num_batched_tokens=2048,8192", "--requests", "32"),
            *("--goal", "throughput where ttft_p95<2000ms"),
            timeout=540,
            ok=False,
        )
        points = done.get("points", [])
        good = [p for p in points if p.get("state") in ("done", "measured", "ok")]
        return {"ok": len(good) >= 10, "points": points, "best": done.get("best")}

    m.check("7 ten-point sweep", sweep)
    m.screens("small", "t")
