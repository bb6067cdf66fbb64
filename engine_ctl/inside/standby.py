"""A process that has vLLM imported and waits: answers questions, and starts engines by forking.

Runs under a runtime's interpreter:  python standby.py --socket PATH [--platform cpu] [--model M]…
or, without a socket, one question:  python standby.py --once hello|schema|check < request.json
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
import os
import sys
import tempfile
import time
import types
from typing import Any

ROOM = "x" * 2000  # the title of an engine is written over the standby's arguments
ORIGINAL = "STOKER_STANDBY_LD_PRELOAD"
CHECKS = 4
CHECK_SECONDS = 120.0


def package() -> None:
    """Let `engine_ctl.inside` mean this directory and nothing else of Stoker be importable."""
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]
    for name, path in (("engine_ctl", []), ("engine_ctl.inside", [here])):
        module = types.ModuleType(name)
        module.__path__ = path
        sys.modules[name] = module


def preloads(have: str) -> str:
    """LD_PRELOAD as vLLM sets it for its CPU workers: without it their threads share one core."""
    wanted = have
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin and not any(name in have for name in ("libgomp", "libomp", "libiomp")):
        torch = os.path.dirname(spec.origin)
        for place in (os.path.join(os.path.dirname(torch), "torch.libs"), f"{torch}/lib"):
            found = sorted(glob.glob(os.path.join(place, "libgomp*.so*")))
            if found:
                wanted = f"{wanted}:{found[0]}" if wanted else found[0]
                break
    spec = importlib.util.find_spec("vllm")
    if spec and spec.origin and "libtcmalloc" not in have:
        for pattern in ("libtcmalloc_minimal*.so*", "libtcmalloc.so*"):
            found = sorted(glob.glob(os.path.join(os.path.dirname(spec.origin), "libs", pattern)))
            if found:
                wanted = f"{found[0]}:{wanted}" if wanted else found[0]
                break
    return wanted


def execute_again(options: argparse.Namespace) -> None:
    """Start over once with what must be there before the first import."""
    if options.room:
        return
    environment = dict(os.environ)
    if options.platform == "cpu":
        environment[ORIGINAL] = environment.get("LD_PRELOAD", "")
        wanted = preloads(environment[ORIGINAL])
        if wanted:
            environment["LD_PRELOAD"] = wanted
    script = os.path.abspath(__file__)
    os.execve(sys.executable, [sys.executable, script, *sys.argv[1:], "--room", ROOM], environment)


def original_environment() -> dict[str, str]:
    """The environment that whoever started the standby gave it."""
    environment = dict(os.environ)
    preload = environment.pop(ORIGINAL, None)
    if preload == "":
        environment.pop("LD_PRELOAD", None)
    elif preload is not None:
        environment["LD_PRELOAD"] = preload
    return environment


def installed() -> list[Any]:
    """What changes when the installation does: interpreter and package, by time and size."""
    spec = importlib.util.find_spec("vllm")
    package = os.path.dirname(spec.origin) if spec and spec.origin else ""
    facts: list[Any] = []
    for path in (sys.executable, f"{package}/__init__.py", f"{package}/version.py"):
        try:
            info = os.stat(path)
        except OSError:
            facts.append(None)
        else:
            facts.append([info.st_mtime_ns, info.st_size])
    return facts


class Standby:
    def __init__(self, options: argparse.Namespace, environment: dict[str, str]) -> None:
        from engine_ctl.inside.standby_process import Title, open_descriptors
        from engine_ctl.inside.standby_warm import Warm

        self.options = options
        self.environment = environment
        self.began = time.monotonic()
        self.title = Title()
        self.installed = installed()
        self.warm = Warm()
        self.warm.up(options.model)
        self.title.prepare(environment)
        self.title.set(f"stoker: standby {options.identity} (vllm {self.warm.version})")
        self.keep = open_descriptors()
        self.checks = 0
        self.schema: dict[str, Any] | None = None

    def serve(self) -> None:
        from engine_ctl.inside.standby_become import Become
        from engine_ctl.inside.standby_server import Server, listen

        listener = listen(self.options.socket)
        become = Become(self.warm.platform, self.keep, self.environment, self.title)
        self.become = become
        server = Server(
            listener,
            {
                "hello": self.hello,
                "current": self.answer_current,
                "schema": self.answer_schema,
                "check": self.current(self.check),
                "become": self.current(become),
            },
        )
        print(f"standby ready after {time.monotonic() - self.began:.1f} s", flush=True)
        server.serve()
        os.unlink(self.options.socket)

    def current(self, handler: Any) -> Any:
        """`handler`, refused when vLLM was changed on disk: what is imported from now on would be
        another version's."""
        from engine_ctl.inside.standby_server import BadRequest

        def guarded(request: dict[str, Any]) -> Any:
            if installed() != self.installed:
                raise BadRequest(
                    "stale", "vLLM was changed underneath this standby; it has to be made again"
                )
            return handler(request)

        return guarded

    def answer_current(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "current": installed() == self.installed}

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        from engine_ctl.inside.standby_become import choose
        from engine_ctl.inside.standby_warm import cuda_initialized, memory, threads

        method, why = choose([], "auto", self.warm.platform)
        warm = self.warm
        return {
            "ok": True,
            "version": warm.version,
            "platform": warm.platform,
            "devices": warm.devices,
            "features": warm.features,
            "pid": os.getpid(),
            "identity": self.options.identity,
            "memory": {} if request.get("brief") else memory(),
            "threads": threads(),
            "imported": warm.imported,
            "import_errors": warm.failed,
            "modules": warm.modules,
            "warm_seconds": warm.seconds,
            "uptime_s": round(time.monotonic() - self.began, 1),
            "cuda_initialized": cuda_initialized(),
            "method": method,
            "why": why,
            "started": self.become.started,
            "python": list(sys.version_info[:3]),
        }

    def answer_schema(self, request: dict[str, Any]) -> dict[str, Any]:
        from engine_ctl.inside.probe_schema import schema

        if self.schema is None:
            self.schema = {"ok": True, **schema()}
        return self.schema

    def check(self, request: dict[str, Any]) -> Any:
        from engine_ctl.inside.standby_become import environment_difference, mapping, strings
        from engine_ctl.inside.standby_server import BadRequest, Job

        argv, env = strings(request, "argv"), mapping(request, "env")
        limit = request.get("timeout", CHECK_SECONDS)
        if not isinstance(limit, (int, float)) or not 0 < limit <= 600:
            raise BadRequest("request", "timeout must be seconds, at most 600")
        if self.checks >= CHECKS:
            raise BadRequest("busy", f"{CHECKS} checks are running already")
        differing = environment_difference(env, self.environment)
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                check_in_child(argv, env, request.get("cwd"), write, self.keep, self.warm.platform)
            finally:
                os._exit(70)
        os.close(write)
        self.checks += 1

        def answer(data: bytes, problem: str | None) -> dict[str, Any]:
            self.checks -= 1
            return check_answer(data, problem, limit) | {"environment_differs": differing}

        return Job(pid, read, time.monotonic() + limit, answer)


