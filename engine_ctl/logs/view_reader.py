"""A log being read: a thread that follows the file and builds what the reader asked for.

The reader's thread asks (`choose`, `search`, …) and looks at `state`; the worker answers with a
new state and a call of `changed`. No look-up waits for the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine_ctl.logs.blocks import EveryLine
from engine_ctl.logs.index import RowIndex
from engine_ctl.logs.index_file import Change, LogFile
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import Choice, Opened, scan_for
from engine_ctl.logs.view_merge import MergedHits, MergedRows
from engine_ctl.logs.view_merging import place_of
from engine_ctl.logs.view_remote import Part, Remote

FOLDED_BYTES = 64 << 20
"""Larger logs are opened without folds, which need every line to be taken apart."""
_POLL_S = 0.1
_SLICE_S = 0.008
TOO_SLOW = "This expression takes too long on a line of this log: one without nested repeats ends."
NO_PROCESS = "This expression may take for ever, and no process can be started that tries."
_HERE = 8
"""Blocks of work that are not worth a process."""
_TELL_S = 0.2


class IndexHits(RowIndex):
    """The lines of one file that match a query."""

    def beside(self, key: int, forward: bool) -> int | None:
        """The position of the matching line after (or before) a line; None: none known yet."""
        if not len(self):
            return None
        number = self.at(key)
        place = self.row(number)
        if place is None:
            return None
        if forward and place <= key:
            number += 1
        elif not forward and place >= key:
            number -= 1
        if not self.first <= number < self.stop:
            return None
        return self.row(number)

    def place(self, key: int) -> int:
        """How many matches there are up to a line."""
        if not len(self):
            return 0
        number = self.at(key)
        before = (self.row(number) or 0) > key
        return number - self.first + (0 if before else 1)


@dataclass(frozen=True, slots=True)
class State:
    """What there is to look at now. `rows` is what the choice shows, `lines` every line (None in
    a merge), `hits` what the search found. `generation` changes with the files."""

    files: tuple[LogFile, ...]
    rows: RowIndex | MergedRows
    lines: RowIndex | None
    hits: IndexHits | MergedHits | None = None
    query: Query | None = None
    choice: Choice = field(default_factory=Choice)
    fold: bool = False
    opened: Opened = field(default_factory=Opened)
    generation: int = 0
    replaced: int = 0
    """How often the file was truncated or replaced while it was read."""
    trouble: str = ""
    """Why a search was given up, for the reader."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is being built, what is wanted most first."""
        found: list[Part | None] = [self.hits, self.rows, self.lines]
        return tuple(dict.fromkeys(part for part in found if part is not None))

    @property
    def merged(self) -> bool:
        return len(self.files) > 1

    def line(self, key: int) -> bytes:
        """The raw line of a row."""
        log, offset = place_of(key)
        return self.files[log].line(offset) if log < len(self.files) else b""

    def end_of(self, number: int) -> int:
        """The position behind a row's last folded line."""
        rows = self.rows
        start = rows.row(number)
        if start is None:
            return 0
        end = self.files[0].line_end(start)
        for _ in range(rows.folded(number)):
            end = self.files[0].line_end(end)
        return end


