"""A stand-in for vLLM that an ordinary start, swap and stop can run: a package `vllm` whose command
serves /health, /v1/models and completions, or fails in a way of its own. It starts in 0.1 s.

For what Stoker does around an engine (every step killed, ports taken, models removed); what
depends on vLLM is tested against vLLM.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from engine_ctl.operations.context import Context
from engine_ctl.paths import Dirs
from engine_ctl.runtimes.store import Runtime, RuntimeStore
from engine_ctl.state import events
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness, procs
from engine_ctl.supervise.stop import stop
from profiles.model import Stop
from tests.standin import trapped
from tests.standin.rig import free_port, until

# STANDIN: dies (at its start), late (never listens), mute (healthy, completes nothing), pools (has
# embeddings only).
MAIN = """
import json, os, signal, socket, socketserver, ssl, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def main():
    words = sys.argv[1:]
    fault = os.environ.get("STANDIN", "")
    model = words[1]
    if fault == "dies":
        sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
    if not os.path.exists(f"{model}/config.json"):
        sys.exit(f"OSError: {model} is not a directory with a config.json")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while fault == "late":
        signal.pause()
    option = dict(zip(words, words[1:]))
    if "--headless" in words:
        print("init engine (profile, create kv cache, warmup model) took 1.00 s", flush=True)
        while True:
            signal.pause()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, code, value):
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if fault == "pools" and self.path == "/v1/completions":
                return self.answer(404, {})
            if self.path in ("/v1/completions", "/v1/embeddings"):
                return self.answer(405, {})
            self.answer(200, {"data": [{"id": model}]} if self.path == "/v1/models" else {})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            if fault == "mute":
                return self.answer(500, {"error": {"message": "EngineDeadError"}})
            text = option.get("--max-num-seqs", "")
            usage = {"completion_tokens": 1}
            self.answer(200, {"choices": [{"text": text}], "usage": usage})

        def log_message(self, *_):
            pass

    address = option.get("--uds") or (option["--host"], int(option["--port"]))

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_UNIX if "--uds" in option else (
            socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )

        def server_bind(self):
            socketserver.TCPServer.server_bind(self)

    server = Server(address, Handler)
    if "--ssl-certfile" in option:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(option["--ssl-certfile"], option["--ssl-keyfile"])
        if option.get("--ssl-cert-reqs") == "2":
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(option["--ssl-certfile"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print("Application startup complete.", flush=True)
    server.serve_forever()

if __name__ == "__main__":
    main()
"""

# It has no parser: whoever asks it about arguments gets no answer.
UNCHECKED = """
import os, sys
if sys.argv[0].endswith("standby.py"):
    os._exit(3)
"""

# Ends a `stoker` with SIGKILL as soon as a step of a swap is journalled (after), or just before it
# is, when all of the step before it is done (before); "made": the run exists and nothing runs.
TRAP = """
import os, signal
from engine_ctl.swap import execute, journal
write, make = journal.Journal._write, execute.make_run

def end():
    os.kill(os.getpid(), signal.SIGKILL)

def written(self):
    if {when!r} == "before" and self.record.step == {step!r}:
        end()
    write(self)
    if {when!r} == "after" and self.record.step == {step!r}:
        end()

def made(*arguments):
    run = make(*arguments)
    if {when!r} == "made":
        end()
    return run

journal.Journal._write, execute.make_run = written, made
"""


def trap(step: str, when: str) -> str:
    """Code that `killed` runs first."""
    return TRAP.format(step=str(step), when=when)


class Serving:
    """An installation with the stand-in as its only runtime. Profiles tell their engines apart by
    `max_num_seqs`, which a completion answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            "HOME": str(root),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_DATA_HOME": str(root / "data"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_CACHE_HOME": str(root / "cache"),
        }
        self.dirs = Dirs.from_env(self.env)
        self.ctx = Context(self.dirs, by="test")
        package = root / "overlay" / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        for directory in (package, package.parent, package.parent.parent):
            (directory / "__init__.py").write_text("")
        (package.parent.parent / "__init__.py").write_text(UNCHECKED)
        (package / "main.py").write_text(MAIN)
        self.model = self.new_model("model")
        self.port = free_port()
        runtime = Runtime(
            name="standin",
            python=sys.executable,
            version="0.32.0",
            platform="cpu",
            overlay=str(root / "overlay"),
        )
        RuntimeStore(self.dirs).save(runtime)
        self.dirs.profiles.mkdir(parents=True)

    def new_model(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        (path / "config.json").write_text("{}")
        return path

    def profile(self, name: str, seats: int, fault: str = "", **changes: Any) -> str:
        data = {
            "model": str(self.model),
            "standby": False,
            # Not the first free one from 8000 up: another test run may take the same.
            "port": self.port,
            "args": {"max_num_seqs": seats},
            "env": {"STANDIN": fault},
            "stop": {"ask_s": 3, "ask_again_s": 2, "kill_s": 5},
            **changes,
        }
        (self.dirs.profiles / f"{name}.yaml").write_text(yaml.safe_dump(data))
        return name

    def current(self, unit: str) -> Run:
        run = self.ctx.store.current(unit)
        assert run is not None
        return run

    def live(self, unit: str) -> list[Run]:
        return [run for run in self.ctx.store.runs(unit) if not liveness.look(run).ended]

    def answers(self, unit: str) -> str:
        """What the unit's engine completes: its `max_num_seqs`."""
        port = self.current(unit).spec().port
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", b"{}")
        with urllib.request.urlopen(request, timeout=100) as reply:
            return str(json.load(reply)["choices"][0]["text"])

    def engines(self) -> list[int]:
        """Pids of every stand-in of this installation that is alive."""
        marked = str(self.ctx.store.units_dir)
        found = []
        for proc in procs.table().values():
            mark = procs.run_dir_of(proc.pid) or ""
            if mark.startswith(marked) and proc.state not in "ZX":
                found.append(proc.pid)
        return found

    def said(self, unit: str, since: float = 0.0) -> list[str]:
        found = events.last(self.dirs, 1000, unit=unit)
        return [event.text for event in found if event.at >= since]

    def killed(self, code: str, *words: str) -> int:
        """`trapped.killed` in these directories."""
        return trapped.killed(self.env, code, words, 250)

    def close(self) -> None:
        for record in self.ctx.store.list_units().units:
            for run in self.live(record.unit):
                if run.identity() is not None:
                    stop(run, ladder=Stop(ask_s=1, ask_again_s=1, kill_s=5), by="test")
        until(lambda: not self.engines(), "nothing is left")


@contextmanager
def installed() -> Iterator[Serving]:
    """An installation for a while. Short paths: Unix sockets have room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="stk-") as root:
        made = Serving(Path(root))
        try:
            yield made
        finally:
            made.close()
