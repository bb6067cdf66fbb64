"""How much of a 20-point sweep is Stoker's own: run by hand against the CPU runtime.

    python -m tests.bench.tune_share [--requests N] [--points 20]

Prints the wall time of the points, what of it engines and benchmarks took (stopping, checking
arguments, starting to readiness, the life of the benchmark's process), and the share of the rest.
"""

from __future__ import annotations

import argparse
import time

from engine_ctl.operations import lifecycle
from engine_ctl.tune import rows, sweep
from tests.engine import conftest
from tests.engine.world import free_port, world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    runtime = conftest.cpu_runtime.__wrapped__()
    with world(runtime, conftest.tiny_model.__wrapped__(runtime)) as here:
        bench = {"input_len": 64, "output_len": 32, "concurrency": 8, "repeats": options.repeats}
        here.profile("tuned", port=free_port(), bench={**bench, "requests": options.requests})
        here.wait_ready(lifecycle.start(here.ctx, "a", "tuned", print))
        values = ",".join(str(4 + n) for n in range(options.points))
        began = time.monotonic()
        made = sweep.plan(here.ctx, "a", [f"max_num_seqs={values}"])
        made = sweep.start(here.ctx, made, print)
        whole = time.monotonic() - began
        found = rows.of_sweep(here.ctx, made.id)
        assert found.wall_s is not None and found.vllm_s is not None and found.own_share is not None
        print(f"{found.count('done')} points in {whole:.1f} s")
        print(f"points {found.wall_s:.1f} s, of which vLLM {found.vllm_s:.1f} s")
        print(f"Stoker's own: {found.own_share:.2%} of the points' time")
        print(f"Stoker's own: {(found.wall_s - found.vllm_s) / found.count('done'):.2f} s a point")


if __name__ == "__main__":
    main()
