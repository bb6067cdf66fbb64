"""Check 7: a sweep of ten points with short benches, in 150 s."""

from __future__ import annotations

from typing import Any

from tests.gpu.machine import Machine

# As many at once as the largest setting but one could take, so that the settings differ; answers
# are short, and measured twice, so that ten points fit in the part's time (about 10 s a point, of
# which 4 s are the restart). Stoker's own share is therefore that of points shorter than usual.
SHORT = {"requests": 64, "concurrency": 64, "output-len": 32, "warmups": 1, "repeats": 2}
FIGURES = ("wall_s", "vllm_s", "own_share", "result", "best")


def part_tune(m: Machine, gpus: int) -> None:
    """Check 7: a sweep of ten points with short benches."""

    def sweep() -> dict[str, Any]:
        if m.unit("small").get("phase") != "ready":
            m.stoker("start", "small", "--profile", "small", "--wait")
        done = m.stoker(
            *("sweep", "small", "--set", "max_num_seqs=8,16,32,64,128"),
            *("--set", "max_num_batched_tokens=2048,8192"),
            *(word for name, value in SHORT.items() for word in (f"--{name}", str(value))),
            *("--goal", "throughput where ttft_p95<2000ms"),
            timeout=300,
            ok=False,
        )
        points = done.get("points", [])
        good = [p for p in points if p.get("state") == "done"]
        figures = {name: done.get(name) for name in FIGURES}
        return {"ok": len(good) == 10, "done": len(good), **figures, "points": points}

    m.check("7 ten-point sweep", sweep)
    m.screens("small", "t")
