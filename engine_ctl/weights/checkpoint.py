"""How large a model's checkpoint is: the one reading that every question about room starts from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_ctl.errors import Failed
from engine_ctl.weights import content

_SIXTEEN_BITS = ("float16", "bfloat16")
_INDEXES = {
    ".safetensors": "model.safetensors.index.json",
    ".bin": "pytorch_model.bin.index.json",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`bytes` of the files that vLLM reads. `once`: they are the model's weights once, for sure;
    `as_they_are`: what lies in memory is not smaller (16 bits, or quantised already)."""

    bytes: int
    once: bool
    as_they_are: bool


def measure(directory: Path) -> Checkpoint | None:
    """The checkpoint in `directory`; None where there is none, or it cannot be read."""
    try:
        files = [p for p in content.weight_files(directory) if p.suffix != ".json"]
        kind = files[0].suffix if files else ""
        parts = _json(directory / _INDEXES.get(kind, "")).get("weight_map")
        if isinstance(parts, dict):  # beside them there may be the same weights in another form
            names = set(parts.values())
            files = [p for p in files if p.name in names]
        size = sum(path.stat().st_size for path in files)
    except (Failed, OSError):
        return None
    if not size:
        return None
    config = _json(directory / "config.json")
    dtype = config.get("torch_dtype") or config.get("dtype")
    quantised = isinstance(config.get("quantization_config"), dict)
    once = kind == ".safetensors" and (isinstance(parts, dict) or len(files) == 1)
    return Checkpoint(size, once, quantised or dtype in _SIXTEEN_BITS)


def of(model: str, args: Mapping[str, Any], env: Mapping[str, str]) -> Checkpoint | None:
    """That of a model by path or hub name, at the revision in `args`; None where it is not on this
    machine. `env` is the whole environment of who loads it."""
    revision = args.get("revision")
    where = content.model_directory(model, str(revision) if revision else None, env)
    return None if where is None else measure(where)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
