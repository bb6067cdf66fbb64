"""Causes in the chip, the driver, the toolchain and the operating system."""

from __future__ import annotations

import re

from engine_ctl.logs.rules.base import Context, Rule, rule

_REMOVED_METHODS = {
    "gguf": "0.24",
    "bitsandbytes": "0.28",
    "allspark": "0.31",
    "marlin": "0.11",
    "gptq_marlin_24": "0.11",
    "deepspeedfp": "0.11",
    "aqlm": "0.11",
    "qqq": "0.11",
    "neuron_quant": "0.11",
    "ipex": "0.18",
    "hqq": "0.14",
    "bitblas": "0.14",
    "gptq_bitblas": "0.14",
    "tpu_int8": "0.26",
    "rtn": "0.14",
    "auto-round": "0.18",
    "ptpc_fp8": "0.20",
    "petit_nvfp4": "0.20",
    "squeezellm": "0.7",
}
_PLUGINS = {"gguf", "bitsandbytes"}


def _unknown_method(found: re.Match[str], context: Context) -> bool:
    return found["method"].strip("'\"").lower() in _REMOVED_METHODS


def _removed_hint(found: re.Match[str], context: Context) -> str:
    method = found["method"].strip("'\"").lower()
    version = _REMOVED_METHODS.get(method)
    since = (
        f"vLLM {version} and later"
        if method in ("gguf", "bitsandbytes", "allspark")
        else ("this version")
    )
    instead = (
        "install its plugin package, or use another checkpoint format"
        if method in _PLUGINS
        else "use another checkpoint format (fp8, awq, gptq, compressed-tensors)"
    )
    return f"{since} no longer has the quantization method {method}: {instead}"


def _capability_hint(found: re.Match[str], context: Context) -> str:
    need = re.search(r"[Mm]in(?:imum|\.)? capability: (\d+)", found.string)
    have = re.search(r"[Cc]urrent capability: (\d+)", found.string)
    dtypes = re.search(r"Supported dtypes: \[([^\]]*)\]", found.string)
    if dtypes:
        return (
            f"this quantization method works with {dtypes[1].replace('torch.', '')} only: set "
            "dtype accordingly (float16)"
        )
    method = re.search(r"quantization method (\S+) is not", found.string) or re.search(
        r"No (\S+) (?:MoE )?backend supports", found.string
    )
    what = method[1] if method else "that quantization"
    if need is None or have is None:
        need = need or re.search(r"requires (?:compute )?capability (\d+)", found.string)
        have = have or re.search(r"current compute capability is (\d+)", found.string)
    numbers = f" (needs {_cc(need[1])}, has {_cc(have[1])})" if need and have else ""
    return (
        f"this GPU cannot run {what}{numbers}: choose another checkpoint format for this generation"
    )


def _cc(text: str) -> str:
    return f"{text[:-1] or '0'}.{text[-1]}"


def _dtype_hint(found: re.Match[str], context: Context) -> str:
    chip = re.search(r"Your (.+?) GPU has compute capability ([\d.]+)", found.string)
    if chip:
        capability = chip[2].rstrip(".")
        return f"{chip[1]} (compute capability {capability}) has no bfloat16: set dtype to float16"
    if "does not support float16" in found.string:
        kind = re.search(r"model type '?([\w.-]+)'? does not", found.string)
        which = kind[1] if kind else "this model"
        return f"{which} is unstable in float16: set dtype to bfloat16 or float32"
    return "this chip does not support the dtype: set dtype to float16 (or auto)"


def _driver_hint(found: re.Match[str], context: Context) -> str:
    number = re.search(r"found version (\d+)", found.string)
    has = ""
    if number:
        value = int(number[1][:6])
        has = f" (it says {number[1]}, that is CUDA {value // 1000}.{value % 1000 // 10})"
    return (
        f"the driver is older than the CUDA of this vLLM{has}: update the driver (R580 or later "
        "for CUDA 13), or install the wheel of an older CUDA"
    )


