"""How far `vllm bench serve` has come, out of its log: tqdm bars, phrases, last words. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

STAGES = ("preparing", "warming up", "measuring")
# What begins a stage, and what ends a measurement.
_PHRASES = {
    b"Warming up with": "warming up",
    b"Starting main benchmark run": "measuring",
    b" Serving Benchmark Result ": "",
}
_MARK = re.compile(rb"(?P<phrase>" + b"|".join(_PHRASES) + rb")|(?P<done>\d+)/(?P<total>\d+) \[")
_LONGEST = 80
_FRAME = re.compile(r"^(?:\s|\^|~|File \"|Traceback|During handling|The above exception)")


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """`stage` is one of STAGES; `done` of `total` requests of that stage (None: not yet said).
    `repeat` of `repeats` measurements, from 1."""

    stage: str
    done: int = 0
    total: int | None = None
    repeat: int = 1
    repeats: int = 1

    @property
    def overall(self) -> tuple[int, int | None]:
        """Requests done and to do, over all measurements while it measures."""
        if self.stage != "measuring" or self.total is None:
            return self.done, self.total
        return (self.repeat - 1) * self.total + self.done, self.repeats * self.total

    @property
    def rank(self) -> tuple[int, int, int]:
        """Never less than that of what was seen before: (repeat, stage, done)."""
        return self.repeat, STAGES.index(self.stage), self.done


class ProgressReader:
    """Feed it the log of all measurements of one process as it grows.

    Which measurement goes on is read from the same log, so that it never runs ahead of the count:
    a stage that does not follow the present one begins the next measurement."""

    def __init__(self, repeats: int = 1) -> None:
        self._repeats = repeats
        self._now = BenchProgress(STAGES[0], repeats=repeats)
        self._over = True  # bars count only within a stage
        self._rest = b""

    def feed(self, data: bytes) -> BenchProgress:
        """What is known with this too."""
        text, end = self._rest + data, 0
        for match in _MARK.finditer(text):
            end = match.end()
            if match["phrase"] is not None:
                self._reach(_PHRASES[match["phrase"]])
            elif not self._over:
                self._count(int(match["done"]), int(match["total"]))
        # A phrase or a bar may be cut by the end of what was written so far.
        self._rest = text[max(end, len(text) - _LONGEST) :]
        return self._now

    def finish(self, requests: int) -> BenchProgress:
        """All measurements have left their results, the last of so many requests."""
        self._now = BenchProgress("measuring", requests, requests, self._repeats, self._repeats)
        return self._now

    @property
    def now(self) -> BenchProgress:
        return self._now

    def _reach(self, stage: str) -> None:
        self._over = not stage
        if self._over:
            return
        follows = STAGES.index(stage) > STAGES.index(self._now.stage)
        repeat = self._now.repeat + (not follows)
        if repeat <= self._repeats:
            self._now = BenchProgress(stage, 0, None, repeat, self._repeats)

    def _count(self, done: int, total: int) -> None:
        now = self._now
        if done >= now.done and done <= total:
            self._now = BenchProgress(now.stage, done, total, now.repeat, now.repeats)


def last_words(log: bytes) -> str:
    """The line of a failed benchmark's log that says why: the last exception, else the last
    error that argparse printed, else the last line."""
    lines = [
        line.rpartition("\r")[2].rstrip()
        for line in log.decode("utf-8", "replace").splitlines()
        if line.strip()
    ]
    said = [line for line in lines if not _FRAME.match(line)]
    for line in reversed(said):
        if re.match(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b", line) or ": error: " in line:
            return line[:400]
    return said[-1][:400] if said else "it said nothing"
