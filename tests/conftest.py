"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# In CI the same examples every time, so that a red run means that something changed; by hand new
# ones each time, which is what finds things.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("hand", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "hand")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In CI a failed test is tried once more, and the report names it: most tests here work with
    real processes on machines that are shared and noisy. By hand a failure is a failure."""
    if os.environ.get("CI"):
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1))
