"""Metrics of several API servers in processes that were forked.

vLLM names a directory through which its servers add up their figures (PROMETHEUS_MULTIPROC_DIR)
just before it starts them. prometheus_client looks for it once, when it is imported, which was in
the standby: without this /metrics of such an engine would be empty."""

from __future__ import annotations

import os
import sys

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def settle_metrics(before: dict[str, str]) -> None:
    """Choose anew how values are kept, where the environment has changed since `before`."""
    values = sys.modules.get("prometheus_client.values")
    choose = getattr(values, "get_value_class", None)
    if choose is not None and os.environ.get(VARIABLE) != before.get(VARIABLE):
        values.ValueClass = choose()  # type: ignore[union-attr]
