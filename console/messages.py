"""Messages from threads to the app: workers post, handlers change widgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.message import Message

from engine_ctl.model import Snapshot


class SnapshotArrived(Message):
    """The feed has a newer snapshot; only the newest in the queue counts."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


class TailMoved(Message):
    """The end of the watched log is another one."""

    def __init__(self, path: str | None, lines: tuple[str, ...]) -> None:
        super().__init__()
        self.path = path
        self.lines = lines

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, TailMoved)


class OperationEnded(Message):
    """An operation on `unit` came back: with one line, or with an error."""

    def __init__(self, verb: str, unit: str, text: str, error: bool) -> None:
        super().__init__()
        self.verb = verb
        self.unit = unit
        self.text = text
        self.error = error


class Answered(Message):
    """A question came back; `then` runs in the app's thread with the value or the error."""

    def __init__(self, then: Callable[[Any, str | None], None], value: Any, error: str | None):
        super().__init__()
        self.then = then
        self.value = value
        self.error = error
