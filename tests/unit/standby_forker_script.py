"""Run as a process by test_standby_forker: multiprocessing over a forker, without vLLM."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
from typing import Any

from engine_ctl.inside import standby_forker

WAIT_S = 100.0


def report(queue: Any, word: str) -> None:
    parent = multiprocessing.parent_process()
    queue.put((word, os.environ.get("COLOUR"), os.getppid(), parent is not None, sys.argv[-1]))


def fail(code: int) -> None:
    sys.exit(code)


def wait_for_end(pipe: Any) -> None:
    pipe.send("here")
    signal.pause()


def grandparent(queue: Any, lock: Any) -> None:
    context = multiprocessing.get_context("spawn")
    with lock:
        child = context.Process(target=report, args=(queue, "grandchild"))
        child.start()
    child.join()


def outlive(pipe: Any) -> None:
    """Say when the process that asked for this one is gone."""
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    pipe.send("parent gone")


def stay(pipe: Any) -> None:
    """Hold an end of the pipe until killed."""
    signal.pause()


def middle(target: Any, pipe: Any, signum: int) -> None:
    child = multiprocessing.get_context("spawn").Process(target=target, args=(pipe,))
    child.start()
    os.kill(os.getpid(), signum)


def _closed(pipe: Any) -> bool:
    try:
        pipe.recv()
    except EOFError:
        return True
    return False


def serve(sock: socket.socket) -> None:
    connection, _ = sock.accept()
    connection.sendall(b"served")
    connection.close()


def count() -> list[int]:
    return sorted(int(fd) for fd in os.listdir("/proc/self/fd"))


def main() -> dict[str, Any]:
    out: dict[str, Any] = {"possible": standby_forker.possible()}
    # a thread that holds a lock for ever: a fork of this very process would inherit it locked
    held = threading.Lock()
    forker = standby_forker.install(lambda: None)
    held.acquire()
    context = multiprocessing.get_context("spawn")
    out["method"] = context.get_start_method()
    queue, lock = context.Queue(), context.Lock()
    os.environ["COLOUR"] = "blue"
    child = context.Process(target=report, args=(queue, "child"), name="painter")
    child.start()
    out["child"] = queue.get(timeout=WAIT_S)
    child.join()
    out["forker_is_parent"] = out["child"][2] == forker
    nested = context.Process(target=grandparent, args=(queue, lock))
    nested.start()
    out["grandchild"] = queue.get(timeout=WAIT_S)[0]
    nested.join()
    exits = [context.Process(target=fail, args=(code,)) for code in (0, 3)]
    for process in exits:
        process.start()
        process.join()
    ours, theirs = context.Pipe()
    killed = context.Process(target=wait_for_end, args=(theirs,))
    killed.start()
    out["here"] = ours.recv()
    killed.terminate()
    killed.join(WAIT_S)
    out["exitcodes"] = [process.exitcode for process in (*exits, killed)]
    ours, theirs = context.Pipe()
    context.Process(target=middle, args=(outlive, theirs, signal.SIGABRT)).start()
    out["orphan"] = ours.recv() if ours.poll(WAIT_S) else "nothing"
    ours, theirs = context.Pipe()
    context.Process(target=middle, args=(stay, theirs, signal.SIGKILL)).start()
    theirs.close()
    # the end of the pipe is closed by the death of whoever held it
    out["killed_with_its_asker"] = ours.poll(WAIT_S) and _closed(ours)
    listener = socket.create_server(("127.0.0.1", 0))
    server = context.Process(target=serve, args=(listener,))
    server.start()
    with socket.create_connection(listener.getsockname(), WAIT_S) as connection:
        out["socket"] = connection.recv(100).decode()
    server.join()
    for process in (child, nested, *exits, killed, server):
        process.close()
    del server, process, nested, exits, killed, child
    before = count()
    many = [context.Process(target=report, args=(queue, str(i))) for i in range(100)]
    for process in many:
        process.start()
    out["many"] = len({queue.get(timeout=WAIT_S)[0] for _ in many})
    for process in many:
        process.join()
        process.close()
    out["descriptors_grew"] = len(count()) - len(before)
    out["forker"] = forker
    held.release()
    return out


if __name__ == "__main__":
    print(json.dumps(main()))
