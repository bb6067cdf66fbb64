"""Recorded answers of /metrics: h200_load, cpu_spec, … and the cases M1 to M7."""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).parent.parent / "data"
CASES = tuple(sorted(path.stem for path in (_DATA / "metrics").glob("M*.txt")))
_MACHINES = {"h200": "h200-vllm-0.33.0/metrics_", "cpu": "cpu-vllm-0.32.0/metrics"}
RECORDED = (
    "h200_idle",
    "h200_load",
    "h200_after",
    "cpu_0",
    "cpu_1",
    "cpu_api2",
    "cpu_spec",
)


def page(name: str) -> bytes:
    """The body of /metrics of that name."""
    if name in CASES:
        return (_DATA / "metrics" / f"{name}.txt").read_bytes()
    machine, _, what = name.partition("_")
    if machine == "cpu" and not what.isdecimal():
        what = f"_{what}"
    return (_DATA / "recordings" / f"{_MACHINES[machine]}{what}.txt").read_bytes()
