"""Causes in ports, process groups, parallel sizes, and the death of processes."""

from __future__ import annotations

import re

from engine_ctl.logs.observations import signal_name
from engine_ctl.logs.rules.base import Context, Rule, rule


def _port_hint(found: re.Match[str], context: Context) -> str:
    args = context.start.args or ""
    port = re.search(r"'port': (\d{1,5})", args) or re.search(
        r"(?:port[ =:]+|:)(\d{2,5})\b", found.string
    )
    number = context.run.port or (int(port[1]) if port else None)
    which = f"port {number}" if number else "the port"
    owner = f" ({', '.join(context.run.port_owners)})" if context.run.port_owners else ""
    return f"{which} is taken{owner}: stop who listens there, or give this unit another port"


def _divisible_hint(found: re.Match[str], context: Context) -> str:
    heads = re.search(
        r"(?:heads|size|experts|vocab\w*)[^()\d]{0,20}\(?(\d{1,9})\)?\D+?divisible by\D*(\d{1,9})",
        found.string,
    )
    plain = re.search(r"(\d{1,9}) is not divisible by (\d{1,9})", found.string)
    numbers = heads or plain
    if numbers is None:
        return "the model cannot be split over this many GPUs: choose a size that divides its heads"
    total, size = int(numbers[1]), int(numbers[2])
    fits = [str(n) for n in range(1, 17) if total and total % n == 0]
    return (
        f"{total} cannot be split in {size}: tensor parallel sizes that divide it are "
        f"{', '.join(fits)}"
    )


def _gpus_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    world = re.search(r"World size \((\d+)\).*?GPUs \((\d+)\)", text, re.DOTALL)
    rank = re.search(r"local rank (\d+) is out of bounds for (\d+)", text)
    if world:
        return (
            f"the profile asks for {world[1]} GPUs and {world[2]} are visible: fewer ranks, or "
            "more GPUs in CUDA_VISIBLE_DEVICES/--device-ids"
        )
    if rank:
        return (
            f"rank {rank[1]} finds only {rank[2]} devices: data parallel times tensor parallel "
            "size needs more local GPUs; set --data-parallel-size-local or fewer ranks"
        )
    return "more ranks than visible GPUs: fewer ranks, or more GPUs (CUDA_VISIBLE_DEVICES)"


def _killed_hint(found: re.Match[str], context: Context) -> str:
    code = re.search(r"(?:exit ?codes?(?:: |=)\[?|exit code |: )(-\d{1,5})", found.string)
    if code is None:
        return (
            "a worker ended without an exception: usually the kernel's OOM killer (see dmesg and "
            "host memory) or an operator's kill"
        )
    name = signal_name(int(code[1]))
    if name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"):
        return f"a process crashed in native code ({name}): see the native lines above, and dmesg"
    return f"a process was killed by {name}: the kernel's OOM killer (see dmesg) or an operator"


def _negative(found: re.Match[str], context: Context) -> bool:
    code = re.search(r"exit ?code: (\S+?)\)", found.string)
    return code is None or code[1].startswith("-")


def _lost_hint(found: re.Match[str], context: Context) -> str:
    code = re.search(r"'EngineCore\w*': (-\d{1,5})", found.string)
    by = f" by {signal_name(int(code[1]))}" if code else ""
    return (
        f"EngineCore was killed from outside{by}, there is no error of its own above: see dmesg "
        "(kernel OOM killer) and who sent the signal; the exit status says nothing"
    )


