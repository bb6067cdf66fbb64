"""Causes in ports, process groups, parallel sizes, and the death of processes."""

from __future__ import annotations

import re

from engine_ctl.logs.observations import signal_name
from engine_ctl.logs.rules.base import Context, Rule, rule

# What sets the ports at which ranks, connectors and readers of events meet, by their defaults.
_SIDE_PORTS = {
    29501: "master_port",
    29550: "data_parallel_rpc_port",
    5557: "kv_events_config",
    5600: "VLLM_NIXL_SIDE_CHANNEL_PORT",
    8998: "VLLM_MOONCAKE_BOOTSTRAP_PORT",
}

_DEFAULT_PORT = 8000
# The port that asyncio or torch's store could not bind, by their messages.
_BOUND = re.compile(
    r"bind on address \('[^'\n]*', (\d{2,5})|failed to listen on [^\n]{0,80}\bport: (\d{2,5})"
)


def _side_port_hint(found: re.Match[str], context: Context) -> str:
    return _side_port_words(int(found["port"]))


def _side_port_words(number: int) -> str:
    names = ", ".join(_SIDE_PORTS.values())
    key = _SIDE_PORTS.get(number, f"the one of {names} that says so")
    return f"port {number} is taken: stop who listens there, or set {key} to another one"


def _port_hint(found: re.Match[str], context: Context) -> str:
    args = context.start.args or ""
    given = re.search(r"'port': (\d{1,5})", args)
    number = context.run.port or (int(given[1]) if given else None)
    bound = _BOUND.search(found.string)
    if bound is not None:
        named = int(bound[1] or bound[2])
        # vLLM's own default is not among its arguments: only other values are.
        if named != (number or _DEFAULT_PORT) and (number or args):
            return _side_port_words(named)
    if number is None:
        said = re.search(r"(?:port[ =:]+|:|\('[^'\n]*', )(\d{2,5})\b", found.string)
        number = int(said[1]) if said else None
    if number is None and args and context.frame("create_server_socket"):
        number = _DEFAULT_PORT
    which = f"port {number}" if number else "the port"
    owner = f" ({', '.join(context.run.port_owners)})" if context.run.port_owners else ""
    return f"{which} is taken{owner}: stop who listens there, or give this unit another port"


def _divisible_hint(found: re.Match[str], context: Context) -> str:
    part = re.search(
        r"(\w*_per_partition|output_partition_size|intermediate_size|hidden_size)\D{0,12}"
        r"(\d{1,9})\D+?divisible by ([^\d\n]{0,60}?)\W{0,4}(\d{1,9})",
        found.string,
    )
    if part:
        return (
            f"{part[1]} is {part[2]} at this tensor parallel size, no multiple of the "
            f"quantization's {_quant_block(part[3])} ({part[4]}): choose a smaller "
            "--tensor-parallel-size (for MoE: --enable-expert-parallel keeps whole experts)"
        )
    context_size = re.search(
        r"--decode-context-parallel-size`?[^\n]{0,200}|dcp_size=\d+", found.string
    )
    if context_size:
        numbers_of = ", ".join(re.findall(r"\((\d{1,9})\)", found.string)[:3])
        return (
            f"decode context parallelism does not fit the KV heads ({numbers_of or 'see the line'})"
            ": lower --decode-context-parallel-size, or raise --tensor-parallel-size"
        )
    heads = re.search(
        r"(?:heads|size|experts|vocab\w*)[^()\d]{0,20}\(?(\d{1,9})\)?\D+?divisible by\D*(\d{1,9})",
        found.string,
    )
    plain = re.search(r"(\d{1,9}) is not divisible by (\d{1,9})", found.string)
    numbers = heads or plain
    if numbers is None:
        return (
            "the model cannot be split over this many GPUs: choose a --tensor-parallel-size that "
            "divides its heads and its quantization blocks"
        )
    total, size = int(numbers[1]), int(numbers[2])
    fits = [str(n) for n in range(1, 17) if total and total % n == 0]
    return (
        f"{total} cannot be split in {size}: tensor parallel sizes that divide it are "
        f"{', '.join(fits)}"
    )


