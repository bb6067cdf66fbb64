"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES against NVML's order.

Rules of https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars: entries are indices,
UUID prefixes or MIG instances; the first invalid entry ends the list; indices count in CUDA's own
order, which is NVML's (PCI bus) order only with CUDA_DEVICE_ORDER=PCI_BUS_ID or equal cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_ctl.hardware.readings import GpuReading


@dataclass(frozen=True, slots=True)
class Visible:
    """`uuids` in the process's order (cuda:0 first), None when it cannot be known; `note` why."""

    uuids: tuple[str, ...] | None
    note: str = ""


def visible(gpus: Sequence[GpuReading], env: Mapping[str, str]) -> Visible:
    """What a process with environment `env` sees of `gpus` (as NVML lists them)."""
    by_index = _whole_gpus(gpus)
    text = env.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        tokens = [str(index) for index in by_index]
    else:
        tokens = [token.strip() for token in text.split(",")]
    ordered = env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or _alike(by_index)
    found: list[GpuReading] = []
    notes: list[str] = []
    by_number = False
    for token in tokens:
        if token.isdecimal():
            by_number = True
            index = sorted(by_index)[int(token)] if int(token) < len(by_index) else None
            if index is None:
                break
            found.append(by_index[index])
            if by_index[index].mig:
                notes.append(f"GPU {index} is split by MIG: its first instance is meant")
        else:
            named = _by_name(gpus, token)
            if named is None:
                break
            found.append(named)
    uuids = tuple(gpu.uuid for gpu in found)
    if len(set(uuids)) < len(uuids):
        return Visible((), "a GPU is named twice: CUDA then sees none")
    if by_number and not ordered:
        note = (
            "cards differ, and CUDA counts them fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID "
            "or name them by UUID"
        )
        if len(uuids) == len(by_index):
            return Visible(uuids, f"order unknown: {note}")
        return Visible(None, note)
    return Visible(uuids, "; ".join(notes))


def _whole_gpus(gpus: Sequence[GpuReading]) -> dict[int, GpuReading]:
    """Index → the GPU, or its first MIG instance."""
    found: dict[int, GpuReading] = {}
    for gpu in gpus:
        found.setdefault(gpu.index, gpu)
    return found


def _alike(by_index: Mapping[int, GpuReading]) -> bool:
    return len({gpu.name.partition(" MIG")[0] for gpu in by_index.values()}) <= 1


def _by_name(gpus: Sequence[GpuReading], token: str) -> GpuReading | None:
    """A UUID or its prefix, or the older MIG-GPU-<uuid>/<GPU instance>/<compute instance>."""
    if token.startswith("MIG-GPU-"):
        parent, _, ids = token.removeprefix("MIG-").partition("/")
        for gpu in gpus:
            if gpu.mig_parent == parent and gpu.mig_ids is not None:
                first, second = gpu.mig_ids
                if ids == f"{first}/{second}":
                    return gpu
        return None
    if not token.startswith(("GPU-", "MIG-")):
        return None
    matching = [gpu for gpu in gpus if gpu.uuid.startswith(token)]
    if not matching and token.startswith("GPU-"):
        matching = [gpu for gpu in gpus if gpu.mig_parent == token][:1]
    return matching[0] if len(matching) == 1 else None
