"""What went wrong in a log, as candidates for the root cause, the likeliest first.

The first exception of the lowest process is the cause (worker, then EngineCore, then the parent);
what parents print afterwards are consequences. Errors that the log shows to be overcome, errors
of single requests, and errors after a stop that was asked for are no candidates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from engine_ctl.logs.excerpt import LONG_RECORD, condensed
from engine_ctl.logs.lines import Record
from engine_ctl.logs.milestones import Step

WORKER, ENGINE, PARENT = 0, 1, 2
LONGEST_LINE = 2000
"""Characters of a line that are kept to be shown."""
FATAL, REPORTED, HANDLED, CONSEQUENCE = 0, 1, 2, 3

TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired)"
    r"|Exception|error|Error_\w+)(?:\([\w=, ]*\))?(?:: |:?$)|(?:[a-z_]\w*\.)+[A-Z]\w+: "
)
_VALUE_ERROR = re.compile(r"\s{2,}(?:Value|Assertion) error, ")
_FRAME = re.compile(r'File "([^"\n]*)", line \d+, in (\S+)')
_CHAIN = re.compile(r"(?:The above exception was|During handling of the above exception)")
_GROUP = re.compile(r"^ {0,12}[|+] ?", re.MULTILINE)
_OF_PROCESS = re.compile(r"Process (\S+?):$")
_FATAL_HEADER = re.compile(
    r"(?:EngineCore|WorkerProc|Worker|RayWorkerProc)\S* (?:failed to start|hit an exception|"
    r"encountered an? (?:fatal error|issue|exception))|Failed to load model|"
    r"Exception occurred while running API servers|Error executing method|"
    r"Invocation of \w+ method failed|AsyncLLM output_handler failed"
)
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed due to|"
    r"EngineDeadError|Executor failed\.|daemon rank\(s\) exited during startup|"
    r"Engine core process \S+ died unexpectedly|Process \S+ \(PID: \d+\) died with exit code|"
    r"engine core exited unexpectedly|Engine core proc \S+ died unexpectedly|"
    r"Engine loop is not running|"
    r"Background loop has errored|Engine process failed to start|EngineCore failed to start\.?$|"
    r"Worker failed with error|SystemExit|CancelledError|BrokenPipeError|AsyncLLM output_handler"
)
_GOES_ON = ("Weight cache IPC loading failed; falling", "Error handling weight cache client")
_RETRY = re.compile(r", retrying \d+ of \d+\s*$")
_REQUEST = re.compile(
    r"Exception in ASGI application|Error in preprocessing|Error with model|"
    r"Error processing request|Exception in callback|Exception ignored in|Error in chat|"
    r"Task exception was never retrieved"
)
_USAGE_ERROR = re.compile(r"[\w.][\w./ -]{0,60}: error: \S")
_OOM_KILLED = (
    r"(?:\[ *\d+\.\d+\] )?(?:Out of memory|Memory cgroup out of memory): Killed process \d+ "
    r"\((?:VLLM|vllm|python)|"
    r"[\w@.\\-]{1,200}\.(?:service|scope): (?:A process of this unit has been killed by the OOM|"
    r"Failed with result 'oom-kill')"
)
"""What the kernel and systemd say of a process that the OOM killer took."""
_NATIVE_ERROR = re.compile(
    r"(?:\[rank\d+\]:)?\[?[EF]\d{4} |terminate called after|Fatal Python error|"
    r"Segmentation fault|Bus error|\S*\bKilled$|\S+: error while loading shared libraries|"
    r"ERROR: Unexpected bus error|.{0,40}Failed to initialize NVML|"
    + _OOM_KILLED
    + r"|\S{1,200}: line \d+: +\d+ Killed\b|.{0,80} exited with code 137\b"
)
_STANDS_ALONE = re.compile(r"(?:EngineCore|WorkerProc|Worker) \w+|AsyncLLM ")
_NOISE = re.compile(
    r"nanobind|Triton is |INFO\b|WARNING\b|usage: |Process \S+:$|\s*$|\S+\.py:\d+: \w*Warning"
)
STOP_ASKED = re.compile(
    r"\[shutdown\] API server: |Waiting up to \d+ seconds for processes to exit|"
    r"Shutting down FastAPI HTTP server|Received (?:SIGTERM|SIGINT|signal)|"
    r"Received KeyboardInterrupt|(?:SIGTERM|SIGINT) received"
)
_SIGNALLED = re.compile(r"\[shutdown\] EngineCore: trigger received signal=")
_INTERRUPT = re.compile(r"(?:^|\n)KeyboardInterrupt\b")
_ENGINE_LOST = re.compile(
    r"EngineCore encountered an? (?:fatal error|exception)|died unexpectedly|"
    r"core exited unexpectedly|EngineDeadError|failed to start|initialization failed|"
    r"died with exit code|Killed process \d{1,10} \((?:VLLM|vllm|python)|"
    r"has been killed by the OOM|'oom-kill'"
)
_CRASHED = re.compile(
    r"encountered an? (?:fatal error|exception)|died unexpectedly|core exited unexpectedly|"
    r"failed to start|died with exit code"
)
_SERVING = re.compile(r"Engine \d+: Avg prompt throughput|.{0,60} HTTP/\d\.\d\"? 200")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One error. `text` are its exceptions without frames (chained ones in order); `line` the
    line to show; `tier` how directly it says the cause; `frames` (file, function) pairs."""

    text: str
    line: str
    index: int
    rank: int
    tier: int
    process: str | None = None
    header: str = ""
    frames: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def functions(self) -> frozenset[str]:
        return frozenset(name for _, name in self.frames)


