"""Causes that are about GPU (or host) memory and the KV cache."""

from __future__ import annotations

import re

from engine_ctl.logs.rules.base import Context, Rule, rule
from engine_ctl.model import Phase

_OOM = (
    r"OutOfMemoryError|\b(?:CUDA|HIP|XPU) out of memory|CUDA (?:driver )?error: out of memory|"
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|not enough GPU memory|can't allocate memory: you tried|"
    r"\[Errno 12\] Cannot allocate memory"
)
_GIB = r"(\d{1,9}(?:\.\d{1,6})?)"
_TRIED = re.compile(r"Tried to allocate (\S+ \w+)")
_FREE = re.compile(r"total capacity of (\S+ \w+) of which (\S+ \w+) is free")
_OTHER = re.compile(r"Process (\d+) has (\S+ \w+) memory in use")
_WARMING = re.compile(r"warming up (?:the )?(?:sampler|pooler)")
_LOADING = (Phase.LOADING, Phase.MAPPING)


def _numbers(found: re.Match[str]) -> str:
    text = found.string
    parts = []
    if tried := _TRIED.search(text):
        parts.append(f"asked for {tried[1]}")
    if free := _FREE.search(text):
        parts.append(f"{free[2]} of {free[1]} free")
    if other := _OTHER.search(text):
        parts.append(f"process {other[1]} holds {other[2]}")
    return f" ({', '.join(parts)})" if parts else ""


def _in_sampler(found: re.Match[str], context: Context) -> bool:
    return bool(_WARMING.search(found.string)) or context.frame(
        "dummy_sampler_run", "dummy_pooler_run", "warmup_sampler", "sampler_warmup"
    )


def _in_kv(found: re.Match[str], context: Context) -> bool:
    return context.frame(
        "initialize_from_config", "initialize_kv_cache", "allocate_kv_cache", "kv_cache_tensors"
    )


def _in_capture(found: re.Match[str], context: Context) -> bool:
    if context.frame("capture_model", "_capture", "capture_graph", "profile_cudagraph"):
        return True
    return context.capturing and not _in_load(found, context) and not _in_kv(found, context)


def _in_load(found: re.Match[str], context: Context) -> bool:
    if "not enough GPU memory" in found.string:
        return True
    if context.frame("load_model", "load_weights", "process_weights_after_loading"):
        return True
    deeper = context.frame("profile_run", "determine_available_memory", "execute_model")
    return context.phase in _LOADING and not deeper


def _in_profile(found: re.Match[str], context: Context) -> bool:
    return context.frame("profile_run", "determine_available_memory", "_dummy_run") or (
        context.phase in (Phase.COMPILING, Phase.PROFILING) and not context.kv_sized
    )


def _load_hint(found: re.Match[str], context: Context) -> str:
    size = context.start.checkpoint_gib
    known = f"; the checkpoint has {size:g} GiB" if size else ""
    return (
        f"the weights do not fit on the GPU{_numbers(found)}{known}: more GPUs "
        "(--tensor-parallel-size), a quantized checkpoint or a smaller model; first see who else "
        "holds memory. gpu_memory_utilization does not shrink weights"
    )


def _kv_hint(found: re.Match[str], context: Context) -> str:
    return (
        f"the KV cache was budgeted but could not be allocated{_numbers(found)}: another process "
        "took memory meanwhile, or the budget is too high; look for a second owner and lower "
        f"gpu_memory_utilization a step{_step(context)}"
    )


def _step(context: Context) -> str:
    used = context.start.gpu_memory_utilization
    return f" ({used:g} -> {used - 0.04:.2f})" if used else ""


def _capture_hint(found: re.Match[str], context: Context) -> str:
    return (
        f"out of memory while CUDA graphs were captured{_numbers(found)}: lower "
        "gpu_memory_utilization by 0.01 to 0.03, or capture fewer sizes "
        "(cudagraph_capture_sizes, max_num_seqs); enforce_eager only as a last resort"
    )


