"""OpenMP in a process that was forked: give it the threads that its environment asks for.

libgomp reads OMP_NUM_THREADS and GOMP_CPU_AFFINITY once, when it is loaded. vLLM sets them for
each CPU worker just before it starts it, which a forked worker would never notice.
"""

from __future__ import annotations

import os
import sys


def settle_threads(before: dict[str, str]) -> None:
    """Apply what changed since `before`: thread count, and one core for each thread."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    wanted = os.environ.get("OMP_NUM_THREADS")
    if wanted and wanted != before.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, int(wanted.split(",")[0])))
    affinity = os.environ.get("GOMP_CPU_AFFINITY")
    if affinity and affinity != before.get("GOMP_CPU_AFFINITY"):
        pin(parse_cpus(affinity))


def parse_cpus(text: str) -> list[int]:
    """`"0 2-4 8-12:2"` as libgomp understands it: a list of CPU numbers."""
    cpus: list[int] = []
    for part in text.replace(",", " ").split():
        span, _, stride = part.partition(":")
        first, dash, last = span.partition("-")
        cpus += range(int(first), int(last if dash else first) + 1, int(stride or 1))
    return cpus


def pin(cpus: list[int]) -> None:
    """Bind this thread to the first CPU and each thread of its OpenMP team to the next ones.

    The team is made here, so that its threads can be told from all others; libgomp keeps it."""
    import torch

    if not cpus:
        return
    os.sched_setaffinity(0, cpus)
    before = set(os.listdir("/proc/self/task"))
    count = torch.get_num_threads()
    torch.ones(count * 65536).add_(1.0)
    team = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
    for position, thread in enumerate(team, start=1):
        os.sched_setaffinity(int(thread), {cpus[position % len(cpus)]})
    os.sched_setaffinity(0, {cpus[0]})
