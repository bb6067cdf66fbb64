"""What the sampler costs: N engines scraped once a second and 8 GPUs with 64 processes.

By hand: `python -m tests.bench.observe_load [--seconds 20]`. The engines are servers in another
process that replay a recorded /metrics, NVML is replaced by a recording; everything else is what
the console runs. Prints the sampler's CPU time as a share of one core, for 1, 2, 4 and 8 engines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from engine_ctl.hardware.nvml import NvmlSource
from engine_ctl.model import Snapshot
from engine_ctl.observe.sampler import Sampler
from tests.standin.nvml import RecordedNvml
from tests.standin.observed import DATA, Written, recorded_log
from tests.standin.pages import page

GPUS = 8
PROCESSES = 64


def serve(count: int, ports: Any) -> None:
    """Engines: /health and a /metrics whose counters rise, kept-alive connections."""
    body = page("h200_load")
    head = b'vllm:generation_tokens_total{engine="0",model_name="m"} '

    def answer(connection: socket.socket) -> None:
        tokens = 2178
        while data := connection.recv(65536):
            tokens += 100
            metrics = b"GET /metrics" in data
            text = body.replace(head + b"2178.0", head + b"%d.0" % tokens) if metrics else b""
            header = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text)
            connection.sendall(header + text)

    def accept(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports.send([listener.getsockname()[1] for listener in listeners])
    for listener in listeners:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    ports.recv()


def gpus(seed: int) -> NvmlSource:
    """Eight H200s of the recording, with eight of our own process's ids each to look up."""
    device = json.loads((DATA / "nvml" / "daemon_and_engine.json").read_text())["devices"][0]
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    devices = []
    for index in range(GPUS):
        own = json.loads(json.dumps(device))
        own["nvmlDeviceGetUUID"] = f"GPU-{index:08x}"
        own["nvmlDeviceGetComputeRunningProcesses"] = [
            {"pid": pids[(seed + index * 8 + each) % len(pids)], "usedGpuMemory": 1 << 30}
            for each in range(PROCESSES // GPUS)
        ]
        own.update({f"nvmlDeviceGetNvLinkState/{link}": 1 for link in range(18)})
        devices.append(own)
    recording = {"system": {"nvmlSystemGetDriverVersion": "580.159.04"}, "devices": devices}
    return NvmlSource(RecordedNvml(recording))


def measure(engines: int, seconds: float, with_gpus: bool) -> tuple[float, float]:
    """(percent of a core, median milliseconds of a sample)."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(engines, theirs), daemon=True)
    server.start()
    ports = ours.recv()
    log, clock = recorded_log("h200-vllm-0.33.0/11_ipc")
    log = log[: log.index(b"startup complete.") + 18]
    with tempfile.TemporaryDirectory() as root:
        written = Written(Path(root))
        for index, port in enumerate(ports):
            name = f"engine-{index}"
            written.unit(name)
            run = written.run(name, port=port)
            written.log(run, log)
            written.clock(run, clock)
            written.ready(run, 43.9)
        from engine_ctl.hardware.readings import NoGpus

        sampler = Sampler(written.dirs, gpus(engines) if with_gpus else NoGpus())
        took: list[float] = []

        def callback(snapshot: Snapshot) -> None:
            assert all(unit.load is not None for unit in snapshot.units), snapshot.problems
            took.append(time.thread_time())

        sampler.sample_once()
        for _ in range(3):
            sampler.sample_once()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        begun, cpu = time.monotonic(), usage.ru_utime + usage.ru_stime
        sampler.start(callback)
        time.sleep(seconds)
        sampler.stop()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        share = (usage.ru_utime + usage.ru_stime - cpu) / (time.monotonic() - begun)
        each = [b - a for a, b in itertools.pairwise(took)]
        written.close()
    ours.send("end")
    server.join()
    return 100 * share, 1000 * statistics.median(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--no-gpus", action="store_true")
    options = parser.parse_args()
    print(f"{GPUS} GPUs with {PROCESSES} processes" if not options.no_gpus else "no GPUs")
    print("engines   % of a core   ms of CPU a sample (median)")
    for engines in (1, 2, 4, 8):
        share, median = measure(engines, options.seconds, not options.no_gpus)
        print(f"{engines:7}   {share:11.2f}   {median:10.2f}")


if __name__ == "__main__":
    main()
