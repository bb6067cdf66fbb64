"""What is known about a run from outside its log, and text that is no log at all.

`RunFacts` are typed observations (exit record, NVML, ports, arguments); `cause_of_facts` names
the causes that no log line shows. `cause_of_notes` reads what people paste instead of a log: a
command line, `ps`, `ss`, `nvidia-smi`."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_ctl.model import Cause, Verdict


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Observations of one run; `None` is unknown. `args` are the run's arguments with
    underscores; `known_arguments` the flags of its version (`--max-model-len`)."""

    version: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    known_arguments: tuple[str, ...] = ()
    exit_code: int | None = None
    exit_signal: int | None = None
    asked: bool | None = None
    asked_while_starting: bool | None = None
    reached_ready_after_ask: bool | None = None
    api_server_alive: bool | None = None
    engine_core_alive: bool | None = None
    daemon_ranks: int | None = None
    daemon_ranks_alive: int | None = None
    verdict: Verdict | None = None
    daemon_checkpoint: str | None = None
    engine_checkpoint: str | None = None
    port: int | None = None
    port_owners: tuple[str, ...] = ()
    nvml_memory_supported: bool | None = None
    nvml_processes_visible: bool | None = None
    mig_device: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    mixed_devices: bool | None = None


_SLEEP = (
    "lint.wc_sleep_mode",
    "sleep mode cannot free weights that a daemon holds: drop --enable-sleep-mode, or the "
    "zero-copy weight cache",
)
_SAME_LAYOUT = (
    "lint.wc_same_layout_other_model",
    "the daemon serves another checkpoint with the same tensor headers, which vLLM does not "
    "notice: reload the daemon with this profile's model",
)
_ORPHAN = (
    "orphan_engine",
    "the API server is gone and its engine processes live on with their GPU memory: reap them "
    "before the next start",
)
_UNIFIED = (
    "nvml_unified_memory",
    "an integrated GPU shares the host's memory and NVML has no figure for it: look at the host's "
    "available memory and at the processes",
)
_MIG = (
    "nvml_mig",
    "the engine runs on a MIG slice: its memory is read from the MIG device, an index means the "
    "whole parent GPU; address the slice by UUID",
)
_NO_PROCESSES = (
    "nvml_no_process_info",
    "totals are right but the owners are not visible here (container, WSL): look on the host",
)
_INDEX = (
    "nvml_index_mapping",
    "cuda:0 of the log is not GPU 0 of NVML: map through CUDA_VISIBLE_DEVICES and UUIDs, and set "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID",
)
_PARTIAL = (
    "wc_daemon_partial",
    "a rank of the daemon is gone, which no log line says: engines of that rank load from disk; "
    "stop the daemon and start it again",
)
_STOP_LOST = (
    "stop_ignored_during_load",
    "a single SIGTERM during the start is lost: ask again after a few seconds, then kill the "
    "whole group",
)
_PORT_SHARED = (
    "port_shared_silently",
    "two servers listen on one port through SO_REUSEPORT and share its requests without any "
    "error: stop one, or give it another port",
)
_ENGINE_GONE = (
    "engine_dead_parent_alive",
    "EngineCore is gone and the API server still runs without it: stop the unit and start it "
    "again; sweep what is left",
)


def _cause(kind: tuple[str, str], line: str, *evidence: str) -> Cause:
    return Cause(kind[0], kind[1], line, evidence)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(abs(number)).name
    except ValueError:
        return f"signal {abs(number)}"


def cause_of_facts(facts: RunFacts) -> Cause | None:
    """The cause that the observations alone show, None when they show nothing wrong."""
    zero_copy = facts.args.get("load_format") == "ipc_cache" and _mode(facts.args) == "zero_copy"
    if facts.args.get("enable_sleep_mode") and zero_copy:
        return _cause(_SLEEP, "enable_sleep_mode with load_format ipc_cache (zero copy)")
    if (
        facts.verdict in (Verdict.MAPPED, Verdict.COPIED)
        and facts.daemon_checkpoint is not None
        and facts.engine_checkpoint is not None
        and facts.daemon_checkpoint != facts.engine_checkpoint
    ):
        line = f"daemon: {facts.daemon_checkpoint}, profile: {facts.engine_checkpoint}"
        return _cause(_SAME_LAYOUT, line)
    alive = facts.daemon_ranks_alive
    if facts.daemon_ranks and alive is not None and 0 < alive < facts.daemon_ranks:
        return _cause(_PARTIAL, f"{alive} of {facts.daemon_ranks} daemon ranks answer")
    if facts.engine_core_alive and facts.api_server_alive is False:
        return _cause(_ORPHAN, "engine processes without an API server")
    if facts.api_server_alive and facts.engine_core_alive is False:
        return _cause(_ENGINE_GONE, "the API server runs, EngineCore does not")
    if facts.asked_while_starting and facts.reached_ready_after_ask:
        return _cause(_STOP_LOST, "SIGTERM was sent during the start, and the start went on")
    if len(facts.port_owners) > 1:
        line = f"port {facts.port}: {', '.join(facts.port_owners)}"
        return _cause(_PORT_SHARED, line)
    killed = facts.exit_signal
    if killed and not facts.asked:
        return Cause(
            "worker_killed",
            f"the process was killed by {signal_name(killed)} (kernel OOM killer, operator): see "
            "dmesg and who sent it",
            f"ended by {signal_name(killed)} without having been asked to",
        )
    return _cause_of_devices(facts)


