"""Ten swaps under a steady client, and what a front costs. By hand.

Uses the runtime and model of the engine tests. First a client sends 5 requests a second during
ten swaps (none may fail), then direct and through the front in turns: latency of single requests,
and throughput of many at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine_ctl.operations import lifecycle, swapping
from engine_ctl.swap.journal import Outcome
from tests.engine.conftest import cpu_runtime as _runtime
from tests.engine.conftest import tiny_model as _model
from tests.engine.steady_client import SteadyClient
from tests.engine.world import World, free_port, until, world


def under_swaps(here: World, unit: str, port: int, swaps: int) -> dict[str, object]:
    seconds = []
    with SteadyClient(port, str(here.model)) as client:
        until(lambda: len(client.outcomes) > 10)
        for turn in range(swaps):
            done = swapping.swap_to(here.ctx, unit, ("fb", "fa")[turn % 2], lambda _: None)
            assert done.outcome is Outcome.COMMITTED, done.reason
            seconds.append(done.down_s or 0.0)
            time.sleep(1.0)
    waits = sorted(outcome.seconds for outcome in client.outcomes)
    return {
        "swaps": swaps,
        "requests": len(client.outcomes),
        "streaming": sum(outcome.stream for outcome in client.outcomes),
        "failed": [outcome.problem for outcome in client.failed],
        "down_s": {"median": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)},
        "slowest_request_s": round(waits[-1], 2),
    }


async def measure(port: int, path: str, body: object, count: int, at_once: int) -> list[float]:
    """Seconds of each of `count` requests, `at_once` at a time, over kept connections."""
    gate = asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> float:
            async with gate:
                began = time.perf_counter()
                method = "GET" if body is None else "POST"
                url = f"http://127.0.0.1:{port}{path}"
                async with session.request(method, url, json=body) as reply:
                    assert reply.status == 200
                    await reply.read()
                return time.perf_counter() - began

        return await asyncio.gather(*(one() for _ in range(count)))


def in_turns(ports: dict[str, int], model: str, turns: int) -> dict[str, object]:
    """Direct, front, direct, front …: medians over all turns."""
    body = {"model": model, "prompt": "An engine", "max_tokens": 16, "ignore_eos": True}
    kinds = {
        "health_ms": ("/health", None, 200, 1),
        "completion_ms": ("/v1/completions", body, 20, 1),
        "stream_ms": ("/v1/completions", {**body, "stream": True}, 20, 1),
        "completions_at_once": ("/v1/completions", body, 64, 16),
    }
    found: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in ports} for kind in kinds
    }
    for _ in range(turns):
        for kind, (path, data, count, at_once) in kinds.items():
            for name, port in ports.items():
                began = time.perf_counter()
                times = asyncio.run(measure(port, path, data, count, at_once))
                wall = time.perf_counter() - began
                value = count / wall if at_once > 1 else statistics.median(times) * 1000
                found[kind][name].append(value)
    return {
        kind: {name: round(statistics.median(values), 2) for name, values in by.items()}
        for kind, by in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    runtime = _runtime.__wrapped__()
    model = _model.__wrapped__(runtime)
    port = free_port()
    with world(runtime, model) as here:
        here.profile("fa", front=True, port=port)
        here.profile("fb", front=True, port=port, args={"max_num_seqs": 4})
        here.wait_ready(lifecycle.start(here.ctx, "u", "fa"))
        result: dict[str, object] = {"swaps": under_swaps(here, "u", port, given.swaps)}
        private = here.current("u").spec().port
        assert private is not None
        if given.turns:
            ports = {"direct": private, "front": port}
            result["in_turns"] = in_turns(ports, str(model), given.turns)
        print(json.dumps(result, indent=1))
        lifecycle.stop(here.ctx, "u")


if __name__ == "__main__":
    main()
