"""Talking to a standby: one JSON line to ask, one to be answered, over its private socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from engine_ctl.errors import Failed
from engine_ctl.weights.records import RankKey
from engine_ctl.weights.refusals import QuantizationSupport

SCRIPT = Path(__file__).parents[1] / "inside" / "standby.py"
ANSWER_LIMIT = 64 << 20
ONCE_TIMEOUT_S = 300.0
# What a look at a hub without a network ends in (sockets, httpx, urllib3).
_UNREACHED = ("gaierror", "ConnectError", "ConnectTimeout", "NameResolutionError")


class Unavailable(Failed):
    """Nobody answers: no standby, one that has died, or one that does not talk sense."""


class Refused(Failed):
    """A standby that would not do it. `kind`: request, environment, stale, busy, become, …"""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Device(msgspec.Struct, frozen=True):
    """`memory` in bytes."""

    index: int
    name: str | None = None
    uuid: str | None = None
    memory: int | None = None


class Memory(msgspec.Struct, frozen=True):
    """Bytes: proportional share, resident, and what is this process's alone."""

    pss: int | None = None
    rss: int | None = None
    private_dirty: int | None = None


class Hello(msgspec.Struct, frozen=True):
    """What a standby is. `method` is how engine processes would start and `why` the reason,
    `started` how many it has started, `features` what this vLLM has (`flags`: options of serve),
    `imported` the modules that were asked for and `import_errors` those that would not."""

    version: str
    platform: str
    pid: int
    cuda_initialized: bool
    memory: Memory
    threads: list[str]
    devices: list[Device] = []
    features: dict[str, bool | list[str]] = {}
    identity: str = ""
    imported: list[str] = []
    import_errors: dict[str, str] = {}
    warm_seconds: float | None = None
    uptime_s: float | None = None
    method: str | None = None
    why: str | None = None
    started: int = 0
    python: tuple[int, int, int] | None = None


class CheckError(msgspec.Struct, frozen=True):
    """What is wrong with an argv. `stage` is parse, validate or config, `category` a name of
    `stoker why`, `nearest` the right spelling of `argument` or of its value."""

    stage: str
    category: str
    message: str
    exception: str = ""
    argument: str | None = None
    nearest: str | None = None
    allowed: list[str] | None = None
    traceback: str | None = None

    @property
    def line(self) -> str:
        """One line for an operator, with the nearest spelling where there is one."""
        if self.nearest:
            return f"{self.message}; did you mean {self.nearest}?"
        if self.exception in _UNREACHED:
            return (
                f"the model is not on this machine and its hub is out of reach ({self.message}): "
                "give a local path, or download it first"
            )
        return self.message


class Check(msgspec.Struct, frozen=True):
    """What vLLM makes of an argv.

    `effective` are resolved values, `non_default` what was asked for, `keys` where each rank's
    weights would be and under which fingerprint, `config_hash` vLLM's hash of what is compiled,
    `quantization` whether layers of the checkpoint's method take weights that are mapped,
    `environment_differs` variables that the answering process has otherwise than the engine
    would. `method` is how engine processes of this argv would start and `why` the reason (a
    standby's answer only). `cold`: answered by a process of its own, not by a standby."""

    ok: bool
    kind: str = ""
    error: CheckError | None = None
    warnings: list[str] = []
    non_default: dict[str, Any] = {}
    effective: dict[str, Any] = {}
    keys: list[RankKey] = []
    keys_note: str = ""
    config_hash: str | None = None
    quantization: QuantizationSupport | None = None
    seconds: float | None = None
    environment_differs: list[str] = []
    cuda_initialized: bool = False
    cold: bool = False
    version: str | None = None
    method: str | None = None
    why: str | None = None


class Become(msgspec.Struct, frozen=True):
    """An engine that was started. `method` is forkserver, fork or spawn, `why` the reason."""

    shim: int
    engine: int
    method: str
    why: str
    seconds: float


T = TypeVar("T")


