"""What can be said of errors that are none of the named causes: the category stays `unknown`."""

from __future__ import annotations

import re

from engine_ctl.logs.rules.base import Context, Rule, rule
from engine_ctl.logs.rules.surroundings import SURROUNDINGS

NO_ADVICE = "no known cause: this is the first error of the lowest process"
_FREE = re.compile(r"Tried to allocate (\S+ \w+)")


def _disk_hint(found: re.Match[str], context: Context) -> str:
    path = f" ({found['path']})" if found["path"] else ""
    return f"a file system is full{path}: free space there, or move HF_HOME or VLLM_CACHE_ROOT"


def _memory_hint(found: re.Match[str], context: Context) -> str:
    tried = _FREE.search(found.string)
    size = f" (asked for {tried[1]})" if tried else ""
    return (
        f"out of GPU memory while serving{size}: activations grew beyond what was profiled, or "
        "another process took memory; lower gpu_memory_utilization or max_num_batched_tokens"
    )


ADVICE: tuple[Rule, ...] = (
    rule(
        "unknown",
        r"\[Errno 28\][^\n:]*(?:: '(?P<path>[^'\n]+)')?|No space left on device",
        _disk_hint,
    ),
    rule("unknown", r"\b(?:CUDA|HIP|XPU)(?: error:)? out of memory", _memory_hint),
    rule(
        "unknown",
        r"no kernel image is available",
        "this build has no kernels for this GPU's compute capability: install a vLLM (and torch) "
        "wheel that is built for it",
    ),
    rule(
        "unknown",
        r"(?P<fault>illegal memory access|device-side assert|unspecified launch failure|"
        r"misaligned address|illegal instruction|launch timed out|cudaErrorLaunchFailure)",
        "a GPU kernel failed ({fault}): look for Xid messages in dmesg, and try another "
        "--attention-backend or --enforce-eager; CUDA_LAUNCH_BLOCKING=1 names the true kernel",
    ),
    rule(
        "unknown",
        r"Error 802|system not yet initialized",
        "the NVSwitch fabric is not up: start nvidia-fabricmanager (of the driver's version) and "
        "try again",
    ),
    rule(
        "unknown",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "another process owns the GPU exclusively, or it is in an error state: see nvidia-smi "
        "(compute mode, Xid) and stop its owner",
    ),
    rule(
        "unknown",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before the workers were forked: set VLLM_WORKER_MULTIPROC_METHOD=spawn",
    ),
    rule(
        "unknown",
        r"(?P<name>Flash\w+|FLASH\w+|Triton\w*|Cutlass\w*) (?:only supports|requires|does not "
        r"support) (?P<what>[^\n]{1,120})",
        "{name} does not run here ({what}): name another --attention-backend",
    ),
    rule(
        "unknown",
        r"429 Client Error|Too Many Requests",
        "the hub says 429 (too many requests): wait, or set HF_TOKEN; a downloaded copy and "
        "HF_HUB_OFFLINE=1 need no hub",
    ),
    rule(
        "unknown",
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "the certificate of the hub (or of a proxy before it) is not trusted here: set "
        "REQUESTS_CA_BUNDLE/SSL_CERT_FILE to the proxy's certificate",
    ),
    rule(
        "unknown",
        r"pip install [`'\"]?(?P<package>[\w\[\].=<>-]{0,80}\w)",
        "the runtime lacks a package: install {package} there",
    ),
    rule(
        "unknown",
        r"(?P<library>[\w.+-]{1,100}\.so[\w.]{0,20}): cannot open shared object file",
        "the library {library} is not there: install the wheel that is built for this machine's "
        "CUDA, or add its folder to LD_LIBRARY_PATH",
    ),
    rule(
        "unknown",
        r"(?P<file>[\w/.+-]{1,200}\.so[\w.]{0,20}): undefined symbol",
        "{file} was built against another torch than the installed one: install vLLM and torch "
        "that belong together",
    ),
    rule(
        "unknown",
        r"(?:ModuleNotFoundError: )?No module named '(?P<module>[\w.]+)'",
        "the runtime lacks the package {module}: install it there",
    ),
    rule(
        "unknown",
        r"no module or parameter named (?P<name>\S+) in (?P<arch>\w+)",
        "the checkpoint holds {name}, which {arch} does not have: another vLLM version, or a "
        "checkpoint that is not of this architecture",
    ),
    rule(
        "unknown",
        r"Attempted to load weight \((?P<file>[^\n]{1,80}?)\) into parameter "
        r"\((?P<model>(?:\([^()\n]*\)|[^()\n]){1,80})\)",
        "a tensor of the checkpoint has shape {file} and the model wants {model}: config.json and "
        "weight files do not belong together",
    ),
)


def advice(text: str, context: Context) -> str:
    """The hint for an error that no rule knows."""
    for item in (*SURROUNDINGS, *ADVICE):
        found = item.match(text, context)
        if found is not None:
            return item.advice(found, context)
    return NO_ADVICE
