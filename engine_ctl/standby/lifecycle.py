"""Standbys as units: found, started within what the host's memory allows, used, stopped."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Busy, Failed, StokerError
from engine_ctl.model import Kind
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import client
from engine_ctl.standby.client import Become, Check, Client, Hello, Refused, Unavailable
from engine_ctl.standby.environment import passed_on, relevant, vllm_words
from engine_ctl.standby.identity import standby_identity
from engine_ctl.standby.memory import DEFAULT_COST, floor, host_memory, may_keep, to_stop
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness, remains, spawn
from engine_ctl.supervise.launch import SHIM, launch
from engine_ctl.supervise.stop import settle_unbegun
from engine_ctl.supervise.stop import stop as stop_run
from profiles.model import EnvRef, Restart, Stop

if TYPE_CHECKING:
    from engine_ctl.operations.context import Context

PREFIX = "standby-"
READY_TIMEOUT_S = 180.0
START_PATIENCE_S = 5.0
SOCKET_PATH_LIMIT = 100  # of 107: sun_path of a Unix socket
STOP = Stop(ask_s=5.0, ask_again_s=2.0, kill_s=3.0)


@dataclass(frozen=True)
class Wanted:
    """What a standby must have been started with: a runtime and the environment of an engine.

    `env`, `env_refs` and `env_unset` are as in RunSpec, `base` the environment under them
    (default: ours). `models` are directories whose architecture is imported in advance."""

    runtime: Runtime
    env: Mapping[str, str]
    env_refs: Mapping[str, EnvRef] = field(default_factory=dict)
    env_unset: Sequence[str] = ()
    models: tuple[str, ...] = ()
    base: Mapping[str, str] | None = None

    @classmethod
    def of(cls, runtime: Runtime, spec: RunSpec, base: Mapping[str, str] | None = None) -> Wanted:
        """What the run of `spec` needs."""
        models = (spec.model,) if spec.model else ()
        return cls(runtime, spec.env, spec.env_refs, spec.env_unset, models, base)

    def environment(self) -> dict[str, str]:
        """The whole environment of a process, references resolved. Raises Failed."""
        spec = {
            "env": dict(self.env),
            "env_refs": {name: msgspec.to_builtins(ref) for name, ref in self.env_refs.items()},
            "env_unset": list(self.env_unset),
            "run": "",
            "unit": "",
        }
        base = dict(os.environ if self.base is None else self.base)
        try:
            env = spawn.environment(spec, "", base)
        except spawn.SpawnError as error:
            raise Failed(str(error)) from None
        return {name: value for name, value in env.items() if not name.startswith("STOKER_")}

    @property
    def own(self) -> frozenset[str]:
        """Names that are set for the engine, beside what it inherits."""
        return frozenset((*self.env, *self.env_refs))

    def identity(self) -> str:
        return standby_identity(self.runtime, relevant(self.environment(), self.own))


@dataclass(frozen=True)
class Standing:
    """A standby that exists as a unit. `hello` is None while it does not answer (yet)."""

    unit: str
    identity: str
    run: Run
    runtime: str
    socket: Path
    hello: Hello | None

    @property
    def ready(self) -> bool:
        return self.hello is not None

    @property
    def deaf(self) -> bool:
        """It was ready and can be reached no more: its socket was deleted, with $XDG_RUNTIME_DIR or
        by a cleaner of /tmp."""
        if self.ready or self.run.ready() is None:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            return probe.connect_ex(str(self.socket)) in (errno.ENOENT, errno.ECONNREFUSED)

    @property
    def cost(self) -> int | None:
        """Bytes that its end would give back."""
        return None if self.hello is None else self.hello.memory.pss


def socket_path(dirs: Dirs, identity: str) -> Path:
    """Where a standby listens: a private directory, short enough for a Unix socket."""
    path = dirs.sockets / f"{PREFIX}{identity}"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    place = hashlib.sha256(os.fsencode(dirs.state)).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"stoker-{os.geteuid()}-{place}" / f"{PREFIX}{identity}"


def find(store: Store, identity: str, brief: bool = False) -> Standing | None:
    """The live standby of that identity, None when there is none. `brief`: without its cost."""
    unit = PREFIX + identity
    run = _live(store, identity)
    if run is None:
        return None
    path = _listens_at(store, run)
    hello = client.answers(path, brief=brief)
    return Standing(unit, identity, run, run.spec().runtime or "", path, hello)


def _live(store: Store, identity: str) -> Run | None:
    unit = PREFIX + identity
    run = store.current(unit) if store.exists(unit) else None
    return None if run is None or liveness.look(run, Kind.STANDBY).ended else run


def _listens_at(store: Store, run: Run) -> Path:
    """The socket that a standby was started with: this environment may name another directory."""
    scheme, _, path = (run.spec().ready_url or "").partition(":")
    usual = socket_path(store.dirs, run.unit.removeprefix(PREFIX))
    return Path(path) if scheme == "unix" else usual


def listing(store: Store) -> list[Standing]:
    """Every live standby."""
    found = []
    for record in store.list_units().units:
        if record.kind is Kind.STANDBY and record.unit.startswith(PREFIX):
            standing = find(store, record.unit.removeprefix(PREFIX))
            if standing is not None:
                found.append(standing)
    return found


def ensure(
    store: Store,
    wanted: Wanted,
    *,
    by: str = "",
    wait_s: float = READY_TIMEOUT_S,
    memory: tuple[int | None, int | None] | None = None,
) -> Standing:
    """The standby for `wanted`, started when there is none that can be reached; ones that it
    outdates are stopped.

    `wait_s` 0 returns at once, ready or not. `memory` is (available, total) of the host in bytes
    (default: read). Raises Failed when memory does not allow it, when it does not start, or when
    it is not ready after `wait_s`."""
    identity = wanted.identity()
    standing = find(store, identity)
    if standing is not None and standing.deaf:
        stop(store, standing.unit, by=by, reason=f"its socket {standing.socket} is gone")
        standing = None
    if standing is None:
        stop_outdated(store, wanted.runtime, by=by)
        decision = may_keep(*(memory or host_memory()), DEFAULT_COST)
        if not decision.keep:
            raise Failed(f"no standby: {decision.why}")
        standing = _start_once(store, wanted, identity, by)
    return _wait(store, standing, wait_s) if wait_s else standing


def _start_once(store: Store, wanted: Wanted, identity: str, by: str) -> Standing:
    """Start it, or take the one that somebody else starts at the same moment."""
    deadline = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            return _start(store, wanted, identity, by)
        except Busy:
            if time.monotonic() > deadline:
                raise


def _start(store: Store, wanted: Wanted, identity: str, by: str) -> Standing:
    unit, path = PREFIX + identity, socket_path(store.dirs, identity)
    runtime = wanted.runtime
    ensure_private(path.parent)
    path.parent.chmod(0o700)
    if not store.exists(unit):
        try:
            store.create(unit, Kind.STANDBY, runtime.name, by)
        except Busy:
            if not store.exists(unit):
                raise
    with store.lock(unit):
        settle_unbegun(store.current(unit))
        other = find(store, identity)
        if other is not None:
            return other
        argv = [runtime.python, str(client.SCRIPT), "--socket", str(path), "--identity", identity]
        argv += ["--platform", runtime.platform]
        for model in wanted.models:
            argv += ["--model", model]
        run = store.new_run(
            RunSpec(
                unit=unit,
                kind=Kind.STANDBY,
                argv=argv,
                display_argv=["standby", runtime.name],
                env=dict(wanted.env),
                env_refs=dict(wanted.env_refs),
                env_unset=list(wanted.env_unset),
                cwd="/",
                runtime=runtime.name,
                python=runtime.python,
                runtime_version=runtime.version,
                platform=runtime.platform,
                ready_url=f"unix:{path}",
                ready_timeout_s=READY_TIMEOUT_S,
                restart=Restart(policy="never"),
                stop=STOP,
                by=by,
            )
        )
        store.set_current(run)
        launch(run, env=wanted.base)
    return Standing(unit, identity, run, runtime.name, path, None)


def _wait(store: Store, standing: Standing, seconds: float) -> Standing:
    deadline = time.monotonic() + seconds
    while not standing.ready:
        now = find(store, standing.identity)
        if now is None:
            raise Failed(f"the standby {standing.unit} ended; see {standing.run.log}")
        standing = now
        if standing.deaf:
            raise Failed(f"the standby {standing.unit}: its socket {standing.socket} is gone")
        if time.monotonic() > deadline:
            raise Failed(f"the standby {standing.unit} is not ready after {seconds:g} s")
        if not standing.ready:
            time.sleep(0.05)
    return standing


def stop(store: Store, unit: str, *, by: str = "", reason: str = "") -> bool:
    """End a standby; engines that it has started go on. False when it was not running."""
    run = store.current(unit)
    if run is None or liveness.look(run, Kind.STANDBY).ended:
        return False
    with store.lock(unit):
        stop_run(run, by=by, reason=reason)
    _listens_at(store, run).unlink(missing_ok=True)
    return True


def stop_outdated(store: Store, runtime: Runtime, *, by: str = "") -> list[str]:
    """Stop standbys of `runtime` that its installation has outdated; the units that ended."""
    ended = []
    for standing in listing(store):
        if standing.runtime == runtime.name and is_outdated(standing, runtime):
            stop(store, standing.unit, by=by, reason="the runtime was changed underneath")
            ended.append(standing.unit)
    return ended


def trim(
    store: Store, *, memory: tuple[int | None, int | None] | None = None, by: str = ""
) -> list[str]:
    """Stop standbys, the oldest first, until the host has its reserve again; which ended."""
    available, total = memory or host_memory()
    if available is None or available >= floor(total):
        return []
    standings = sorted(listing(store), key=lambda s: -(s.hello.uptime_s or 0.0) if s.hello else 0.0)
    ended = to_stop([(s.unit, s.cost) for s in standings], available, total)
    for unit in ended:
        stop(store, unit, by=by, reason="the host's memory is needed")
    return ended


def is_outdated(standing: Standing, runtime: Runtime) -> bool:
    """Whether vLLM on disk is not what this standby imported (it says so itself)."""
    if standing.hello is None:
        return False
    try:
        with Client(standing.socket) as asked:
            return bool(asked.ask("current").get("current") is False)
    except StokerError:
        return False


def stop_all_of(ctx: Context, runtime: str) -> list[str]:
    """Stop every standby of a runtime and remove its units, as when the runtime goes."""
    ended = []
    for record in ctx.store.list_units().units:
        if record.kind is Kind.STANDBY and record.profile == runtime:
            stop(ctx.store, record.unit, by=ctx.by, reason="its runtime goes")
            with ctx.store.lock(record.unit):
                ctx.store.remove(record.unit)
            ended.append(record.unit)
    return ended


def become(
    standing: Standing, run: Run, base: Mapping[str, str] | None = None, method: str = "auto"
) -> Become:
    """Start the engine (or preload daemon) of `run` from a standby, under its own shim.

    Raises Refused (another environment, runtime changed underneath, …) or Unavailable; nothing
    has run then, and the run can be launched the ordinary way."""
    spec = run.spec()
    arguments = command(spec.argv)
    raw = msgspec.to_builtins(spec)
    try:
        env = spawn.environment(raw, str(run.dir), dict(os.environ if base is None else base))
    except spawn.SpawnError as error:
        raise Failed(str(error)) from None
    with Client(standing.socket) as asked:
        return asked.become(
            arguments,
            passed_on(remains.provide(env, raw, str(run.dir)), {*spec.env, *spec.env_refs}),
            run_dir=run.dir,
            shim=SHIM,
            shim_python=sys.executable,
            log=run.log,
            cwd=spec.cwd,
            method=method,
        )


def start(
    store: Store,
    run: Run,
    wanted: Wanted,
    *,
    base: Mapping[str, str] | None = None,
    standing: Standing | None = None,
) -> Become | None:
    """Start a run in the fastest way there is: from a ready standby, else by an ordinary launch.
    `standing` is the one that the caller has just found.

    None: launched the ordinary way. Raises what `launch` raises."""
    standing = standing or find(store, wanted.identity())
    if standing is not None and standing.ready:
        _note(run, via="standby", standby=standing.run.id, **_address(store, standing.identity))
        try:
            return become(standing, run, base)
        except (Refused, Unavailable):
            if run.identity() is not None:
                raise
            # What a shim wrote that could not begin is not this run's end.
            (run.dir / "exit.json").unlink(missing_ok=True)
    _note(run, via="spawn", standby=None, **_address(store, wanted.identity()))
    launch(run, env=base)
    return None


def addressed(store: Store, spec: RunSpec, identity: str) -> RunSpec:
    """The spec with the standby that its shim asks first when it starts the run again."""
    return msgspec.structs.replace(spec, **_address(store, identity))


def _address(store: Store, identity: str) -> dict[str, str]:
    live = _live(store, identity)
    path = socket_path(store.dirs, identity) if live is None else _listens_at(store, live)
    return {"standby_socket": str(path), "standby_identity": identity}


def _note(run: Run, **changes: Any) -> None:
    """Say in spec.json how the run is started; the caller made the run just now."""
    spec = run.spec()
    changed = msgspec.structs.replace(spec, **changes)
    if changed != spec:
        try:
            atomic.write_record(run.dir / "spec.json", changed)
        except OSError as error:
            raise Failed(f"cannot write in {run.dir}: {error.strerror or error}") from None


def check(
    store: Store,
    wanted: Wanted,
    argv: Sequence[str],
    *,
    timeout_s: float = 120.0,
    standing: Standing | None = None,
) -> Check:
    """What vLLM makes of a command: asked of a standby (0.1 s), else of a new process (10 s).
    `standing` is the one that the caller has just found."""
    arguments = command(argv)
    environment = wanted.environment()
    if standing is None:
        counted = relevant(environment, wanted.own)
        standing = find(store, standby_identity(wanted.runtime, counted))
    if standing is not None and standing.ready:
        try:
            with Client(standing.socket) as asked:
                seen = relevant(environment, wanted.own)
                return asked.check(arguments, seen, timeout_s=timeout_s)
        except (Refused, Unavailable):
            pass
    return client.check_once(wanted.runtime.python, arguments, environment, timeout_s=timeout_s)


def command(argv: Iterable[str]) -> list[str]:
    """The part of a command line that vLLM's own command parses: from `serve`, `preload` or
    `bench` on."""
    try:
        return vllm_words(argv)
    except ValueError as error:
        raise Failed(str(error)) from None
