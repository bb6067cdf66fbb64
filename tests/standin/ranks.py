"""Stand-ins of ranks of a weight-cache daemon, for tests of who holds a socket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# Holds a socket and its lock, as a rank of `vllm preload` does; says `up` when it listens.
RANK = """
import fcntl, os, socket, sys, time
path = sys.argv[1]
lock = os.open(path + ".lock", os.O_CREAT | os.O_RDWR, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
print("up", flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def serving(path: str, **env: str) -> Iterator[int]:
    """The pid of a rank that listens at `path` meanwhile."""
    argv = [sys.executable, "-I", "-S", "-c", RANK, path, "vllm", "preload", "--model", "acme/8b"]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
    with started as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()
