"""How a standby becomes an engine and stays a standby: fork, session, engine, shim.

    standby ── fork ── middle (own session, child subreaper) ── fork ── engine (own session)
                          └─ execve: the ordinary shim, with `--child PID of the engine`

The engine waits for the standby, and the standby for the shim to say that it watches: when either
of them dies before, the engine ends without having run anything.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import sys
import time
import types
from typing import Any

from engine_ctl.inside import standby_bench, standby_forker, standby_plan
from engine_ctl.inside.probe_check import cuda_initialized
from engine_ctl.inside.standby_metrics import settle_metrics
from engine_ctl.inside.standby_process import (
    PR_SET_CHILD_SUBREAPER,
    Title,
    close_all_but,
    default_signals,
    finish,
    prctl,
    run_to_the_end,
    standard_streams,
)
from engine_ctl.inside.standby_server import BadRequest, Job, failure
from engine_ctl.inside.standby_threads import settle_threads

TAKE_OVER_SECONDS = 20.0
LATE = frozenset({"CUDA_VISIBLE_DEVICES", "PATH", "VLLM_RPC_BASE_PATH"})
METHODS = ("auto", "forkserver", "fork", "spawn")


class Become:
    """Handler of `become`. `keep` are descriptors that libraries opened before the socket was
    made; `environment` is what the standby was started with, and so what it can start."""

    def __init__(
        self, platform_name: str, keep: set[int], environment: dict[str, str], title: Title
    ) -> None:
        self.platform = platform_name
        self.keep = keep
        self.environment = environment
        self.title = title
        self.started = 0

    def __call__(self, request: dict[str, Any]) -> Job:
        began = time.monotonic()
        order = Order(request)
        differing = environment_difference(order.env, self.environment)
        if differing:
            raise BadRequest(
                "environment",
                "this standby was started with another environment "
                f"({', '.join(differing)}); the profile needs its own",
            )
        method, why = choose(order.argv, order.method, self.platform, order.cwd)
        report_read, report_write = os.pipe()
        go_read, go_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                self._middle(order, method, report_write, go_read)
            finally:
                os._exit(70)
        os.close(report_write)
        os.close(go_read)
        self.started += 1

        def answer(data: bytes, problem: str | None) -> dict[str, Any]:
            """The engine runs if, and only if, its shim has said that it watches it."""
            lines = data.decode(errors="replace").splitlines()
            good = problem is None and len(lines) == 2 and lines[1] == "ok"
            with contextlib.suppress(OSError):
                os.write(go_write, b"+" if good else b"-")
            os.close(go_write)
            if not good:
                words = problem or next((x for x in lines[::-1] if x.startswith("error ")), "")
                words = words.removeprefix("error ") or "the process between ended"
                return failure("become", f"the engine was not started: {words}")
            return {
                "ok": True,
                "shim": pid,
                "engine": int(lines[0]),
                "method": method,
                "why": why,
                "seconds": round(time.monotonic() - began, 3),
            }

        job = Job(pid, report_read, began + TAKE_OVER_SECONDS, answer)
        job.kill_group = False
        return job

    def _middle(self, order: Order, method: str, report: int, go: int) -> None:
        """Between standby and shim. Says the engine's pid, the shim then `ok` or `error …`."""
        try:
            os.setsid()
            default_signals()
            close_all_but({report, go} | self.keep)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            engine = os.fork()
            if engine == 0:
                try:
                    os.close(report)
                    self._engine(order, method, go)
                finally:
                    os._exit(71)
            os.close(go)
            standard_streams(None)
            os.write(report, f"{engine}\n".encode())
            os.set_inheritable(report, True)
            command = [order.shim_python, "-I", "-S", order.shim, order.run_dir]
            command += ["--child", str(engine), "--report", str(report)]
            os.execve(order.shim_python, command, self.environment)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(report, f"error {error}\n".encode())

    def _engine(self, order: Order, method: str, go: int) -> None:
        os.setsid()
        default_signals()
        close_all_but({go} | self.keep)
        standard_streams(order.log)
        if os.read(go, 1) != b"+":
            print("the standby ended before this engine could begin", file=sys.stderr)
            finish(72)
        os.close(go)
        os.chdir(order.cwd)
        os.environ.update(order.env)
        with contextlib.suppress(OSError):  # there already, unless who asked has a /tmp of its own
            os.mkdir(order.env.get("VLLM_RPC_BASE_PATH", ""), 0o700)
        self.title.mark(order.env)
        executable = os.path.join(os.path.dirname(sys.executable), "vllm")
        sys.argv = [executable, *order.argv]
        self.title.set(" ".join([sys.executable, *sys.argv]))
        _as_vllm_main()
        if standby_bench.is_bench(order.argv):
            run_to_the_end(lambda: standby_bench.body()())
        if standby_plan.keep_apart(os.environ, copies=method != "spawn"):
            standby_forker.before_fresh = standby_plan.give_up
        if method == "forkserver":
            standby_forker.after_start = lambda before, name: self._child(before, name)
            standby_forker.install(
                lambda: self.title.set(f"stoker: forker of {order.env.get('STOKER_RUN', '')}")
            )
        else:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
        main = importlib.import_module("vllm.entrypoints.cli.main").main
        run_to_the_end(main)

    def _child(self, before: dict[str, str], name: str) -> None:
        self.title.set(f"VLLM::{name}")
        settle_threads(before)
        settle_metrics(before)