def rank_of(process: str | None) -> int:
    """How low a process is: the lowest one knows the cause."""
    name = (process or "").removeprefix("VLLM::")
    if name.startswith(("Worker", "VllmWorker", "vllm-weight-cache", "RayWorker", "CPUWorker")):
        return WORKER
    return ENGINE if name.startswith("EngineCore") else PARENT


def joined(records: Sequence[Record]) -> list[Record]:
    """Records with the lines of one error joined even where the log lost the sign for it (the
    carriage return): neighbours with the very same prefix at an error level. Very long ones are
    condensed."""
    out: list[Record] = []
    texts: list[str] = []

    def close() -> None:
        if len(texts) > 1:
            out[-1] = msgspec.structs.replace(out[-1], message="\n".join(texts))
        if out:
            out[-1] = condensed(out[-1])

    for record in records:
        last = out[-1] if out else None
        if (
            last is not None
            and record.shape == last.shape == "record"
            and record.level in ("ERROR", "CRITICAL")
            and (record.pid, record.level, record.time, record.file, record.line)
            == (last.pid, last.level, last.time, last.file, last.line)
            and record.process == last.process
            and not _STANDS_ALONE.match(record.message)
        ):
            texts.append(record.message)
            length = record.offset + record.length - last.offset
            out[-1] = msgspec.structs.replace(last, length=length)
        else:
            close()
            texts = [record.message]
            out.append(record)
    close()
    return out


