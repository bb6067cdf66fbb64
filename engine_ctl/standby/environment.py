"""What a process passes on to a standby: the variables that an engine reads, and vLLM's own words.

Standard library only: also runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

# Read by vLLM, torch, transformers, their libraries or the loader; whatever else an operator has
# in the environment (prompts, terminals, sessions) changes nothing in an engine.
PREFIXES = (
    *("VLLM_", "PYTHON", "LD_", "CUDA_", "NVIDIA_", "NCCL_", "ROCM_", "ROCR_", "HIP_", "HSA_"),
    *("AMD_", "TORCH", "PYTORCH_", "TRITON_", "INDUCTOR", "FLASHINFER_", "CUTLASS_", "TVM_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "NUMEXPR_", "NUMBA_"),
    *("MALLOC_", "TCMALLOC_", "HF_", "HUGGING", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_"),
    *("MODELSCOPE_", "RAY_", "GLOO_", "UCX_", "NIXL_", "LMCACHE_", "AWS_", "S3_", "RUNAI_"),
    *("OTEL_", "PROMETHEUS_", "SSL_", "REQUESTS_", "CURL_", "OPENAI_"),
)
NAMES = frozenset(
    (
        *("HOME", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NO_COLOR"),
        *("FORCE_COLOR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "MAX_JOBS"),
        *("CC", "CXX"),
    )
)
MARK = "STOKER_"
KINDS = ("serve", "preload", "bench")


def relevant(environment: Mapping[str, str], own: Collection[str] = ()) -> dict[str, str]:
    """The part of a process's environment that an engine reads. `own` are names that a profile
    sets: whatever they are (a connector's, a plugin's), it sets them for its engine."""
    return {
        name: value
        for name, value in environment.items()
        if name in own or name.upper() in NAMES or name.startswith(PREFIXES)
    }


def passed_on(environment: Mapping[str, str], own: Collection[str] = ()) -> dict[str, str]:
    """What `become` is given of an engine's whole environment: that part, and whose run it is."""
    marks = {name: value for name, value in environment.items() if name.startswith(MARK)}
    return {**relevant(environment, own), **marks}


def vllm_words(argv: Iterable[str]) -> list[str]:
    """The part of a command line that vLLM's own command parses: from `serve`, `preload` or
    `bench` on. Raises ValueError when it is none of them."""
    items = list(argv)
    for position, item in enumerate(items[:8]):
        if item in KINDS:
            return items[position:]
    raise ValueError(f"not a vllm serve, preload or bench command: {' '.join(items[:4])}")
