"""The starts and phases that a log view offers, in logs of one start or several, of any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.logs import view_facts, view_starts
from engine_ctl.logs.index_file import LogFile
from engine_ctl.logs.lines import records_of
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.logs.view_starts import LogStarts, Stretch, starts_of
from engine_ctl.model import Phase

DATA = Path(__file__).parents[1] / "data" / "recordings"
LOGS = sorted(DATA.glob("*/*.log"))
KILLED = (DATA / "cpu-vllm-0.32.0" / "killcore.log").read_bytes()
READY_LINE = (
    b"(APIServer pid=7) INFO 11-29 12:02:10 [loggers.py:335] Engine 000: Avg prompt throughput:"
    b" 9120.4 tokens/s, Running: 12 reqs, Waiting: 57 reqs, GPU KV cache usage: 41.2%\n"
)


def of(path: Path, data: bytes) -> LogStarts:
    path.write_bytes(data)
    return view_facts.asked(starts_of, LogFile(path))


def line_by_line(data: bytes) -> list[tuple[Phase, int]]:
    """Phases and their places, each record taken."""
    timeline = StartTimeline()
    marks = [(timeline.phase, 0)]
    for record in records_of(data):
        timeline.take(record)
        if timeline.phase != marks[-1][0]:
            marks.append((timeline.phase, record.offset))
    return marks


@pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parent.name[:3]}-{path.stem}")
def test_one_start_has_the_phases_of_all_its_lines(log: Path) -> None:
    data = log.read_bytes()
    found = starts_of(LogFile(log))
    if len(found.first_words) > 1:
        return  # several servers
    expected = line_by_line(data)
    ends = [*(at for _, at in expected[1:]), None]
    assert list(found.phases) == [
        Stretch(phase, at, end)
        for (phase, at), end in zip(expected, ends, strict=True)
        if end is None or end > at
    ]


def test_several_starts_in_one_log(tmp_path: Path) -> None:
    found = of(tmp_path / "log", KILLED + KILLED.replace(b"pid=24448", b"pid=777") + KILLED)
    first = KILLED.index(b"(APIServer")
    sizes = (len(KILLED), len(KILLED.replace(b"pid=24448", b"pid=777")))
    assert found.first_words == (first, first + sizes[0], first + sum(sizes))
    whole = [p.phase for p in starts_of(LogFile(DATA / "cpu-vllm-0.32.0/killcore.log")).phases]
    for number in (1, 2, 3):
        assert [p.phase for p in found.phases if p.start_number == number] == whole
    assert [p.end for p in found.phases[:-1]] == [p.start for p in found.phases[1:]]


def test_what_is_behind_the_first_megabytes_counts(tmp_path: Path) -> None:
    padding = READY_LINE * ((view_starts.WHOLE_BYTES + (3 << 20)) // len(READY_LINE))
    end = b"(APIServer pid=7) INFO 11-29 14:00:00 [a.py:1] Shutting down FastAPI HTTP server\n"
    data = KILLED[: KILLED.index(b"Application startup complete")]
    data += b"Application startup complete.\n" + padding + KILLED + padding + end
    found = of(tmp_path / "log", data)
    again = data.index(KILLED[:2000], 100)
    second = found.first_words[1]
    assert again <= second <= again + KILLED.index(b"version 0.32")
    ready = next(p for p in found.phases if p.phase is Phase.READY)
    assert ready.end is not None and ready.end - ready.start > view_starts.WHOLE_BYTES
    assert found.phases[-1].start_number == 2
    assert any(p.phase is Phase.LOADING and p.start > second for p in found.phases)


def test_a_log_without_a_start(tmp_path: Path) -> None:
    found = of(tmp_path / "log", b"nothing of vLLM\n" * 100)
    assert found.first_words == ()
    assert [p.phase for p in found.phases] == [Phase.IMPORTING]
    assert of(tmp_path / "empty", b"").first_words == ()
