"""Fronts as units of their own: `<unit>-front`, started with the unit, kept during swaps.

The engine listens on a private loopback port; its RunSpec says so in `host` and `port`, and has
the address that clients use, the front's, in `public_host` and `public_port`.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine_ctl import atomic
from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.front import status
from engine_ctl.front.settings import FrontSettings, load
from engine_ctl.model import Kind
from engine_ctl.operations.ports import port_problem
from engine_ctl.paths import Dirs
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness
from engine_ctl.supervise.launch import launch
from engine_ctl.supervise.stop import stop as stop_run
from profiles.model import Profile, Restart, Stop, plain

if TYPE_CHECKING:
    from engine_ctl.operations.context import Context

SUFFIX = "-front"
LOOPBACK = "127.0.0.1"
_PRIVATE_PORTS = range(18_000, 28_000, 10)
READY_TIMEOUT_S = 30.0
STOP = Stop(ask_s=8.0, ask_again_s=2.0, kill_s=2.0)
RESTART = Restart(policy="on-failure", max=20, backoff_s=0.1, backoff_max_s=5.0, reset_s=60.0)
OWN_PATH = status.OWN_PATH
PROCESS = "engine_ctl.front.process"
# The engine would speak TLS, or not listen on a port at all.
NOT_BEHIND = ("ssl_keyfile", "ssl_certfile", "uds", "headless", "grpc")


def front_unit(unit: str) -> str:
    return f"{unit}{SUFFIX}"


def first_private_port(dirs: Dirs) -> int:
    """From where a free port for an engine behind a front is looked for. Another one for each state
    directory: seconds go by until an engine binds its port, in which another Stoker finds it free.
    """
    return _PRIVATE_PORTS[zlib.crc32(os.fsencode(dirs.state)) % len(_PRIVATE_PORTS)]


def front_problem(profile: Profile) -> str | None:
    """Why a profile's engine cannot stand behind a front; None when it can, or wants none. Pure."""
    if not profile.front:
        return None
    given = plain(profile.args)
    for name in NOT_BEHIND:
        if given.get(name):
            return (
                f"profile {profile.name}: front: true does not go with {name}, "
                "the front speaks plain HTTP to the engine; remove one of the two"
            )
    return None


def port_note(before: RunSpec | None, after: RunSpec) -> str:
    """What becomes of the port that clients use, in words. Pure. `before`: what runs now."""
    if after.uds is not None:
        same = before is not None and before.uds == after.uds
        return f"{after.client_place} is {'ours' if same else 'free'}"
    if not after.answers:
        return "it listens on no port: a headless node serves no API"
    port = after.client_port
    fronted = after.public_port is not None
    if before is None or before.client_port != port:
        note = f"port {port} is free"
        if before is not None and before.client_port is not None:
            note += f"; clients of port {before.client_port} find nobody after the swap"
        return f"{note}; a front will listen on it" if fronted else note
    if before.public_port is not None and fronted:
        return f"port {port} stays with the front: requests wait during the swap"
    if before.public_port is not None:
        return f"port {port} moves from the front to the engine: refused until it listens"
    if fronted:
        return f"port {port} moves from the engine to a front: refused for a moment, then they wait"
    return f"port {port} is ours"


def live(store: Store, unit: str) -> Run | None:
    """The run of the unit's front, when there is one that lives or is about to again."""
    name = front_unit(unit)
    if not store.exists(name) or store.load(name).kind is not Kind.FRONT:
        return None
    run = store.current(name)
    if run is None:
        return None
    life = liveness.look(run, Kind.FRONT)
    return run if not life.ended or life.restarting else None


def holds(store: Store, unit: str, host: str, port: int) -> bool:
    """True when the unit's own front listens on that address."""
    run = live(store, unit)
    return run is not None and (run.spec().host, run.spec().port) == (host, port)