class Client:
    """One connection. Every question raises Unavailable when no sensible answer comes in time,
    Refused when the standby would not."""

    def __init__(self, path: Path | str, timeout_s: float = 10.0) -> None:
        self.path = str(path)
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(self.path)
        except OSError as error:
            self._socket.close()
            reason = error.strerror or error
            raise Unavailable(f"no standby answers at {self.path}: {reason}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, op: str, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        """Send one request, return the whole answer."""
        answer = self._exchange({"op": op, **fields}, time.monotonic() + timeout_s)
        error = answer.get("error")
        if answer.get("ok") is not True and isinstance(error, dict) and "kind" in error:
            raise Refused(str(error["kind"]), str(error.get("message", "refused")))
        return answer

    def hello(self, timeout_s: float = 10.0, brief: bool = False) -> Hello:
        """`brief`: without its memory, which takes the kernel longer than all the rest."""
        return _typed(self.ask("hello", timeout_s, brief=brief), Hello)

    def schema(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """`{"vllm", "platform", "serve": [argument, …], "preload": [argument, …] or None}`."""
        return self.ask("schema", timeout_s)

    def check(
        self,
        argv: list[str],
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        timeout_s: float = 120.0,
    ) -> Check:
        """What vLLM makes of `argv` (`["serve", …]` or `["preload", …]`)."""
        request = {"argv": argv, "env": dict(env or {}), "cwd": cwd, "timeout": timeout_s}
        return _typed(self.ask("check", timeout_s + 5.0, **request), Check)

    def become(
        self,
        argv: list[str],
        env: Mapping[str, str],
        *,
        run_dir: Path,
        shim: Path,
        shim_python: str,
        log: Path | None = None,
        cwd: str | None = None,
        method: str = "auto",
        timeout_s: float = 60.0,
    ) -> Become:
        """Start an engine. Returns when its shim watches it; the engine has begun then."""
        answer = self.ask(
            "become",
            timeout_s,
            argv=argv,
            env=dict(env),
            run_dir=str(run_dir),
            shim=str(shim),
            shim_python=shim_python,
            log=str(log) if log else None,
            cwd=cwd,
            method=method,
        )
        return _typed(answer, Become)

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        try:
            self._socket.settimeout(max(0.1, deadline - time.monotonic()))
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._line(deadline)
        except TimeoutError:
            self.close()
            raise Unavailable(f"the standby at {self.path} does not answer") from None
        except OSError as error:
            reason = error.strerror or error
            raise Unavailable(f"the standby at {self.path} is gone: {reason}") from None
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable(f"the standby at {self.path} does not talk sense")
        return answer

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > ANSWER_LIMIT:
                raise OSError("its answer is too long")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(1 << 20)
            if not data:
                raise OSError("it closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def once(
    python: str,
    op: str,
    env: Mapping[str, str],
    request: Mapping[str, Any] | None = None,
    *,
    cwd: str | None = None,
    timeout_s: float = ONCE_TIMEOUT_S,
) -> dict[str, Any]:
    """Ask without a standby: a process of the runtime for one question, 10 s for the imports.

    `env` is the process's whole environment. Raises Failed with its last line when it fails."""
    command = [python, str(SCRIPT), "--once", op]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request or {}),
            env={**env, "VLLM_LOGGING_LEVEL": env.get("VLLM_LOGGING_LEVEL", "WARNING")},
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{python} did not answer {op} within {timeout_s:g} s") from None
    except OSError as error:
        raise Failed(f"cannot run {python}: {error.strerror or error}") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failed(f"{python} cannot answer {op}: {words[-1] if words else 'it said nothing'}")
    return answer


def check_once(
    python: str,
    argv: list[str],
    env: Mapping[str, str],
    *,
    cwd: str | None = None,
    timeout_s: float = ONCE_TIMEOUT_S,
) -> Check:
    """`Client.check` without a standby."""
    answer = once(python, "check", env, {"argv": argv}, cwd=cwd, timeout_s=timeout_s)
    return _typed({**answer, "cold": True}, Check)


def _typed(answer: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Unavailable(f"an answer of another kind than expected: {error}") from None


def answers(path: Path | str, timeout_s: float = 2.0, brief: bool = False) -> Hello | None:
    """What listens at `path` says of itself (`brief`: without its memory), None when nothing
    sensible does."""
    if not os.path.exists(path):
        return None
    try:
        with Client(path, timeout_s) as client:
            return client.hello(timeout_s, brief)
    except Failed:
        return None
