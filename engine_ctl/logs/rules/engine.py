"""Causes in ports, process groups, parallel sizes, arguments, and the death of processes."""

from __future__ import annotations

import difflib
import re

from engine_ctl.logs.observations import signal_name
from engine_ctl.logs.rules.base import Context, Rule, rule

_GONE_ARGUMENTS = {
    "--swap-space": "removed: drop it (KV offload is --kv-offloading-size)",
    "--num-scheduler-steps": "removed: drop it",
    "--guided-decoding-backend": "now --structured-outputs-config.backend",
    "--enable-reasoning": "removed: --reasoning-parser is enough",
    "--max-seq-len-to-capture": "now -cc.max_cudagraph_capture_size",
    "--cuda-graph-sizes": "now -cc.cudagraph_capture_sizes",
    "--use-v2-block-manager": "removed: drop it",
    "--rope-scaling": "now --hf-overrides",
    "--rope-theta": "now --hf-overrides",
    "--device": "removed: use --device-ids for a choice of GPUs",
    "--task": "now --runner and --convert",
    "--max-num-partial-prefills": "removed in 0.27: drop it",
    "--max-long-partial-prefills": "removed in 0.27: drop it",
    "--calculate-kv-scales": "removed in 0.28: drop it",
    "--override-attention-dtype": "removed in 0.28: drop it",
    "--enable-bf16x3-router-gemm": "removed in 0.30: drop it",
    "--disable-log-requests": "gone from 0.2x to 0.32: use --no-enable-log-requests",
    "--enable-mamba-fine-grained-prefix-cache": "now --enable-mamba-shared-prefix-checkpoint",
}
_COMMON_ARGUMENTS = [
    "--model",
    "--tokenizer",
    "--tokenizer-mode",
    "--trust-remote-code",
    "--dtype",
    "--kv-cache-dtype",
    "--seed",
    "--max-model-len",
    "--quantization",
    "--enforce-eager",
    "--served-model-name",
    "--load-format",
    "--download-dir",
    "--revision",
    "--reasoning-parser",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--distributed-executor-backend",
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--block-size",
    "--enable-prefix-caching",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--enable-chunked-prefill",
    "--async-scheduling",
    "--speculative-config",
    "--compilation-config",
    "--kv-transfer-config",
    "--enable-lora",
    "--lora-modules",
    "--max-loras",
    "--max-lora-rank",
    "--host",
    "--port",
    "--api-key",
    "--api-server-count",
    "--chat-template",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--limit-mm-per-prompt",
    "--hf-overrides",
    "--generation-config",
    "--attention-backend",
    "--moe-backend",
    "--enable-sleep-mode",
    "--uvicorn-log-level",
    "--disable-log-stats",
    "--enable-log-requests",
    "--max-logprobs",
    "--structured-outputs-config",
    "--model-loader-extra-config",
    "--device-ids",
]


def _argument_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    known = context.run.known_arguments or _COMMON_ARGUMENTS
    unknown = re.search(r"unrecognized arguments?: (.*)", text)
    if unknown:
        flags = [part.split("=")[0] for part in unknown[1].split() if part.startswith("-")]
        said = [_nearest(flag, known) for flag in flags] or [f"{unknown[1].strip()}: not a flag"]
        return f"this version does not know {'; '.join(said)}"
    ambiguous = re.search(r"ambiguous option: (\S+) could match (.*)", text)
    if ambiguous:
        return f"{ambiguous[1]} is cut off or gone: write one of {ambiguous[2].strip()}"
    choice = re.search(r"argument (\S+?):? invalid choice: '?(.*?)'? \(choose from (.*?)\)", text)
    if choice:
        allowed = [item.strip(" '\"") for item in choice[3].split(",")]
        near = difflib.get_close_matches(choice[2], allowed, 1, 0.5)
        best = f" (did you mean {near[0]}?)" if near else ""
        return f"{choice[1].rstrip(':')} cannot be {choice[2]}{best}; allowed: {', '.join(allowed[:12])}"
    field = re.search(r"argument (\S+?): \d+ validation errors? for (\w+)\s+(\S+)", text)
    if field:
        return f"{field[1]}: {field[2]} of this version has no valid {field[3]}; drop or correct it"
    value = re.search(r"argument (\S+?): (.*)", text)
    if value:
        return f"{value[1]}: {value[2].strip()[:200]}"
    required = re.search(r"following arguments are required: (.*)", text)
    if required:
        return f"missing: {required[1].strip()}"
    return "the argument parser refused the command line: see the line"


def _nearest(flag: str, known: tuple[str, ...] | list[str]) -> str:
    plain = "--" + flag.lstrip("-").replace("_", "-") if flag.startswith("--") else flag
    if plain in _GONE_ARGUMENTS:
        return f"{flag} ({_GONE_ARGUMENTS[plain]})"
    near = difflib.get_close_matches(plain, known, 1, 0.6)
    return f"{flag} (did you mean {near[0]}?)" if near else flag


