"""Talks to weight-cache daemons over their Unix sockets, in the runtime's own process.

The protocol is pickle, so the console never speaks it. Answers are unpickled with every class
forbidden but plain containers: `get_memory` and `watch` need no more, and a key is only ever sent.

    weight_cache_client.py status SOCKET...     one JSON line a socket
    weight_cache_client.py ready SOCKET...      exit status 0 when every daemon answers; else a line
    weight_cache_client.py release SOCKET       asks the daemon to drop its weights
    weight_cache_client.py watch SOCKET...      a JSON line when watched, one when a daemon ends
    weight_cache_client.py features             what this vLLM's weight cache can do (imports vllm)

In a standby: `daemon_status(socket, key=...)` also says which fields of a key the daemon does not
agree with, without making it export anything.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import pickle
import selectors
import socket
import stat
import struct
import sys
import time
from typing import Any

LENGTH = struct.Struct("!Q")
ANSWER_LIMIT = 1 << 20
TIMEOUT_S = 5.0
# No daemon has these values: a query that carries one is a mismatch, so nothing is exported.
SENTINEL = "stoker-query"


class Unanswered(Exception):
    """A request that got no usable answer. `state` is a word of `daemon_status`."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the answer names {module}.{name}")


def request(path: str, message: dict[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Send one request and return the daemon's answer. Raises Unanswered."""
    with connect(path, timeout_s) as conn:
        return exchange(conn, message, time.monotonic() + timeout_s)


def connect(path: str, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Connect to a socket that is ours. Raises Unanswered."""
    refuse_unsafe(path)
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    conn.settimeout(timeout_s)
    try:
        conn.connect(path)
        uid = struct.unpack(
            "3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )[1]
    except OSError as error:
        conn.close()
        raise _unanswered(path, error) from None
    if uid != os.geteuid():
        conn.close()
        raise Unanswered("unsafe", f"the daemon at {path} runs as uid {uid}")
    return conn


def refuse_unsafe(path: str) -> None:
    """Raise Unanswered unless directory and socket are ours alone."""
    directory = os.path.dirname(path)
    try:
        above, info = os.lstat(directory), os.lstat(path)
    except OSError as error:
        raise _unanswered(path, error) from None
    if not stat.S_ISDIR(above.st_mode):
        raise Unanswered("unsafe", f"{directory} is a symlink or no directory")
    if above.st_mode & 0o022:
        raise Unanswered("unsafe", f"{directory} is writable by others")
    if not stat.S_ISSOCK(info.st_mode):
        raise Unanswered("stale", f"{path} is no socket")
    for what, owner in ((directory, above.st_uid), (path, info.st_uid)):
        if owner != os.geteuid():
            raise Unanswered("unsafe", f"{what} belongs to uid {owner}")


def exchange(conn: socket.socket, message: dict[str, Any], deadline: float) -> dict[str, Any]:
    """One request and its answer over a connection, all of it before `deadline` (monotonic)."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        conn.sendall(LENGTH.pack(len(payload)) + payload)
        (length,) = LENGTH.unpack(_receive(conn, LENGTH.size, deadline))
        if length > ANSWER_LIMIT:
            raise Unanswered("garbage", f"the answer claims {length} bytes")
        data = _receive(conn, length, deadline)
    except TimeoutError:
        raise Unanswered("silent", "the daemon accepts connections but does not answer") from None
    except OSError as error:
        raise Unanswered("gone", f"the daemon closed the connection ({error.strerror})") from None
    try:
        answer = _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise Unanswered("garbage", f"the answer is not a daemon's: {error}") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("status"), str):
        raise Unanswered("garbage", "the answer is not a daemon's: no status")
    return answer


def _receive(conn: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        conn.settimeout(left)
        chunk = conn.recv(min(1 << 16, count - len(data)))
        if not chunk:
            raise Unanswered("gone", "the daemon closed the connection without an answer")
        data += chunk
    return bytes(data)


def _unanswered(path: str, error: OSError) -> Unanswered:
    if isinstance(error, TimeoutError) or error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
        return Unanswered("silent", f"{path} does not accept connections")
    states = {
        errno.ENOENT: "missing",
        errno.ENOTDIR: "missing",
        errno.ECONNREFUSED: "stale",
        errno.EACCES: "unsafe",
        errno.EPERM: "unsafe",
    }
    return Unanswered(states.get(error.errno or 0, "gone"), f"{path}: {error.strerror}")


def daemon_status(
    path: str, key: dict[str, str | None] | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What the daemon behind a socket says of itself.

    `state`: serving, released, missing, stale (nobody listens), silent (accepts, never answers),
    garbage (not a daemon), gone (hung up), unsafe (not ours alone), error (it refused). With
    `key` (field → text, as `check` gives it) also `mismatched`: fields that the daemon's key and
    this one do not share, None when it could not be asked; needs vllm. `memory_bytes` of weights.
    """
    out: dict[str, Any] = {
        "socket": path,
        "state": "serving",
        "message": "",
        "memory_bytes": None,
        "mismatched": None,
    }
    try:
        answer = request(path, {"cmd": "get_memory"}, timeout_s)
        if answer["status"] != "ok" or not isinstance(answer.get("memory_bytes"), int):
            raise Unanswered("error", str(answer.get("message", answer["status"])))
        out["memory_bytes"] = answer["memory_bytes"]
        if answer["memory_bytes"] == 0:
            out["state"] = "released"
        if key is not None:
            out["mismatched"] = mismatched_fields(path, key, timeout_s)
    except Unanswered as reason:
        out["state"], out["message"] = reason.state, str(reason)
    return out


def not_ready(paths: list[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Why the daemons behind these sockets do not all answer: the first one that does not. None
    when they do. Released weights and a refusal are answers of a daemon."""
    for path in paths:
        status = daemon_status(path, timeout_s=timeout_s)
        if status["state"] not in ("serving", "released", "error"):
            message = status["message"] or status["state"]
            return message if path in message else f"{path}: {message}"
    return None


def mismatched_fields(
    path: str, key: dict[str, str | None], timeout_s: float = TIMEOUT_S
) -> list[str] | None:
    """Fields in which the daemon's key differs from `key`; None when `key` is not of this vLLM.

    Raises Unanswered (`error`: it speaks another version of the protocol). Asked twice with
    another field made impossible each time, so that the daemon always answers with the names of
    fields: a key that fits would make it export its weights to nobody.
    """
    from vllm.model_executor.model_loader.weight_cache import protocol

    fields = {f: t for f, t in protocol.WeightCacheKey.__annotations__.items() if f != "return"}
    missing = [name for name in fields if name not in key]
    if missing:
        return None
    typed = {name: _typed(key[name], str(fields[name])) for name in fields}
    found: set[str] = set()
    for impossible in ("checkpoint", "model_arch"):
        asked = protocol.WeightCacheKey(**{**typed, impossible: SENTINEL})
        # 0.32 calls the key cache_config, 0.33 cache_key.
        answer = request(
            path, {"cmd": "get_state", "cache_config": asked, "cache_key": asked}, timeout_s
        )
        if answer["status"] != "mismatch":
            raise Unanswered("error", str(answer.get("message", answer["status"])))
        found |= {str(name) for name in answer.get("fields", ())} - {impossible}
    return sorted(found)


def _typed(text: str | None, annotation: str) -> Any:
    if text is None or annotation in ("str", "<class 'str'>", "str | None"):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def release(path: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Ask a daemon to drop its weights: `{"state": "released" | …, "message"}`."""
    try:
        answer = request(path, {"cmd": "release"}, timeout_s)
    except Unanswered as reason:
        return {"socket": path, "state": reason.state, "message": str(reason)}
    state = "released" if answer["status"] == "ok" else "error"
    return {"socket": path, "state": state, "message": str(answer.get("message", ""))}


def watch(paths: list[str]) -> None:
    """Print a line for every daemon when it is watched, and one when it ends. Returns when all
    have. Daemons that do not know the request (0.31, 0.32 on a GPU) are told as `unwatchable`."""
    selector = selectors.DefaultSelector()
    for path in paths:
        try:
            conn = connect(path)
            answer = exchange(conn, {"cmd": "watch"}, time.monotonic() + TIMEOUT_S)
        except Unanswered as reason:
            _say({"socket": path, "state": reason.state, "message": str(reason)})
            continue
        if answer["status"] != "ok":
            conn.close()
            _say({"socket": path, "state": "unwatchable", "message": str(answer.get("message"))})
            continue
        selector.register(conn, selectors.EVENT_READ, path)
        _say({"socket": path, "state": "watched", "message": ""})
    while selector.get_map():
        for event, _ in selector.select():
            conn = event.fileobj  # type: ignore[assignment]
            try:
                data = conn.recv(1)
            except OSError:
                data = b""
            if not data:
                selector.unregister(conn)
                conn.close()
                _say({"socket": event.data, "state": "ended", "message": ""})


def features() -> dict[str, Any]:
    """What the installed vLLM's weight cache can do, read from its own code and names."""
    import importlib
    import inspect

    import vllm
    from vllm.platforms import current_platform

    cache = "vllm.model_executor.model_loader.weight_cache"
    out: dict[str, Any] = {
        "version": vllm.__version__,
        "platform": "cpu" if current_platform.is_cpu() else str(current_platform.device_type),
        "preload": _has("vllm.entrypoints.cli.preload"),
        "ipc_cache": _has(f"{cache}.ipc_loader"),
        "seeding": _has(f"{cache}.seed"),
        "key_fields": [],
        "pipeline_parallel": False,
        "watch": False,
        "counts_weights_in_budget": False,
        "refuses_eplb": False,
        "dense_dp": False,
        "platform_supported": False,
    }
    if not out["ipc_cache"]:
        return out
    protocol = importlib.import_module(f"{cache}.protocol")
    loader = importlib.import_module(f"{cache}.ipc_loader")
    out["key_fields"] = [n for n in protocol.WeightCacheKey.__annotations__ if n != "return"]
    out["pipeline_parallel"] = "pp_rank" in out["key_fields"]
    out["watch"] = hasattr(loader.IpcModelLoader, "_watch_daemon") or current_platform.is_cpu()
    out["counts_weights_in_budget"] = hasattr(loader.IpcModelLoader, "get_external_weight_memory")
    daemon = importlib.import_module(f"{cache}.daemon")
    out["dense_dp"] = hasattr(daemon, "get_engine_dp_placement")
    out["refuses_eplb"] = "eplb" in inspect.getsource(loader).lower()
    try:
        loader.check_ipc_platform_support()
        out["platform_supported"] = True
    except Exception as error:
        out["platform_note"] = str(error)
    return out


def _has(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def quantization_support(method: str) -> dict[str, Any]:
    """Whether a quantization method's layers take pre-processed weights: `support` is all, some,
    none or unknown, by the classes of its module. `some` is decided by the layers of the model."""
    import importlib
    import inspect

    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    try:
        module = importlib.import_module(get_quantization_config(method).__module__)
    except Exception as error:
        return {"method": method, "support": "unknown", "note": str(error)}
    flags = {
        name: bool(getattr(value, "supports_pre_processed_weights", False))
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, QuantizeMethodBase)
        and value.__module__ == module.__name__
    }
    support = "unknown"
    if flags:
        support = "all" if all(flags.values()) else "some" if any(flags.values()) else "none"
    return {"method": method, "support": support, "classes": flags}


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    command, paths = (argv[0], argv[1:]) if argv else ("", [])
    if command == "status" and paths:
        for path in paths:
            _say(daemon_status(path))
    elif command == "ready" and paths:
        why = not_ready(paths)
        if why is not None:
            sys.stdout.write(why + "\n")
            return 1
    elif command == "release" and len(paths) == 1:
        _say(release(paths[0]))
    elif command == "watch" and paths:
        watch(paths)
    elif command == "features":
        _register_cpu_plugin()
        _say(features())
    elif command == "compare" and len(paths) == 1:
        for path, key in json.loads(paths[0]):
            _say(daemon_status(path, key))
    elif command == "quantization" and paths:
        _say(quantization_support(paths[0]))
    else:
        sys.stderr.write(
            "usage: weight_cache_client.py status|ready|compare|release|watch|features …\n"
        )
        return 2
    return 0


def _register_cpu_plugin() -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
