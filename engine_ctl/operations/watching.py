"""Following a start: its phases as lines, its cause when it fails."""

from __future__ import annotations

from engine_ctl.atomic import NotRegular, regular_file
from engine_ctl.logs.timeline import StartTimeline
from engine_ctl.model import Phase
from engine_ctl.operations import ports
from engine_ctl.state.store import Run

_CHUNK = 1 << 20
# A log that grows faster than it is read must not keep the wait from seeing that the run is ready.
_CHUNKS_AT_ONCE = 4


class StartWatch:
    """Reads the log of one run as it grows. `news()` gives a line for each new phase."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._offset = 0
        self._timeline = StartTimeline(run.spec().kind)
        self._told: Phase | None = None

    @property
    def phase(self) -> Phase:
        return self._timeline.phase

    def news(self) -> list[str]:
        """Phases since the last call, as lines `demo: loading`."""
        self._read()
        lines = []
        marks = self._timeline.marks()
        seen = [mark.phase for mark in marks]
        start = seen.index(self._told) + 1 if self._told in seen else 0
        for mark in marks[start:]:
            if mark.phase not in (Phase.READY, Phase.FAILED):
                lines.append(f"{self.run.unit}: {mark.phase.value}")
            self._told = mark.phase
        return lines

    def _read(self) -> None:
        try:
            with regular_file(self.run.log) as file:
                file.seek(self._offset)
                for _ in range(_CHUNKS_AT_ONCE):
                    chunk = file.read(_CHUNK)
                    if not chunk:
                        break
                    self._offset += len(chunk)
                    self._timeline.feed(chunk)
        except (FileNotFoundError, NotRegular):
            return

    def cause(self) -> str:
        """Why the run ended, in one line: the shim's own error, else what the log says."""
        record = self.run.exit()
        if record is not None and record.error:
            return record.error
        from engine_ctl.logs.classify import classify_file

        try:
            found = classify_file(self.run.log)
        except OSError:
            found = None
        if found is not None:
            found = ports.with_owner(found, self.run.spec().port)
            return f"{found.category}: {found.hint}" if found.hint else found.line
        if record is not None and record.signal is not None:
            return f"ended by signal {record.signal}"
        if record is not None and record.requested:
            return "it was stopped"
        code = record.code if record is not None else None
        return f"ended with exit status {'unknown' if code is None else code}"
