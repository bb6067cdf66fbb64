"""What vLLM 0.33 has and 0.32 lacks: daemon children that log, and the `watch` request.

Delete this module, and its few callers, when 0.32 is no longer supported.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

_watchers: list[socket.socket] = []


def configure_child_logging(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Configure logging in a spawned daemon process of 0.32 (0.33 does it itself)."""
    from vllm.model_executor.model_loader.weight_cache import daemon

    if hasattr(daemon, "configure_logging"):
        return
    config = next(
        (
            value.logging_config
            for value in (*args, *kwargs.values())
            if getattr(value, "logging_config", None) is not None
        ),
        None,
    )
    from vllm import logger as vllm_logger

    configure = getattr(vllm_logger, "configure_logging", None)
    if config is not None and configure is not None:
        configure(config)


def handle_connection(
    server: Any,
    conn: socket.socket,
    original: Callable[[socket.socket], None],
    module: Any,
    extra: Callable[[socket.socket, dict[str, Any]], bool],
) -> None:
    """Read one request; answer ours and (0.32) `watch`, hand everything else to vLLM.

    vLLM's handler reads the request itself, so it is given the one already read.
    """
    request = module.recv_msg(conn)
    if not isinstance(request, dict):
        raise ValueError("A request must be a dictionary")
    if extra(conn, request):
        return
    if request.get("cmd") == "watch" and not hasattr(server, "_handle_watch"):
        _handle_watch(conn, module)
        return
    read = module.recv_msg
    module.recv_msg = lambda _conn: request
    try:
        original(conn)
    finally:
        module.recv_msg = read


def _handle_watch(conn: socket.socket, module: Any) -> None:
    """Keep the connection open until this process ends, and drop those of ended engines."""
    for watcher in list(_watchers):
        if select.select([watcher], [], [], 0)[0]:
            watcher.close()
            _watchers.remove(watcher)
    _watchers.append(conn.dup())
    module.send_msg(conn, {"status": "ok"})


def watch_daemon(loader: Any, logger: Any) -> None:
    """Engine side: warn as soon as the daemon that the weights came from is gone."""
    from vllm.model_executor.model_loader.weight_cache import protocol

    path = loader._resolve_socket_path()
    conn = None
    try:
        conn = loader._connect(loader.connect_timeout_s)
        protocol.send_msg(conn, {"cmd": "watch"})
        response = protocol.recv_msg(conn)
    except Exception as error:
        # The weights are mapped: a start must not fail for want of a watch.
        if conn is not None:
            conn.close()
        logger.warning("Cannot watch the weight cache daemon at %s: %s", path, error)
        return
    if response.get("status") != "ok":
        conn.close()
        logger.info("Weight cache daemon at %s does not support watching", path)
        return
    conn.settimeout(None)
    threading.Thread(
        target=_wait_for_end, args=(conn, path, logger), daemon=True, name="WeightCacheWatch"
    ).start()


def _wait_for_end(conn: socket.socket, path: str, logger: Any) -> None:
    with conn, contextlib.suppress(OSError):
        while conn.recv(1):
            pass
    logger.warning(
        "Weight cache daemon at %s exited. This engine keeps serving: the kernel keeps its "
        "mapped pages until it ends. The next start loads from disk until a daemon serves again.",
        path,
    )
