"""Looking through logs in a process of its own: the console's interpreter stays free for keys, also
on a machine where its threads have to wait for a processor.

Its argument is the descriptor of a Unix socket to the one who asks. Messages are pickles, between
two processes of one user on a socket that has no name. It ends when the other side does.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from engine_ctl.logs.index_file import LogFile

_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
MOST_FILES = 250
"""How many files one task may look at."""


class Task(Protocol):
    """What a worker does; travels as a pickle, and keeps its state where it has arrived."""

    def do(self, files: Sequence[LogFile], wanted: Any) -> Any:
        """Answer one question about the files."""


class Begin(NamedTuple):
    """Another task, of this number; the files come with it."""

    number: int
    task: Task


class Do(NamedTuple):
    """A question to a task."""

    number: int
    wanted: Any


class Forget(NamedTuple):
    """A task is no longer needed."""

    number: int


class Done(NamedTuple):
    """The answer to the oldest question that has none, and how long it took."""

    result: Any
    seconds: float


def send(link: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send a message, with open files. Raises OSError when the other side is gone."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    head = _LENGTH.pack(len(data))
    if descriptors:
        socket.send_fds(link, [head], list(descriptors))
    else:
        link.sendall(head)
    link.sendall(data)


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """The next message and the open files that came with it. Raises EOFError, OSError."""
    head, descriptors, _, _ = socket.recv_fds(link, _LENGTH.size, MOST_FILES)
    head += _exactly(link, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    return pickle.loads(_exactly(link, _LENGTH.unpack(head)[0])), descriptors


def _exactly(link: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while length:
        count = link.recv_into(view[len(data) - length :], length)
        if not count:
            raise EOFError
        length -= count
    return data


def serve(link: socket.socket) -> None:
    """Answer until the other side is gone."""
    tasks: dict[int, tuple[Task, tuple[LogFile, ...]]] = {}
    while True:
        try:
            message, descriptors = receive(link)
            match message:
                case Begin(number, task):
                    tasks[number] = task, tuple(map(LogFile.of_descriptor, descriptors))
                case Do(number, wanted):
                    task, files = tasks[number]
                    begun = time.monotonic()
                    result = task.do(files, wanted)
                    send(link, Done(result, time.monotonic() - begun))
                case Forget(number):
                    tasks.pop(number, None)
                case _:
                    raise TypeError(f"not a message: {message!r}")
        except (EOFError, ConnectionError):
            return


def main() -> None:
    # A search that never ends must not outlive the console.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    with socket.socket(fileno=int(sys.argv[1])) as link:
        serve(link)
    os._exit(0)
