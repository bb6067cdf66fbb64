"""Whether a starting run is ready: its address answers, from the run's own process, and the command
that its spec names agrees. Nothing here ever waits.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""

from __future__ import annotations

import os
import select
import signal
import time

from engine_ctl.supervise import listener
from engine_ctl.supervise.probe import Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

# A command that takes longer is ended, and asked again.
COMMAND_S = 20.0
AGAIN_S = 1.0
_SAID_BYTES = 4096
_CHUNK_BYTES = 1 << 18


class Readiness:
    """Readiness of one run by `ready_url` and `ready_argv` of its spec. `mine` gives the pids of
    the run. Raises ValueError for an address that cannot be asked."""

    def __init__(self, spec: dict[str, Any], mine: Callable[[], Collection[int]]) -> None:
        self._probe = Probe(spec["ready_url"])
        self._url = spec["ready_url"]
        self._mine = mine
        argv = spec.get("ready_argv") or []
        self._command = Command(argv) if argv else None
        self._command_at = 0.0
        self._seen_strangers = 0
        self.why = ""  # what is missing although the address answers

    def step(self, ended: dict[int, int]) -> bool:
        """Go on; `ended` are wait statuses of children by pid. True once the run is ready."""
        command = self._command
        if command is not None and command.running:
            done = command.step(ended)
            if done is None:
                return False
            self._command_at = time.monotonic() + AGAIN_S
            self.why = "" if done else command.said
            return done
        if command is not None and time.monotonic() < self._command_at:
            return False
        if not self._probe.step():
            return False
        if self._is_strangers():
            return False
        if command is None:
            return True
        try:
            command.begin()
        except OSError as error:
            self._command_at = time.monotonic() + AGAIN_S
            self.why = f"cannot run {command.argv[0]}: {error.strerror or error}"
        return False

    def waits_for(self) -> list[tuple[int, int]]:
        """(file descriptor, poll events) with which it goes on."""
        if self._command is not None and self._command.running:
            return self._command.waits_for()
        answer = self._probe.waits_for()
        return [] if answer is None else [answer]

    def close(self) -> None:
        self._probe.close()
        if self._command is not None:
            self._command.end()

    @property
    def strangers(self) -> bool:
        """True when another program has answered more than once."""
        return self._seen_strangers > 1

    def _is_strangers(self) -> bool:
        address = self._probe.address
        if address is None:
            return False
        pid = listener.stranger(*address, self._mine())
        if pid is None:
            self._seen_strangers = 0
            return False
        self._seen_strangers += 1
        command = listener.command_of(pid)
        self.why = f"port {address[1]} is answered by pid {pid} ({command}), not by this run"
        return True


class Said:
    """Readiness of a run that listens nowhere, as the headless node of several: its log has one
    of these texts. Read on from where the last look ended."""

    strangers = False
    why = ""

    def __init__(self, path: str, texts: list[str]) -> None:
        self._path = path
        self._texts = [text.encode() for text in texts]
        self._longest = max(map(len, self._texts))
        self._at = 0
        self._end = b""

    def step(self, ended: dict[int, int]) -> bool:
        try:
            with open(self._path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size < self._at:
                    self._at = 0
                file.seek(self._at)
                while chunk := file.read(_CHUNK_BYTES):
                    self._at += len(chunk)
                    seen = self._end + chunk
                    if any(text in seen for text in self._texts):
                        return True
                    self._end = seen[-self._longest :]
        except OSError:
            pass
        return False

    def waits_for(self) -> list[tuple[int, int]]:
        return []

    def close(self) -> None:
        pass


class Command:
    """A short command beside the shim: it says yes by exit status 0, and why not on its output."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self._pid = 0
        self._output = -1
        self._text = b""
        self._deadline = 0.0
        self.said = ""

    @property
    def running(self) -> bool:
        return self._pid != 0

    def begin(self) -> None:
        """Raises OSError when it cannot be executed."""
        self._output, write = os.pipe()
        os.set_blocking(self._output, False)
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)
        actions = [null, (os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        self._text = b""
        self._deadline = time.monotonic() + COMMAND_S
        try:
            self._pid = os.posix_spawn(
                self.argv[0], self.argv, os.environ, file_actions=actions, setsigmask=()
            )
        except OSError:
            self._forget()
            raise
        finally:
            os.close(write)

    def step(self, ended: dict[int, int]) -> bool | None:
        """None while it runs, then whether it said yes."""
        self._read()
        if self._pid in ended:
            lines = self._text.decode(errors="replace").strip().splitlines()
            status = ended[self._pid]
            self.said = lines[-1] if lines else "its sockets do not answer"
            self._forget()
            return status == 0
        if time.monotonic() > self._deadline:
            self.end()
            self.said = "its sockets do not answer"
            return False
        return None

    def waits_for(self) -> list[tuple[int, int]]:
        return [] if self._output < 0 else [(self._output, select.POLLIN)]

    def end(self) -> None:
        """End it now, and wait for that."""
        if self._pid:
            try:
                os.kill(self._pid, signal.SIGKILL)  # ours and not waited for: nobody else's number
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        self._forget()

    def _read(self) -> None:
        try:
            while self._output >= 0:
                chunk = os.read(self._output, 512)
                if not chunk:
                    self._close()
                elif len(self._text) < _SAID_BYTES:
                    self._text += chunk
        except BlockingIOError:
            pass

    def _close(self) -> None:
        os.close(self._output)
        self._output = -1

    def _forget(self) -> None:
        self._pid = 0
        if self._output >= 0:
            self._close()
