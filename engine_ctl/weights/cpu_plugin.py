"""Puts the CPU weight-cache plugin into a runtime's overlay directory.

An overlay is first on a runtime's PYTHONPATH: vLLM finds the plugin through the metadata of a
distribution there, and nothing is installed into the runtime.
"""

from __future__ import annotations

from pathlib import Path

import engine_ctl.inside

PLUGIN_NAME = "stoker_weight_cache_cpu"
PLUGIN_VERSION = "1"
PACKAGE = "stoker_vllm"
MODULES = (
    "weight_cache_cpu",
    "weight_cache_cpu_loader",
    "weight_cache_cpu_daemon",
    "weight_cache_cpu_segment",
    "weight_cache_cpu_backports",
)
DEVICES_ENV = "STOKER_CPU_DEVICES"


def overlay_entries() -> dict[str, bytes]:
    """Files of the overlay by relative path."""
    source = Path(engine_ctl.inside.__file__).parent
    info = f"{PACKAGE}-{PLUGIN_VERSION}.dist-info"
    template = source / "data" / "weight_cache_cpu"
    entries = {f"{PACKAGE}/__init__.py": b""}
    for name in MODULES:
        entries[f"{PACKAGE}/{name}.py"] = (source / f"{name}.py").read_bytes()
    metadata = (template / "METADATA").read_text().replace("@VERSION@", PLUGIN_VERSION)
    entries[f"{info}/METADATA"] = metadata.encode()
    entries[f"{info}/entry_points.txt"] = (template / "entry_points.txt").read_bytes()
    return entries


def write_overlay(directory: Path) -> None:
    """Write the plugin into an existing overlay directory. Raises OSError."""
    for name, data in overlay_entries().items():
        path = directory / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