def _jit_hint(found: re.Match[str], context: Context) -> str:
    missing = re.search(
        r"\b(nvcc|ninja|gcc|g\+\+|cc|cl)\b['\"`]?:? (?:command )?not found", found.string
    )
    missing = missing or re.search(
        r"No such file or directory: '(?:[^']*/)?(nvcc|ninja|gcc|g\+\+|cc)'", found.string
    )
    tool = missing[1] if missing else "a compiler"
    if "Python.h" in found.string or re.search(r"cuda_utils\.c", found.string):
        return (
            "a kernel is built at run time and the C compiler fails, mostly because Python.h is "
            "missing: install python3-dev (of this Python's version) and gcc"
        )
    if re.search(r"C compiler", found.string):
        return "a kernel is built at run time and there is no C compiler: install gcc, or set CC"
    chip = re.search(
        r"'((?:sm|compute)_\w+)' is not defined|gpu architecture '(\w+)'", found.string
    )
    if chip:
        return (
            f"the toolkit at hand does not know this chip ({chip[1] or chip[2]}): install a newer "
            "CUDA toolkit and point CUDA_HOME (for Triton: TRITON_PTXAS_PATH) to it"
        )
    both = re.search(
        r"CUDA version \(([\d.]+)\) mismatches.{0,80}PyTorch \(([\d.]+)\)", found.string
    )
    if both:
        return (
            f"a kernel is built at run time with CUDA {both[1]} and torch has {both[2]}: install "
            f"the toolkit of CUDA {both[2]} and point CUDA_HOME to it"
        )
    gnu = re.search(r"gcc versions later than (\d+)", found.string)
    if gnu:
        return (
            f"nvcc does not take a gcc later than {gnu[1]}: install gcc-{gnu[1]} and set "
            "NVCC_PREPEND_FLAGS='-ccbin gcc-" + gnu[1] + "' (or a newer toolkit)"
        )
    file = re.search(r"fatal error: (\S+\.h)|cannot find -l(\w+)", found.string)
    if file:
        return (
            f"a kernel is built at run time and {file[1] or 'lib' + file[2]} is missing: install "
            "the CUDA toolkit's development files and set CUDA_HOME"
        )
    least = re.search(r"NVCC version should be >= ?([\d.]+\d)", found.string)
    if least:
        return f"a kernel is built at run time and needs nvcc {least[1]} or newer: set CUDA_HOME"
    return (
        f"a kernel is built at run time and {tool} is missing or does not match torch's CUDA: "
        "install the toolkit of the same major version and set CUDA_HOME, use prebuilt kernels "
        "(vllm download-kernels), or choose another backend"
    )


def _deprecated_hint(found: re.Match[str], context: Context) -> str:
    named = re.search(r"vLLM\. .{0,120}', '(\w+)'|quantization method (?!%s)(\S+) is", found.string)
    which = f" ({named[1] or named[2]})" if named else ""
    return (
        f"this quantization method{which} is on its way out: use another checkpoint format, or set "
        "allow_deprecated_quantization for now"
    )


def _mismatch_hint(found: re.Match[str], context: Context) -> str:
    both = re.search(
        r"library version:? ([\d.]+)(?:,? kernel (?:version )?([\d.]+))?", found.string
    )
    module = f", kernel module {both[2]}" if both and both[2] else ""
    numbers = f" (library {both[1]}{module})" if both else ""
    return (
        f"the user-space driver library and the kernel module differ{numbers}, usually after an "
        "update: reboot or reload the nvidia modules; in a container, restart it, and drop a "
        "cuda-compat library that shadows the driver"
    )


def _shared_hint(found: re.Match[str], context: Context) -> str:
    size = re.search(r"\(size (\d+)\)", found.string)
    wanted = f" (a segment of {int(size[1]):,} bytes did not fit)" if size else ""
    return (
        f"shared memory is too small for the ranks' messages{wanted}: run the container with "
        "--shm-size (10g) or --ipc=host, or enlarge /dev/shm"
    )


def _in_shared_memory(found: re.Match[str], context: Context) -> bool:
    frames = context.candidate.frames if context.candidate is not None else ()
    return bool({file for file, _ in frames} & {"shared_memory.py", "shm_broadcast.py"})