def _sampler_hint(found: re.Match[str], context: Context) -> str:
    seqs = re.search(r"with (\d+) dummy requests", found.string)
    many = f" of {seqs[1]} requests" if seqs else ""
    who = "pooler" if "warming up pooler" in found.string else "sampler"
    return (
        f"out of memory in the {who}'s warm-up{many}{_numbers(found)}: its tensors take "
        "max_num_seqs times the vocabulary; lower max_num_seqs, or gpu_memory_utilization"
    )


def _profile_hint(found: re.Match[str], context: Context) -> str:
    return (
        f"weights and activations use all of the memory{_numbers(found)}: lower "
        "max_num_batched_tokens or max_num_seqs, use more GPUs or a quantized checkpoint"
    )


def _no_memory_hint(found: re.Match[str], context: Context) -> str:
    left = context.start.kv_gib
    shown = f" ({left:g} GiB left for KV)" if left is not None else ""
    return (
        f"weights and activations use the whole budget{shown}: raise gpu_memory_utilization if "
        "the GPU is otherwise free, else lower max_num_batched_tokens or max_num_seqs, use more "
        "GPUs or a quantized checkpoint"
    )


def _too_small_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    wanted = re.search(r"max(?:imum)? seq(?:uence)? len\w* \((\d+)\)|max seq len \((\d+)\)", text)
    fits = re.search(r"estimated maximum model length is (\d+)", text) or re.search(
        r"stored in KV cache \((\d+)\)", text
    )
    need = re.search(r"\(?(-?[\d.]+) GiB KV cache is needed", text)
    have = re.search(r"available KV cache memory \((-?[\d.]+) GiB\)", text)
    parts = []
    if need and have:
        parts.append(f"needs {need[1]} GiB, has {have[1]} GiB")
    if wanted:
        parts.append(f"max_model_len {wanted[1] or wanted[2]}")
    detail = f" ({', '.join(parts)})" if parts else ""
    length = f"set max_model_len to {fits[1]} or less" if fits else "lower max_model_len"
    return (
        f"the KV cache cannot hold one sequence{detail}: {length}, or raise gpu_memory_utilization"
    )


_BUSY = (
    r"Free memory on device (?P<device>\S+ )?"
    r"\((?P<free>\d{1,9}(?:\.\d{1,6})?)/(?P<total>\d{1,9}(?:\.\d{1,6})?) GiB\) on startup "
    r"is less than"
)


def _fitting(free: float, total: float) -> str:
    fits = max(0.0, int(free / total * 100 - 1) / 100) if total else 0.0
    return f"{fits:.2f}"


def _busy_hint(found: re.Match[str], context: Context) -> str:
    free, total = float(found["free"]), float(found["total"])
    device = (found["device"] or "the GPU").strip()
    wanted = re.search(r"\(([\d.]+), ([\d.]+) GiB\)", found.string[found.end() :])
    asked = f", {wanted[2]} GiB wanted (utilization {wanted[1]})" if wanted else ""
    return (
        f"only {free:g} of {total:g} GiB are free on {device}{asked}: another process holds the "
        f"rest; stop it, or start with gpu_memory_utilization {_fitting(free, total)}"
    )


def _daemon_counts_outside(found: re.Match[str], context: Context) -> bool:
    """0.30 and 0.31: the daemon's weights are not part of the engine's budget."""
    version = context.start.version or context.run.version or ""
    old = re.match(r"0\.(?:30|31)(?:\.|$)", version) is not None
    return old and ("ipc_cache" in context.text or context.start.load_format == "ipc_cache")


def _outside_hint(found: re.Match[str], context: Context) -> str:
    free, total = float(found["free"]), float(found["total"])
    return (
        "before 0.32 the daemon's weights come on top of the engine's budget: lower "
        f"gpu_memory_utilization to what the daemon leaves free ({_fitting(free, total)}), or "
        "move both to 0.32 or later"
    )


