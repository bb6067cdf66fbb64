"""Line parsing: the short cut and prometheus-client's parser give the same answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from engine_ctl.metrics.exposition import parse_line
from engine_ctl.metrics.sample import Parser
from tests.standin.pages import CASES, RECORDED, page

PAGES = (*RECORDED, *CASES)
LINES = [
    line
    for name in PAGES
    for line in page(name).decode().splitlines()
    if line and not line.startswith("#")
]


def by_library(line: str) -> tuple[str, dict[str, str], float] | None:
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                return sample.name, dict(sample.labels), float(sample.value)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        pass
    return None


def same(left: object, right: object) -> bool:
    return repr(left) == repr(right)


@pytest.mark.parametrize("name", PAGES)
def test_every_recorded_line_reads_as_the_library_reads_it(name: str) -> None:
    read = 0
    for line in page(name).decode().splitlines():
        if line and not line.startswith("#"):
            assert same(parse_line(line), by_library(line)), line
            read += 1
    assert read


def test_escapes_braces_and_special_numbers() -> None:
    name, labels, value = parse_line(LINES_M6[0]) or ("", {}, 0.0)
    assert name == "vllm:kv_cache_usage_perc"
    assert labels["model_name"] == 'C:\\models\\a "b"\n{x}'
    assert math.isnan(value)
    assert parse_line('x{le="+Inf"} 3.0') == ("x", {"le": "+Inf"}, 3.0)
    assert parse_line("x 1.2345e+17") == ("x", {}, 1.2345e17)
    assert parse_line("x +Inf") == ("x", {}, math.inf)
    assert parse_line('x{a="1"} 2 1700000000000') == ("x", {"a": "1"}, 2.0)


LINES_M6 = page("M6").decode().splitlines()


@pytest.mark.parametrize(
    "line", ["", "   ", "# HELP x y", "x", "x{", 'x{a="1} 2', "x{a=1} 2", "x y z", "{} 1", "x 1_0"]
)
def test_what_is_not_a_sample_is_none(line: str) -> None:
    assert parse_line(line) is None


mutations = st.builds(
    lambda line, at, text, cut: (
        line[: at % (len(line) + 1)] + text + line[at % (len(line) + 1) + cut :]
    ),
    st.sampled_from(LINES),
    st.integers(0, 4000),
    st.text(alphabet='{}="\\,+-.# \t_aInfNe0é\x00\x85', max_size=6),
    st.integers(0, 5),
)


@given(st.one_of(mutations, st.text(max_size=80)))
@example('x{__name__="y"} 1')
@example('x{a="1",a="2"} 1')
@example('x{a="1",} 1')
@example("x 0x10")
@example("x infinity")
def test_any_line_reads_as_the_library_reads_it_or_not_at_all(line: str) -> None:
    if "\n" in line or "\r" in line:
        return
    assert same(parse_line(line), by_library(line))


@given(st.lists(st.one_of(mutations, st.text(max_size=40)), max_size=20), st.binary(max_size=60))
@example(
    ['vllm:kv_cache_usage_perc{engine="0"} 1_0', 'vllm:kv_cache_usage_perc{engine="0"} 1'], b""
)
@example(['other{engine="0"} ', 'other{engine="0"} 1'], b"")
def test_the_parser_never_raises_and_a_second_reading_is_the_same(
    lines: list[str], junk: bytes
) -> None:
    body = "\n".join(lines).encode() + b"\n" + junk
    parser = Parser()
    first = parser.parse(body)
    assert same(parser.parse(body), first)
    assert same(Parser().parse(body), first)