def _cause_of_devices(facts: RunFacts) -> Cause | None:
    if facts.nvml_memory_supported is False:
        return _cause(_UNIFIED, "nvmlDeviceGetMemoryInfo: not supported")
    if facts.mig_device:
        return _cause(_MIG, facts.mig_device)
    if facts.nvml_processes_visible is False:
        return _cause(_NO_PROCESSES, "NVML lists no processes of this machine")
    visible = facts.visible_devices or ""
    order = [part.strip() for part in visible.split(",") if part.strip().isdigit()]
    unordered = facts.device_order != "PCI_BUS_ID" and bool(facts.mixed_devices)
    if order and order != [str(index) for index in range(len(order))] and unordered:
        return _cause(_INDEX, f"CUDA_VISIBLE_DEVICES={visible}")
    return None


def _mode(args: Mapping[str, Any]) -> str:
    extra = args.get("model_loader_extra_config")
    return str(extra.get("mode", "zero_copy")) if isinstance(extra, Mapping) else "zero_copy"


LONGEST_NOTE = 8000
_NOTES: tuple[tuple[tuple[str, str], re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        (_SLEEP, r"\A(?=.*--?enable[-_]sleep[-_]mode)(?=.*ipc_cache)"),
        (_MIG, r"\bMIG-[0-9a-f]{4,}|\bMIG (?:\d+g\.\d+gb|device|slice|instance)"),
        (
            _PARTIAL,
            r"\A(?=.*daemon)(?=.*\brank)(?=.*(?:killed|gone|dead|dies|died|refused|lost))"
            r"(?=.*(?:503|READY|socket))",
        ),
        (
            _STOP_LOST,
            r"(?:kill (?:-(?:s )?(?:SIG)?TERM|-15)|SIGTERM)\b.*(?:load|start|ignored|lost)",
        ),
        (_ORPHAN, r"\d+\s.*VLLM::(?:EngineCore|Worker)"),
        (
            _NO_PROCESSES,
            r"(?:used_?gpu_?memory|process).{0,80}(?:None\b|N/A)|pid list is empty|"
            r"host pids inside|no running processes found.{0,200}(?:container|WSL)",
        ),
        (
            _UNIFIED,
            r"NVML_?ERROR_?NOT_?SUPPORTED|memory-usage.{0,40}not supported|"
            r"NVMLError_NotSupported|GetMemoryInfo.{0,60}not supported",
        ),
        (_PORT_SHARED, r"SO_REUSEPORT"),
        (
            _INDEX,
            r"CUDA_VISIBLE_DEVICES=\d+(?:,\d+)+.*CUDA_DEVICE_ORDER|"
            r"CUDA_DEVICE_ORDER.{0,40}(?:unset|FASTEST_FIRST)",
        ),
        (
            _SAME_LAYOUT,
            r"same (?:layout|headers?|shapes?|tensor names).{0,200}"
            r"(?:other|another|different) (?:model|checkpoint|weights)|"
            r"(?:other|another|different) (?:model|checkpoint|weights).{0,200}"
            r"same (?:layout|headers?|shapes?)",
        ),
    )
)
_LISTENER = re.compile(r"LISTEN\s.*?[\s:](\d{2,5})\s.*?pid=(\d+)")
_COMMAND = re.compile(r"vllm (preload|serve)\s+(?:--\S+(?:[ =](?!-)\S+)?\s+)*?(?!-)(\S+)([^\n]*)")


def cause_of_notes(text: str) -> Cause | None:
    """The cause in text that is not a vLLM log (commands, `ps`, `ss`, `nvidia-smi`)."""
    text = text[:LONGEST_NOTE]
    listeners: dict[str, set[str]] = {}
    for port, pid in _LISTENER.findall(text):
        listeners.setdefault(port, set()).add(pid)
    shared = next((port for port, pids in listeners.items() if len(pids) > 1), None)
    if shared is not None:
        owners = ", ".join(sorted(listeners[shared]))
        return _cause(_PORT_SHARED, f"port {shared}: pids {owners}")
    for kind, pattern in _NOTES:
        found = pattern.search(text)
        if found is not None:
            start = text.rfind("\n", 0, max(found.start(), 0)) + 1
            line = text[start:].split("\n", 1)[0].strip()
            return _cause(kind, line[:500])
    models: dict[str, str] = {}
    for command, model, rest in _COMMAND.findall(text):
        if command == "preload" or "ipc_cache" in rest:
            models[command] = model
    if len(models) == 2 and models["preload"] != models["serve"]:
        return _cause(_SAME_LAYOUT, f"preload {models['preload']}, serve {models['serve']}")
    return None
