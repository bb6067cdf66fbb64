"""How much of a 20-point sweep is Stoker's own: run by hand against the CPU runtime.

    python -m tests.bench.tune_share [--points 20] [--minutes 11] [--requests N] [--repeats N]

Every point is measured as `stoker bench` does without options (512 tokens in, 128 out, 16 at once,
4 warm-ups, three times), with 64 to 128 requests: as many as let the sweep fit in the time. That is
a small bench; vLLM's own default is 1000 requests. Prints where the sweep's wall time went, from
its first check to the end of putting the unit back. vLLM's are the end of an engine from the
request on, its check of the arguments, its start to the first answer on /health, and the life of
the benchmark's process; all the rest is Stoker's.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from engine_ctl.operations import lifecycle
from engine_ctl.tune import journal, operation, planning, rows, sweep
from engine_ctl.tune.stats import median
from tests.engine import conftest
from tests.engine.world import World, free_port, world

# Restart, warm-ups and start of the benchmark, about, so that the sweep's time can be chosen.
BESIDE_S = 7.0
LEAST, MOST, TRIED = 64, 128, 32


def fitting(here: World, point_s: float) -> int:
    """How many requests a point can have that is to take so many seconds."""
    tried = operation.bench(here.ctx, "a", {"requests": TRIED, "repeats": 1}).results[0]
    wanted = (point_s - BESIDE_S) / 3 / (tried.seconds / TRIED)
    return max(LEAST, min(MOST, int(wanted) // 8 * 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--repeats", type=int)
    given = parser.parse_args()
    options: dict[str, Any] = {"repeats": given.repeats} if given.repeats else {}
    runtime = conftest.cpu_runtime.__wrapped__()
    with world(runtime, conftest.tiny_model.__wrapped__(runtime)) as here:
        args = {"max_model_len": 1024, "max_num_seqs": 16}
        here.profile("tuned", port=free_port(), args=args)
        here.wait_ready(lifecycle.start(here.ctx, "a", "tuned", print))
        options["requests"] = given.requests or fitting(here, given.minutes * 60 / given.points)
        values = ",".join(str(8 + n) for n in range(given.points))
        began, cpu = time.monotonic(), time.process_time()
        made = planning.plan(here.ctx, "a", [f"max_num_seqs={values}"], options=options)
        made = sweep.start(here.ctx, made, print)
        whole, cpu = time.monotonic() - began, time.process_time() - cpu
        found = rows.of_sweep(here.ctx, made.id)
        assert found.vllm_s is not None and found.wall_s is not None
        done = [o for o in journal.state_of(here.dirs, made.id).outcomes.values() if o.wall_s]
        own = [(o.wall_s or 0.0) - (o.vllm_s or 0.0) for o in done]
        print(f"{found.count('done')} of {len(found.rows)} points in {whole:.1f} s")
        print(f"{options['requests']} requests a measurement")
        print(f"a point: {median([o.wall_s or 0.0 for o in done]):.1f} s")
        print(f"of it Stoker's: {median(own):.2f} s ({min(own):.2f} to {max(own):.2f})")
        print(f"vLLM's: {found.vllm_s:.1f} s")
        print(f"Stoker's own: {(whole - found.vllm_s) / whole:.2%} of the whole sweep")
        print(f"its CPU time: {cpu / whole:.2%} of one core; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
