"""What `vllm bench serve` says of one run, out of its result file. Pure.

The names are those of the file that `--save-result` writes (vllm/benchmarks/serve.py of vLLM 0.32
and 0.33): `median_ttft_ms`, `p95_ttft_ms`, `output_throughput` (tokens/s), …
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_ctl.errors import Failed

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 90, 95, 99)
QUANTITIES = ("mean", *(f"p{p}" for p in PERCENTILES))


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark. Seconds, tokens/s, requests/s; `latency_ms` is
    {"ttft": {"p50": …, "mean": …}}: only what the file holds. `goodput` is requests/s that met
    every limit, None where no limit was set."""

    seconds: float
    completed: int
    failed: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    goodput_per_s: float | None = None
    peak_tokens_per_s: float | None = None
    peak_concurrency: float | None = None
    latency_ms: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        """Every figure under the name that goals and tables use (`throughput`, `ttft_p95`)."""
        found: dict[str, float | None] = {
            "throughput": self.output_tokens_per_s,
            "total_throughput": self.total_tokens_per_s,
            "requests": self.requests_per_s,
            "goodput": self.goodput_per_s,
        }
        for name, quantities in self.latency_ms.items():
            for quantity, value in quantities.items():
                found[f"{name}_{quantity}"] = value
        return found


def parse_result(data: bytes) -> BenchResult:
    """The result in a file of `vllm bench serve --save-result`.

    Raises Failed for what is no such file. A file that several results were appended to counts by
    its last line."""
    try:
        raw = json.loads(data)
    except ValueError:
        try:
            raw = json.loads(data.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise Failed("the benchmark's result file is not complete JSON") from None
    if not isinstance(raw, dict) or number(raw, "duration") is None:
        raise Failed("the benchmark's result file holds no result of vllm bench serve")
    return BenchResult(
        seconds=number(raw, "duration") or 0.0,
        completed=int(number(raw, "completed") or 0),
        failed=int(number(raw, "failed") or 0),
        input_tokens=_whole(raw, "total_input_tokens"),
        output_tokens=_whole(raw, "total_output_tokens"),
        requests_per_s=number(raw, "request_throughput"),
        output_tokens_per_s=number(raw, "output_throughput"),
        total_tokens_per_s=number(raw, "total_token_throughput"),
        goodput_per_s=number(raw, "request_goodput"),
        peak_tokens_per_s=number(raw, "max_output_tokens_per_s"),
        peak_concurrency=number(raw, "max_concurrent_requests"),
        latency_ms={
            name: quantities
            for name in LATENCIES
            # vLLM writes 0 for the latencies of requests that all failed.
            if number(raw, "completed") and (quantities := _quantities(raw, name))
        },
    )


def _quantities(raw: Mapping[str, Any], name: str) -> dict[str, float]:
    found = {}
    for quantity in QUANTITIES:
        value = number(raw, f"{quantity}_{name}_ms")
        if value is None and quantity == "p50":
            value = number(raw, f"median_{name}_ms")
        if value is not None:
            found[quantity] = value
    return found


def number(raw: Mapping[str, Any], key: str) -> float | None:
    """A finite number of the file, else None."""
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(raw: Mapping[str, Any], key: str) -> int | None:
    value = number(raw, key)
    return None if value is None else int(value)
