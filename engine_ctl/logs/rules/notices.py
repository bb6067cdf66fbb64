"""What a log that shows no failure can still say, the most important first.

`always` notices count in the log of a whole healthy start too; the others only in an excerpt."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    category: str
    pattern: re.Pattern[str]
    hint: str
    always: bool = False


def _notice(category: str, pattern: str, hint: str, always: bool = False) -> Notice:
    return Notice(category, re.compile(pattern), hint, always)


NOTICES: tuple[Notice, ...] = (
    _notice(
        "wc_daemon_lost",
        r"Weight cache daemon at \S+ exited",
        "the daemon is gone under this engine, which keeps serving; the next start is from disk. "
        "Do not start a new daemon beside it unless the GPU has room for a second copy",
        always=True,
    ),
    _notice(
        "wc_memory_query",
        r"Cannot query weight cache daemon memory",
        "no daemon answers at the memory check: expect a fall back to disk, and too little free "
        "memory if a daemon does hold the weights",
    ),
    _notice(
        "wc_fallback.permissions",
        r"Rejecting weight cache connection from uid \d+",
        "the daemon refuses an engine of another user: run both as the same user",
    ),
    _notice(
        "kernels_degraded",
        r"FlashInfer kernels are disabled|Tried to force .{0,80} but the kernel couldn't|"
        r"Performance might be sub-?optimal|Using default MoE config|"
        r"Using default \w+ MoE config|Using \w*Emulation\w* M[Oo]E backend|"
        r"does not have native support for FP\d|lacks native FP\d compute|thread-tile padding|"
        r"[Ff]usion will be disabled|fusions? (?:disabled|not enabled)|"
        r"Custom (?:collectives|quick allreduce) (?:is|are) disabled|"
        r"[Ff]alling back to (?:another|NCCL|unoptimized|Moe WNA16)|top-k uses torch\.topk|"
        r"requested FlashInfer .{0,80}but it is unavailable|is not supported on CPU\. Falling back|"
        r"not available! fallback to|fallback to torch linear|"
        r"[Ff]alling? back to (?:the )?(?:Triton|PyTorch|torch|native|default|generic|eager|SoA|"
        r"unfused|slow|legacy|per-?token)|may degrade performance|"
        r"Custom all-?reduce is disabled|DeepGEMM .{0,60}(?:not available|not installed|disabled)|"
        r"will (?:be|run) slow|slower (?:kernels?|than|path)|"
        r"is not installed.{0,80}(?:using|falling)|"
        r"Cannot use .{0,80}backend",
        "it works, with slower kernels than the chip allows: see the line for what is missing (for "
        "FlashInfer: vllm download-kernels, or a CUDA toolkit with nvcc and ninja)",
    ),
    _notice(
        "env_unknown",
        r"Unknown vLLM environment variable detected",
        "this variable has no effect in this version (removed or misspelt): drop it",
    ),
    _notice(
        "worker_slow_or_hung",
        r"No available shared memory broadcast block found",
        "waiting for workers: normal while compiling, a hang when it repeats after ready or for "
        "more than 10 minutes",
    ),
    _notice(
        "wc_hit",
        r"Mapped \d+ tensors from the weight cache daemon",
        "the weights were mapped from the daemon",
    ),
    _notice(
        "wc_fallback.not_ready",
        r"Waiting up to .{1,20} for the weight cache daemon to start",
        "the engine waits for a daemon that is not there yet: start it, or wait for its READY",
    ),
    _notice(
        "wc_fallback.released",
        r"daemon rank \d+ released cached weights|Weights were released",
        "the daemon has released its weights: reload it before the next start",
    ),
    _notice(
        "wc_version_skew_info",
        r"Weight cache daemon at \S+ does not support watching",
        "the daemon is older than this engine: its loss will not be noticed; restart it with the "
        "engine's version",
    ),
    _notice(
        "wc_daemon_ready",
        r"Weight cache daemon READY|"
        r"Weight cache .{0,40}daemon rank \d+ (?:serving on|loaded model)",
        "the daemon serves its weights",
    ),
    _notice(
        "normal_memory_summary",
        r"Free memory on device .{0,60} on startup\. Desired GPU memory utilization",
        "the summary of a healthy start; its --kv-cache-memory values can go into the profile",
    ),
    _notice(
        "benign_warning",
        r"Found ulimit of \d+ and failed to automatically increase|Compiling model again|"
        r", retrying \d+ of \d+|nanobind: leaked|resource_tracker: There appear to be|"
        r"destroy_process_group\(\) was not called|Failed to import from vllm\._C|"
        r"Error (?:retrieving|parsing) |recvValue failed|leaked (?:semaphore|shared_memory)",
        "looks like an error and is none: the start goes on",
    ),
)
