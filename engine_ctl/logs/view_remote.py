"""The other side of `view_worker`: starts the process, asks it, applies what it answers."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.patience import TooSlow
from engine_ctl.logs.view_worker import Begin, Do, Done, Forget, Task, receive, send

# Not `-m`: messages are of the module's classes, which would then be those of `__main__`.
_PROCESS = "from engine_ctl.logs.view_worker import main; main()"
_AHEAD = 2
_ANSWER_S = 0.03
_PATIENCE_S = 0.5
_HOPELESS_S = 10.0
_MOST = 256


class Part(Protocol):
    """Something that is built out of files piece by piece, by one thread: pieces are asked for and
    answered in their order; `step` does both here. `version` changes when `task` does."""

    @property
    def files(self) -> tuple[LogFile, ...]: ...
    @property
    def left(self) -> int:
        """How many blocks of work are left, about."""

    @property
    def version(self) -> int: ...
    @property
    def may_not_end(self) -> bool:
        """Whether it is only for a process that can be killed."""

    @property
    def too_slow(self) -> bool:
        """Whether it turned out to take too long."""

    @property
    def task(self) -> Task: ...
    def ask(self, most: int) -> Any: ...
    def answer(self, wanted: Any, result: Any) -> None: ...
    def ask_again(self) -> None:
        """Forget what was asked and not answered, and all that a lost task knew."""

    def step(self) -> bool: ...
    def grow(self) -> None: ...


class _Open(NamedTuple):
    part: Part
    wanted: Any
    asked: float


class Remote:
    """A worker process. Of one thread. Raises OSError when it cannot be started or has died."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own: schedulers that share by session (autogroup) then count
                # its work as another's, and the console stays prompt.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROCESS, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                self._link.close()
                raise
        self._numbers: dict[Part, tuple[int, int]] = {}
        self._sizes: dict[Part, int] = {}
        self._open: deque[_Open] = deque()
        self._since = time.monotonic()
        self._worked: float | None = None
        self._next = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process, whatever it is at."""
        self._link.close()
        self._process.kill()
        self._process.wait()

    def ask(self, parts: Sequence[Part]) -> bool:
        """Keep it busy with what is wanted most; False when there is nothing to wait for."""
        self._forget(parts)
        for part in parts:
            while len(self._open) < _AHEAD:
                wanted = part.ask(self._sizes.get(part, 4))
                if wanted is None:
                    break
                number = self._begin(part)
                self._since = self._since if self._open else time.monotonic()
                send(self._link, Do(number, wanted))
                self._open.append(_Open(part, wanted, time.monotonic()))
        return bool(self._open)

    def _begin(self, part: Part) -> int:
        number, version = self._numbers.get(part, (-1, -1))
        if version != part.version or number < 0:
            if number >= 0:
                send(self._link, Forget(number))
            number, self._next = self._next, self._next + 1
            self._numbers[part] = number, part.version
            send(self._link, Begin(number, part.task), [f.descriptor for f in part.files])
        return number

    def _forget(self, parts: Iterable[Part]) -> None:
        for part in [p for p in self._numbers if p not in parts]:
            number, _ = self._numbers.pop(part)
            self._sizes.pop(part, None)
            send(self._link, Forget(number))

    def take(self, limit: float) -> bool:
        """Apply the next answer; False when none came within so many seconds."""
        if not select.select([self._link], [], [], limit)[0]:
            return False
        try:
            done, _ = receive(self._link)
        except EOFError as error:
            raise ConnectionResetError("the worker has died") from error
        assert isinstance(done, Done)
        self._since, self._worked = time.monotonic(), None
        part, wanted, _ = self._open.popleft()
        part.answer(wanted, done.result)
        if part in self._numbers:
            size = self._sizes.get(part, 4)
            better = int(size * _ANSWER_S / max(done.seconds, 1e-4))
            self._sizes[part] = max(1, min(better, size * 2, _MOST))
        return True

    def stuck(self, parts: Sequence[Part]) -> bool:
        """Whether it is long at something that nobody wants any more."""
        if not self._open:
            return False
        part, _, asked = self._open[0]
        return part not in parts and time.monotonic() - asked > _PATIENCE_S

    def hopeless(self, parts: Sequence[Part]) -> bool:
        """Whether it works long at something that is wanted and may not end. What it is asked for
        at once takes a fraction of a second otherwise; a busy machine may not let it work at all.
        """
        if not self._open:
            return False
        part = self._open[0].part
        if part not in parts or not part.may_not_end:
            return False
        if self._worked is None:
            self._worked = self._processor_s()
        if time.monotonic() - self._since <= _HOPELESS_S:
            return False
        return self._processor_s() - self._worked > _HOPELESS_S / 2

    def _processor_s(self) -> float:
        """Seconds of processor time that the process has used; 0 when that cannot be read."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answered(
    task: Task, files: Sequence[LogFile], wanted: Any = None, limit: float | None = None
) -> Any:
    """What a task answers, from a process of its own; from here when none can be had. With a
    `limit` in seconds never from here, and raises TooSlow when there is no answer by then."""
    remote = None
    try:
        remote = Remote()
        send(remote._link, Begin(0, task), [file.descriptor for file in files])
        send(remote._link, Do(0, wanted))
        if limit is not None and not select.select([remote._link], [], [], limit)[0]:
            raise TooSlow
        return receive(remote._link)[0].result
    except (OSError, EOFError):
        if limit is not None:
            raise TooSlow from None
        return task.do(files, wanted)
    finally:
        if remote is not None:
            remote.close()
