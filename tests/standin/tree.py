"""A process tree that behaves, or misbehaves, like an engine: for tests of supervision.

    python -I -S tree.py [options]

Prints `pid NAME PID` for every process that it makes. Standard library only; starts in 20 ms.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import time


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def rename(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)


def hold(ignore_term: bool) -> None:
    """Wait for a signal that ends us."""
    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def fork(name: str, options: argparse.Namespace, depth: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if options.setsid:
        os.setsid()
    if options.rename:
        rename(options.rename)
    say(f"pid {name} {os.getpid()}")
    if depth > 1:
        fork(f"{name}.{depth - 1}", options, depth - 1)
    hold(options.children_ignore_term)
    return 0


def serve(port: int, options: argparse.Namespace, begin: float) -> None:
    """Answer /health: refused until --bind-after, 503 until --ready-after, then 200."""
    time.sleep(max(0.0, begin + options.bind_after - time.monotonic()))
    with socket.create_server(("127.0.0.1", port)) as server:
        say("listening")
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                continue
            with client:
                client.recv(4096)
                ready = time.monotonic() - begin >= options.ready_after
                status = b"200 OK" if ready else b"503 Service Unavailable"
                client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
                if ready:
                    say("healthy")


def main() -> int:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--children", type=int, default=0)
    add("--depth", type=int, default=1, help="1: children, 2: grandchildren too")
    add("--ignore-term", action="store_true")
    add("--lose-terms", type=int, default=0, help="ignore the first N SIGTERMs")
    add("--children-ignore-term", action="store_true")
    add("--setsid", action="store_true", help="children make their own session")
    add("--rename", default="")
    add("--port", type=int, default=0)
    add("--bind-after", type=float, default=0.0)
    add("--ready-after", type=float, default=0.0)
    add("--lines", type=int, default=0, help="log lines to write at once")
    add("--line-bytes", type=int, default=100)
    add("--exit-after", type=float, default=None)
    add("--code", type=int, default=0, help="exit status, also after SIGTERM")
    add("--exit-0-with-child", action="store_true", help="like vLLM: end with 0 if a child ends")
    add("--print-env", default="")
    options = parser.parse_args()
    begin = time.monotonic()
    lost = 0

    def on_term(_number: int, _frame: object) -> None:
        nonlocal lost
        lost += 1
        if lost > options.lose_terms:
            os._exit(options.code)
        say("a SIGTERM was lost")

    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else on_term)
    say(f"pid leader {os.getpid()}")
    if options.print_env:
        say(f"env {options.print_env}={os.environ.get(options.print_env)}")
    children = [fork(f"child{n}", options, options.depth) for n in range(options.children)]
    line = b"x" * (options.line_bytes - 1) + b"\n"
    for _ in range(options.lines):
        os.write(1, line)
    if options.exit_0_with_child:
        os.waitpid(children[0], 0)
        say("a child has ended; shutting down")
        os._exit(0)
    if options.exit_after is not None:
        time.sleep(options.exit_after)
        os._exit(options.code)
    if options.port:
        serve(options.port, options, begin)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