def exceptions_of(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The exceptions of a text with tracebacks (without frames and source lines), and the frames
    of its tracebacks. A text that holds none gives an empty string."""
    if "Exception Group Traceback" in text:
        text = _GROUP.sub("", text)
    kept: list[str] = []
    in_frames = speaking = False
    for line in text.split("\n"):
        if line.rstrip().endswith(TRACEBACK):
            in_frames, speaking = True, False
        elif _CHAIN.match(line):
            speaking = False
        elif in_frames:
            if line and not line[0].isspace():
                in_frames, speaking = False, True
                kept.append(line)
        elif speaking or EXCEPTION.match(line) or _VALUE_ERROR.match(line):
            speaking = True
            kept.append(line)
    frames = tuple((path.rpartition("/")[2], name) for path, name in _FRAME.findall(text))
    return "\n".join(kept).strip("\n"), frames


def shown_line(text: str) -> str:
    """The one line of an exception's text that says most: pydantic's value error, else the last
    exception's own line."""
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        if _VALUE_ERROR.match(line):
            return line.strip()[:LONGEST_LINE]
    starts = [line for line in lines if EXCEPTION.match(line)]
    return (starts[-1] if starts else lines[0] if lines else "").strip()[:LONGEST_LINE]


@dataclass(slots=True)
class Survey:
    """What `survey` found: candidates in order, where a stop was asked, whether it was ready."""

    candidates: list[Candidate]
    overcome: list[Candidate]
    stop_index: int | None = None
    ready_index: int | None = None
    errors_after_stop: list[Candidate] = field(default_factory=list)
    interrupted: bool = False
    engine_lost: bool = False


def _stop_index(records: Sequence[Record]) -> tuple[int | None, bool]:
    """Where a stop was asked for, and whether a start was interrupted by it."""
    asked = first = signalled = interrupt = crashed = None
    for index, record in enumerate(records):
        message = record.message
        if message.startswith("[shutdown]"):
            if first is None:
                first = index
            if signalled is None and _SIGNALLED.match(message):
                signalled = index
        if asked is None and STOP_ASKED.match(message):
            asked = index
        elif interrupt is None and "KeyboardInterrupt" in message and _INTERRUPT.search(message):
            interrupt = index
        elif crashed is None and _CRASHED.search(message):
            crashed = index
    if asked is not None and crashed is None:
        dead = (i for i, r in enumerate(records[:asked]) if "EngineDeadError" in r.message)
        asked = min(asked, first if first is not None else asked, next(dead, asked))
    places = [place for place in (asked, interrupt) if place is not None]
    if interrupt is not None and signalled is not None:
        places.append(signalled)
    return (min(places) if places else None), interrupt is not None


def _continued(records: Sequence[Record], index: int) -> tuple[str, int]:
    """The message of a raw exception goes on in the raw lines behind it: the whole text and the
    index of its last record."""
    head = records[index]
    parts = [head.message[:LONG_RECORD]]
    chained = False
    size = len(head.message)
    for record in records[index + 1 : index + 40]:
        size += len(record.message)
        if (
            size > LONG_RECORD
            or record.shape != "raw"
            or (record.level is not None and not record.message.startswith(TRACEBACK))
            or record.process != head.process
            or record.pid != head.pid
            or (_NOISE.match(record.message) and record.message.strip())
        ):
            break
        if record.message.startswith(TRACEBACK):
            if not chained:
                break
            chained = False
        elif record.message.strip():
            chained = bool(_CHAIN.match(record.message))
        parts.append(record.message)
    return "\n".join(parts), index + len(parts) - 1


def _candidate(
    records: Sequence[Record], index: int, named: str | None
) -> tuple[Candidate | None, int]:
    """The error that starts with record `index`, and the index of its last record."""
    record = records[index]
    message = record.message
    process = record.process or named
    rank = rank_of(process)
    prefixed = record.shape in ("record", "json")
    if (
        prefixed
        and record.level not in ("ERROR", "CRITICAL", "FATAL")
        and not (record.level == "WARNING" and "exited unexpectedly" in message)
    ):
        return None, index
    if _RETRY.search(message) or message.startswith(_GOES_ON):
        return None, index
    if not prefixed and record.level not in (None, "ERROR", "CRITICAL"):
        return None, index
    whole, last = (message, index) if prefixed else _continued(records, index)
    first = message.split("\n", 1)[0]
    text, frames = exceptions_of(whole)
    if text:
        consequence = _is_consequence(text)
        fatal = not prefixed or bool(_FATAL_HEADER.match(first)) or EXCEPTION.match(first)
        tier = CONSEQUENCE if consequence else FATAL if fatal else HANDLED
        header = first if prefixed and first != text.split("\n", 1)[0] else ""
        line = shown_line(text)
        return Candidate(text, line, index, rank, tier, process, header, frames), last
    if prefixed:
        tier = CONSEQUENCE if _CONSEQUENCE.search(first) else REPORTED
        return Candidate(message, first[:LONGEST_LINE], index, rank, tier, process), last
    if _USAGE_ERROR.match(message):
        return Candidate(whole, message[:LONGEST_LINE], index, PARENT, FATAL, process), last
    if _NATIVE_ERROR.match(message) or record.level in ("ERROR", "CRITICAL"):
        return Candidate(whole, message[:LONGEST_LINE], index, PARENT, REPORTED, process), last
    return None, index


def _is_consequence(text: str) -> bool:
    lines = [line for line in text.split("\n") if EXCEPTION.match(line)]
    return bool(lines) and all(_CONSEQUENCE.search(line) for line in lines)


def survey(records: Sequence[Record], steps: Sequence[Step | None]) -> Survey:
    """All errors of one start. `steps` are the milestones of the records (same length)."""
    stop, interrupted = _stop_index(records)
    ready = next(
        (i for i, step in enumerate(steps) if step in (Step.READY, Step.DAEMON_READY)), None
    )
    lost = next((i for i, r in enumerate(records) if _ENGINE_LOST.search(r.message)), None)
    found: list[Candidate] = []
    after_stop: list[Candidate] = []
    covered = -1
    named: str | None = None
    request = False
    for index, record in enumerate(records):
        of_process = _OF_PROCESS.match(record.message)
        if of_process is not None and record.shape == "raw":
            named = of_process[1]
            continue
        if _REQUEST.match(record.message):
            request = True
            continue
        if record.shape == "bar" or index <= covered:
            continue
        candidate, last = _candidate(records, index, named)
        if candidate is None:
            if record.shape in ("record", "json"):
                named, request = None, False
            continue
        covered = last
        if request:
            request = False
            continue
        named = None
        (after_stop if stop is not None and index >= stop else found).append(candidate)
    end = max(
        (i for i, r in enumerate(records) if r.level is not None and r.level != "WARNING"),
        default=-1,
    )
    serving = max((i for i, r in enumerate(records) if _SERVING.match(r.message)), default=-1)
    real = [
        item
        for item in found
        if not (lost is None and item.index < serving)
        and not _overcome(item, steps, ready, lost, end)
    ]
    overcome = [item for item in found if item not in real]
    real.sort(key=lambda item: (item.tier, item.rank if item.tier == FATAL else 0, item.index))
    return Survey(real, overcome, stop, ready, after_stop, interrupted, lost is not None)


_PROGRESS = frozenset(
    {
        Step.CONFIGURING,
        Step.CONFIGURED,
        Step.ENGINE_INIT,
        Step.LOADING,
        Step.LOADED,
        Step.MAPPED,
        Step.COMPILING,
        Step.PROFILING,
        Step.KV_SIZED,
        Step.CAPTURED,
        Step.ENGINE_READY,
        Step.READY,
        Step.DAEMON_READY,
    }
)


def _overcome(
    item: Candidate,
    steps: Sequence[Step | None],
    ready: int | None,
    lost: int | None,
    end: int,
) -> bool:
    """True when the log goes on as if nothing had happened. `end` is the last ordinary record."""
    if ready is not None:
        if item.index < ready:
            return True
        if lost is None or lost < ready:
            return item.tier in (HANDLED, REPORTED) or item.index < end
    if item.tier in (REPORTED, HANDLED) and lost is None:
        return any(step in _PROGRESS for step in steps[item.index + 1 :])
    return False
