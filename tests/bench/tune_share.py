"""How much of a 20-point sweep is Stoker's own: run by hand against the CPU runtime.

    python -m tests.bench.tune_share [--points 20] [--requests N] [--repeats N]

Every point is measured with the defaults of `stoker bench`: three times 64 requests of 512 tokens
in and 128 out, 16 at once, after 4 warm-ups. Prints where the sweep's wall time went, from its
first check to the end of putting the unit back. vLLM's are the end of an engine from the request
on, its check of the arguments, its start to the first answer on /health, and the life of the
benchmark's process; all the rest is Stoker's.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from engine_ctl.operations import lifecycle
from engine_ctl.tune import journal, planning, rows, sweep
from engine_ctl.tune.stats import median
from tests.engine import conftest
from tests.engine.world import free_port, world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--repeats", type=int)
    given = parser.parse_args()
    options: dict[str, Any] = {"requests": given.requests, "repeats": given.repeats}
    options = {name: value for name, value in options.items() if value is not None}
    runtime = conftest.cpu_runtime.__wrapped__()
    with world(runtime, conftest.tiny_model.__wrapped__(runtime)) as here:
        args = {"max_model_len": 1024, "max_num_seqs": 8}
        here.profile("tuned", port=free_port(), args=args)
        here.wait_ready(lifecycle.start(here.ctx, "a", "tuned", print))
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
        print(f"a point: {median([o.wall_s or 0.0 for o in done]):.1f} s")
        print(f"of it Stoker's: {median(own):.2f} s ({min(own):.2f} to {max(own):.2f})")
        print(f"vLLM's: {found.vllm_s:.1f} s")
        print(f"Stoker's own: {(whole - found.vllm_s) / whole:.2%} of the whole sweep")
        print(f"its CPU time: {cpu / whole:.2%} of one core; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
