"""The next start of a run out of a standby, asked for by the shim of the run that has ended.

Whoever holds shim.lock in the run's directory decides: the standby's shim takes it before its
engine may begin. So when the answer is late or lost, either that shim has the run, or the lock is
taken back and its engine can never begin. Never two, whatever is killed when.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import _socket
import json
import os
import struct
import sys
import time
from collections import namedtuple

from engine_ctl.standby.environment import passed_on, vllm_words
from engine_ctl.supervise import disk, remains
from engine_ctl.supervise.spawn import SpawnError, environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELLO_S = 2.0
BECOME_S = 10.0
# For a shim that has begun in the run's directory to show itself or to leave.
SETTLE_S = 20.0
_ANSWER_LIMIT = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

# `shim` is the pid that watches the engine now; None: none was started, and `why` says why.
Answer = namedtuple("Answer", "shim why")


def named(spec: dict[str, Any]) -> bool:
    """Whether the run's spec names a standby."""
    return bool(spec.get("standby_socket") and spec.get("standby_identity"))


def ask(spec: dict[str, Any], run_dir: str, script: str) -> Answer:
    """Let the standby that `spec` names start the run in `run_dir` under a shim (`script`).

    Nobody may hold the run's shim.lock. An answer without a shim leaves open whether one begins
    later: see `take_back`."""
    try:
        env = environment(spec, run_dir, dict(os.environ))
        words = vllm_words(spec["argv"])
    except (SpawnError, ValueError) as error:
        return Answer(None, str(error))
    own = {*spec.get("env", ()), *spec.get("env_refs", ())}
    order = {
        "op": "become",
        "argv": words,
        "env": passed_on(remains.provide(env, spec, run_dir), own),
        "run_dir": run_dir,
        "shim": script,
        "shim_python": sys.executable,
        "log": f"{run_dir}/log",
        "cwd": spec.get("cwd"),
        "method": "auto",
    }
    try:
        connection = _connected(spec["standby_socket"])
    except OSError as error:
        return Answer(None, f"no standby answers: {error.strerror or error}")
    try:
        hello = _exchange(connection, {"op": "hello", "brief": True}, HELLO_S)
        problem = _stranger(hello, spec)
        if problem:
            return Answer(None, problem)
        answer = _exchange(connection, order, BECOME_S)
    except (OSError, ValueError) as error:
        return Answer(None, f"the standby did not answer: {error}")
    finally:
        connection.close()
    if answer.get("ok") is True and isinstance(answer.get("shim"), int):
        return Answer(answer["shim"], "")
    refusal = answer.get("error")
    why = refusal.get("message") if isinstance(refusal, dict) else None
    return Answer(None, str(why or "the standby refused"))


def take_back(run_dir: str) -> int | None:
    """The held shim.lock of a run that was to come from a standby and did not, with nothing of
    that attempt left; None when a shim has the run after all."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        lock = disk.try_lock(f"{run_dir}/shim.lock")
        if os.path.exists(f"{run_dir}/identity.json"):
            if lock is not None:
                os.close(lock)
            return None
        if lock is not None:
            disk.remove(f"{run_dir}/exit.json")
            return lock
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)


def _connected(path: str) -> _socket.socket:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(HELLO_S)
        connection.connect(path)
        raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] != os.geteuid():
            raise PermissionError(1, "somebody else listens there")
    except OSError:
        connection.close()
        raise
    return connection


def _stranger(hello: dict[str, Any], spec: dict[str, Any]) -> str:
    """Why whoever answers is not the standby that the run needs; "" when it is."""
    if hello.get("identity") != spec["standby_identity"]:
        return "another standby answers there"
    if hello.get("version") != spec.get("runtime_version"):
        return f"the standby has vLLM {hello.get('version')}"
    return ""


def _exchange(
    connection: _socket.socket, request: dict[str, Any], limit_s: float
) -> dict[str, Any]:
    """One line there, one line back. Raises OSError, ValueError."""
    deadline = time.monotonic() + limit_s
    connection.settimeout(limit_s)
    connection.sendall(json.dumps(request).encode() + b"\n")
    data = b""
    while b"\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"nothing within {limit_s:g} s")
        connection.settimeout(left)
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        data += chunk
        if len(data) > _ANSWER_LIMIT:
            raise ValueError("its answer is too long")
    answer = json.loads(data.partition(b"\n")[0])
    if not isinstance(answer, dict):
        raise ValueError("its answer is no object")
    return answer
