"""One small installation for engine tests: private directories, the shared runtime, short stops."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import RuntimeStore
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness
from engine_ctl.supervise.stop import stop as stop_run
from engine_ctl.weights import socket_dir
from tests.standin import trapped

if TYPE_CHECKING:
    from tests.engine.conftest import CpuRuntime

READY_S = 180.0


class World:
    """Directories of one test module and what tests do in them."""

    def __init__(self, root: Path, runtime: CpuRuntime, model: Path) -> None:
        self.env = {
            "HOME": str(root),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_CACHE_HOME": str(root / "cache"),
        }
        self.dirs = Dirs.from_env(self.env)
        self.ctx = Context(self.dirs, by="test")
        self.model = model
        self.runtime = runtime
        RuntimeStore(self.dirs).save(runtime.runtime)
        self.dirs.profiles.mkdir(parents=True, exist_ok=True)

    def profile(self, name: str, **changes: Any) -> str:
        """Write a profile of the tiny model; returns its name."""
        data: dict[str, Any] = {
            "model": str(self.model),
            "args": {"enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8},
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            "stop": {"ask_s": 60, "ask_again_s": 30, "kill_s": 30},
        }
        for key, value in changes.items():
            data[key] = {**data[key], **value} if isinstance(data.get(key), dict) else value
        (self.dirs.profiles / f"{name}.yaml").write_text(yaml.safe_dump(data))
        return name

    def command(self, *words: str, wait: bool = True) -> subprocess.Popen[str]:
        """A `stoker` command as its own process, output captured."""
        process = subprocess.Popen(
            [sys.executable, "-m", "console.main", *words],
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if wait:
            process.wait(READY_S)
        return process

    def killed(self, code: str, *words: str) -> int:
        """`trapped.killed` in these directories."""
        return trapped.killed(self.env, code, words, READY_S)

    def document(self, *words: str) -> Any:
        process = self.command(*words, "--json", wait=False)
        out, err = process.communicate(timeout=READY_S)
        assert process.returncode in (0, 1), err
        return json.loads(out)

    def current(self, unit: str) -> Run:
        run = self.ctx.store.current(unit)
        assert run is not None
        return run

    def wait_ready(self, run: Run) -> None:
        until(lambda: run.ready() is not None or run.exit() is not None, READY_S)
        assert run.ready() is not None, run.log.read_text(errors="replace")[-3000:]

    def live_runs(self, unit: str) -> list[str]:
        return [r.id for r in self.ctx.store.runs(unit) if not liveness.look(r).ended]

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """The same here and in commands of their own: they share one standby."""
        before = dict(os.environ)
        os.environ.update(self.env)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def close(self) -> None:
        """End every engine, front, bench and daemon that lives in these directories."""
        for record in self.ctx.store.list_units().units:
            run = self.ctx.store.current(record.unit)
            if record.kind is Kind.STANDBY or run is None or liveness.look(run).ended:
                continue
            with contextlib.suppress(Exception):
                stop_run(run, by="test")
        socket_dir.discard(self.ctx.store)

    def end_standbys(self) -> None:
        for standing in standbys.listing(self.ctx.store):
            standbys.stop(self.ctx.store, standing.unit, by="test")

    def clear(self) -> None:
        """Forget units, profiles, settings and history; standbys and their units stay."""
        units, sockets = self.dirs.units, self.dirs.sockets
        for path in (*units.iterdir(), *self.dirs.state.iterdir(), *self.dirs.config.iterdir()):
            if path in (units, sockets) or path.name.startswith(standbys.PREFIX):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.dirs.profiles.mkdir()


def until(condition: Callable[[], bool], seconds: float = READY_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition} was not met in {seconds:.0f} s"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def complete(
    port: int,
    model: str,
    tokens: int = 4,
    timeout: float = 120.0,
    begun: threading.Event | None = None,
) -> str:
    """One greedy completion by HTTP, as a client would: its number of tokens and its text (random
    weights may say half a character, which is no text). `begun` is set at the first token, with
    all others still to come."""
    body = {
        "model": model,
        "prompt": "An engine",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    text, counted = "", None
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        for line in reply:
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            answer = json.loads(data)
            counted = answer.get("usage") or counted
            for choice in answer["choices"]:
                text += choice["text"]
                if begun is not None:
                    begun.set()
    assert counted is not None and counted["completion_tokens"] == tokens
    return f"{tokens} tokens: {text!r}"


@contextlib.contextmanager
def world(runtime: CpuRuntime, model: Path) -> Iterator[World]:
    """Short paths: Unix sockets have room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        made = World(Path(root), runtime, model)
        with made.environment():
            try:
                yield made
            finally:
                made.close()
                made.end_standbys()
