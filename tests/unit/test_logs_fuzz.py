"""No parser raises, whatever the bytes; how they are cut into chunks changes nothing."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_ctl.logs.classify import classify
from engine_ctl.logs.clock import parse_clock
from engine_ctl.logs.engine_stats import parse_stats, stats_of
from engine_ctl.logs.fallbacks import reason_of
from engine_ctl.logs.kernels import kernels_of
from engine_ctl.logs.lines import RecordReader, records_of
from engine_ctl.logs.timeline import StartTimeline, phases_of_text
from engine_ctl.logs.verdict import verdict_of
from tests.unit.test_logs_cases import CASES

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "recordings").glob("*/*.log"))
SEEDS = [path.read_bytes() for path in RECORDINGS] + [log.encode() for _, _, log in CASES]
LINES = sorted({line for seed in SEEDS for line in seed.split(b"\n") if len(line) < 1500})
JUNK = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\0\0",
    b"\xff\xfe",
    b"\x1b[31m",
    b"{",
    b"}",
    b'{"message": "x"}',
    b"%|",
    b"1/2 [",
    b"9" * 5000,
    b"pid=",
    b"(",
    b")",
    b"GiB",
    b"-",
    b"\xe2\x96",
]
PIECE = st.one_of(st.sampled_from(LINES), st.sampled_from(JUNK), st.binary(max_size=40))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Lines of real logs, shuffled, cut, and sprinkled with bytes that break things."""
    pieces = []
    for piece in draw(st.lists(PIECE, max_size=25)):
        if draw(st.integers(0, 3)) == 0 and piece:
            start = draw(st.integers(0, len(piece) - 1))
            piece = piece[start:]
        if draw(st.integers(0, 5)) == 0 and piece:
            at = draw(st.integers(0, len(piece)))
            piece = piece[:at] + draw(st.sampled_from(JUNK)) + piece[at:]
        pieces.append(piece)
        pieces.append(draw(st.sampled_from([b"\n", b"\r\n", b"\n", b"\r", b""])))
    return b"".join(pieces)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(logs())
def test_no_parser_ever_raises(data: bytes) -> None:
    phases_of_text(data)
    _, reasons = verdict_of(data)
    assert all(reason.category.startswith("wc_") for reason in reasons)
    assert all(fact.value for fact in kernels_of(data))
    stats_of(data)
    cause = classify(data)
    if cause is not None:
        assert cause.category and cause.hint and "\n" not in cause.line


@FUZZ
@given(logs(), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_chunks_do_not_change_the_records(data: bytes, cuts: list[int]) -> None:
    reader = RecordReader()
    records = [record for chunk in chunks(data, cuts) for record in reader.feed(chunk)]
    records += reader.flush()
    assert records == list(records_of(data))


@FUZZ
@given(st.sampled_from(SEEDS), st.lists(st.integers(0, 1 << 20), min_size=1, max_size=30))
def test_chunks_do_not_change_the_timeline(data: bytes, cuts: list[int]) -> None:
    whole, split = StartTimeline(), StartTimeline()
    whole.feed(data)
    for chunk in chunks(data, cuts):
        split.feed(chunk)
    assert split.marks() == whole.marks()
    assert split.facts == whole.facts
    assert (split.phase, split.progress, split.ready_seen) == (
        whole.phase,
        whole.progress,
        whole.ready_seen,
    )


@FUZZ
@given(st.sampled_from(SEEDS), st.integers(0, 1 << 20))
def test_any_tail_of_a_real_log_can_be_read(data: bytes, start: int) -> None:
    tail = data[start % (len(data) + 1) :]
    phases_of_text(tail)
    classify(tail)
    verdict_of(tail)


@FUZZ
@given(st.binary(max_size=200))
def test_a_clock_of_any_bytes_never_goes_back(data: bytes) -> None:
    clock = parse_clock(data)
    seconds = [clock.seconds_at(offset) for offset in (0, 1, 1 << 20, 1 << 62)]
    known = [value for value in seconds if value is not None]
    assert known == sorted(known)


@FUZZ
@given(st.text(max_size=200))
def test_single_messages(text: str) -> None:
    assert reason_of(text).category.startswith("wc_fallback.")
    parse_stats(f"Engine 000: Avg prompt throughput: {text}")
    classify(text)
