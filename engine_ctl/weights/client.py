"""Asks daemons and the runtime's weight cache, in the runtime's own process.

The protocol is pickle: this side only starts the script that speaks it and reads JSON lines.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import engine_ctl.inside
from engine_ctl.errors import Failed
from engine_ctl.weights.refusals import CacheFeatures, QuantizationSupport

SCRIPT = Path(engine_ctl.inside.__file__).parent / "weight_cache_client.py"
PER_SOCKET_S = 6.0
IMPORT_S = 120.0


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon behind one socket said. `state`: serving, released, missing, stale,
    silent, garbage, gone, unsafe, error. `mismatched`: fields in which its key differs from the
    one asked about, None when not asked. `memory_bytes` of weights, None when unknown."""

    socket: str
    state: str
    message: str = ""
    memory_bytes: int | None = None
    mismatched: tuple[str, ...] | None = None


def script_argv(python: str, command: str, *arguments: str) -> list[str]:
    """The one-shot client as an argument vector for a runtime's interpreter."""
    return [python, "-E", "-B", str(SCRIPT), command, *arguments]


def ready_argv(python: str, sockets: Sequence[str]) -> list[str]:
    """A command that ends with 0 when the daemon behind every socket answers; [] without any."""
    return script_argv(python, "ready", *sockets) if sockets else []


def statuses(
    python: str, sockets: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[DaemonStatus, ...]:
    """Ask the daemon behind each socket; in the order given. Imports no vLLM (tens of
    milliseconds). Raises Failed when the interpreter cannot be run."""
    if not sockets:
        return ()
    lines = _lines(
        script_argv(python, "status", *sockets), env, PER_SOCKET_S * len(sockets) + 10, check=False
    )
    found = [msgspec.convert(line, DaemonStatus) for line in lines]
    silent = [DaemonStatus(socket=s, state="silent") for s in sockets[len(found) :]]
    return (*found, *silent)


def compare(
    python: str, keys: Sequence[tuple[str, Mapping[str, str | None]]], env: Mapping[str, str]
) -> tuple[DaemonStatus, ...]:
    """Ask daemons whose fingerprint nobody kept how it differs from these: (socket, fields).
    Imports vLLM (seconds), whose own protocol it speaks; `env` as for `features`. Those that gave
    no answer are left out."""
    if not keys:
        return ()
    asked = json.dumps([[path, dict(fields)] for path, fields in keys])
    argv = [python, "-B", str(SCRIPT), "compare", asked]
    lines = _lines(argv, env, IMPORT_S + PER_SOCKET_S * len(keys), check=False)
    return tuple(msgspec.convert(line, DaemonStatus) for line in lines)


def release(python: str, socket: str, env: Mapping[str, str] | None = None) -> DaemonStatus:
    """Ask a daemon to drop its weights; it keeps its socket and answers "released" from then."""
    lines = _lines(script_argv(python, "release", socket), env, PER_SOCKET_S + 10)
    if not lines:
        raise Failed(f"no answer about {socket}")
    return msgspec.convert(lines[0], DaemonStatus)


def features(python: str, env: Mapping[str, str]) -> CacheFeatures:
    """What the runtime's weight cache can do. Imports vLLM (seconds): keep the answer.

    `env` must have the runtime's overlay on PYTHONPATH, or the CPU plugin is not seen."""
    lines = _lines([python, "-B", str(SCRIPT), "features"], env, IMPORT_S)
    if not lines:
        raise Failed(f"{python} said nothing about its weight cache")
    return msgspec.convert(lines[-1], CacheFeatures)


def quantization(python: str, method: str, env: Mapping[str, str]) -> QuantizationSupport:
    """Whether a quantization method's layers take pre-processed weights. Imports vLLM."""
    lines = _lines([python, "-B", str(SCRIPT), "quantization", method], env, IMPORT_S)
    return (
        msgspec.convert(lines[-1], QuantizationSupport)
        if lines
        else QuantizationSupport(method=method)
    )


def _lines(
    argv: list[str], env: Mapping[str, str] | None, timeout_s: float, *, check: bool = True
) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            argv,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
        output, code, stderr = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        output = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        code, stderr = 0, ""
    except OSError as error:
        raise Failed(f"{argv[0]} cannot be run: {error.strerror}") from None
    if code != 0 and check:
        last = stderr.strip().splitlines()[-1:] or ["no output"]
        raise Failed(f"the weight-cache client failed: {last[0]}")
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found