RULES: tuple[Rule, ...] = (
    rule(
        "quant_removed",
        r"Unknown quantization method: (?P<method>[\w'\".-]+?)\.(?:\s|$)",
        _removed_hint,
        _unknown_method,
    ),
    rule(
        "quant_removed",
        r"(?:activation ordering|desc_act|actorder|act-order|g_idx).{0,200}(?:no longer supported|"
        r"is not supported anymore|removed)",
        "act-order GPTQ checkpoints are not served from 0.30 on: re-quantize without desc_act (or "
        "with static ordering), or use an older vLLM",
    ),
    rule(
        "quant_removed",
        r"quantization method.{0,120}deprecated and will be removed|"
        r"--allow-deprecated-quantization",
        _deprecated_hint,
    ),
    rule(
        "quant_removed",
        r"no longer supports online quantization",
        "the checkpoint is not serialized as fp8: use --quantization fp8_per_tensor (from 0.31 on) "
        "or a real fp8 checkpoint",
    ),
    rule(
        "quant_removed",
        r"(?:[Qq]uantization|[Ss]parsity)\b.{0,120}(?:has been removed|no longer supported|"
        r"not supported anymore|was removed)",
        "this version no longer has that quantization: use another checkpoint format, or an older "
        "vLLM",
    ),
    rule(
        "dtype_unsupported",
        r"(?P<what>does not support (?P<dtype>\w+) kv-cache on this device|"
        r"FP8 KV cache on CPU requires [^\n.]{1,60}|"
        r"(?:--kv-cache-dtype \S+|\w*kv_dtype='?\w+'?)(?: on \w+)? requires (?:the |an? )?"
        r"(?:SM ?\d+|CDNA\d|RDNA\d|Hopper|Blackwell|Ada)[^\n.]{0,60})",
        "this chip cannot hold the KV cache so ({what}): drop kv_cache_dtype (auto), or choose "
        "another one",
    ),
    rule(
        "quant_unsupported_gpu",
        r"not supported for the current GPU|is not supported for quantization method|"
        r"quantization is (?:currently )?not supported (?:in|on|by|for)|"
        r"Quantization scheme is not supported|fp8e4nv not supported|"
        r"Failed to find a kernel that can implement|No \S+ (?:MoE )?backend supports the "
        r"(?:deployment|quantization)|requires compute capability|"
        r"(?:FP8|FP4|NVFP4|MXFP4|MXFP8|Marlin|fp8|fp4|INT8)\b[^\n]{0,80}(?:requires|needs|only "
        r"supported (?:on|for)|is not supported (?:on|by))[^\n]{0,60}(?:capability|sm_?\d|SM ?\d|"
        r"Hopper|Blackwell|Ada|GPU|device|platform|CPU)|"
        r"(?:quantiz\w+|[Mm]arlin|weights|experts)\b[^\n]{0,80}(?:requires?|needs?|only "
        r"supports?)[^\n]{0,60}(?:capability|\bsm_?\d|\bSM ?\d|Hopper|Blackwell|\bAda\b)|"
        r"_C::?\w*(?:quant|fp8|fp4|marlin|scaled)\w*\(\) expected at most|"
        r"'_C' object has no attribute '\w*(?:quant|fp8|fp4|marlin|scaled|gptq|awq)|"
        r"does not support (?:the )?quantization|"
        r"(?:fp8|fp4|FP8|FP4)[^\n]{0,40} is not implemented for|"
        r"method \S+ is not supported (?:on|by) "
        r"(?:the |this )?(?:current )?(?:platform|device|GPU)",
        _capability_hint,
    ),
    rule(
        "dtype_unsupported",
        r"[Bb][Ff]loat16 is only supported|does not support (?:bfloat16|float16|torch\.\w+)|"
        r"(?:bfloat16|float16|torch\.\w+float\w+) is not supported (?:on|by|for)|"
        r"doesn't support (?:torch\.)?(?:bfloat16|float16|float32)|"
        r"dtype .{0,60}not supported (?:on|by)|have bfloat16 accuracy known issue",
        _dtype_hint,
    ),
    rule(
        "dtype_unsupported",
        r"(?P<dtype>\w+) KV cache is not supported (?:by [^\n]{1,60} )?on (?P<chip>[^\n(;]{1,60}?) "
        r"?\(compute capability (?P<has>[\d.]+)\)[^\n]{0,120}?requires (?P<needs>\w+)",
        "{chip} (compute capability {has}) has no {dtype} KV cache, which needs {needs}: set "
        "kv_cache_dtype to float16 (or auto)",
    ),
    rule(
        "fd_limit",
        r"(?:shared memory|Error accepting)[^\n]{0,200}(?:Too many open files|\[Errno 24\])",
        "the process really ran out of file descriptors: raise the limit (ulimit -n, systemd "
        "LimitNOFILE)",
    ),
    rule(
        "shm_too_small",
        r"\[Errno 28\] No space left on device",
        _shared_hint,
        _in_shared_memory,
    ),
    rule(
        "shm_too_small",
        r"/dev/shm|insufficient shared memory|--shm-size|unable to (?:open|write|allocate) "
        r"(?:to )?shared memory|shared memory (?:object|segment).{0,80}(?:No space|failed)|"
        r"No space left on device[^\n]{0,80}psm_|Unexpected bus error|Bus error|"
        r"\(shm\)|creating shared memory segment|posix_fallocate failed",
        _shared_hint,
    ),
    rule(
        "fd_limit",
        r"\[Errno 24\]|Too many open files|EMFILE",
        "the process really ran out of file descriptors: raise the limit (ulimit -n, systemd "
        "LimitNOFILE)",
        lambda found, context: "Found ulimit" not in found.string,
        serving=True,
    ),
    rule(
        "driver_mismatch",
        r"[Dd]river/library version mismatch|LibRmVersionMismatch|"
        r"unsupported display driver ?/ ?cuda driver combination|Error 80[34]\b|"
        r"forward compatibility was attempted|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|"
        r"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE|system has unsupported display driver|"
        r"API mismatch: the client",
        _mismatch_hint,
    ),
    rule(
        "driver_too_old",
        r"driver on your system is too old|driver version is insufficient|"
        r"CUDA_ERROR_INSUFFICIENT_DRIVER|cudaErrorInsufficientDriver|"
        r"PTX was compiled with an unsupported toolchain|unsupported PTX version|"
        r"[Dd]river.{0,60}(?:too old|older than)|requires (?:an? )?(?:newer|NVIDIA) driver",
        _driver_hint,
    ),
    rule(
        "compile_cache_corrupt",
        r"previous compilation failed, leading to a corrupted|corrupted? compilation artifact|"
        r"(?:torch_compile_cache|torchinductor|inductor_cache|torch_aot_compile|\.triton/cache)"
        r"[^\n]{0,300}(?:corrupt|truncated|No such file|unexpected|invalid|EOF)|"
        r"(?:corrupt|BadZipFile|UnpicklingError|EOFError|JSONDecodeError|zlib\.error|SyntaxError)"
        r"[^\n]{0,300}(?:torch_compile_cache|torchinductor|inductor_cache|triton/cache)|"
        r"No such file or directory: '[^'\n]*(?:torch_compile_cache|torchinductor|inductor_cache|"
        r"torch_aot_compile|triton/cache)",
        "the torch.compile cache is unusable: delete torch_compile_cache below VLLM_CACHE_ROOT "
        "(or start once with VLLM_DISABLE_COMPILE_CACHE=1) and start again; the real error, if "
        "any, shows then",
    ),
    rule(
        "compile_cache_corrupt",
        r"UnpicklingError|EOFError|JSONDecodeError|BadZipFile|zlib\.error|Ran out of input|"
        r"PytorchStreamReader failed",
        "the torch.compile cache cannot be read: delete torch_compile_cache below VLLM_CACHE_ROOT "
        "and start again",
        lambda found, context: _cache_files(context),
    ),
    rule(
        "jit_toolchain_missing",
        r"Ninja build failed|nvcc['\"]?: (?:command )?not found|nvcc fatal|Could not find nvcc|"
        r"Cannot find CUDA toolkit|No such file or directory: '(?:[^']*/)?(?:nvcc|ninja|gcc|g\+\+|"
        r"cc|c\+\+)'|Failed to find C compiler|No working C(?:\+\+)? compiler|InvalidCxxCompiler|"
        r"Ninja is required|ninja: (?:build stopped|error|command not found|not found)|"
        r"CUDA_HOME (?:environment variable )?is not set|CUDA_HOME.{0,40}(?:does not exist|unset)|"
        r"Python\.h: No such file|detected CUDA version .{0,120}mismatches|"
        r"Unsupported gpu architecture|NVRTC.{0,20}(?:error|ERROR)|Error building extension|"
        r"default cuda_home=|Cannot find TVM-FFI|PTX codegen error|ptxas (?:fatal|error)|"
        r"`?ptxas`?[^\n]{0,60}(?:not found|failed)|NVCC version should be|"
        r"nvrtc: error|[Cc]ompilation failed.{0,40}nvcc|"
        r"CalledProcessError: Command '\[?['\"]?[^'\"]*(?:gcc|g\+\+|nvcc|ninja|cc)\b",
        _jit_hint,
    ),
)


def _cache_files(context: Context) -> bool:
    candidate = context.candidate
    if candidate is None:
        return False
    files = {file for file, _ in candidate.frames}
    return bool(files & {"compiler_interface.py", "decorators.py", "caching.py", "codecache.py"})
