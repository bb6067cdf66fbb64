"""How far `vllm bench serve` has come, out of its log: tqdm bars, phrases, last words. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAIN = b"Starting main benchmark run"
WARM = b"Warming up with"
_BAR = re.compile(rb"(\d+)/(\d+) \[")
_FRAME = re.compile(r"^(?:\s|\^|~|File \"|Traceback|During handling|The above exception)")


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """`stage` is preparing, warming up or measuring; `done` of `total` requests (None: not yet
    said). `repeat` of `repeats` measurements, from 1."""

    stage: str
    done: int = 0
    total: int | None = None
    repeat: int = 1
    repeats: int = 1


class ProgressReader:
    """Feed it the log as it grows."""

    def __init__(self) -> None:
        self._stage = "preparing"
        self._rest = b""
        self._done, self._total = 0, None

    _total: int | None

    def feed(self, data: bytes) -> None:
        text = self._rest + data
        for word, stage in ((WARM, "warming up"), (MAIN, "measuring")):
            at = text.rfind(word)
            if at >= 0:
                self._stage, self._done, self._total = stage, 0, None
                text = text[at + len(word) :]
        for match in _BAR.finditer(text):
            if self._stage != "preparing":
                self._done, self._total = int(match[1]), int(match[2])
        # A phrase or a bar may be cut by the end of what was written so far.
        self._rest = text[-80:]

    def now(self, repeat: int = 1, repeats: int = 1) -> BenchProgress:
        return BenchProgress(self._stage, self._done, self._total, repeat, repeats)


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
