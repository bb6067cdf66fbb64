"""A log of realistic vLLM lines of any size, for the benchmarks of the log view.

python tests/bench/log_lines.py FILE [lines]
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

_HEAD = (
    "(APIServer pid=4101) INFO 11-29 14:02:00 [api_utils.py:286] non-default args: "
    "{'model_tag': 'models/chat-8b', 'port': 8000, 'max_num_seqs': 128}\n"
    "(EngineCore pid=4120) INFO 11-29 14:02:04 [core.py:133] Initializing a V1 LLM engine\n"
    "(EngineCore pid=4120) INFO 11-29 14:02:05 [gpu_model_runner.py:68] Starting to load model\n"
    "(EngineCore pid=4120) INFO 11-29 14:02:06 [gpu_model_runner.py:90] Model loading took "
    "15.6 GiB and 0.8 seconds\n"
    "(APIServer pid=4101) INFO 11-29 14:02:10 [launcher.py:188] Available routes are:\n"
)


def piece(seed: int, lines: int = 20000) -> bytes:
    """`lines` lines as a serving engine writes them, about 100 bytes each."""
    rng = random.Random(seed)
    out: list[str] = []
    for n in range(lines):
        stamp = f"11-29 {n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}"
        dice = rng.random()
        if dice < 0.62:
            out.append(
                f"(APIServer pid=4101) INFO:     10.0.{rng.randrange(9)}.{rng.randrange(250)}:"
                f'{rng.randrange(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
            )
        elif dice < 0.9:
            out.append(
                f"(EngineCore pid=4120) DEBUG {stamp} [v1/core/scheduler.py:{rng.randrange(900)}] "
                f"scheduled req-{rng.getrandbits(48):012x} tokens {rng.randrange(4096)}"
            )
        elif dice < 0.995:
            out.append(
                f"(APIServer pid=4101) INFO {stamp} [loggers.py:335] Engine 000: Avg prompt "
                f"throughput: {rng.random() * 9e3:.1f} tokens/s, Running: {rng.randrange(128)} "
                f"reqs, Waiting: {rng.randrange(90)} reqs, GPU KV cache usage: "
                f"{rng.random() * 100:.1f}%"
            )
        elif dice < 0.9995:
            out.append(
                f"(EngineCore pid=4120) WARNING {stamp} [scheduler.py:1010] Preempted "
                f"req-{rng.getrandbits(48):012x}: the KV cache is full"
            )
        else:
            out.append(
                f"(APIServer pid=4101) ERROR {stamp} [serving_chat.py:77] Error with request "
                f"req-{rng.getrandbits(48):012x}"
            )
    return "".join(f"{line}\n" for line in out).encode()


def make(path: Path, lines: int = 10_000_000) -> int:
    """Write a log of about `lines` lines (105 bytes each); its exact number of lines."""
    pieces = [piece(seed) for seed in range(40)]
    rng = random.Random(7)
    with path.open("wb") as file:
        file.write(_HEAD.encode())
        for _ in range(lines // 20000):
            file.write(rng.choice(pieces))
    return lines // 20000 * 20000 + _HEAD.count("\n")


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000))