def _quant_block(text: str) -> str:
    named = re.search(r"group_size|block_[nk]|min_thread_[nk]", text)
    return named[0] if named else "block"


def _gpus_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    world = re.search(r"World size \((\d+)\).*?GPUs \((\d+)\)", text, re.DOTALL)
    rank = re.search(r"local rank (\d+) is out of bounds for (\d+)", text)
    ids = re.search(r"--device-ids provides (\d+) devices.{0,40}rank (\d+) needs", text)
    group = re.search(r"placement group requiring (\d+) GPUs", text) or re.search(
        r"[Rr]equired number of devices: (\d+)", text
    )
    ranks = re.search(
        r"[Nn]ot enough resources to allocate (\d+) (DP ranks|placement groups).{0,120}?"
        r"(?:possible to fit|only created) (\d+)",
        text,
        re.DOTALL,
    )
    replica = re.search(r"size \((\d+)\) exceeds the number of visible \S+ devices \((\d+)\)", text)
    tensor = re.search(r"parallel size \((\d+)\) exceeds available GPUs \((\d+)\)", text)
    if world:
        return (
            f"the profile asks for {world[1]} GPUs and {world[2]} are visible: fewer ranks, or "
            "more GPUs in CUDA_VISIBLE_DEVICES/--device-ids"
        )
    if replica or tensor:
        both = replica or tensor
        assert both is not None
        return (
            f"{both[1]} devices are asked for and {both[2]} are visible: lower "
            "--tensor-parallel-size, or show it more devices"
        )
    if ids:
        return (
            f"--device-ids names {ids[1]} devices and data parallel rank {ids[2]} needs more: name "
            "data parallel times tensor parallel size of them, or use fewer ranks"
        )
    if ranks:
        return (
            f"{ranks[1]} {ranks[2]} are asked for and the node fits {ranks[3]}: lower "
            "--data-parallel-size-local, or add GPUs"
        )
    if group:
        return (
            f"Ray has no {group[1]} free GPUs: lower --tensor-parallel-size or "
            "--pipeline-parallel-size, or add nodes (ray status shows what is there)"
        )
    local = re.search(r'local range: \[(\d+), (\d+)\) base value: "([^"]*)"', text)
    if local:
        return (
            f"devices {local[1]} to {int(local[2]) - 1} are needed and CUDA_VISIBLE_DEVICES is "
            f"{local[3] or 'empty'}: show it more devices, or lower --data-parallel-size-local or "
            "--tensor-parallel-size"
        )
    if re.search(r"No CUDA GPUs are available|Failed to infer device type|no CUDA-capable", text):
        return (
            "no GPU is visible to this process: check CUDA_VISIBLE_DEVICES, --gpus of the "
            "container (NVIDIA runtime) and nvidia-smi"
        )
    if rank:
        return (
            f"rank {rank[1]} finds only {rank[2]} devices: data parallel times tensor parallel "
            "size needs more local GPUs; set --data-parallel-size-local or fewer ranks"
        )
    return "more ranks than visible GPUs: fewer ranks, or more GPUs (CUDA_VISIBLE_DEVICES)"


def _oom_hint(found: re.Match[str], context: Context) -> str:
    who = next((found[n] for n in ("name", "unit", "job", "box") if found[n]), "the process")
    held = f", {int(found['rss'][:15]) / 2**20:.1f} GiB resident" if found["rss"] else ""
    sure = bool(found["name"] or found["unit"])
    by = (
        "the kernel's OOM killer" if sure else "SIGKILL, mostly the kernel's OOM killer (see dmesg)"
    )
    return (
        f"{who} was killed by {by}{held}: the host (or the container's limit) is short of memory; "
        "raise the limit, or lower --kv-offloading-size, --api-server-count or "
        "--mm-processor-cache-gb"
    )


