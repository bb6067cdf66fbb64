"""Runs under the runtime: one process that has vLLM imported and forks a worker's load per case.

Each line of stdin is a case, each line of stdout its outcome. A case is the part of `vllm serve`
that decides about weights, done by vLLM's own code: arguments parsed, configuration built, process
groups formed, the model loaded by the loader that the load format names. Only the API server and
the scheduler are left out.

Case: {"argv": ["serve", …], "env": {}, "world": 1, "version": null, "check": true, "load": true,
"ask": false}. With "generate" (arguments of an LLM) and "prompts", an engine answers them too.
Outcome: {"check": …, "asked": …, "logs": [text of each rank], "errors": [text or null],
"mapped": [bool]}
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import vllm.entrypoints.cli.main
    import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm.model_executor.models import llama  # noqa: F401
    from vllm.plugins import load_general_plugins

    from engine_ctl.inside import probe_check  # noqa: F401
    from engine_ctl.inside.standby_warm import Warm

    load_general_plugins()
    Warm().up([])  # as a standby: what each fork would import, and a heap that it need not copy
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    out.write(json.dumps({"ready": True}) + "\n")
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(run(json.loads(line))) + "\n")
        out.flush()


def run(case: dict) -> dict:
    if "plans" in case:
        return {"plans": [plan(sizes) for sizes in case["plans"]]}
    if "quantizations" in case:
        from engine_ctl.inside.weight_cache_client import quantization_support

        return {"quantizations": [quantization_support(name) for name in case["quantizations"]]}
    with tempfile.TemporaryDirectory() as scratch:
        out = {"check": None, "asked": None}
        if case.get("check", True):
            pid, path = fork(lambda: do_check(case), Path(scratch) / "check")
            wait([pid])
            answer, error = read(path)
            out["check"] = answer[0] if answer else {"ok": False, "error": error}
            out["asked"] = answer[1] if answer else None
        world = case.get("world", 1)
        if "generate" in case:
            pid, path = fork(lambda: do_generate(case), Path(scratch) / "generate")
            wait([pid])
            out["generated"], out["error"] = read(path)
            out["log"] = log_of(path)
        forked = [
            fork(lambda rank=rank: do_load(case, rank, scratch), Path(scratch) / f"rank{rank}")
            for rank in range(world)
            if case.get("load", True)
        ]
        wait([pid for pid, _ in forked])
        results = [read(path) for _, path in forked]
        return out | {
            "logs": [
                path.with_suffix(".log").read_bytes().decode(errors="replace") for _, path in forked
            ],
            "errors": [error for _, error in results],
            "mapped": [bool(value) for value, _ in results],
        }


def fork(work, path: Path) -> tuple[int, Path]:
    pid = os.fork()
    if pid:
        return pid, path
    code = 1
    try:
        log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            answer = [work(), None]
        except BaseException as error:
            traceback.print_exc()
            answer = [None, f"{type(error).__name__}: {error}"]
        sys.stdout.flush()
        sys.stderr.flush()
        path.write_text(json.dumps(answer))
        code = 0
    finally:
        os._exit(code)


def wait(pids: list[int]) -> None:
    for pid in pids:
        os.waitpid(pid, 0)


def read(path: Path) -> tuple:
    try:
        return tuple(json.loads(path.read_text()))
    except FileNotFoundError:
        return None, "the process died"


def log_of(path: Path) -> str:
    """Byte for byte: vLLM ends the lines of one record with carriage returns."""
    return path.with_suffix(".log").read_bytes().decode(errors="replace")


def settle(case: dict) -> None:
    os.environ.update(case.get("env", {}))
    tempfile.tempdir = None
    if case.get("version"):
        import vllm.version

        vllm.version.__version__ = case["version"]


def do_check(case: dict) -> list:
    """What `check` says; with `ask`, also what the daemons say about the keys."""
    from engine_ctl.inside.probe_check import check
    from engine_ctl.inside.weight_cache_client import daemon_status

    settle(case)
    answer = check(case["argv"])
    asked = []
    if case.get("ask"):
        for key in answer.get("keys") or ():
            asked.append(daemon_status(key["socket"], key["fields"], timeout_s=5.0))
    return [answer, asked]


def do_load(case: dict, rank: int, scratch: str) -> bool:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.usage.usage_lib import UsageContext

    from engine_ctl.inside.probe_schema import build_parser

    settle(case)
    torch.set_num_threads(1)  # several would wait for each other's cores by spinning
    os.environ["VLLM_DIST_IDENT"] = f"harness-{os.getpid()}"
    sys.argv = ["vllm", *case["argv"]]
    top, _, sub = build_parser("serve")
    args = top.parse_args(case["argv"])
    sub.validate(args)
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )
    parallel = config.parallel_config
    with set_current_vllm_config(config):
        init_distributed_environment(
            world_size=case.get("world", 1),
            rank=rank,
            distributed_init_method=f"file://{scratch}/rendezvous",
            local_rank=rank,
            backend="gloo",
        )
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        )
        loader = get_model_loader(config.load_config)
        model = loader.load_model(vllm_config=config, model_config=config.model_config)
    segments = Path("/proc/self/maps").read_text()
    return model is not None and "memfd:stoker-weights" in segments


def do_generate(case: dict) -> list:
    """Text, token ids and logprobs of prompts, from an engine in this process (its workers are
    processes of their own when there are several)."""
    settle(case)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import psutil
    import torch
    from vllm import LLM, SamplingParams

    from engine_ctl.supervise import segments

    torch.set_num_threads(1)
    # Workers as forks of this process, which has imported everything and run nothing: vLLM forces
    # spawn on the CPU, and two cold imports take longer than the rest of the test.
    multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.context.ForkContext()
    llm = LLM(**case["generate"], disable_log_stats=True)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, logprobs=3, ignore_eos=True)
    found = [
        {
            "text": done.outputs[0].text,
            "tokens": list(done.outputs[0].token_ids),
            "logprobs": [
                {str(token): value.logprob for token, value in at.items()}
                for at in done.outputs[0].logprobs
            ],
        }
        for done in llm.generate(case["prompts"], sampling, use_tqdm=False)
    ]
    shared: dict[str, int] = {}
    segments.note(shared, [child.pid for child in psutil.Process().children(recursive=True)])
    llm.llm_engine.engine_core.shutdown()
    for child in multiprocessing.active_children():
        child.join(timeout=20)
    segments.remove_abandoned(shared)
    return found


def plan(sizes: dict) -> dict:
    """vLLM's own placement of the local ranks: its planning functions only read attributes."""
    from types import SimpleNamespace

    from vllm.model_executor.model_loader.weight_cache import daemon

    config = SimpleNamespace(**sizes)
    try:
        daemon._reject_unsupported_parallelism(config)
        return {"ranks": daemon.plan_local_ranks(config), "error": None}
    except ValueError as error:
        return {"ranks": [], "error": str(error)}


if __name__ == "__main__":
    main()