def _value_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    ranged = re.search(
        r"validation errors? for (\w+)\s+(\S+)\s+(.*?) \[type=(\w+)(?:, input_value=(.*?), input_type)?",
        text,
        re.DOTALL,
    )
    if ranged and "Value error" not in ranged[3]:
        given = f" (given: {ranged[5]})" if ranged[5] else ""
        return f"{ranged[2]} of {ranged[1]}: {' '.join(ranged[3].split())[:300]}{given}"
    inner = re.search(
        r"(?:Value|Assertion) error, (.*?)(?: \[type=|\n\s+For further|$)", text, re.DOTALL
    )
    if inner:
        return f"a value was refused: {' '.join(inner[1].split())[:300]}"
    parser = re.search(
        r"parser:? '?(\w+)'?.{0,30}?(?:\(chose from|not found|Available)[^{:]*[{:]?\s*(.*)",
        text,
        re.DOTALL,
    )
    if parser:
        names = [
            name.strip(" '{}\"") for name in re.split(r"[,\s]+", parser[2]) if name.strip(" '{}\"")
        ]
        near = difflib.get_close_matches(parser[1], names, 3, 0.5) or names[:8]
        return f"there is no parser {parser[1]} in this version; some of its: {', '.join(near)}"
    return f"a value was refused: {found.string.strip().splitlines()[-1][:300]}"


def _port_hint(found: re.Match[str], context: Context) -> str:
    args = context.start.args or ""
    port = re.search(r"'port': (\d+)", args) or re.search(
        r"(?:port[ =:]+|:)(\d{2,5})\b", found.string
    )
    number = context.run.port or (int(port[1]) if port else None)
    which = f"port {number}" if number else "the port"
    owner = f" ({', '.join(context.run.port_owners)})" if context.run.port_owners else ""
    return f"{which} is taken{owner}: stop who listens there, or give this unit another port"


def _divisible_hint(found: re.Match[str], context: Context) -> str:
    heads = re.search(
        r"(?:heads|size|experts|vocab\w*)[^()\d]{0,20}\(?(\d+)\)?[^\d]+?(?:divisible by)[^\d]*(\d+)",
        found.string,
    )
    plain = re.search(r"(\d+) is not divisible by (\d+)", found.string)
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
    code = re.search(r"(?:exit ?codes?(?:: |=)\[?|exit code |: )(-\d+)", found.string)
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
    code = re.search(r"'EngineCore\w*': (-\d+)", found.string)
    by = f" by {signal_name(int(code[1]))}" if code else ""
    return (
        f"EngineCore was killed from outside{by}, there is no error of its own above: see dmesg "
        "(kernel OOM killer) and who sent the signal; the exit status says nothing"
    )


RULES: tuple[Rule, ...] = (
    rule(
        "bad_argument",
        r"^(?:usage: [^\n]*\n)?[\w.][\w./ -]{0,60}: error: ",
        _argument_hint,
    ),
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
        r"local.?rank \d+ is out of bounds|exceeds assigned_physical_gpu_ids|invalid device ordinal|"
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
        "env_unknown",
        r"Unknown vLLM environment variable detected: (?P<name>\w+)",
        "{name} is not known to this version (removed or misspelt): drop it from the profile",
    ),
    rule(
        "worker_killed",
        r"(?:Worker(?:Proc)?(?: proc)? \S+|RayWorkerProc rank=\S+|Worker\S*) died unexpectedly",
        _killed_hint,
        _negative,
    ),
    rule(
        "bad_value",
        r"validation errors? for \w+|VLLMValidationError|No tokenizer registered for|"
        r"[Rr]easoning parser .{0,60}not found|invalid tool call parser|"
        r"Unknown quantization method|appears path-like, but doesn't exist|"
        r"(?:Invalid|Unsupported|Unexpected|Unknown) (?:value|weight cache mode|extra config|choice|"
        r"option|speculative|kv_cache|attention|load format)|LoRA rank \d+ is greater than|"
        r"(?:cannot|can't|must) be (?:used|combined|specified|set|enabled|one of|at least|"
        r"greater|less|positive|>=?|<=?)|does not match the quantization|"
        r"is not compatible with|are mutually exclusive|is only supported (?:with|when|for)|"
        r"not a valid value|is not a valid \w+|requires --|(?:--[\w-]+|`[\w_]+`) (?:is|must|requires|"
        r"cannot)|expected one of|Expected one of|not supported (?:with|when|together)|"
        r"does not support (?:--|pipeline|async|sleep|LoRA|load_format)|reject\w* --|"
        r"incompatible with|weight cache daemon itself must load from disk",
        _value_hint,
    ),
    rule(
        "bad_value",
        r"(?:^|\n)(?:\w+\.)*(?:ValueError|NotImplementedError|TypeError|KeyError): ",
        _value_hint,
        lambda found, context: context.frame(
            "create_engine_config", "create_model_config", "from_cli_args", "validate_parsed_serve"
        ),
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
