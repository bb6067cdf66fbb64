"""Settings of the whole suite: examples, a second try in CI, short reports, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

CI = bool(os.environ.get("CI"))
# What CI shows ends with the names and the errors of failed tests; long logs would push them out.
SECTION_CHARS = 1500
MESSAGE_CHARS = 600
LINES = 40
GRACE_S = 10.0
# Of the tests with the real runtime, those that keep to sockets and processes of their own.
ALSO_BESIDE = (
    "preload_engines",
    "preload_layout",
    "preload_table",
    "profiles_check",
    "roundtrip",
    "startup_plan",
)

# In CI the same examples every time, so that a red run means that something changed; by hand new
# ones each time, which is what finds things.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hand", deadline=None)
settings.load_profile("ci" if CI else "hand")


def pytest_configure(config: pytest.Config) -> None:
    if CI:
        config.option.tbstyle = "short"
        config.option.reportchars = "fER"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for the whole suite; none for the few files that one works on."""
    tests = Path(__file__).parent
    return 2 if {tests, tests.parent} & {Path(arg).absolute() for arg in config.args} else 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return TwoProcesses(config, log)


class TwoProcesses(LoadScopeScheduling):
    """Tests that serve with engines go to one process, in one piece, and so never meet each other;
    the rest goes to the other, file by file, and at the end to whichever has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "engines" if with_engines(file) else file


def with_engines(file: str) -> bool:
    return file.startswith("tests/engine/") and file[18:-3] not in ALSO_BESIDE


def place(item: pytest.Item) -> int:
    """Engines begin at once; what needs the runtime beside them waits until they have it."""
    if with_engines(item.nodeid.partition("::")[0]):
        return 0
    return 2 if "engine" in item.keywords else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In CI a failed test is tried once more, and the report names it: most tests here work with
    real processes on machines that are shared and noisy. By hand a failure is a failure."""
    items.sort(key=place)
    if CI:
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report: Any = yield
    if CI and report.outcome != "passed":
        report.sections = [
            (name, text if len(text) <= SECTION_CHARS else f"… {text[-SECTION_CHARS:]}")
            for name, text in report.sections
        ]
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and len(crash.message) > MESSAGE_CHARS:
            crash.message = f"{crash.message[:MESSAGE_CHARS]} …"
        for entry in getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ()):
            entry.lines = [line[:MESSAGE_CHARS] for line in entry.lines[-LINES:]]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What went wrong the first time, for tests that were tried again."""
    again = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section("tried again")
    for report in again:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message.splitlines()[0] if crash is not None else str(report.longrepr)[-300:]
        terminalreporter.write_line(f"{report.nodeid} ({report.when}): {said}")


def children() -> set[int]:
    """Live processes that this one has started and not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if _lives(pid)}


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test ends its threads and processes: what it leaves would be found by another one.

    Engines, their standbys and harnesses are kept for the tests of a module and end with it."""
    if "engine" in request.node.path.parts:
        yield
        return
    had_threads, had_children = threads(), children()
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := (threads() - had_threads, children() - had_children)) != (set(), set()):
        if time.monotonic() > deadline:
            for pid in left[1]:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"left behind: threads {left[0]}, processes {left[1]}")
        time.sleep(0.01)
