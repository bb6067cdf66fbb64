"""Phases, progress and facts of real starts, from their logs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from engine_ctl.logs.clock import Clock, parse_clock, read_clock
from engine_ctl.logs.stamps import Stamps
from engine_ctl.logs.timeline import StartTimeline, kind_of_text, phases_of_text
from engine_ctl.model import Kind, Phase, PhaseMark

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
CPU = RECORDINGS / "cpu-vllm-0.32.0"
H200 = RECORDINGS / "h200-vllm-0.33.0"


def strip_clock(data: bytes) -> tuple[bytes, Clock]:
    """The raw log of an H200 recording, and its column of seconds as a clock."""
    out, pairs = [], []
    size = 0
    for line in data.splitlines(keepends=True):
        raw = line[9:] if len(line) > 9 else b"\n"
        size += len(raw)
        out.append(raw)
        pairs.append((float(line[:9]), size))
    return b"".join(out), Clock(pairs)


def names(marks: tuple[PhaseMark, ...]) -> list[str]:
    return [mark.phase.value for mark in marks]


SERVED = "importing configuring loading profiling ready stopping"
CPU_PHASES = {
    "api2": SERVED,
    "color": SERVED,
    "debug": SERVED,
    "json": SERVED,
    "ctrlc": SERVED,
    "groupterm": SERVED,
    "kvsmall": SERVED,
    "kvtiny": SERVED,
    "lt_init0": SERVED,
    "lt_init3": SERVED,
    "lt_kv": SERVED,
    "lt_load": SERVED,
    "lt_probe": SERVED,
    "ngram": SERVED,
    "normal": SERVED,
    "sigterm": SERVED,
    "tp2": SERVED,
    "drain": "importing configuring loading profiling ready draining stopping",
    "compile": "importing configuring loading compiling profiling ready stopping",
    "loadterm": "importing configuring loading compiling profiling ready stopping",
    "warn": "importing configuring loading ready stopping",
    "nolog": "importing configuring loading ready stopping",
    "killcore": "importing configuring loading profiling ready failed",
    "killworker": "importing configuring loading profiling ready failed",
    "lt_import": "importing",
    "lt_args": "importing configuring stopping",
    "lt_config": "importing configuring stopping",
    "lt_group": "importing configuring stopping",
    "lt_tasks": "importing configuring loading profiling stopping",
    "ipc": "importing configuring loading failed",
    "qfp8": "importing configuring loading failed",
    "nowt": "importing configuring loading failed",
    "trunc": "importing configuring loading failed",
    "medusa": "importing configuring loading failed",
    "kvnone": "importing configuring loading failed",
    "kvlen": "importing configuring loading profiling failed",
    "badlora": "importing configuring loading profiling stopping failed",
    "badchat": "importing failed",
}
EARLY = "importing configuring failed"
IPC = "importing configuring loading mapping compiling profiling capturing ready stopping"
H200_PHASES = {
    "10_preload": "importing configuring loading ready",
    "11_ipc": IPC,
    "12_ipc": IPC,
    "20_standby_ipc": IPC,
    "20_standby_ipc2": IPC,
    "20_standby_ipc_eager": "importing configuring loading mapping profiling ready stopping",
    "31_preload_1b": "importing configuring loading ready",
    "32_not_ready": IPC.replace("mapping ", ""),
    "33_second_daemon": "importing configuring loading failed",
    "34_dtype": "importing configuring loading profiling ready stopping",
    "35_kvdtype": "importing configuring loading profiling ready stopping",
    "36_quant": "importing configuring loading profiling ready stopping",
    "37_nofallback": "importing configuring loading failed",
    "38_preload_ipc": EARLY,
    "39_preload_pp": EARLY,
    "40_load": IPC.replace("stopping", "failed"),
    "50_A_plan_save": IPC,
    "50_B_plan_apply": IPC,
    "50_C_small_graphs": IPC,
    "plain_1b_first": IPC.replace("mapping ", ""),
    "plain_8b_first": IPC.replace("mapping ", ""),
    "plain_8b_again": IPC.replace("mapping ", ""),
}


@pytest.mark.parametrize("path", sorted(CPU.glob("*.log")), ids=lambda path: path.stem)
def test_phases_of_every_cpu_recording(path: Path) -> None:
    expected = CPU_PHASES.get(path.stem, EARLY)
    assert names(phases_of_text(path.read_bytes())) == expected.split()


@pytest.mark.parametrize("path", sorted(H200.glob("*.log")), ids=lambda path: path.stem)
def test_phases_of_every_gpu_recording_with_its_clock_and_as_recorded(path: Path) -> None:
    data = path.read_bytes()
    raw, clock = strip_clock(data)
    with_clock = phases_of_text(raw, clock)
    assert names(with_clock) == H200_PHASES[path.stem].split()
    assert phases_of_text(data) == with_clock
    assert names(phases_of_text(raw)) == names(with_clock)


def test_where_the_43_seconds_of_a_mapped_start_go() -> None:
    """The figures that were taken by hand from this recording (README beside it)."""
    raw, clock = strip_clock((H200 / "12_ipc.log").read_bytes())
    seconds = {mark.phase: mark.seconds for mark in phases_of_text(raw, clock)}
    assert seconds[Phase.IMPORTING] == pytest.approx(13.4, abs=0.1)
    assert seconds[Phase.CONFIGURING] == pytest.approx(10.4 + 2.6, abs=0.3)
    assert seconds[Phase.MAPPING] == pytest.approx(0.2 + 0.8, abs=0.1)
    assert seconds[Phase.COMPILING] == pytest.approx(2.0, abs=0.1)
    timeline = StartTimeline()
    timeline.feed((H200 / "12_ipc.log").read_bytes())
    gaps = {gap.name: gap.seconds for gap in timeline.gaps}
    assert gaps["import of vLLM and torch"] == pytest.approx(13.4, abs=0.1)
    assert gaps["spawn and import of EngineCore"] == pytest.approx(10.4, abs=0.2)
    configuring = timeline.marks()[1]
    assert "spawn and import of EngineCore" in configuring.note


def test_facts_of_a_start_from_disk() -> None:
    timeline = StartTimeline()
    timeline.feed((H200 / "plain_8b_first.log").read_bytes())
    facts = timeline.facts
    assert (facts.version, facts.model, facts.architecture) == (
        "0.33.0",
        "/models/llama-8b",
        "LlamaForCausalLM",
    )
    assert (facts.dtype, facts.max_model_len, facts.enforce_eager) == ("bfloat16", 8192, False)
    assert (facts.weights_gib, facts.checkpoint_gib, facts.weights_seconds) == (15.0, 14.96, 2.47)
    assert (facts.kv_tokens, facts.kv_gib, facts.kv_concurrency) == (910976, 111.2, 111.2)
    assert (facts.graphs_gib, facts.graphs_estimated_gib) == (0.45, 0.92)
    assert (facts.consumed_gib, facts.activation_gib) == (15.68, 1.73)
    assert (facts.device_free_gib, facts.device_total_gib) == (139.1, 139.8)
    assert (facts.gpu_memory_utilization, facts.budget_gib) == (0.92, 128.62)
    assert (facts.compile_cache, facts.compile_seconds) == ("hit", 0.21)
    assert facts.url == "http://127.0.0.1:8100"
    assert facts.args is not None and "'port': 8100" in facts.args
    assert [(rank.pid, rank.weights_gib, rank.kv_gib) for rank in facts.ranks] == [
        (6327, 15.0, 111.2)
    ]


def test_facts_of_mapped_starts_and_of_a_startup_plan() -> None:
    def facts(name: str):  # type: ignore[no-untyped-def]
        timeline = StartTimeline()
        timeline.feed((H200 / f"{name}.log").read_bytes())
        return timeline.facts

    mapped = facts("11_ipc")
    assert (mapped.mapped_tensors, mapped.mapped_mode) == (324, "zero_copy")
    assert (mapped.external_weights_gib, mapped.weights_gib) == (14.99, 0.0)
    assert facts("50_A_plan_save").plan == "saved"
    applied = facts("50_B_plan_apply")
    assert (applied.plan, applied.kv_gib, applied.compile_cache) == ("applied", 110.4, "hit")
    assert facts("40_load").compile_cache == "miss"
    assert facts("10_preload").daemon_allocated_gib == 14.99


def test_a_cache_that_could_not_be_used_is_told_from_a_miss() -> None:
    timeline = StartTimeline()
    timeline.feed((CPU / "compile.log").read_bytes())
    assert timeline.facts.compile_cache == "again"


def test_progress_comes_from_a_bar_that_is_still_being_drawn() -> None:
    timeline = StartTimeline()
    timeline.feed(
        b"(EngineCore pid=1) INFO 11-20 09:14:02 [x.py:1] Starting to load model m...\n", 1.0
    )
    timeline.feed(
        b"\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<00:02,  1.33it/s]",
        2.0,
    )
    assert timeline.progress is not None
    assert (timeline.progress.done, timeline.progress.total) == (1, 4)
    timeline.feed(
        b"\r\n(EngineCore pid=1) INFO 11-20 09:14:09 [x.py:1] Model loading took 1 GiB\n", 9.0
    )
    assert timeline.progress is None
    assert timeline.phase is Phase.COMPILING


def test_two_api_servers_are_ready_only_together() -> None:
    data = (CPU / "api2.log").read_bytes()
    cut = data.index(b"Application startup complete.\n") + len(b"Application startup complete.\n")
    timeline = StartTimeline()
    timeline.feed(data[:cut])
    assert not timeline.ready_seen
    timeline.feed(data[cut:])
    assert timeline.ready_seen and timeline.api_servers_expected == 2


def line(process: str, second: int, text: str) -> bytes:
    return f"({process}) INFO 11-20 09:14:{second:02} [x.py:1] {text}\n".encode()


def test_loading_ends_with_the_slowest_rank() -> None:
    timeline = StartTimeline()
    for at, text in (
        (1, line("Worker_TP0 pid=1", 1, "Starting to load model m...")),
        (1, line("Worker_TP1 pid=2", 1, "Starting to load model m...")),
        (5, line("Worker_TP0 pid=1", 5, "Model loading took 7.5 GiB memory and 4.0 seconds")),
        (6, line("Worker_TP0 pid=1", 6, "[backbone] Starting torch.compile")),
        (9, line("Worker_TP1 pid=2", 9, "Model loading took 7.6 GiB memory and 8.0 seconds")),
        (12, line("Worker_TP0 pid=1", 12, "GPU KV cache size: 1,000 tokens")),
    ):
        timeline.feed(text, float(at))
    marks = {mark.phase: mark for mark in timeline.marks()}
    assert marks[Phase.LOADING].seconds == 8.0
    assert marks[Phase.COMPILING].seconds == 3.0
    assert timeline.facts.weights_gib == 7.6


def test_silent_daemons_of_0_32_are_loading_until_ready() -> None:
    config = line("MainProcess pid=1", 10, "Resolved architecture: LlamaForCausalLM") + line(
        "MainProcess pid=1", 10, "Final IR op priority after setting platform defaults: x"
    )
    ready = line(
        "MainProcess pid=1",
        40,
        "===== Weight cache daemon READY: node 0/1 serving 1 local rank(s) x 1 role(s) in d =====",
    )
    timeline = StartTimeline(Kind.PRELOAD)
    timeline.feed(config, 10.0)
    assert timeline.phase is Phase.CONFIGURING
    timeline.feed(ready, 40.0)
    marks = {mark.phase: mark for mark in timeline.marks()}
    assert marks[Phase.LOADING].seconds == 30.0 and "silent" in marks[Phase.LOADING].note
    assert timeline.ready_seen
    told = StartTimeline(Kind.PRELOAD, silent_children=True)
    told.feed(config, 10.0)
    assert told.phase is Phase.LOADING


def test_preload_of_0_30_without_roles_is_ready() -> None:
    data = line(
        "vllm-weight-cache-daemon-0 pid=9", 5, "Weight cache daemon rank 0 loaded model (1 GiB)"
    ) + line("MainProcess pid=1", 6, "===== Weight cache daemon READY: node 0/1 serving 1 =====")
    assert kind_of_text(data) is Kind.PRELOAD
    assert names(phases_of_text(data)) == ["importing", "loading", "ready"]


def test_configuration_that_is_printed_again_does_not_go_back() -> None:
    timeline = StartTimeline()
    timeline.feed((H200 / "plain_8b_first.log").read_bytes().split(b"Application startup")[0])
    assert timeline.phase is Phase.CAPTURING


def test_sleep_and_wake() -> None:
    timeline = StartTimeline()
    timeline.feed(b"INFO:     Application startup complete.\n", 5.0)
    timeline.feed(line("EngineCore pid=1", 9, "It took 1.5 seconds to fall asleep."), 9.0)
    assert timeline.phase is Phase.SLEEPING
    timeline.feed(line("EngineCore pid=1", 19, "It took 0.5 seconds to wake up tags None."), 19.0)
    assert timeline.phase is Phase.READY


def test_the_clock_file_places_offsets_and_ignores_a_torn_pair() -> None:
    pairs = [(250, 100), (500, 100), (750, 300), (1000, 400)]
    data = b"".join(struct.pack("<QQ", ms, size) for ms, size in pairs) + b"\x01\x02"
    clock = parse_clock(data)
    assert [clock.seconds_at(offset) for offset in (0, 99, 100, 299, 300, 399, 400)] == [
        0.25,
        0.25,
        0.75,
        0.75,
        1.0,
        1.0,
        None,
    ]
    assert not parse_clock(b"")


def test_stamps_survive_the_turn_of_a_year_and_a_clock_set_back() -> None:
    stamps = Stamps()
    assert stamps.seconds("12-31 23:59:58", 0.0) == 0.0
    assert stamps.seconds("01-01 00:00:03", 0.0) == 5.0
    assert stamps.seconds("12-31 23:59:59", 5.0) == 5.0
    assert stamps.seconds("99-99 00:00:00", 5.0) is None
    assert stamps.seconds(None, 5.0) is None


def test_phases_of_a_file_use_the_clock_beside_it(tmp_path: Path) -> None:
    raw, _ = strip_clock((H200 / "11_ipc.log").read_bytes())
    (tmp_path / "log").write_bytes(raw)
    middle = raw.index(b"non-default args")
    (tmp_path / "clock").write_bytes(struct.pack("<QQQQ", 2000, middle - 600, 9000, len(raw) + 1))
    marks = phases_of_text(raw, read_clock(tmp_path / "clock"))
    assert marks[0].seconds is not None and 2.0 <= marks[0].seconds <= 9.0
