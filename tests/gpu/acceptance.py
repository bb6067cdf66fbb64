"""Acceptance on real GPUs: `acceptance.py PART… --python EXE --big DIR --small DIR --out DIR`.

Parts run unattended in under 9 minutes each, use `stoker` commands and library calls only, write
one line of JSON per check and archive what they saw. With two GPUs the big model's daemon is on
GPU 0 and the small one's on GPU 1; with one they take turns. See CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.gpu.machine import LEN, Machine
from tests.gpu.parts_base import part_base, part_table
from tests.gpu.parts_failures import part_failures
from tests.gpu.parts_speed import PORT_BIG, part_endurance, part_levers, part_ratios
from tests.gpu.parts_tune import part_tune
from tests.gpu.parts_two import part_two


def profiles(m: Machine, gpus: int) -> None:
    other = 1 if gpus > 1 else 0
    args = {"max_model_len": LEN}
    m.profile("big", model=m.big, served_name=["m"], gpus=[0], port=PORT_BIG, args=args, preload={})
    m.profile("big-eager", extends="big", args={"enforce_eager": True})
    m.profile(
        "big-fast", extends="big", args={"enforce_eager": True, "kv_cache_memory_bytes": "64G"}
    )
    m.profile("big-noplan", extends="big", env={"VLLM_ENABLE_STARTUP_PLAN": "0"})
    m.profile("big-nostandby", extends="big", standby=False)
    small = {"max_model_len": LEN, "enforce_eager": True, "gpu_memory_utilization": 0.3}
    m.profile("small", model=m.small, served_name=["s"], gpus=[other], args=small, preload={})
    m.profile("small-dtype", extends="small", args={"dtype": "float16"})
    m.profile("small-kv", extends="small", args={"kv_cache_dtype": "fp8"})
    m.profile("small-quant", extends="small", args={"quantization": "fp8_per_tensor"})
    sleepy = {"model": m.small, "served_name": ["s"], "gpus": [other]}
    sleepy["args"] = {**small, "enable_sleep_mode": True}
    m.profile("small-sleep", env={"VLLM_SERVER_DEV_MODE": "1"}, **sleepy)
    # Leaves about 2 GiB of an H200, less than the daemon of the small model needs.
    m.profile("small-full", extends="small", args={"kv_cache_memory_bytes": 133 << 30})
    m.profile("small-seqs", extends="small", args={"max_num_seqs": 8, "max_num_active_seqs": 4})


PARTS = {
    "base": part_base,
    "table": part_table,
    "ratios": part_ratios,
    "levers": part_levers,
    "endurance": part_endurance,
    "failures": part_failures,
    "tune": part_tune,
    "two": part_two,
}


OF_SMALL = {"table", "endurance", "failures", "tune"}


def alone(m: Machine, part: str) -> None:
    """On one GPU: the other model's engine and daemon are ended before a part."""
    other = "big" if part in OF_SMALL else "small"
    m.stoker("stop", other, ok=False)
    m.stoker("preload", "stop", other, "--yes", ok=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--python", required=True)
    parser.add_argument("--big", required=True)
    parser.add_argument("--small", required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/stoker-acceptance"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    m = Machine(given.work, given.out, given.python, given.big, given.small)
    profiles(m, given.gpus)
    try:
        for part in given.parts:
            m.note("part", name=part)
            if given.gpus == 1:
                alone(m, part)
            PARTS[part](m, given.gpus)
    finally:
        m.archive("-".join(given.parts))
    return 1 if m.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
