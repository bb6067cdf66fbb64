"""From a cause to a change of the profile that mends it, where the log gives the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from engine_ctl.answers import Fix
from engine_ctl.model import Cause
from profiles.model import Profile

UTILISATION_DEFAULT = 0.92
SEQS_DEFAULT = 256
STEP = 0.03


def fixes_for(cause: Cause, profile: Profile) -> tuple[Fix, ...]:
    """Proposed values for argument names of the profile, most promising first; () for none."""
    make = _MAKERS.get(cause.category)
    return tuple(make(cause, profile.args)) if make is not None else ()


def _utilisation(args: Mapping[str, Any]) -> float:
    value = args.get("gpu_memory_utilization", UTILISATION_DEFAULT)
    return float(value) if isinstance(value, (int, float)) else UTILISATION_DEFAULT


def _lower_utilisation(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    now = _utilisation(args)
    return [Fix("gpu_memory_utilization", f"{now:g}", f"{max(0.1, now - STEP):.2f}")]


def _higher_utilisation(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    given = args.get("kv_cache_memory_bytes")
    if given is not None:  # vLLM then looks at no utilisation
        return [Fix("kv_cache_memory_bytes", str(given), "null")]
    now = _utilisation(args)
    if now >= 0.97:
        return []
    return [Fix("gpu_memory_utilization", f"{now:g}", f"{min(0.97, now + STEP):.2f}")]


def _fewer_sequences(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    now = args.get("max_num_seqs", SEQS_DEFAULT)
    number = now if isinstance(now, int) else SEQS_DEFAULT
    return [Fix("max_num_seqs", str(now), str(max(1, number * 3 // 4 // 8 * 8 or number // 2)))]


def _graphs(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    return [*_lower_utilisation(cause, args), *_fewer_sequences(cause, args)]


def _estimated_length(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    text = f"{cause.hint}\n{cause.line}\n" + "\n".join(cause.evidence)
    found = re.search(r"estimated maximum model length is (\d+)", text) or re.search(
        r"max_model_len\D{0,20}?(\d{2,})", cause.hint
    )
    fixes = []
    if found:
        now = args.get("max_model_len", "–")
        fixes.append(Fix("max_model_len", str(now), found.group(1)))
    return [*fixes, *_higher_utilisation(cause, args)]


def _fitting_utilisation(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    found = re.search(r"(?:utili[sz]ation\D{0,40})(0\.\d+)", cause.hint)
    now = _utilisation(args)
    proposed = found.group(1) if found else f"{max(0.1, now - STEP):.2f}"
    return [Fix("gpu_memory_utilization", f"{now:g}", proposed)]


def _derived_length(cause: Cause, args: Mapping[str, Any]) -> list[Fix]:
    found = re.search(r"max_position_embeddings\D{1,4}(\d+)", cause.line) or re.search(
        r"(\d{3,})", cause.hint
    )
    if not found:
        return []
    return [Fix("max_model_len", str(args.get("max_model_len", "–")), found.group(1))]


_MAKERS: dict[str, Callable[[Cause, Mapping[str, Any]], list[Fix]]] = {
    "oom_kv_alloc": _lower_utilisation,
    "oom_graph_capture": _graphs,
    "oom_sampler_warmup": lambda cause, args: [
        *_fewer_sequences(cause, args),
        *_lower_utilisation(cause, args),
    ],
    "kv_no_memory": _higher_utilisation,
    "kv_too_small_for_max_model_len": _estimated_length,
    "gpu_memory_busy": _fitting_utilisation,
    "max_model_len_over_model": _derived_length,
}