class LogReader:
    """Opens logs and keeps up with them. Raises OSError when a file cannot be opened."""

    def __init__(
        self, paths: Sequence[Path], changed: Callable[[], object], near: int | None = None
    ) -> None:
        """`near`: the position to begin at (None: the end). `changed` is called by the worker at
        most a dozen times a second and must return at once."""
        self._changed = changed
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._remote: Remote | None = None
        self._may_ask = True
        files = tuple(LogFile(path) for path in paths)
        fold = len(files) == 1 and files[0].size <= FOLDED_BYTES
        self.state = self._made(files, Choice(), fold, near, None, 0, 0)

    def start(self) -> None:
        """Begin to follow and to index."""
        self._thread = threading.Thread(target=self._run, name="log-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; returns at once."""
        self._stopped = True
        self._wake.set()

    # Asking

    def choose(self, choice: Choice, fold: bool, near: int | None) -> None:
        """Show something else of the same files, beginning near a place."""
        with self._lock:
            now = self.state
            self.state = self._made(
                now.files, choice, fold, near, now, now.generation + 1, now.replaced
            )
        self._wake.set()

    def search(self, query: Query | None, near: int | None) -> None:
        """Look for something (None: for nothing any more)."""
        with self._lock:
            hits = self._hits(self.state, query, near)
            self.state = replace(self.state, query=query, hits=hits, trouble="")
        self._wake.set()

    def toggle(self, number: int) -> None:
        """Open or close the fold of a row."""
        with self._lock:
            now = self.state
            start = now.rows.row(number)
            if start is None or not isinstance(now.rows, RowIndex):
                return
            if not now.opened.is_open(start) and not now.rows.folded(number):
                return
            now.rows.again(*now.opened.toggle(start, now.end_of(number)))

    def _made(
        self,
        files: tuple[LogFile, ...],
        choice: Choice,
        fold: bool,
        near: int | None,
        before: State | None,
        generation: int,
        replaced: int,
    ) -> State:
        same = before is not None and before.files == files
        lines: RowIndex | None = None
        opened = Opened()
        if len(files) > 1:
            rows: RowIndex | MergedRows = MergedRows(files, choice)
            fold = False
        else:
            kept = before.lines if same and before is not None else None
            lines = kept or RowIndex(files[0], EveryLine(), near)
            scan = scan_for(choice, fold, opened)
            rows = lines if isinstance(scan, EveryLine) else RowIndex(files[0], scan, near)
        state = State(files, rows, lines, None, None, choice, fold, opened, generation, replaced)
        if before is None or before.query is None:
            return state
        hits = before.hits if same and not state.merged else None
        hits = hits or self._hits(state, before.query, near)
        return replace(state, query=before.query, hits=hits)

    def _hits(
        self, state: State, query: Query | None, near: int | None
    ) -> IndexHits | MergedHits | None:
        if query is None:
            return None
        if isinstance(state.rows, MergedRows):
            return MergedHits(state.rows, query)
        return IndexHits(state.files[0], query, near)

    # The worker

    def _run(self) -> None:
        try:
            self._keep_up()
        finally:
            self._let_go()

    def _keep_up(self) -> None:
        polled = told = 0.0
        news = False
        while not self._stopped:
            now = time.monotonic()
            if now - polled >= _POLL_S:
                polled = now
                news |= self._poll()
            busy = self._build()
            news |= busy
            now = time.monotonic()
            if news and (not busy or now - told >= _TELL_S):
                told, news = now, False
                self._changed()
            if not busy:
                self._wake.wait(_POLL_S)
                self._wake.clear()

    def _build(self) -> bool:
        """Work for a moment at what is wanted most: matches, then rows, then all lines. What is
        more than a moment's work is done by a process: a thread would hold the interpreter, and
        for long where the machine lets it wait in the middle."""
        with self._lock:
            parts = self.state.parts
        endless = any(part.may_not_end for part in parts)
        if endless and any(part.too_slow for part in parts):
            return self._give_up(TOO_SLOW)
        wanted = endless or sum(part.left for part in parts) > _HERE
        if self._remote is None and self._may_ask and wanted:
            try:
                self._remote = Remote()
            except OSError:
                self._may_ask = False
        if endless and self._remote is None:
            return self._give_up(NO_PROCESS)
        return self._build_here(parts) if self._remote is None else self._build_there(parts)

    def _build_here(self, parts: Sequence[Part]) -> bool:
        end = time.monotonic() + _SLICE_S
        worked = False
        while time.monotonic() < end and not self._stopped:
            if not any(part.step() for part in parts):
                break
            worked = True
        if worked:
            # Others get the interpreter: a key is answered between two slices.
            time.sleep(0.0005)
        return worked

    def _build_there(self, parts: Sequence[Part]) -> bool:
        remote = self._remote
        assert remote is not None
        try:
            if remote.stuck(parts):
                self._let_go()
                return True
            if remote.hopeless(parts):
                self._let_go()
                return self._give_up(TOO_SLOW)
            return remote.ask(parts) and (remote.take(_POLL_S) or True)
        except OSError:
            self._may_ask = False
            self._let_go()
            return True

    def _give_up(self, why: str) -> bool:
        """Drop the search, which may not end, and say so."""
        with self._lock:
            now = self.state
            query = now.query
            if query is not None and query.may_not_end:
                now = replace(now, query=None, hits=None)
            of_rows = now.choice.query
            if of_rows is not None and of_rows.may_not_end:
                choice = replace(now.choice, query=None)
                now = self._made(
                    now.files, choice, now.fold, None, now, now.generation + 1, now.replaced
                )
            self.state = replace(now, trouble=why)
        return True

    def _let_go(self) -> None:
        if self._remote is not None:
            self._remote.close()
            self._remote = None
            for part in self.state.parts:
                part.ask_again()

    def _poll(self) -> bool:
        """Look at the files; True when there is something new to see."""
        with self._lock:
            state = self.state
            changes = [file.poll() for file in state.files]
        if Change.REPLACED in changes:
            return self._reopen(state)
        if Change.GREW not in changes:
            return False
        for part in state.parts:
            part.grow()
        return True

    def _reopen(self, state: State) -> bool:
        try:
            files = tuple(LogFile(file.path) for file in state.files)
        except OSError:
            return False
        with self._lock:
            now = self.state
            self.state = self._made(
                files, now.choice, now.fold, None, now, now.generation + 1, now.replaced + 1
            )
        return True