def _killed_hint(found: re.Match[str], context: Context) -> str:
    code = re.search(r"(?:exit ?codes?(?:: |=)\[?(?:\d+, )*|exit code |: )(-\d{1,5})", found.string)
    if code is None:
        return (
            "a worker ended without an exception: usually the kernel's OOM killer (see dmesg and "
            "host memory) or an operator's kill"
        )
    name = signal_name(int(code[1]))
    proc = re.search(r"Worker proc (\S+) died|rank=(\d+) died", found.string)
    who = f"worker {proc[1] or proc[2]}" if proc else "a process"
    if name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"):
        return (
            f"{who} crashed in native code ({name}, exit code {code[1]}): see the native lines "
            "above, and dmesg"
        )
    return (
        f"{who} was killed by {name} (exit code {code[1]}): the kernel's OOM killer (see dmesg and "
        "host memory) or an operator"
    )


def _collective_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    operation = re.search(r"OpType=(\w+)", text)
    after = re.search(r"(?:ran for|Timeout\(ms\)=|out waiting)\s*(\d{1,12})", text)
    stuck = re.search(r"got stuck for (\d{1,9}) seconds", text)
    rank = re.search(r"\[?[Rr]ank (\d+)\]?", text)
    parts = [operation[1]] if operation else []
    if rank:
        parts.append(f"rank {rank[1]}")
    if after:
        parts.append(f"after {int(after[1]) // 1000} s")
    elif stuck:
        parts.append(f"stuck for {stuck[1]} s")
    said = f" ({', '.join(parts)})" if parts else ""
    return (
        f"a collective hung{said}: one rank crashed or stopped (look at the first worker that went "
        "silent), or P2P/InfiniBand does not work between these GPUs (try NCCL_P2P_DISABLE=1)"
    )


def _group_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    joined = re.search(r"(\d+)/(\d+) clients joined", text)
    last = re.search(r"Last error:\s*\n?\s*([^\n]{4,200})", text)
    peer = re.search(r"(\d{1,3}(?:\.\d{1,3}){3})[<:](\d{2,5})", text) or re.search(
        r"\(([\w.-]+), (\d{2,5})\)", text
    )
    if joined:
        return (
            f"only {joined[1]} of {joined[2]} ranks came to the rendezvous: start the missing "
            "nodes and check --master-addr, --master-port and the firewall between them"
        )
    where = f" with {peer[1]}:{peer[2]}" if peer else ""
    why = f" ({last[1].strip()})" if last else ""
    absent = re.search(r"Unable to find address for: (\S+)", text)
    if absent:
        return (
            f"this node has no interface {absent[1]}: set GLOO_SOCKET_IFNAME (and "
            "NCCL_SOCKET_IFNAME) to one that it has and the nodes share"
        )
    if re.search(r"[Gg]loo|connectFullMesh", text):
        return (
            f"the ranks cannot form their Gloo group{where}{why}: set GLOO_SOCKET_IFNAME to the "
            "interface that the nodes share (and VLLM_HOST_IP to this node's address on it)"
        )
    if "libnccl" in text:
        return (
            "the NCCL library is not there: install the wheel's nvidia-nccl package, or set "
            "VLLM_NCCL_SO_PATH"
        )
    if "Duplicate GPU detected" in text:
        return "two ranks got the same GPU: give each its own (CUDA_VISIBLE_DEVICES, --device-ids)"
    return (
        f"the ranks cannot form their group{where}{why}: check NCCL_SOCKET_IFNAME, /dev/shm, the "
        "master address and that every rank sees its own GPU; NCCL_DEBUG=INFO says more"
    )


def _startup_hint(found: re.Match[str], context: Context) -> str:
    waited = re.search(r"Waited (\d+)s", found.string)
    minutes = re.search(r"within (\d+) minutes?", found.string)
    coordinator = re.search(r"DP Coordinator .{0,60}within timeout=([\d.]+)", found.string)
    if coordinator:
        return (
            f"the data-parallel coordinator was not up within {coordinator[1]} s: the host is "
            "busy or its process failed; see the first error above, and start again"
        )
    if minutes:
        return (
            f"this engine had no answer from the front end within {minutes[1]} minutes: start the "
            "head node first and check --data-parallel-address, --data-parallel-rpc-port and the "
            "firewall"
        )
    limit = f" ({waited[1]} s)" if waited else ""
    return (
        f"the engine was not ready in vLLM's own limit{limit}: raise VLLM_ENGINE_READY_TIMEOUT_S "
        "in the profile's env (slow disk or network), or use a preload daemon"
    )


