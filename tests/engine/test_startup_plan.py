"""vLLM's startup plan under a key of ours, by vLLM's own functions: nothing is taken for a start
with other memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.engine.conftest import CpuRuntime

# One import of vLLM; each start is a copy of it, as a standby makes them.
SCRIPT = """
import json, os, sys
from types import SimpleNamespace
from engine_ctl.inside import standby_plan
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.worker import startup_plan

def start(key, utilization, profiled):
    os.environ["STOKER_STARTUP_PLAN"] = key
    assert standby_plan.keep_apart(os.environ, copies=True)
    config = EngineArgs(
        model=sys.argv[1], enforce_eager=True, max_model_len=256, gpu_memory_utilization=utilization
    ).create_engine_config()
    worker = SimpleNamespace(
        vllm_config=config,
        rank=0,
        parallel_config=config.parallel_config,
        cache_config=SimpleNamespace(kv_cache_memory_bytes=None),
        init_snapshot=SimpleNamespace(free_memory=100),
    )
    startup_plan.maybe_apply_startup_plan(worker)
    found = worker.cache_config.kv_cache_memory_bytes
    if found is None:
        startup_plan.maybe_save_startup_plan(worker, profiled)
    print("found", json.dumps(found), flush=True)

for step in json.loads(sys.argv[2]):
    pid = os.fork()
    if pid == 0:
        start(*step)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_start_with_other_memory_has_a_plan_of_its_own(
    cpu_runtime: CpuRuntime, tiny_model: Path, tmp_path: Path
) -> None:
    steps = [("k9", 0.9, 900), ("k9", 0.9, 1), ("k5", 0.5, 500), ("k5", 0.5, 1), ("k9", 0.9, 1)]
    done = subprocess.run(
        [cpu_runtime.python, "-c", SCRIPT, str(tiny_model), json.dumps(steps)],
        env={**cpu_runtime.full_env(), "VLLM_CACHE_ROOT": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("found")]
    assert found == ["null", "900", "null", "500", "900"]
    assert len(list((tmp_path / "startup_plan").iterdir())) == 2
