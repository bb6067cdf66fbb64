"""The lines by which a start shows where it is, for every vLLM from 0.23 to 0.33.

Phrases as found in the sources; matched at the start of a message, never by line number."""

from __future__ import annotations

import re
from enum import StrEnum

from engine_ctl.logs.facts import untagged
from engine_ctl.logs.lines import Record


class Step(StrEnum):
    """What one line shows."""

    CONFIGURING = "configuring"
    CONFIGURED = "configured"
    ENGINE_INIT = "engine_init"
    LOADING = "loading"
    WAITING_FOR_DAEMON = "waiting_for_daemon"
    MAPPED = "mapped"
    FELL_BACK = "fell_back"
    LOADED = "loaded"
    COMPILING = "compiling"
    PROFILING = "profiling"
    KV_SIZED = "kv_sized"
    CAPTURED = "captured"
    ENGINE_READY = "engine_ready"
    SERVER_STARTED = "server_started"
    READY = "ready"
    DAEMON_READY = "daemon_ready"
    HEARTBEAT = "heartbeat"
    ASLEEP = "asleep"
    AWAKE = "awake"
    STOPPING = "stopping"
    DRAINING = "draining"
    TEARDOWN = "teardown"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


_PHRASES: tuple[tuple[Step, tuple[str, ...]], ...] = (
    (
        Step.CONFIGURED,
        (r"Final IR op priority",),
    ),
    (
        Step.CONFIGURING,
        (
            r"vLLM (?:API )?server version ",
            r"non-default args: ",
            r"Resolved architectures?: ",
            r"Using max model len ",
            r"Chunked prefill is enabled",
            r"Enabled custom fusions: ",
            r"Enforce eager set",
            r"Asynchronous scheduling is ",
            r"Async scheduling ",
            r"Found ulimit of ",
            r"Cudagraph (?:mode|is) ",
            r"Inductor compilation was disabled",
            r"Using (?:V2|V1) Model Runner",
            r"Model Runner V2 requires",
            r"DP group leader: ",
            r"world_size=\d+ rank=",
            r"rank \d+ in world size ",
            r"vLLM is using nccl",
            r"Weights are held outside this process",
            r"Cannot query weight cache daemon memory",
        ),
    ),
    (Step.ENGINE_INIT, (r"Initializing a V\d LLM engine ",)),
    (
        Step.LOADING,
        (
            r"Starting to load model ",
            r"Loading model from scratch",
            r"Loading model weights",
            r"Initializing model took ",
            r"Filesystem type for checkpoints: ",
            r"Checkpoint size: ",
            r"Auto-prefetch is ",
            r"Loading weights took ",
            r"Loading drafter model",
            r"Using .{1,60} attention backend\b",
            r"Using model weights format ",
            r"Time spent downloading weights",
            r"Weight cache .{0,40}daemon rank \d+ (?:loaded|released startup)",
        ),
    ),
    (Step.WAITING_FOR_DAEMON, (r"Waiting up to [\d.]+ ?s for the weight cache daemon",)),
    (Step.MAPPED, (r"Mapped \d+ tensors from the weight cache daemon",)),
    (
        Step.FELL_BACK,
        (r"Weight cache unusable", r"Weight cache IPC loading failed"),
    ),
    (Step.LOADED, (r"Model loading took ",)),
    (
        Step.COMPILING,
        (
            r"Using cache directory: .{0,400}torch\.compile",
            r"Starting torch\.compile",
            r"Dynamo bytecode transform time",
            r"Compiling a graph for ",
            r"Compiling model again",
            r"Cache the graph ",
            r"Directly load ",
            r"torch\.compile t(?:ook|akes) ",
            r"[Ss]aved AOT compiled function",
            r"reconstructed serializable fn",
            r"Warming up model for the compilation",
        ),
    ),
    (
        Step.PROFILING,
        (
            r"Initial profiling/warmup run took ",
            r"Profiling CUDA graph memory",
            r"Estimated .{0,20}graph memory",
            r"Available KV cache memory",
            r"Initial free memory",
            r"Explicitly set \(",
            r"Warming up done",
            r"Memory profiling takes ",
        ),
    ),
    (Step.KV_SIZED, (r".{0,20}KV cache size: [\d,]+ tokens", r"# \w+ blocks: \d")),
    (Step.CAPTURED, (r"Graph capturing finished",)),
    (Step.ENGINE_READY, (r"init engine \(profile",)),
    (Step.SERVER_STARTED, (r"Started server process \[\d+\]",)),
    (Step.READY, (r"Application startup complete\.?$", r"Uvicorn running on ")),
    (Step.DAEMON_READY, (r"=+ Weight cache daemon READY",)),
    (Step.HEARTBEAT, (r"No available shared memory broadcast block found",)),
    (Step.ASLEEP, (r"It took [\d.]+ seconds to fall asleep",)),
    (Step.AWAKE, (r"It took [\d.]+ seconds to wake up",)),
    (
        Step.DRAINING,
        (
            r"\[shutdown\] .{0,80}mode=drain",
            r"\[shutdown\] .{0,40}draining in-flight requests",
        ),
    ),
    (
        Step.TEARDOWN,
        (
            r"\[shutdown\] .{0,60}starting resource teardown",
            r"\[shutdown\] API server: shutting down FastAPI",
            r"Shutting down FastAPI HTTP server",
            r"Waiting for application shutdown",
        ),
    ),
    (
        Step.FAILED,
        (
            r"(?:EngineCore|WorkerProc|Worker) failed to start",
            r"EngineCore (?:encountered|hit) an? (?:fatal error|exception)",
            r"Worker proc \S+ died unexpectedly",
            r"\[shutdown\] MPClient: engine core exited unexpectedly",
            r"Engine core proc \S+ died unexpectedly",
            r"Weight cache daemon rank\(s\) exited during startup",
        ),
    ),
    (
        Step.STOPPING,
        (
            r"\[shutdown\] (?:API server|EngineCore): (?:shutdown triggered|start mode=abort)",
            r"\[shutdown\] EngineCore: trigger received",
            r"\[shutdown\] Process manager: send sigterm to process ApiServer",
            r"Waiting up to \d+ seconds for processes to exit",
            r"Shutting down$",
            r"Received (?:SIGTERM|SIGINT|signal)",
            r"Shutting down weight cache",
        ),
    ),
)
_ANY = re.compile("|".join(f"(?P<{step.value}>{'|'.join(phrases)})" for step, phrases in _PHRASES))
_USAGE_ERROR = re.compile(r"vllm(?: \w+)?: error: ")
_PARENTS = ("APIServer", "ApiServer", "MainProcess", "DPSupervisor", "DP Coordinator")


def from_parent(record: Record) -> bool:
    """True for the process that was started first (the API server or the launcher)."""
    return record.process is None or record.process.startswith(_PARENTS)


def step_of(record: Record) -> Step | None:
    """What this record shows, None for nothing."""
    message = untagged(record.message)
    found = _ANY.match(message)
    if found is not None:
        step = Step(str(found.lastgroup))
        if step is Step.LOADING and from_parent(record) and record.process is not None:
            return Step.CONFIGURING
        return step
    if "█" in message and "version " in message:
        return Step.CONFIGURING
    if message.startswith("Traceback (most recent call last):"):
        return _traceback(message)
    if record.shape == "raw" and _USAGE_ERROR.match(message):
        return Step.FAILED
    return None


def _traceback(message: str) -> Step | None:
    last = message.rpartition("\n")[2]
    if last.startswith("KeyboardInterrupt"):
        return Step.INTERRUPTED
    if last.startswith("RuntimeError: Engine core initialization failed"):
        return Step.FAILED
    return None