def _budget_hint(found: re.Match[str], context: Context) -> str:
    held = re.search(rf"\({_GIB}/{_GIB} GiB\)", found.string)
    if held is None or not float(held[2]):
        return (
            "the daemon's weights alone exceed gpu_memory_utilization: raise it (from 0.32 on they "
            "count inside the budget)"
        )
    least = float(held[1]) / float(held[2])
    asked = re.search(r"utilization \(([\d.]+),", found.string)
    value = f" {asked[1]}" if asked else ""
    return (
        f"the daemon's weights ({held[1]} GiB) alone exceed gpu_memory_utilization{value}: from "
        f"0.32 on they count inside the budget, so it must be above {least:.2f}; use the value of "
        "a start from disk"
    )


def _changed_hint(found: re.Match[str], context: Context) -> str:
    seen = re.search(
        rf"[Ii]nitial free memory:? {_GIB} GiB.{{0,40}}?current free memory:? {_GIB} GiB",
        found.string,
        re.DOTALL,
    )
    numbers = f" ({seen[1]} GiB free before, {seen[2]} GiB after)" if seen else ""
    return (
        f"another process gave memory back while this one measured{numbers}: start one engine "
        "after the other, and again when the GPU is quiet"
    )


def _host_kv_negative(found: re.Match[str], context: Context) -> bool:
    return found["kv"].startswith("-")


RULES: tuple[Rule, ...] = (
    rule(
        "kv_no_memory",
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len|"
        r"leaving none for the KV cache",
        _no_memory_hint,
    ),
    rule(
        "kv_no_memory",
        r"requested memory for kv \((?P<kv>-?[\d.]+)",
        "the worker's own footprint fills its reservation, {kv} GiB are left for the KV cache: "
        "raise gpu_memory_utilization (it sizes host memory on the CPU) or set the KV size",
        _host_kv_negative,
    ),
    rule(
        "oom_kv_alloc",
        r"Available memory on node \d+ \((?P<free>[\d.]+)/[\d.]+ GiB\) on kv cache allocation is "
        r"less than requested memory for kv \((?P<kv>[\d.]+)",
        "{kv} GiB of KV cache were budgeted and {free} GiB are free: other processes took the "
        "memory; stop them, or ask for less (gpu_memory_utilization, VLLM_CPU_KVCACHE_SPACE)",
    ),
    rule(
        "kv_too_small_for_max_model_len",
        r"KV cache is needed, which is larger than the available KV cache|"
        r"larger than the maximum number of tokens that can be stored in KV cache|"
        r"To serve at least one request with the model'?s'? max seq len",
        _too_small_hint,
    ),
    rule(
        "weight_cache_budget",
        r"[Ee]xternally held weights.{0,200}exceed",
        _budget_hint,
    ),
    rule("weight_cache_budget", _BUSY, _outside_hint, _daemon_counts_outside),
    rule("gpu_memory_busy", _BUSY, _busy_hint),
    rule(
        "gpu_memory_changed_during_profiling",
        r"Error in memory profiling|"
        r"Initial free memory .{0,80}current free memory|"
        r"release GPU memory while vLLM is profiling",
        _changed_hint,
    ),
    rule("oom_sampler_warmup", _OOM, _sampler_hint, _in_sampler),
    rule("oom_kv_alloc", _OOM, _kv_hint, _in_kv),
    rule("oom_graph_capture", _OOM, _capture_hint, _in_capture),
    rule("oom_weight_load", _OOM, _load_hint, _in_load),
    rule("kv_no_memory", _OOM, _profile_hint, _in_profile),
    rule(
        "gpu_memory_busy",
        _OOM,
        lambda found, context: (
            f"the GPU had no memory for this process from the start{_numbers(found)}: see who "
            "holds it and stop that first"
        ),
        lambda found, context: (
            context.phase is Phase.CONFIGURING and context.frame("init_device", "set_device")
        ),
    ),
    rule(
        "oom_kv_alloc",
        _OOM,
        _kv_hint,
        lambda found, context: context.kv_sized and context.phase is Phase.PROFILING,
    ),
)
