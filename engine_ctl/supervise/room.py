"""Whether weights would find room on their GPUs if a daemon were started again now.

The weights of a daemon that died stay in memory while an engine maps them, so that a new daemon
needs the same once more; loading it where it does not fit would fail, and take what the engine
needs for its next request.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

from engine_ctl.supervise import aftermath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_GIB = 1 << 30


def short(needed: Mapping[str, int]) -> str | None:
    """Which of the GPUs, by UUID, has less than `needed` bytes free, in words; None where each has
    enough or it is not known."""
    if not needed:
        return None
    return lacking(needed, aftermath.gpus(aftermath.PATIENCE_S))


def lacking(needed: Mapping[str, int], gpus: Any) -> str | None:
    """The same of the GPUs of a memory record. Pure."""
    for gpu in gpus:
        bytes_needed = needed.get(gpu["uuid"])
        if bytes_needed is None or gpu["total"] is None or gpu["used"] is None:
            continue
        free = gpu["total"] - gpu["used"]
        if free < bytes_needed:
            return (
                f"GPU {gpu['index']} has {free / _GIB:.1f} GiB free, "
                f"its weights need {bytes_needed / _GIB:.1f} GiB: "
                f"{(bytes_needed - free) / _GIB:.1f} GiB are missing"
            )
    return None
