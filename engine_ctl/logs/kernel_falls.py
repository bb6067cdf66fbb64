"""Lines of a log by which an engine says that it takes a slower path than was asked for, or than
the chip allows."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fall:
    """A line that says that a slower path was taken. `value`: what runs now, where it says so."""

    topic: str
    pattern: re.Pattern[str]
    why: str
    value: str = ""
    needs: str = ""
    """Text that must be there before the (slower) pattern is tried."""


def _fall(topic: str, pattern: str, why: str, value: str = "", needs: str = "") -> Fall:
    return Fall(topic, re.compile(pattern), why, value, needs)


FALLS: tuple[Fall, ...] = (
    _fall(
        "attention",
        r"--block-size \d+ precluded higher-priority backend\(s\) (?P<asked>.+?)\. Using",
        "block_size rules out {asked}, which is faster",
    ),
    _fall("attention", r"FlashInfer kernels are disabled: (?P<why>.+?)\. ", "FlashInfer: {why}"),
    _fall(
        "flash attention",
        r"Cannot use FA version (?P<asked>\d).*?(?:, |due to )(?P<why>.+)",
        "version {asked} cannot be used: {why}",
    ),
    _fall(
        "MoE",
        r"Using default MoE config\. Performance might be sub-?optimal",
        "no tuned configuration for this expert shape on this GPU",
    ),
    _fall("linear", r"Tried to force (?P<asked>\S+), but the kernel", "{asked} was asked for"),
    _fall(
        "linear",
        r"--linear-backend=(?P<asked>\S+) (?:was requested, but|has no kernel)",
        "{asked} was asked for and has no kernel for some layers",
    ),
    _fall(
        "linear",
        r"NVFP4 linear falling back to the slow",
        "no optimized NVFP4 backend is available",
        "emulation",
    ),
    _fall(
        "quantization",
        r"does not have native support for FP8|[Ww]eight-only FP8 compression will be used",
        "this GPU has no native fp8: weights only, through Marlin",
    ),
    _fall(
        "quantization",
        r"does not have native support for FP4|[Ww]eight-only FP4 compression will be used",
        "this GPU has no native fp4: weights only, through Marlin",
    ),
    _fall(
        "all-reduce",
        r"Custom all-?reduce is disabled (?P<why>.+?)(?:\. To|\.?$)",
        "custom all-reduce is disabled {why}",
    ),
    _fall(
        "sampler",
        r"FlashInfer top-p/top-k sampling (?:unavailable: (?P<why>.+?); falling|disabled via "
        r"(?P<off>\S+?)\.?$)",
        "FlashInfer sampling is off: {why}{off}",
        "PyTorch",
    ),
    _fall(
        "sampler",
        r"(?P<why>.{0,160}?)\.? ?[Ff]alling back to PyTorch-native",
        "{why}",
        "PyTorch",
        "PyTorch-native",
    ),
    _fall(
        "model runner",
        r"Model Runner V2 (?:requires|does not support|is not) (?P<why>.+?)[;.]",
        "V2 needs {why}",
        "V1",
    ),
    _fall("compile mode", r"Enforce eager set", "enforce_eager: no torch.compile", "NONE"),
    _fall(
        "compile mode",
        r"Inductor compilation was disabled by user settings",
        "Inductor is off by setting",
    ),
    _fall("cudagraph mode", r"Cudagraph is disabled under eager mode", "enforce_eager", "NONE"),
    _fall(
        "cudagraph mode",
        r"(?P<why>.{0,240}?)\.?\s*Overriding (?:cudagraph_mode )?(?:from \S+ )?to "
        r"(?:CUDAGraphMode\.)?(?P<now>\w+)",
        "{why}",
        "{now}",
        "Overriding",
    ),
    _fall(
        "scheduling",
        r"Async(?:hronous)? scheduling (?:will be|is) disabled (?P<why>.+?)\.?\s*$",
        "asynchronous scheduling is off {why}",
        "synchronous",
    ),
    _fall(
        "KV dtype",
        r"doesn't support \S+?(?:float16|fp8)\S*\. Falling back to (?P<now>\S+) for",
        "this device does not support the asked type",
    ),
    _fall(
        "attention",
        r"Sparse MLA top-k mask workspace .{0,80}too small",
        "the workspace is too small for some prefill batches, which take a slower path",
        needs="Sparse MLA",
    ),
    _fall(
        "flash attention",
        r"flash attention (?P<asked>\d) not available! fallback to "
        r"(?P<now>.+?)(?: implementation|$)",
        "version {asked} is not available: {now}",
        needs="flash attention",
    ),
    _fall(
        "MoE",
        r"Using default \w+ MoE config\. Performance might be sub-?optimal",
        "no tuned configuration for this expert shape on this GPU",
        needs="MoE config",
    ),
    _fall(
        "MoE",
        r"Using (?P<now>\w*Emulation\w*) M[Oo]E backend",
        "this device has no native kernel for the type: weights are dequantized on the fly",
        "{now}",
        "Emulation",
    ),
    _fall(
        "MoE",
        r"is not supported by (?P<asked>\w*M[Oo][Ee]Marlin)\. Falling back to (?P<now>.+?)\.?$",
        "{asked} does not take some layers: {now}",
        needs="Marlin",
    ),
    _fall(
        "linear",
        r"is not supported by (?P<asked>\w*Marlin)\. Falling back to (?P<now>.+?)\.?$",
        "{asked} does not take some layers: {now}",
        needs="Marlin",
    ),
    _fall(
        "linear",
        r"Using default W8A8 Block FP8 kernel config\. Performance might be sub-?optimal",
        "no tuned block-fp8 configuration for some shapes on this GPU",
        needs="kernel config",
    ),
    _fall(
        "linear",
        r"--linear-backend=(?P<asked>\S+) requested .{0,80}, but it is unavailable",
        "{asked} was asked for and is not available here",
        needs="--linear-backend",
    ),
    _fall(
        "linear",
        r"Failed to create oneDNN linear, fallback to torch linear",
        "oneDNN refuses some layers",
        needs="oneDNN",
    ),
    _fall(
        "quantization",
        r"lacks native FP4 compute; using weight-only FP4",
        "this GPU has no native fp4: weights only, through Marlin",
        needs="FP4",
    ),
    _fall(
        "quantization",
        r"Marlin requires thread-tile padding for (?P<what>.{0,80}?) (?:in this model|of some)",
        "Marlin pads {what} on every forward pass",
        needs="padding",
    ),
    _fall(
        "quantization",
        r"Mxfp4 on hopper is running on torch < (?P<needs>[\d.]+\d)",
        "mxfp4 on this chip wants torch {needs}",
        needs="Mxfp4",
    ),
    _fall(
        "all-reduce",
        r"Custom collectives are disabled because (?P<why>.+?)\.?\s*$",
        "custom collectives are disabled: {why}",
        needs="ollectives",
    ),
    _fall(
        "all-reduce",
        r"Custom quick allreduce is disabled(?::| because| due to) (?P<why>.+?)\.?\s*$",
        "quick all-reduce is disabled: {why}",
        needs="quick allreduce",
    ),
    _fall(
        "all-reduce",
        r"(?P<asked>FlashInfer PCIe IPC all-reduce|MNNVL multimem reduce-scatter) "
        r"(?P<why>.+?); falling back to (?P<now>.+?)\.?\s*$",
        "{asked} {why}: {now}",
        needs="falling back",
    ),
    _fall(
        "all-reduce",
        r"FlashInfer All Reduce is disabled because it is not supported for (?P<why>\S+?)\.?\s*$",
        "FlashInfer's all-reduce does not do {why}",
        needs="FlashInfer All Reduce",
    ),
    _fall(
        "all2all",
        r"`?(?P<asked>\w+)`? all2all manager is not supported on (?P<where>\w+)\. Falling back to "
        r"`?(?P<now>\w+)",
        "{asked} is not supported on {where}",
        "{now}",
        "all2all",
    ),
    _fall(
        "fusions",
        r"AllReduce fusion pass is disabled(?! for tp_size)(?P<why>.{0,120}?)\.?\s*$",
        "all-reduce fusion is disabled{why}",
        needs="AllReduce fusion",
    ),
    _fall(
        "fusions",
        r"Flashinfer allreduce fusion is not supported for (?P<why>.+?)\.?\s*$",
        "all-reduce fusion does not do {why}",
        needs="allreduce fusion",
    ),
    _fall(
        "fusions",
        r"(?P<why>.{1,200}?)\.? (?:\S+ )?(?:The |[\w-]+ )?fusion will be disabled",
        "{why}",
        needs="fusion will be disabled",
    ),
    _fall(
        "fusions",
        r"(?P<what>.{1,80}?) fusions? (?:disabled|not enabled)(?: for a layer)?: (?P<why>.+?)"
        r"(?:\. |\.?$)",
        "{what}: {why}",
        needs="fusion",
    ),
    _fall(
        "cudagraph mode",
        r"(?P<why>.{1,200}?),? ?(?:D|d)isabling (?:CUDA Graphs|cudagraph_mode)(?P<more>[^.]*)",
        "{why} {more}",
        "NONE",
        "isabling",
    ),
    _fall(
        "compile mode",
        r"TORCH_COMPILE_DISABLE is set",
        "TORCH_COMPILE_DISABLE is set: no torch.compile",
        "NONE",
        "TORCH_COMPILE",
    ),
    _fall(
        "speculative",
        r"Dynamic speculative decoding is not supported with (?P<why>.+?)(?: because|\. )",
        "the number of draft tokens is fixed: dynamic speculation does not do {why}",
        needs="Dynamic speculative",
    ),
    _fall(
        "sampler",
        r"flashinfer is unavailable; vocab-parallel top-k uses torch\.topk",
        "FlashInfer is not available: top-k at half the speed",
        needs="top-k",
    ),
)
