"""Errors that reach the operator: one line that says what to do, and an exit code.

Exit codes (DESIGN: what scripts may rely on): 0 done, 1 failed, 2 usage, 3 not found, 4 busy.
"""


class StokerError(Exception):
    """Base of every error shown to an operator. `str(error)` is one line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Failed(StokerError):
    """The operation was tried and did not succeed."""


class Usage(StokerError):
    """The request itself is wrong: nothing was tried."""

    exit_code = 2


class NotFound(StokerError):
    """A named unit, run, profile or runtime does not exist."""

    exit_code = 3


class Busy(StokerError):
    """Another operation holds the unit, or a resource is in use."""

    exit_code = 4