def check_in_child(
    argv: list[str],
    env: dict[str, str],
    cwd: Any,
    write: int,
    keep: set[int],
    platform_name: str,
) -> None:
    """Check, write the answer as JSON, end. Dies with its parent; has no GPU to touch."""
    import signal

    from engine_ctl.inside.probe_check import check
    from engine_ctl.inside.standby_become import choose
    from engine_ctl.inside.standby_process import (
        PR_SET_PDEATHSIG,
        close_all_but,
        default_signals,
        prctl,
    )

    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    default_signals()
    close_all_but({write} | keep)
    capture_output()
    os.environ.update(env)
    if isinstance(cwd, str):
        os.chdir(cwd)
    method, why = choose(argv, "auto", platform_name)
    found = {**check(argv), "method": method, "why": why}
    answer = json.dumps(found, default=str).encode()
    while answer:
        answer = answer[os.write(write, answer) :]
    os._exit(0)


def capture_output() -> None:
    """stdout and stderr into one unnamed file, where the parser's words are found again."""
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def check_answer(data: bytes, problem: str | None, limit: float) -> dict[str, Any]:
    try:
        return json.loads(data)  # type: ignore[no-any-return]
    except ValueError:
        words = f"no answer within {limit:g} s" if problem else "vLLM ended without an answer"
        error = {"stage": "config", "category": "unknown", "message": words, "exception": ""}
        return {"ok": False, "error": error, "warnings": []}


def once(operation: str) -> int:
    """One question from stdin, one JSON answer on stdout; everything else goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    text = sys.stdin.read()
    request = json.loads(text) if text.strip() else {}
    answer: dict[str, Any]
    if operation == "schema":
        from engine_ctl.inside.probe_schema import schema

        answer = {"ok": True, **schema()}
    elif operation == "check":
        from engine_ctl.inside.probe_check import check

        capture_output()
        os.environ.update(request.get("env", {}))
        answer = check(request["argv"]) | {"environment_differs": []}
    else:
        answer = hello_once()
    json.dump(answer, out, default=str)
    out.write("\n")
    out.flush()
    return 0


def hello_once() -> dict[str, Any]:
    from engine_ctl.inside.standby_warm import Warm, cuda_initialized, memory, threads

    warm = Warm()
    warm.look()
    return {
        "ok": True,
        "version": warm.version,
        "platform": warm.platform,
        "devices": warm.devices,
        "features": warm.features,
        "pid": os.getpid(),
        "memory": memory(),
        "threads": threads(),
        "cuda_initialized": cuda_initialized(),
        "python": list(sys.version_info[:3]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", help="path of the Unix socket, in a directory with mode 0700")
    parser.add_argument("--identity", default="", help="what this standby is good for")
    parser.add_argument("--platform", default="", help="cuda, rocm or cpu, where it is known")
    parser.add_argument("--model", action="append", default=[], help="have its classes ready")
    parser.add_argument("--once", choices=("hello", "schema", "check"))
    parser.add_argument("--room", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        package()
        return once(options.once)
    if not options.socket:
        parser.error("one of --socket and --once is needed")
    execute_again(options)
    package()
    environment = original_environment()
    os.environ.pop(ORIGINAL, None)
    Standby(options, environment).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
