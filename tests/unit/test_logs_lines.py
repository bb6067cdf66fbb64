"""Records out of raw log bytes, in every shape that vLLM gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_ctl.logs.lines import LONGEST_LINE, Record, RecordReader, bar_of, records_of

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
CPU = RECORDINGS / "cpu-vllm-0.32.0"
H200 = RECORDINGS / "h200-vllm-0.33.0"


def one(data: bytes) -> Record:
    (record,) = records_of(data)
    return record


def head(record: Record) -> tuple[object, ...]:
    return record.process, record.pid, record.level, record.time, record.file, record.message


PLAIN = ("EngineCore", 7, "INFO", "11-20 09:14:02", "core.py", "hello there")


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] hello there",
        "(EngineCore pid=7) INFO 11-20 09:14:02 [v1/engine/core.py:1584] hello there",
        "(EngineCore pid=7) INFO 11-20 09:14:02 [v1/.../engine/core.py:1584] hello there",
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-20 09:14:02\x1b[0m "
        "\x1b[90m[core.py:1584]\x1b[0m hello there",
        "node-3: (EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] hello there",
        "(EngineCore pid=7) node-3: INFO 11-20 09:14:02 [core.py:1584] hello there",
        "vllm-1  | (EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] hello there",
        "Nov 20 09:14:02 box vllm[7]: "
        "(EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1] hello there",
        "2026-11-20T09:14:02.118Z stderr F "
        "(EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1] hello there",
        "   12.34 (EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] hello there",
        "\0\0\0(EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] hello there",
    ],
)
def test_a_prefix_in_any_style_is_taken_apart(line: str) -> None:
    assert head(one(line.encode() + b"\n")) == PLAIN


def test_lines_of_0_30_with_nothing_but_the_process_prefix() -> None:
    record = one(b"(APIServer pid=12) Loading the tokenizer\n")
    assert head(record) == ("APIServer", 12, None, None, None, "Loading the tokenizer")
    record = one(b"(APIServer pid=12) INFO:     Application startup complete.\n")
    assert (record.process, record.level, record.message) == (
        "APIServer",
        "INFO",
        "Application startup complete.",
    )


def test_a_json_line_names_the_real_process_and_keeps_the_traceback() -> None:
    fields = {
        "asctime": "2026-11-29 17:34:43,623",
        "levelname": "ERROR",
        "name": "vllm.v1.engine.core",
        "processName": "MainProcess",
        "process": 27190,
        "message": "EngineCore failed to start.",
        "vllm_process_name": "EngineCore",
        "exc_info": "Traceback (most recent call last):\nValueError: no",
    }
    record = one(json.dumps(fields).encode() + b"\n")
    assert (record.process, record.pid, record.file) == ("EngineCore", 27190, "core.py")
    assert record.message.endswith("\nValueError: no")
    assert one(b'{"a": 1}\n').shape == "raw"
    assert one(b'{"message": 1, "level": "x"}\n').shape == "raw"


def test_lines_of_one_record_are_joined_and_its_bytes_counted() -> None:
    prefix = b"(EngineCore pid=7) ERROR 11-20 09:14:02 [core.py:1584] "
    data = (
        prefix
        + b"EngineCore failed to start.\r\n"
        + prefix
        + b"Traceback (most recent call last):\r\n"
        + prefix
        + b'  File "a.py", line 1\r\n'
        + prefix
        + b"ValueError: no\n"
        + prefix
        + b"next\n"
    )
    first, second = records_of(data)
    assert first.message.split("\n")[0] == "EngineCore failed to start."
    assert first.message.endswith("ValueError: no")
    assert second.message == "next"
    assert first.length + second.length == len(data)
    assert second.offset == first.length


def test_a_converted_file_with_crlf_everywhere_keeps_its_records_apart() -> None:
    line = b"(APIServer pid=1) INFO 11-20 09:14:02 [launcher.py:197] Route: /%d\r\n"
    data = b"plain\r\n(A pid=1) INFO 11-20 09:14:01 [a.py:1] a\r\n" + b"".join(
        line % index for index in range(5)
    )
    messages = [record.message for record in records_of(data)]
    assert messages[-4:] == ["Route: /1", "Route: /2", "Route: /3", "Route: /4"]


def test_a_raw_traceback_is_one_record() -> None:
    data = (
        b'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\n'
        b"OSError: gone\nINFO:     bye\n"
    )
    first, second = records_of(data)
    assert first.message.endswith("OSError: gone") and first.level == "ERROR"
    assert second.message == "bye"


def test_bars_are_split_from_each_other_and_from_a_record_behind_them() -> None:
    data = (
        b"\rCapturing CUDA graphs (PIECEWISE):   0%|          | 0/51 [00:00<?, ?it/s]"
        b"\rCapturing CUDA graphs (PIECEWISE):  63%|\xe2\x96\x88   | 32/51 [00:03<00:01, 10.1it/s]"
        b"Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<00:02,  1.33it/s]"
        b"(EngineCore pid=7) INFO 11-20 09:14:02 [core.py:1584] behind\n"
    )
    bars = [record for record in records_of(data) if record.shape == "bar"]
    assert [bar_of(bar.message) and bar_of(bar.message).done for bar in bars] == [32, 1]  # type: ignore[union-attr]
    assert list(records_of(data))[-1].message == "behind"
    assert list(records_of(data))[-1].process == "EngineCore"


def test_native_and_warning_lines_have_a_level() -> None:
    assert one(b"[rank0]:[E1120 09:24:07.118 ProcessGroupNCCL.cpp:688] x\n").level == "ERROR"
    assert one(b"[W1129 17:38:02.092358805 utils.cpp:68] Warning: NUMA\n").level == "WARNING"
    record = one(b"W1129 17:46:06.406000 6265 torch/_opaque_base.py:6] old\n")
    assert (record.level, record.pid, record.time) == ("WARNING", 6265, "11-29 17:46:06")
    record = one(b"lib/x/resource_tracker.py:254: UserWarning: leaked\n")
    assert (record.level, record.file) == ("WARNING", "resource_tracker.py")


def test_an_endless_line_is_cut_so_that_memory_stays_bounded() -> None:
    reader = RecordReader()
    records = []
    for _ in range(40):
        records += reader.feed(b"x" * (LONGEST_LINE // 8))
        assert len(reader.partial) <= LONGEST_LINE
    assert records and all(record.length == LONGEST_LINE for record in records)


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*/*.log")), ids=lambda path: path.stem)
def test_every_byte_of_a_recording_belongs_to_a_record(path: Path) -> None:
    data = path.read_bytes()
    end = 0
    for record in records_of(data):
        assert record.offset <= end
        end = max(end, record.offset + record.length)
    assert end == len(data)


def test_colour_debug_and_json_say_the_same_as_plain_text() -> None:
    def key(name: str) -> set[str]:
        records = records_of((CPU / f"{name}.log").read_bytes())
        return {
            f"{record.level} {record.file} {record.message}"
            for record in records
            if record.shape in ("record", "json")
            and record.file in {"base_loader.py", "kernel.py", "model.py", "cpu_worker.py"}
            and "took" not in record.message
        }

    plain = key("api2")
    assert len(plain) > 4
    assert plain <= key("color") and plain <= key("json") and plain <= key("debug")
