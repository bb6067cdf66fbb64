"""Interrupted swaps are gone on with by the next `stoker` that looks. Imports little for `ps`."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from engine_ctl.operations.context import Context
from engine_ctl.swap import journal


def resume_in_background(ctx: Context) -> list[str]:
    """Let processes of their own go on with interrupted swaps; the units concerned.

    Every command that looks calls this, so that a killed `stoker` is mended by the next one.
    """
    units = []
    for record in journal.unfinished(ctx.store):
        with contextlib.suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-P", "-m", "console.main", "swap", record.unit, "--resume"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            units.append(record.unit)
    return units
