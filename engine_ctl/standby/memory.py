"""Whether the host has memory for a standby."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
# Proportional set of a standby of vLLM 0.32 on the CPU: 0.65 GB; CUDA adds its libraries.
DEFAULT_COST = GIB
# What must stay available: loading weights and compiling need it, and the kernel's OOM killer
# would take the engine rather than the standby.
FLOOR_SHARE = 0.08
FLOOR_BYTES = 2 * GIB


def host_memory() -> tuple[int | None, int | None]:
    """(available, total) bytes as the kernel counts them; None where procfs does not say."""
    found: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemAvailable", "MemTotal"):
                found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None, None
    return found.get("MemAvailable"), found.get("MemTotal")


@dataclass(frozen=True, slots=True)
class Keep:
    keep: bool
    why: str


def floor(total: int | None) -> int:
    """Bytes that must stay available on a host with `total` bytes of memory."""
    return FLOOR_BYTES if total is None else max(FLOOR_BYTES, int(total * FLOOR_SHARE))


def may_keep(available: int | None, total: int | None, cost: int) -> Keep:
    """May one more standby of `cost` bytes be started? Unknown memory allows it."""
    if available is None:
        return Keep(True, "the host does not say how much memory is available")
    left = available - cost
    if left < floor(total):
        return Keep(
            False,
            f"it needs {cost / GIB:.1f} GiB and {available / GIB:.1f} GiB are available, "
            f"of which {floor(total) / GIB:.1f} GiB stay for engines",
        )
    return Keep(True, f"{left / GIB:.1f} GiB stay available")


def to_stop(
    costs: Sequence[tuple[str, int | None]], available: int | None, total: int | None
) -> list[str]:
    """Which standbys to end so that the floor holds again: in the order given (oldest use
    first), no more than needed. `costs` are (unit, bytes; None: unknown, counted as usual)."""
    if available is None:
        return []
    ended = []
    for unit, cost in costs:
        if available >= floor(total):
            break
        available += DEFAULT_COST if cost is None else cost
        ended.append(unit)
    return ended
