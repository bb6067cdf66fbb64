"""What became of the weights at a start, and why, from the start's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from engine_ctl.logs.fallbacks import fatal_reason, reason_of
from engine_ctl.logs.lines import Record, records_of
from engine_ctl.model import Reason, Verdict

_UNUSABLE = re.compile(r"Weight cache unusable \((.*)\); falling back", re.DOTALL)
_IPC_FAILED = "Weight cache IPC loading failed; falling back"
_MAPPED = re.compile(r"Mapped (\d+) tensors from the weight cache daemon(?: \((\w+) mode\))?")
_LOST = re.compile(r"Weight cache daemon at (\S+) exited")
_LOST_HINT = (
    "the daemon is gone under this engine, which keeps serving (the driver keeps the weights "
    "alive): the next start is from disk; a new daemon now needs memory for a second copy"
)
_UNWATCHED = re.compile(r"Weight cache daemon at \S+ does not support watching")
_MEMORY_QUERY = re.compile(r"Cannot query weight cache daemon memory \((.*)\); assuming", re.DOTALL)
_DUPLICATE = re.compile(r"Another weight cache daemon already owns (\S+)")
_DUPLICATE_HINT = "a daemon for this GPU is running already: use it, or stop it first"
_DAEMON_MISMATCH = re.compile(r"^(?:WeightCacheKey|CacheConfig) mismatch on fields: ")
_CACHE_ERROR = re.compile(
    r"(?:CacheConfigMismatchError|WeightCacheUnavailableError): (.*)", re.DOTALL
)
_CONFIG_VALUES: tuple[tuple[str, str], ...] = (
    ("dtype", r"\bdtype=([\w.]+)"),
    ("kv_cache_dtype", r"\bkv_cache_dtype='?([\w.]+)"),
    ("quantization", r"\bquantization='?([\w.-]+)"),
    ("revision", r"(?<!_)\brevision='?([\w./-]+)"),
    ("tp_size", r"\btensor_parallel_size=(\d+)"),
    ("pp_size", r"\bpipeline_parallel_size=(\d+)"),
    ("dp_size", r"\bdata_parallel_size=(\d+)"),
    ("checkpoint", r"\bmodel='([^']*)'"),
    ("vllm_version", r"LLM engine \(v([^)]+)\)"),
    ("moe_backend", r"\bmoe_backend='?(\w+)"),
    ("linear_backend", r"\blinear_backend='?(\w+)"),
    ("enable_expert_parallel", r"\benable_expert_parallel=(\w+)"),
)
_CONFIG = tuple((name, re.compile(pattern)) for name, pattern in _CONFIG_VALUES)
_FROM_DISK = ("Loading weights took ", "Filesystem type for checkpoints", "Checkpoint size: ")

_WORDS = ("eight", "CacheConfig", "EPLB", "UnsupportedPlatformForIPC", "UnsupportedQuantForIPC")


@dataclass(slots=True)
class VerdictReader:
    """Collects the verdict record by record; `result()` at any moment."""

    _mapped: int = 0
    _copied: int = 0
    _fell_back: int = 0
    _disk: bool = False
    _daemon: bool = False
    _values: dict[str, str] | None = None
    _reasons: list[Reason] | None = None
    _hints: list[Reason] | None = None

    def take(self, record: Record) -> None:
        message = record.message
        if (record.process or "").startswith("vllm-weight-cache"):
            self._daemon = True
        if record.shape == "bar":
            label = message.lower()
            self._disk = self._disk or (label.startswith("loading") and "shards" in label)
            return
        if message.startswith("Initializing a V"):
            self._values = {
                name: found[1]
                for name, pattern in _CONFIG
                if (found := pattern.search(message)) is not None
            }
        elif message.startswith(_FROM_DISK):
            self._disk = True
        elif any(word in message for word in _WORDS):
            self._weights(message)

    def _weights(self, message: str) -> None:
        if message.startswith("=====") and "daemon READY" in message:
            self._daemon = True
        elif (mapped := _MAPPED.match(message)) is not None:
            if mapped[2] == "copy":
                self._copied += 1
            else:
                self._mapped += 1
        elif (unusable := _UNUSABLE.search(message)) is not None:
            self._fell_back += 1
            self._add(reason_of(unusable[1], message, self._values))
        elif message.startswith(_IPC_FAILED):
            self._fell_back += 1
            cause = message.rpartition("\n")[2] if "\n" in message else ""
            self._add(reason_of(cause, message.partition("\n")[0], self._values))
        elif (lost := _LOST.match(message)) is not None:
            self._add(Reason("wc_daemon_lost", _LOST_HINT, message), kept_for=lost[1])
        elif _MEMORY_QUERY.match(message) is not None:
            self._note(
                "wc_memory_query",
                "no daemon answered the memory query: the weights will be loaded from disk, and "
                "a daemon that does hold them is not counted in the budget",
                message,
            )
        elif _UNWATCHED.match(message) is not None:
            self._note(
                "wc_version_skew_info",
                "an older daemon: its loss cannot be noticed while this engine serves; restart "
                "it with the engine's version",
                message,
            )
        elif _DAEMON_MISMATCH.match(message):
            self._add(reason_of(message))
        else:
            self._errors(message)

    def _errors(self, message: str) -> None:
        if (duplicate := _DUPLICATE.search(message)) is not None:
            line = f"Another weight cache daemon already owns {duplicate[1]}"
            self._add(Reason("wc_daemon_duplicate", _DUPLICATE_HINT, line))
        elif "Error: " in message:
            last = message[message.rindex("\n") + 1 :] if "\n" in message else message
            fatal = fatal_reason(last)
            if fatal is not None:
                self._add(fatal)
            elif (stopped := _CACHE_ERROR.search(last)) is not None:
                self._add(reason_of(stopped[1], last, self._values))

    def _add(self, reason: Reason, kept_for: str = "") -> None:
        self._reasons = self._reasons or []
        if not any(
            known.category == reason.category and known.fields == reason.fields
            for known in self._reasons
        ):
            self._reasons.append(reason)

    def _note(self, category: str, hint: str, line: str) -> None:
        self._hints = self._hints or []
        if not any(known.category == category for known in self._hints):
            self._hints.append(Reason(category, hint, line))

    def result(self) -> tuple[Verdict | None, tuple[Reason, ...]]:
        """The verdict so far. Weights count as fallen back when any rank or role did. None: the
        log does not say (yet), or no weights were loaded at all."""
        reasons = tuple(self._reasons or ())
        notes = tuple(self._hints or ())
        if self._fell_back:
            return Verdict.FALLBACK, reasons
        if self._mapped or self._copied:
            return Verdict.COPIED if self._copied else Verdict.MAPPED, reasons + notes
        if reasons:
            return None, reasons
        return (Verdict.DISK if self._disk and not self._daemon else None), notes


def verdict_of_records(records: Iterable[Record]) -> tuple[Verdict | None, tuple[Reason, ...]]:
    reader = VerdictReader()
    for record in records:
        reader.take(record)
    return reader.result()


def verdict_of(data: bytes) -> tuple[Verdict | None, tuple[Reason, ...]]:
    """The verdict and its reasons from the log of one start (an engine's or a daemon's)."""
    return verdict_of_records(records_of(data))