def settle(
    ctx: Context, spec: RunSpec, profile: Profile, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Make the front fit the engine that is about to start: start it, keep it, or stop it.

    The caller holds the engine unit's lock, and its old engine has ended. Raises Busy when the
    public port is somebody else's, Failed when the front does not come up."""
    if not profile.front or spec.public_port is None:
        if stop(ctx, spec.unit, "the profile has no front"):
            tell(f"{spec.unit}: its front ended")
        return
    host, port = spec.public_host or LOOPBACK, spec.public_port
    if holds(ctx.store, spec.unit, host, port):
        return
    stop(ctx, spec.unit, "the address moves")
    problem = port_problem(host, port)
    if problem:
        raise Busy(problem)
    run = _start(ctx, spec.unit, host, port, load(ctx.dirs))
    _wait(run)
    tell(f"{spec.unit}: front on {host}:{port}")


def _start(ctx: Context, unit: str, host: str, port: int, settings: FrontSettings) -> Run:
    store, name = ctx.store, front_unit(unit)
    if not store.exists(name):
        store.create(name, Kind.FRONT, "", ctx.by)
    elif store.load(name).kind is not Kind.FRONT:
        raise Usage(f"unit {name} is no front; rename it, {unit} needs the name for its front")
    from engine_ctl.operations.planning import Endpoint

    argv = [sys.executable, "-m", PROCESS, str(store.unit_dir(unit))]
    argv += ["--host", host, "--port", str(port), "--hold-s", f"{settings.hold_s:g}"]
    argv += ["--hold-requests", str(settings.hold_requests)]
    with store.lock(name):
        run = store.new_run(
            RunSpec(
                unit=name,
                kind=Kind.FRONT,
                argv=argv,
                display_argv=["front", f"{host}:{port}", unit],
                env={"PYTHONUNBUFFERED": "1", "PYTHONPATH": _import_path()},
                cwd="/",
                host=host,
                port=port,
                ready_url=f"{Endpoint(host, port).base_url}{OWN_PATH}",
                ready_timeout_s=READY_TIMEOUT_S,
                restart=RESTART,
                stop=STOP,
                by=ctx.by,
            )
        )
        store.set_current(run)
        store.save(msgspec.structs.replace(store.load(name), desired="running"))
        launch(run)
    return run


def _import_path() -> str:
    """Where this engine_ctl lies, whatever the directory of the process."""
    return str(Path(__file__).resolve().parents[2])


def _wait(run: Run) -> None:
    """Until the front listens: its first status file says so."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while status.read(run) is None:
        if liveness.look(run, Kind.FRONT).ended:
            lines = _lines(run.log)
            raise Failed(f"the front {run.id} did not start: {lines[-1] if lines else 'no word'}")
        if time.monotonic() > deadline:
            raise Failed(f"the front {run.id} does not listen after {READY_TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def _lines(log: Path) -> list[str]:
    try:
        return atomic.regular_bytes(log).decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def stop(ctx: Context, unit: str, reason: str = "") -> bool:
    """Stop the unit's front. False when there was none."""
    run = live(ctx.store, unit)
    if run is None:
        return False
    with ctx.store.lock(run.unit):
        ctx.store.wish_stopped(run.unit)
        stop_run(run, by=ctx.by, reason=reason)
    return True


def remove(ctx: Context, unit: str) -> bool:
    """Forget the unit's front, stopped first. False when the unit never had one."""
    name = front_unit(unit)
    if not ctx.store.exists(name) or ctx.store.load(name).kind is not Kind.FRONT:
        return False
    stop(ctx, unit, "its unit goes")
    with ctx.store.lock(name):
        ctx.store.remove(name)
    return True


def drain(ctx: Context, run: Run) -> tuple[Stop, Callable[[], bool]] | None:
    """How to stop an engine behind a front: the ladder with its drain, and whether it is drained.
    None when no front of its unit lives."""
    front = live(ctx.store, run.unit)
    if front is None:
        return None
    try:
        spec = run.spec()
    except (CorruptRecord, NotFound):
        return None
    if spec.public_port is None:
        return None
    ladder = spec.stop
    seconds = max(ladder.drain_s, load(ctx.dirs).drain_s)

    def drained() -> bool:
        now = live(ctx.store, run.unit)
        return now is None or status.is_drained(status.read(now), run.id)

    return msgspec.structs.replace(ladder, drain_s=seconds), drained