RULES: tuple[Rule, ...] = (
    rule(
        "port_in_use",
        r"[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]|error while attempting to bind",
        _port_hint,
    ),
    rule(
        "async_pp_conflict",
        r"[Aa]sync(?:hronous)?[ _-]scheduling[^\n]{0,120}pipeline[ _-]?parallel|"
        r"pipeline[ _-]?parallel[^\n]{0,80}async(?:hronous)?[ _-]scheduling",
        "asynchronous scheduling and pipeline parallelism exclude each other here: set "
        "async_scheduling to false, or pipeline_parallel_size to 1",
    ),
    rule(
        "not_enough_gpus",
        r"World size \(\d+\) is larger than the number of available GPUs|"
        r"local.?rank \d+ is out of bounds|exceeds assigned_physical_gpu_ids|"
        r"invalid device ordinal|"
        r"number of required GPUs exceeds|No CUDA GPUs are available|no GPU available|"
        r"[Tt]ensor parallel size \(?\d*\)?\s?(?:may )?exceeds? available GPUs|"
        r"Not enough allowed NUMA nodes|Failed to infer device type|no CUDA-capable device|"
        r"(?:only|found) \d+ (?:visible )?(?:GPUs?|devices?).{0,60}(?:required|requested|needed)",
        _gpus_hint,
    ),
    rule(
        "tp_not_divisible",
        r"must be divisible by (?:the )?(?:tensor[ _]parallel|tp_size|TP|world|`?--?tensor|"
        r"expert|number of (?:GPUs|ranks))|"
        r"is not divisible by (?:the )?(?:tensor|tp|weight quantization|min_thread|TP)|"
        r"(?:AssertionError|ValueError|RuntimeError): \d+ is not divisible by \d+|"
        r"[Cc]onsider reducing tensor_parallel_size|"
        r"(?:heads?|vocab\w*|hidden|intermediate)\b.{0,80}divisible by|"
        r"not divisible by.{0,40}(?:parallel|tp_size|world_size)",
        _divisible_hint,
    ),
    rule(
        "nccl_timeout",
        r"[Ww]atchdog caught collective operation timeout|collective operation timeout|"
        r"NCCL operations have failed or timed out|watchdog (?:got stuck|thread terminated)|"
        r"ran for \d+ milliseconds before timing out|Timeout\(ms\)=\d+.{0,60}timed? ?out|"
        r"NCCL.{0,80}(?:timed out|timeout)",
        "a collective hung: one rank crashed or stopped (look at the first worker that went "
        "silent), or P2P/InfiniBand does not work between these GPUs (try NCCL_P2P_DISABLE=1)",
    ),
    rule(
        "nccl_init",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|"
        r"ncclInvalidUsage|ncclCommInitRank|NCCL WARN|Duplicate GPU detected|"
        r"DistBackendError|DistNetworkError|DistStoreError|connectFullMesh|"
        r"client socket has timed out|server socket has failed to listen|"
        r"init_process_group.{0,80}(?:timed out|failed)|Bootstrap : no socket interface|"
        r"[Ff]ailed to initialize (?:the )?(?:NCCL|process group|distributed)|"
        r"libnccl.{0,80}(?:cannot open|not found)",
        "the ranks cannot form their group: check NCCL_SOCKET_IFNAME, /dev/shm, the master address "
        "and that every rank sees its own GPU; NCCL_DEBUG=INFO says more",
    ),
    rule(
        "startup_timeout",
        r"Timed out waiting for (?:new )?engine core|VLLM_ENGINE_READY_TIMEOUT_S|"
        r"[Ee]ngine (?:core )?(?:process(?:es)? )?(?:did not|failed to) (?:start|become ready)"
        r"[^\n]{0,40}(?:within|in time|timeout)|"
        r"Did not receive response from front-end process within",
        lambda found, context: (
            "the engine was not ready in vLLM's own limit"
            + (f" ({t[1]} s)" if (t := re.search(r"Waited (\d+)s", found.string)) else "")
            + ": raise VLLM_ENGINE_READY_TIMEOUT_S in the profile's env (slow disk or network), "
            "or use a preload daemon"
        ),
    ),
    rule(
        "worker_slow_or_hung",
        r"RPC call to \S+ timed out|No available shared memory broadcast block found",
        "a worker does not answer: it hangs or does very slow work; see the first worker that went "
        "silent",
    ),
    rule(
        "worker_killed",
        r"(?:Worker(?:Proc)?(?: proc)? \S+|RayWorkerProc rank=\S+|Worker\S*) died unexpectedly",
        _killed_hint,
        _negative,
    ),
)

CONSEQUENCES: tuple[Rule, ...] = (
    rule(
        "worker_killed",
        r"WorkerProc initialization failed due to|exited during startup \(exitcodes=\[-|"
        r"Process \S+ \(PID: \d+\) died with exit code -",
        _killed_hint,
    ),
    rule(
        "engine_core_killed",
        r"core exited unexpectedly|[Ee]ngine core proc(?:ess)? \S+ died unexpectedly|"
        r"Failed core proc\(s\): \{.{0,200}?: -\d+",
        _lost_hint,
    ),
)
