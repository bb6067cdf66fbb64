"""Ask an interpreter what vLLM it has, by importing it there (seconds, so never on a hot path)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import msgspec

from engine_ctl.errors import Failed

PROBE = """
import json, os, sys
import vllm
from vllm.platforms import current_platform as p
import torch
name = "cuda" if p.is_cuda() else "rocm" if p.is_rocm() else "cpu" if p.is_cpu() else (
    getattr(p, "device_type", "") or type(p).__name__.replace("Platform", "").lower())
import importlib.metadata as m
try:
    dist = m.version("vllm")
except m.PackageNotFoundError:
    dist = None
print("STOKER " + json.dumps(dict(version=vllm.__version__, dist=dist, platform=name,
    torch=torch.__version__, package=os.path.dirname(vllm.__file__),
    python=list(sys.version_info[:3]))))
"""


class Probed(msgspec.Struct, frozen=True):
    """What an interpreter said. `dist` is the version that importlib.metadata finds (None: none,
    which vLLM itself trips over), `package` the directory of the vllm package."""

    version: str
    dist: str | None
    platform: str
    torch: str
    package: str
    python: tuple[int, int, int]


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what would make another interpreter read our packages."""
    drop = {"PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"}
    return {k: v for k, v in os.environ.items() if k not in drop} | dict(extra)


def probe(python: str, extra_env: Mapping[str, str], timeout_s: float = 180.0) -> Probed:
    """Import vLLM under `python` and report. Raises Failed with the last line of its error."""
    try:
        done = subprocess.run(
            [python, "-c", PROBE],
            cwd="/",  # where engines start: a checkout of vLLM beside us is not what is asked about
            env=clean_environment(extra_env) | {"VLLM_LOGGING_LEVEL": "ERROR"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except FileNotFoundError:
        raise Failed(f"{python} does not exist") from None
    except PermissionError:
        raise Failed(f"{python} is no program; name the Python of vLLM's environment") from None
    except OSError as error:
        raise Failed(f"{python} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{python} did not import vLLM within {timeout_s:.0f} s") from None
    for line in done.stdout.splitlines():
        if line.startswith("STOKER "):
            return msgspec.convert(json.loads(line[7:]), Probed)
    if not _is_python(python):
        raise Failed(f"{python} is no Python interpreter; name that of vLLM's environment")
    last = [line for line in done.stderr.splitlines() if line.strip()]
    why = last[-1].strip() if last else "no output"
    if "No module named 'vllm'" in why:
        raise Failed(
            f"{python} has no vLLM; name the Python of the environment that vLLM is in, "
            "or have one made: stoker runtime add vllm==VERSION"
        )
    raise Failed(f"{python} cannot import vLLM: {why}")


def _is_python(program: str) -> bool:
    try:
        done = subprocess.run(
            [program, "-c", "print(6 * 7)"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == b"42"
