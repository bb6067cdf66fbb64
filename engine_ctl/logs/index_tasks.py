"""What an index asks of its file, here or elsewhere: blocks counted, one block looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_ctl.logs.blocks import Found, Scan, counted
from engine_ctl.logs.index_file import LogFile


class Wanted(NamedTuple):
    """Blocks to count, with the file as it was when they were asked for: its size, where its
    unfinished last line began, and the states of the scan and of the index."""

    blocks: tuple[int, ...]
    size: int
    settled: int
    version: int
    turn: int


class Counting:
    """The work on an index that needs nothing but its file: may be done anywhere."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan

    def do(self, files: Sequence[LogFile], wanted: Wanted) -> list[Found | int]:
        """Count the blocks of the only file."""
        files[0].size = wanted.size
        return counted(files[0], self.scan, wanted.blocks)


class Finding:
    """Looking at one block somewhere else, as a task."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def do(self, files: Sequence[LogFile], wanted: tuple[int, int]) -> Found:
        """The rows of a block of the only file, which has that size."""
        block, files[0].size = wanted
        return self._scan.find(files[0], block)
