"""Which standby is good for which start: what was read when vLLM was imported must be the same."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import engine_ctl.inside
from engine_ctl.runtimes.store import Runtime

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
# May differ from start to start: read when CUDA is initialised, which a standby never does, or
# when a compiler is looked for. Keep in step with `LATE` of inside/standby_become.py.
LATE = frozenset({"CUDA_VISIBLE_DEVICES", "PATH"})


def relevant(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of a process's environment that an engine reads."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() in NAMES or name.startswith(PREFIXES)
    }


def installed(runtime: Runtime) -> list[object]:
    """What changes when pip touches the runtime: files by time and size, not directories, whose
    time also changes when bytecode is cached."""
    package = Path(runtime.package) if runtime.package else None
    files = [] if package is None else [package / name for name in ("__init__.py", "version.py")]
    facts: list[object] = [runtime.python]
    for path in (Path(runtime.python), *files):
        try:
            info = path.stat()
        except OSError:
            facts.append(None)
        else:
            facts.append((info.st_mtime_ns, info.st_size))
    return facts


@functools.cache
def scripts() -> str:
    """A hash of the scripts that a standby runs: one of another Stoker answers otherwise."""
    found = hashlib.sha256()
    for path in sorted(Path(engine_ctl.inside.__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def standby_identity(runtime: Runtime, env: Mapping[str, str]) -> str:
    """A short hash of the runtime as it is installed now and of `env`, all that is set for the
    engine (see `relevant`). Two starts with the same one can come from the same standby."""
    counted = {
        name: value
        for name, value in env.items()
        if name not in LATE and not name.startswith("STOKER_")
    }
    facts = [runtime.name, runtime.version, installed(runtime), scripts(), sorted(counted.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]