def _bind_hint(found: re.Match[str], context: Context) -> str:
    args = context.start.args or ""
    port = re.search(r"'port': (\d{1,5})", args)
    host = re.search(r"'host': '([^']*)'", args)
    number = context.run.port or (int(port[1]) if port else None)
    named = _BOUND.search(found.string)
    if number is not None and named is not None and int(named[1] or named[2]) != number:
        return _side_port_words(int(named[1] or named[2]))
    if "Errno 13" in found.string:
        which = f"port {number}" if number else "the port"
        return f"this user may not listen on {which}: set port to 1024 or higher"
    which = f"host {host[1]}" if host else "the host"
    return f"{which} is no address of this machine: set host to one that is, or to 127.0.0.1"


def _binding(found: re.Match[str], context: Context) -> bool:
    return context.frame("create_server_socket", "bind", "setup_server", "startup")


def _negative(found: re.Match[str], context: Context) -> bool:
    code = re.search(r"exit ?code: (\S+?)\)", found.string)
    return code is None or code[1].startswith("-")


def _lost_hint(found: re.Match[str], context: Context) -> str:
    code = re.search(r"'EngineCore\w*': (-\d{1,5})", found.string)
    by = f" by {signal_name(int(code[1]))}" if code else ""
    rank = re.search(r"EngineCore_DP\d+", found.string)
    name = rank[0] if rank else "EngineCore"
    return (
        f"{name} was killed from outside{by}, there is no error of its own above: see dmesg "
        "(kernel OOM killer) and who sent the signal; the exit status says nothing"
    )


