"""Steps of a long command count the seconds that they stand, on a terminal only."""

from __future__ import annotations

import io
import itertools

import pytest

from console.commands.steps import Steps
from tests.standin.rig import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_a_step_that_stands_says_for_how_long() -> None:
    out, now = Terminal(), [0.0]
    steps = Steps(out, clock=lambda: now[0])
    steps.tick()
    steps("writing a model")
    now[0] = 1.0
    steps.tick()
    assert out.getvalue() == "writing a model"
    now[0] = 7.0
    steps.tick()
    steps("importing")
    steps.settle()
    steps.tick()
    assert out.getvalue() == "writing a model\rwriting a model, 7 s\nimporting\n"


def test_a_line_that_fills_the_terminal_is_left_alone() -> None:
    out, clock = Terminal(), itertools.count(0.0, 10.0)
    steps = Steps(out, clock=lambda: next(clock))
    steps("x" * 56)
    steps.tick()
    assert out.getvalue() == "x" * 56


def test_it_counts_by_itself_and_ends_its_line() -> None:
    out, clock = Terminal(), itertools.count(0.0, 10.0)
    with pytest.raises(ValueError), Steps(out, lambda: next(clock), every_s=0.01) as steps:
        steps("importing")
        until(lambda: "importing, 20 s" in out.getvalue())
        raise ValueError
    assert out.getvalue().startswith("importing\rimporting, 10 s\rimporting, 20 s")
    assert out.getvalue().endswith(" s\n")


def test_elsewhere_a_step_is_a_line() -> None:
    out = io.StringIO()
    with Steps(out, lambda: 100.0) as steps:
        steps("writing a model")
        steps.tick()
        steps("importing")
    assert out.getvalue() == "writing a model\nimporting\n"
