"""Runtimes that are there already: beside Stoker, and behind a `vllm` on PATH."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path


def beside_us() -> str | None:
    """Our own interpreter when vLLM is installed in it (extras `cpu` and `cuda`), else None."""
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


def interpreter_of(script: Path) -> str | None:
    """The interpreter that a console script starts: its shebang, `env` and long-path forms too."""
    try:
        head = script.read_bytes()[:4096]
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first = head.split(b"\n", 1)[0].decode(errors="replace")[2:].strip()
    if re.fullmatch(r"/\S*/env(\s+-S)?\s+\S+", first):
        return shutil.which(first.split()[-1])
    if first.endswith("/sh"):
        match = re.search(rb"'''exec' (?:\"([^\"\n]+)\"|(\S+))", head)
        return (match[1] or match[2]).decode(errors="replace") if match else None
    return first.split(" ")[0]


def on_path() -> str | None:
    """The interpreter behind the `vllm` command on PATH, or None."""
    found = shutil.which("vllm")
    return interpreter_of(Path(found)) if found else None


def nvidia_driver() -> bool:
    """Is a usable NVIDIA driver loaded here (without NVML, which may be missing)?"""
    return Path("/proc/driver/nvidia/version").exists()
