"""By hand: seconds from a command to the first answer, from a standby and by `vllm serve`.

    python tests/bench/standby_start.py --python RUNTIME/bin/python --model DIR [--rounds 5]

Prints one JSON document: every measurement, medians, the ratio, and the latency of `check` warm and
cold. Both sides get the same arguments, environment and caches, in turns; the standby is
made before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_ctl.model import Kind
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle
from engine_ctl.standby.client import Client, check_once
from engine_ctl.standby.lifecycle import Wanted
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop
from tests.standin.rig import free_port

PROBE = (
    "import json, os, vllm; from vllm.platforms import current_platform as p; "
    "print(json.dumps([vllm.__version__, 'cpu' if p.is_cpu() else 'cuda', "
    "os.path.dirname(vllm.__file__)]))"
)


class Bench:
    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.options = options
        self.store = Store(
            Dirs(
                state=root / "state",
                data=root / "data",
                config=root / "config",
                cache=root / "cache",
                sockets=root / "s",
            )
        )
        self.store.create("bench", Kind.ENGINE)
        self.env = dict(item.split("=", 1) for item in options.env)
        self.unset = ["PYTHONDONTWRITEBYTECODE"]
        version, platform, package = json.loads(
            subprocess.run(
                [options.python, "-c", PROBE],
                env={**os.environ, **self.env, "VLLM_LOGGING_LEVEL": "ERROR"},
                capture_output=True,
                check=True,
                text=True,
            ).stdout.splitlines()[-1]
        )
        runtime = Runtime(
            name="bench",
            python=options.python,
            version=version,
            platform=platform,
            package=package,
        )
        self.wanted = Wanted(runtime, self.env, env_unset=self.unset, models=(options.model,))
        self.port = free_port()

    def arguments(self) -> list[str]:
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        return ["serve", self.options.model, *place, *self.options.argument]

    def run(self) -> Run:
        cli = [self.options.python, "-m", "vllm.entrypoints.cli.main"]
        run = self.store.new_run(
            RunSpec(
                unit="bench",
                kind=Kind.ENGINE,
                argv=[*cli, *self.arguments()],
                env=self.env,
                env_unset=self.unset,
                cwd="/",
            )
        )
        self.store.set_current(run)
        return run

    def measure(self, start: Callable[[Run], Any]) -> dict[str, Any]:
        """Seconds to /health 200 and to the first completion, tokens/s, seconds to stop."""
        run = self.run()
        began = time.monotonic()
        start(run)
        while not self._healthy():
            if run.exit() is not None and run.exit().ended:  # type: ignore[union-attr]
                raise SystemExit(run.log.read_text()[-4000:])
            time.sleep(0.01)
        healthy = time.monotonic() - began
        text = self._complete(8)
        first = time.monotonic() - began
        again = time.monotonic()
        for _ in range(3):
            self._complete(128)
        rate = 3 * 128 / (time.monotonic() - again)
        stopping = time.monotonic()
        stop(run)
        ended = run.exit()
        assert ended is not None
        return {
            "health_s": round(healthy, 2),
            "first_token_s": round(first, 2),
            "tokens_per_s": round(rate, 1),
            "stop_s": round(time.monotonic() - stopping, 2),
            "swept": len(ended.swept),
            "text": text,
        }

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as got:
                return bool(got.status == 200)
        except OSError:
            return False

    def _complete(self, tokens: int) -> str:
        body = {
            "model": self.options.model,
            "prompt": "Once upon a time",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return str(json.load(answer)["choices"][0]["text"])

    def check_latency(self, standing: lifecycle.Standing) -> dict[str, Any]:
        warm = []
        with Client(standing.socket) as client:
            for _ in range(10):
                began = time.monotonic()
                assert client.check(self.arguments()).ok
                warm.append(time.monotonic() - began)
        began = time.monotonic()
        assert check_once(self.options.python, self.arguments(), self.wanted.environment()).ok
        return {
            "warm_s": round(statistics.median(warm), 3),
            "cold_s": round(time.monotonic() - began, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("argument", nargs="*", help="of vllm serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir="/tmp") as root:
        bench = Bench(options, Path(root))
        began = time.monotonic()
        standing = lifecycle.ensure(bench.store, bench.wanted)
        made = time.monotonic() - began
        try:
            before = standing.hello
            rounds: dict[str, list[dict[str, Any]]] = {"standby": [], "by_hand": []}
            for _ in range(options.rounds):
                rounds["by_hand"].append(bench.measure(launch))
                rounds["standby"].append(bench.measure(lambda run: lifecycle.become(standing, run)))
                print(rounds["by_hand"][-1], rounds["standby"][-1], file=sys.stderr, flush=True)
            checks = bench.check_latency(standing)
            after = lifecycle.find(bench.store, standing.identity)
        finally:
            lifecycle.stop(bench.store, standing.unit)
    medians = {
        name: statistics.median(item["first_token_s"] for item in items)
        for name, items in rounds.items()
    }
    texts = {item["text"] for items in rounds.values() for item in items}
    report = {
        "runtime": bench.wanted.runtime.version,
        "arguments": bench.arguments(),
        "rounds": rounds,
        "first_token_median_s": medians,
        "ratio": round(medians["standby"] / medians["by_hand"], 3),
        "same_text": len(texts) == 1,
        "check": checks,
        "standby": {
            "made_in_s": round(made, 2),
            "pss_before": before and before.memory.pss,
            "pss_after": after and after.hello and after.hello.memory.pss,
        },
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
