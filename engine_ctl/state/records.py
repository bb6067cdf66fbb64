"""The records of the state directory as types. Each has one writer (docs/architecture.md).

Times named `at`, `created`, `started`, `ended` are wall-clock seconds, for showing only; durations
are seconds of the monotonic clock. `None` means unknown. Readers ignore fields they do not know.
"""

from __future__ import annotations

import msgspec

from engine_ctl.identity import Identity
from engine_ctl.model import Kind
from profiles.model import EnvRef, Restart, Stop

LOG_MAX_BYTES = 1 << 30
FREE_FLOOR_BYTES = 256 << 20


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """spec.json: what to start. `run` is "<unit>/<n>", filled in by `Store.new_run`.

    `env` values are stored; `env_refs` are resolved by the shim at spawn, so that a secret is
    never written. `ready_url` is as `supervise.probe` takes it. Where there is a `ready_argv`,
    that command must then end with status 0 as well; its last line says why it does not. A run
    that listens nowhere is ready when its log has one of the texts of `ready_log`.
    `ready_timeout_s` 0 means no limit. `attempt` counts starts of one series of automatic
    restarts, from 1; `standby` is the run id of the standby that forked it, `standby_socket` and
    `standby_identity` name the one that its shim asks first when it starts the run again;
    `operation` is the id of the swap that made the run and `purpose` what that was for (swap,
    restart, undo, sweep), `config_hash` vLLM's own of what the run compiles. `public_host` and
    `public_port` are where clients go when that is not where the process listens: the address of
    the unit's front. `tied_to`: the process that alone can use what the run does (a bench's
    command); when that ends, the shim ends the run. `room`: bytes that must be free on GPUs, by
    UUID, before the restart policy starts it again."""

    schema: int = 1
    run: str = ""
    unit: str
    kind: Kind
    argv: list[str]
    display_argv: list[str] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    env_refs: dict[str, EnvRef] = msgspec.field(default_factory=dict)
    env_unset: list[str] = msgspec.field(default_factory=list)
    cwd: str | None = None
    runtime: str | None = None
    python: str | None = None
    runtime_version: str | None = None
    platform: str | None = None
    profile: str | None = None
    profile_path: str | None = None
    model: str | None = None
    served_name: str | None = None
    host: str | None = None
    port: int | None = None
    tls: bool = False
    uds: str | None = None
    public_host: str | None = None
    public_port: int | None = None
    gpus: list[int | str] = msgspec.field(default_factory=list)
    devices: list[str] = msgspec.field(default_factory=list)
    ready_url: str | None = None
    ready_argv: list[str] = msgspec.field(default_factory=list)
    ready_log: list[str] = msgspec.field(default_factory=list)
    ready_timeout_s: float = 1800.0
    restart: Restart = msgspec.field(default_factory=Restart)
    stop: Stop = msgspec.field(default_factory=Stop)
    log_max_bytes: int = LOG_MAX_BYTES
    free_floor_bytes: int = FREE_FLOOR_BYTES
    attempt: int = 1
    created: float = 0.0
    via: str = "spawn"
    standby: str | None = None
    standby_socket: str | None = None
    standby_identity: str | None = None
    predecessor: str | None = None
    operation: str = ""
    purpose: str = ""
    config_hash: str | None = None
    tied_to: Identity | None = None
    room: dict[str, int] = msgspec.field(default_factory=dict)
    by: str = ""

    @property
    def answers(self) -> bool:
        """Whether it listens anywhere; a headless node of several does not."""
        return self.uds is not None or self.port is not None

    @property
    def client_place(self) -> str:
        """Where clients find it, in words: `HOST:PORT`, or `unix:PATH`."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        if not self.answers:
            return "no address (headless)"
        host = self.client_host or ""
        return f"[{host}]:{self.client_port}" if ":" in host else f"{host}:{self.client_port}"

    @property
    def client_url(self) -> str | None:
        """`client_place` as a URL, where it can be one; None for what listens nowhere."""
        if self.uds is None and self.client_port is None:
            return None
        place = self.client_place
        if self.uds is not None or not self.answers:
            return place
        return f"http{'s' * self.tls}://{place}"

    @property
    def client_host(self) -> str | None:
        """The host that clients use."""
        return self.host if self.public_port is None else self.public_host

    @property
    def client_port(self) -> int | None:
        """The port that clients use."""
        return self.port if self.public_port is None else self.public_port


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """identity.json: the shim and the leader (the started process), each for all time.

    `session` is the leader's session id, `monotonic` the start on CLOCK_MONOTONIC of that boot,
    `adopted` true when this shim is not the leader's parent (the exit status stays unknown).
    `dir` is the run's directory as its shim knows it: in a copy of the state it is another's."""

    schema: int = 1
    run: str
    shim: Identity
    leader: Identity
    session: int
    started: float
    monotonic: float
    adopted: bool = False
    dir: str = ""


class ReadyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """ready.json: when the run first answered. `seconds` since its start."""

    schema: int = 1
    wall: float
    seconds: float


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """request.json: somebody asked for this run to end. The first request stays."""

    schema: int = 1
    at: float
    by: str = ""
    reason: str = ""
    stop: Stop = msgspec.field(default_factory=Stop)


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """exit.json: how the run ended. `code` and `signal` are both None when nobody could know.

    `requested`: request.json was there when the leader ended. `swept` are pids that outlived the
    leader and were ended by Stoker, `remaining` those that could not be. `seconds` since the
    start, `ended_ticks` clock ticks since boot (comparable to a process's start time).
    `error`: the process could not be started, or was ended by its shim, and why.
    `restart_in_s`: the shim will start the next run after so long; `gave_up`: it would have, but
    the maximum of restarts is used up."""

    schema: int = 1
    run: str = ""
    code: int | None = None
    signal: int | None = None
    requested: bool = False
    swept: list[int] = msgspec.field(default_factory=list)
    remaining: list[int] = msgspec.field(default_factory=list)
    ended: float
    seconds: float | None = None
    ended_ticks: int | None = None
    boot: str | None = None
    error: str | None = None
    restart_in_s: float | None = None
    gave_up: bool = False


class WaitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """waits.json: what the shim of a run that has ended waits for before it starts the next."""

    schema: int = 1
    why: str = ""


class UnitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """unit.json. `desired` is running or stopped."""

    schema: int = 1
    unit: str
    kind: Kind = Kind.ENGINE
    profile: str = ""
    desired: str = "stopped"
    created: float = 0.0
    by: str = ""


class CurrentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """current.json: the run that the unit is about."""

    schema: int = 1
    run: str
    since: float = 0.0
