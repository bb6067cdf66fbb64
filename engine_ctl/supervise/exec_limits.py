"""Whether the kernel would execute a command: what execve(2) allows of arguments and environment.

A profile with a longer one could be served out of a standby, which executes nothing, but not be
started again without one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

# MAX_ARG_STRLEN: 32 pages, with the NUL.
STRING = 32 * os.sysconf("SC_PAGE_SIZE") - 1
# A quarter of the stack's limit, of which the kernel counts at most 8 MiB as 6.
_MOST = 6 << 20
_POINTER = 8
# The path that is executed, the auxiliary vector, and the marks of the run.
_RESERVE = 8192


def problem(argv: Sequence[str], env: Mapping[str, str], *, total: int | None = None) -> str | None:
    """What is too long, in a sentence that names it; None: it can be executed. `total` bytes may be
    used (default: as this process's limit allows)."""
    option = argv[0] if argv else ""
    for word in argv:
        option = word.partition("=")[0] if word.startswith("--") else option
        if len(os.fsencode(word)) > STRING:
            return (
                f"{option} has {len(os.fsencode(word)):,} bytes, and an argument may have "
                f"{STRING:,}; put it into a file, and args: {{config: FILE}}"
            )
    pairs = [f"{name}={value}" for name, value in env.items()]
    for pair in pairs:
        if len(os.fsencode(pair)) > STRING:
            return (
                f"the variable {pair.partition('=')[0]} has {len(os.fsencode(pair)):,} bytes, and "
                f"one may have {STRING:,}"
            )
    words = [*argv, *pairs]
    used = sum(len(os.fsencode(word)) + 1 + _POINTER for word in words)
    allowed = (_limit() if total is None else total) - _RESERVE
    if used > allowed:
        return (
            f"its arguments and its environment have {used:,} bytes, and the kernel takes "
            f"{allowed:,} (a quarter of ulimit -s)"
        )
    return None


def _limit() -> int:
    said = os.sysconf("SC_ARG_MAX")
    return min(said, _MOST) if said > 0 else _MOST
