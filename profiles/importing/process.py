"""A running engine, read from /proc: its command line, its relevant environment, its place."""

from __future__ import annotations

import os
from pathlib import Path

from engine_ctl.errors import Failed, NotFound, Usage
from profiles.importing.draft import Draft, take_invocation
from profiles.importing.launching import Invocation, find_invocation
from profiles.importing.references import literal

_RELEVANT = (
    "VLLM_", "CUDA_", "NVIDIA_", "HF_", "HUGGING", "TRANSFORMERS_", "NCCL_", "TORCH", "PYTORCH_",
    "TRITON_", "LMCACHE_", "FLASHINFER_", "HIP_", "ROCR_", "OMP_", "MKL_", "RAY_", "TOKENIZERS_",
    "GLOO_", "UCX_", "NVTE_", "DG_", "SAFETENSORS_", "XFORMERS_", "MOONCAKE_", "NIXL_",
)  # fmt: skip
_NOT_OURS = ("VLLM_RPC_", "CUDA_MPS_PIPE")


def relevant(name: str) -> bool:
    """Whether a variable of a process says how its engine behaves."""
    return name.startswith(_RELEVANT) and not name.startswith(_NOT_OURS)


def import_process(draft: Draft, pid: int, proc: Path = Path("/proc")) -> None:
    """Read a running engine into the draft; nothing is done to the process.

    Raises NotFound, Failed (not readable) or Usage (no engine)."""
    base = proc / str(pid)
    try:
        raw = (base / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise NotFound(f"no process {pid}") from None
    except OSError as error:
        raise Failed(f"process {pid} cannot be read: {error.strerror}") from None
    words = [literal(os.fsdecode(part)) for part in raw.rstrip(b"\0").split(b"\0")]
    found = find_invocation(words) or _titled(words)
    if found is None:
        raise Usage(f"process {pid} is no `vllm serve`: {' '.join(words[:3])}")
    if found.what == "preload":
        raise Usage(f"process {pid} is a preload daemon; give the engine's pid")
    found.launcher = []
    take_invocation(draft, found)
    try:
        block = (base / "environ").read_bytes()
    except OSError:
        draft.note("its environment cannot be read (another user's process)")
        block = b""
    for item in block.split(b"\0"):
        name, equals, value = os.fsdecode(item).partition("=")
        if equals and relevant(name):
            draft.env[name] = literal(value)
    try:
        draft.origin["cwd"] = os.readlink(base / "cwd")
    except OSError:
        draft.note("its working directory cannot be read")
    relative = [w for w in found.words if w.startswith(("./", "../"))]
    if relative:
        draft.note(f"relative paths count from {draft.origin.get('cwd', 'its directory')}")


def _titled(words: list[str]) -> Invocation | None:
    """A process title that replaced the command line says nothing about its arguments."""
    if words and words[0].startswith("VLLM::"):
        raise Usage(f"{words[0]} is a worker; give the pid of its API server")
    return None
