"""Which GPUs an engine sees: `CUDA_VISIBLE_DEVICES` and what its container was given."""

from __future__ import annotations

import re

from profiles.importing.draft import Draft
from profiles.model import EnvRef

_GPU = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+\Z")


def parse_gpus(text: str) -> tuple[int | str, ...] | None:
    """`0,1` or UUIDs; None when the text is neither (a reference, `all`, nothing)."""
    items = [item.strip() for item in text.split(",")]
    if items and all(item.isascii() and item.isdecimal() for item in items):
        return tuple(int(item) for item in items)
    if items and all(_GPU.match(item) for item in items):
        return tuple(items)
    return None


def visible_gpus(draft: Draft, env: dict[str, str | EnvRef]) -> tuple[int | str, ...]:
    """`CUDA_VISIBLE_DEVICES` becomes `gpus`; in a container it counts what the container has."""
    outer = draft.gpus
    value = env.get("CUDA_VISIBLE_DEVICES")
    inner = parse_gpus(value) if isinstance(value, str) else None
    if inner is not None and len(set(inner)) == len(inner):
        if outer is None:
            outer = inner
            del env["CUDA_VISIBLE_DEVICES"]
        elif all(isinstance(i, int) and i < len(outer) for i in inner):
            outer = tuple(outer[int(i)] for i in inner)
            del env["CUDA_VISIBLE_DEVICES"]
    if outer is None and isinstance(env.get("NVIDIA_VISIBLE_DEVICES"), str):
        outer = parse_gpus(str(env["NVIDIA_VISIBLE_DEVICES"]))
    if outer and isinstance(outer[0], int) and env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        del env["CUDA_DEVICE_ORDER"]
    return outer or ()