class Order:
    """A checked `become` request. Raises BadRequest."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.argv = strings(request, "argv")
        known = self.argv[:1] in (["serve"], ["preload"]) or standby_bench.is_bench(self.argv)
        if not known:
            raise BadRequest("request", "argv must start with serve, preload or bench serve")
        self.env = mapping(request, "env")
        self.run_dir = _path(request, "run_dir", os.path.isdir)
        self.shim = _path(request, "shim", os.path.isfile)
        self.shim_python = _path(request, "shim_python", lambda path: os.access(path, os.X_OK))
        self.log = request.get("log") or os.path.join(self.run_dir, "log")
        self.cwd = request.get("cwd") or os.getcwd()
        self.method = request.get("method", "auto")
        if not isinstance(self.log, str) or not os.path.isdir(os.path.dirname(self.log)):
            raise BadRequest("request", "log must be a file in an existing directory")
        if not isinstance(self.cwd, str) or not os.path.isdir(self.cwd):
            raise BadRequest("request", "cwd must be an existing directory")
        if self.method not in METHODS:
            raise BadRequest("request", f"method must be one of {', '.join(METHODS)}")


def strings(request: dict[str, Any], name: str) -> list[str]:
    value = request.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRequest("request", f"{name} must be a list of strings")
    if any("\0" in item for item in value):
        raise BadRequest("request", f"{name} holds a NUL")
    return value


def mapping(request: dict[str, Any], name: str) -> dict[str, str]:
    value = request.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadRequest("request", f"{name} must map strings to strings")
    if any("\0" in key + item or "=" in key or not key for key, item in value.items()):
        raise BadRequest("request", f"{name} holds a name or value that no environment can")
    return value


def _path(request: dict[str, Any], name: str, good: Any) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not os.path.isabs(value) or not good(value):
        raise BadRequest("request", f"{name} must be an absolute path that exists")
    return value


def environment_difference(wanted: dict[str, str], have: dict[str, str]) -> list[str]:
    """Names of variables that a start wants otherwise than the standby got them at its start.

    What was read at import cannot be changed by a fork. STOKER_ variables are read by nobody, LATE
    ones later: the visible GPUs when CUDA is initialised, which a standby never does."""
    return sorted(
        name
        for name, value in wanted.items()
        if have.get(name) != value and not name.startswith("STOKER_") and name not in LATE
    )


def choose(argv: list[str], wanted: str, platform_name: str, cwd: str = "") -> tuple[str, str]:
    """(start method of the engine's own processes, why). `spawn` where anything else is unsafe.
    `cwd` is where a file that `argv` names is looked for."""
    problem = unsafe([*argv, *_of_config(argv, cwd)], platform_name)
    if problem:
        return "spawn", problem
    if wanted == "fork" and platform_name == "cpu":
        return "forkserver", "vLLM sets spawn on the CPU; its processes fork from a pristine one"
    if wanted in ("fork", "spawn"):
        return wanted, "asked for"
    return "forkserver", "processes fork from a pristine copy of the standby"


def unsafe(argv: list[str], platform_name: str) -> str | None:
    """Why the engine's processes must be spawned afresh, or None."""
    flags = {item.partition("=")[0].replace("_", "-") for item in argv if item.startswith("--")}
    if "--numa-bind" in flags:
        return "--numa-bind starts processes through another executable"
    for option in ("--distributed-executor-backend", "--data-parallel-backend"):
        for i, item in enumerate(argv):
            name, equals, value = item.replace("_", "-").partition("=")
            following = argv[i + 1] if i + 1 < len(argv) else ""
            if name == option and (value if equals else following) == "ray":
                return "Ray starts processes of its own"
    if "microsoft" in platform.uname().release.lower():
        return "NVML under WSL cannot be forked"
    if cuda_initialized():
        return "CUDA is initialised in the standby"
    preload = os.environ.get("LD_PRELOAD", "")
    if platform_name == "cpu" and ("libiomp" in preload or "libomp" in preload):
        return "Intel's OpenMP reads its thread binding once, at its start"
    return standby_forker.possible()


def _of_config(argv: list[str], cwd: str) -> list[str]:
    """What the file of `--config` says, as words of a command line."""
    words: list[str] = []
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name != "--config":
            continue
        path = value if equals else "".join(argv[number + 1 : number + 2])
        try:
            import yaml

            with open(os.path.join(cwd, path), encoding="utf-8") as file:
                said = yaml.safe_load(file)
        except Exception:  # vLLM itself says what is wrong with it
            continue
        for key, setting in said.items() if isinstance(said, dict) else ():
            if setting is not False:
                words += [f"--{key}", *([] if setting is True else [str(setting)])]
    return words


def _as_vllm_main() -> None:
    """A `__main__` as `python -m vllm.entrypoints.cli.main` has it: processes that are spawned
    afresh import it again, and must not import the standby."""
    name = "vllm.entrypoints.cli.main"
    module = types.ModuleType("__main__")
    module.__spec__ = importlib.util.find_spec(name)
    module.__file__ = getattr(sys.modules.get(name), "__file__", None)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
