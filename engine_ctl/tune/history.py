"""history.sqlite: every start and every bench, searchable. An index: benches stand in their own
files and starts in their runs, so a damaged database is moved aside and made again.

Several processes may use it at once (write-ahead log, busy time-out)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.errors import Failed, StokerError
from engine_ctl.model import Kind
from engine_ctl.observe import facts as run_facts
from engine_ctl.paths import Dirs, ensure_private
from engine_ctl.state.store import Run, Store
from engine_ctl.supervise import liveness
from engine_ctl.tune import records
from engine_ctl.tune.records import BenchRecord
from profiles.effective import mask_argv

NAME = "history.sqlite"
VERSION = 1
BUSY_S = 10.0
_TABLE = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY,       -- start:UNIT/N@CREATED or bench:ID
    kind TEXT NOT NULL,         -- start or bench
    id TEXT NOT NULL,           -- the run's or the bench's id
    at REAL NOT NULL,           -- wall-clock seconds
    unit TEXT NOT NULL,
    profile TEXT NOT NULL,
    model TEXT,
    runtime TEXT,
    run TEXT,
    seconds REAL,               -- to readiness, or of the whole bench
    outcome TEXT NOT NULL,
    verdict TEXT,
    throughput REAL,            -- output tokens/s, median
    requests REAL,
    ttft_p95 REAL, itl_p95 REAL, e2el_p95 REAL,  -- milliseconds, median
    sweep TEXT,
    final INTEGER NOT NULL,     -- nothing about it will change
    document TEXT NOT NULL      -- JSON: everything else, searched as text
);
CREATE INDEX entries_at ON entries (at);
CREATE INDEX entries_unit ON entries (unit, at);
"""
COLUMNS = (
    *("kind", "id", "at", "unit", "profile", "model", "runtime", "run", "seconds", "outcome"),
    *("verdict", "throughput", "requests", "ttft_p95", "itl_p95", "e2el_p95", "sweep"),
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which entries: exact unit and profile, kind start or bench, wall-clock `since`, and words
    that must all occur somewhere in the entry."""

    unit: str | None = None
    profile: str | None = None
    kind: str | None = None
    since: float | None = None
    words: tuple[str, ...] = ()
    limit: int | None = None


class Book:
    """The open database. Every method raises Failed with one line (disk full, locked)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def add_bench(self, record: BenchRecord) -> None:
        """Enter a bench (again)."""
        profile = record.profile
        document = {
            "settings": msgspec.to_builtins(record.settings),
            "args": profile.get("args", {}),
            "point": record.point,
            "problem": record.problem,
            "hardware": record.hardware,
            "command": record.serve_command,
            "prefix_hit_rate": record.prefix_hit_rate,
            "start_s": record.start.start_s if record.start is not None else None,
            "stats": msgspec.to_builtins(record.stats),
        }
        self._put(
            key=f"bench:{record.id}",
            kind="bench",
            id=record.id,
            at=record.at,
            unit=record.unit,
            profile=record.profile_name,
            model=profile.get("model"),
            runtime=record.runtime.get("version"),
            run=record.engine_run,
            seconds=record.seconds,
            outcome="failed" if record.failed else "measured",
            verdict=record.start.verdict if record.start is not None else None,
            throughput=record.median("throughput"),
            requests=record.median("requests"),
            ttft_p95=record.median("ttft_p95"),
            itl_p95=record.median("itl_p95"),
            e2el_p95=record.median("e2el_p95"),
            sweep=record.sweep,
            final=1,
            document=json.dumps(document, default=str),
        )

    def add_start(self, run: Run) -> None:
        """Enter a start of an engine or daemon as far as it has come."""
        spec = run.spec()
        life = liveness.look(run, spec.kind)
        facts = run_facts.load(run.dir)
        if facts is None or (life.ended and not facts.ended):
            facts = run_facts.refresh(run.dir) or facts
        ready, cause = run.ready(), facts.cause if facts is not None else None
        document = {
            "kind": spec.kind,
            "command": mask_argv(spec.display_argv),
            "by": spec.by,
            "cause": msgspec.to_builtins(cause) if cause is not None else None,
            "phases": [
                [str(m.phase), m.start_s, m.seconds]
                for m in (facts.start_phases() if facts is not None else ())
            ],
            "start": facts.start if facts is not None else {},
            "standby": facts.standby if facts is not None else None,
        }
        self._put(
            key=_start_key(run, spec.created),
            kind="start",
            id=run.id,
            at=spec.created,
            unit=run.unit,
            profile=spec.profile or "",
            model=spec.model,
            runtime=spec.runtime_version,
            run=run.id,
            seconds=ready.seconds if ready is not None else None,
            outcome="ready" if ready is not None else str(life.life),
            verdict=str(facts.verdict) if facts is not None and facts.verdict else None,
            throughput=None,
            requests=None,
            ttft_p95=None,
            itl_p95=None,
            e2el_p95=None,
            sweep=None,
            final=int(life.ended),
            document=json.dumps(document, default=str),
        )

    def add_starts(self, store: Store) -> None:
        """Enter what has been started since the last look; damaged runs are left out."""
        done = {key for (key,) in self._query("SELECT key FROM entries WHERE final = 1", ())}
        for unit in store.list_units().units:
            if unit.kind not in (Kind.ENGINE, Kind.PRELOAD):
                continue
            for run in store.runs(unit.unit):
                try:
                    if _start_key(run, run.spec().created) not in done:
                        self.add_start(run)
                except StokerError:
                    continue

    def find(self, wanted: Filter) -> list[dict[str, Any]]:
        """Entries, newest first, as plain data: COLUMNS and `detail`."""
        where, values = ["1 = 1"], list[Any]()
        for column in ("unit", "profile", "kind"):
            value = getattr(wanted, column)
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        if wanted.since is not None:
            where.append("at >= ?")
            values.append(wanted.since)
        for word in wanted.words:
            pattern = "%" + word.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%"
            fields = ("document", "id", "unit", "profile", "model", "outcome", "verdict", "sweep")
            where.append("(" + " OR ".join(f"{f} LIKE ? ESCAPE '\\'" for f in fields) + ")")
            values += [pattern] * len(fields)
        limit = "" if wanted.limit is None else f" LIMIT {int(wanted.limit)}"
        rows = self._query(
            f"SELECT {', '.join(COLUMNS)}, document FROM entries WHERE {' AND '.join(where)} "
            f"ORDER BY at DESC, key DESC{limit}",
            tuple(values),
        )
        return [
            {**dict(zip(COLUMNS, row, strict=False)), "detail": json.loads(row[-1])} for row in rows
        ]

    def _put(self, **values: Any) -> None:
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        try:
            with self._db:
                self._db.execute(
                    f"INSERT OR REPLACE INTO entries ({names}) VALUES ({marks})",
                    tuple(values.values()),
                )
        except sqlite3.OperationalError as error:
            raise Failed(f"the history cannot be written: {error}") from None

    def _query(self, text: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(text, values).fetchall()
        except sqlite3.OperationalError as error:
            raise Failed(f"the history cannot be read: {error}") from None


def _start_key(run: Run, created: float) -> str:
    # A removed unit's name and run numbers may come again; the moment does not.
    return f"start:{run.id}@{created:.3f}"


@contextlib.contextmanager
def opened(dirs: Dirs, tell: Callable[[str], None] = lambda _: None) -> Iterator[Book]:
    """The history, made when there is none. One that is damaged is moved aside, which `tell`
    says, and made again from the benches on disk.

    Raises Failed when it cannot be opened (disk full, written by a newer Stoker)."""
    path = ensure_private(dirs.state) / NAME
    try:
        connection, fresh = _open(path)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error, path):
            raise Failed(f"the history {path} cannot be opened: {error}") from None
        aside = _move_aside(path)
        tell(f"the history was damaged ({error}); it is now {aside.name}, and was made again")
        try:
            connection, fresh = _open(path)
        except sqlite3.DatabaseError as again:
            raise Failed(f"the history {path} cannot be made: {again}") from None
    try:
        book = Book(connection)
        if fresh:
            _refill(book, dirs)
        yield book
    except sqlite3.DatabaseError as error:
        raise Failed(f"the history {path} is damaged ({error}); move it away") from None
    finally:
        connection.close()


def _is_damage(error: sqlite3.DatabaseError, path: Path) -> bool:
    """Whether the file is at fault, and not a full disk or another process's long write."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code == sqlite3.SQLITE_ERROR or (path.exists() and not path.is_file())


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    """(connection, whether it was made now). Raises sqlite3.DatabaseError, Failed."""
    connection = sqlite3.connect(path, timeout=BUSY_S)
    try:
        path.chmod(0o600)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise Failed(
                f"{path} was written by a newer Stoker (schema {version}); update this one"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version == VERSION:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            return connection, False
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _TABLE.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        return connection, version == 0
    except BaseException:
        connection.close()
        raise


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{NAME}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _refill(book: Book, dirs: Dirs) -> None:
    for id in records.ids(dirs, "b"):
        with contextlib.suppress(StokerError):
            book.add_bench(records.load_bench(dirs, id))