RULES: tuple[Rule, ...] = (
    rule(
        "worker_killed",
        r"Killed process (?P<pid>\d+) \((?P<name>[^)]+)\)(?:[^\n]*anon-rss:(?P<rss>\d+)kB)?|"
        r"(?P<unit>[\w@.\\-]{1,100}\.(?:service|scope)): "
        r"(?:A process of this unit has been killed by the OOM|Failed with result 'oom-kill')|"
        r"line \d+: +(?P<job>\d+) Killed\b|"
        r"(?P<box>\S{1,100}) exited with code 137\b|^\S{0,100}\bKilled$",
        _oom_hint,
    ),
    rule(
        "port_in_use",
        r"Address already in use \(addr='tcp://[^'\n]{0,80}:(?P<port>\d{1,5})'",
        _side_port_hint,
    ),
    rule(
        "bad_value",
        r"Cannot assign requested address \(addr='tcp://(?P<host>[^'\n]{1,80}):\d{1,5}'",
        "{host} is no address of this machine: on the node that serves, data_parallel_address, "
        "master_addr and VLLM_HOST_IP must be its own, and on each VLLM_NIXL_SIDE_CHANNEL_HOST",
    ),
    rule(
        "port_in_use",
        r"[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]|error while attempting to bind",
        _port_hint,
    ),
    rule(
        "bad_value",
        r"\[Errno 13\] Permission denied$|\[Errno 99\]|Cannot assign requested address|"
        r"\[Errno -[25]\] (?:Name or service|No address)",
        _bind_hint,
        _binding,
    ),
    rule(
        "async_pp_conflict",
        r"[Aa]sync(?:hronous)?[ _-]scheduling[^\n]{0,120}pipeline[ _-]?parallel|"
        r"pipeline[ _-]?parallel[^\n]{0,80}async(?:hronous)?[ _-]scheduling",
        "asynchronous scheduling and pipeline parallelism exclude each other here: set "
        "async_scheduling to false (--no-async-scheduling), or pipeline_parallel_size to 1",
    ),
    rule(
        "not_enough_gpus",
        r"World size \(\d+\) is larger than the number of available GPUs|"
        r"local.?rank \d+ is out of bounds|exceeds assigned_physical_gpu_ids|"
        r"invalid device ordinal|"
        r"number of required GPUs exceeds|No CUDA GPUs are available|no GPU available|"
        r"[Tt]ensor parallel size \(?\d*\)?\s?(?:may )?exceeds? available GPUs|"
        r"--device-ids provides \d+ devices|[Nn]ot enough resources to allocate \d+|"
        r"Cannot provide a placement group|number of required \w+ exceeds the total|"
        r"exceeds the number of visible \S+ devices|"
        r"visible device ordinal \d+ is out of range|device_id \d+ is out of range|"
        r"You don't have enough GPUs available|"
        r"Error computing (?:device indices|assigned_physical_gpu_ids)|"
        r"Physical device \d+ for logical device \d+ is not visible|"
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
        r"(?:[Ii]nput|[Oo]utput) size per partition\b.{0,80}divisible by|"
        r"not divisible by.{0,40}(?:parallel|tp_size|world_size)|"
        r"too large tensor parallel size|use a compatible TP size|"
        r"(?:_per_partition|_partition_size)\b.{0,60}divisible by|"
        r"Decode context parallelism for GQA/MQA requires|"
        r"--decode-context-parallel-size` \(\d+\) exceeds|"
        r"shards? (?:cannot|can't) be (?:evenly )?(?:split|divided)",
        _divisible_hint,
    ),
    rule(
        "nccl_timeout",
        r"[Ww]atchdog caught collective operation timeout|collective operation timeout|"
        r"NCCL operations have failed or timed out|watchdog (?:got stuck|thread terminated)|"
        r"ran for \d+ milliseconds before timing out|Timeout\(ms\)=\d+.{0,60}timed? ?out|"
        r"NCCL.{0,80}(?:timed out|timeout)|gloo/transport/tcp.{0,40}Timed out waiting \d+ms",
        _collective_hint,
    ),
    rule(
        "worker_killed",
        r"gloo/transport/tcp[^\n]{0,80}(?:closed by peer|reset by peer|Broken pipe)",
        "another rank ended first and closed its connection: see its own error (of another node in "
        "that node's log), and dmesg there (kernel OOM killer)",
    ),
    rule(
        "nccl_init",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|"
        r"ncclInvalidUsage|ncclCommInitRank|NCCL WARN|Duplicate GPU detected|"
        r"DistBackendError|DistNetworkError|DistStoreError|connectFullMesh|"
        r"gloo/transport/tcp(?:/device|[^\n]{0,80}(?:[Cc]onnect timeout|[Tt]imed out connecting|"
        r"refused|unreachable|No route to host))|"
        r"client socket has timed out|server socket has failed to listen|"
        r"init_process_group.{0,80}(?:timed out|failed)|Bootstrap : no socket interface|"
        r"[Ff]ailed to initialize (?:the )?(?:NCCL|process group|distributed)|"
        r"libnccl.{0,80}(?:cannot open|not found)",
        _group_hint,
    ),
    rule(
        "startup_timeout",
        r"Timed out waiting for (?:new )?engine core|VLLM_ENGINE_READY_TIMEOUT_S|"
        r"[Ee]ngine (?:core )?(?:process(?:es)? )?(?:did not|failed to) (?:start|become ready)"
        r"[^\n]{0,40}(?:within|in time|timeout)|"
        r"Did not receive response from front-end process within|"
        r"DP Coordinator process failed to report ZMQ addresses within",
        _startup_hint,
    ),
    rule(
        "worker_slow_or_hung",
        r"RPC call to \S+ timed out|No available shared memory broadcast block found",
        lambda found, context: (
            "a worker does not answer"
            + (f" ({t[1]})" if (t := re.search(r"RPC call to (\S+) timed out", found[0])) else "")
            + ": it hangs or does very slow work; see the first worker that went silent, and raise "
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS when it is only slow"
        ),
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
        r"Failed core proc\(s\): \{(?:.{0,200}?: -\d+|\})",
        _lost_hint,
    ),
)
