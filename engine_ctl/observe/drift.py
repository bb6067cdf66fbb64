"""What changed in a profile's files since a run was started with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine_ctl import atomic
from engine_ctl.errors import Failed, StokerError
from engine_ctl.model import Kind
from engine_ctl.observe.sweeps import interrupted_sweep
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Run
from profiles.model import Profile

if TYPE_CHECKING:
    from engine_ctl.observe.units import UnitWatch

# Differences in these keys change nothing that runs.
_ASIDE = ("notes", "tags", "schema", "origin", "bench", "standby")


def drift(was: Profile, now: Profile) -> tuple[str, ...]:
    """Keys whose values differ, as `profile diff` names them (`args.max_num_seqs`). Pure.

    A port that the profile leaves open is no drift: one was chosen at the start."""
    from profiles.diff import diff

    found = [change.key for change in diff(was, now) if change.key.partition(".")[0] not in _ASIDE]
    if now.port is None:
        found = [key for key in found if key != "port"]
    return tuple(sorted(found))


class DriftWatch:
    """Compares a run's profile with the files as they are; reads them only when one changed."""

    def __init__(self, dirs: Dirs) -> None:
        self.dirs = dirs
        self._known: dict[str, tuple[str | None, tuple[tuple[str, int], ...], tuple[str, ...]]] = {}
        self._files: dict[str, tuple[Path, ...]] = {}
        self._problems: dict[str, str] = {}
        self._checked: dict[str, tuple[str, tuple[tuple[str, int], ...], str]] = {}

    def problem(self, unit: str) -> str:
        """Why the unit's profile could not be read at the last look; empty when it could."""
        return self._problems.get(unit, "")

    def check(self, unit: str, reference: str) -> str:
        """As `problem`, for a unit that no run was started of: reads its profile (by name or
        path) when one of the files changed."""
        from profiles.loading import ProfileStore

        store = ProfileStore(self.dirs.profiles)
        stamps = tuple((str(path), _mtime(path)) for path in store.user_files())
        if reference.startswith("/"):
            stamps += ((reference, _mtime(Path(reference))),)
        known = self._checked.get(unit)
        if known is None or known[:2] != (reference, stamps):
            try:
                store.load(reference)
                known = (reference, stamps, "")
            except (StokerError, OSError) as error:
                known = (reference, stamps, str(error))
            self._checked[unit] = known
        self._problems[unit] = known[2]
        return known[2]

    def of(self, run: Run, profile_path: str | None, created: float) -> tuple[str, ...]:
        """Drift of a run. Files that do not parse now are said to differ: ("file",)."""
        if profile_path is None:
            self._problems.pop(run.unit, None)
            return ()
        files = self._files.get(run.id) or (Path(profile_path),)
        stamps = tuple((str(path), _mtime(path)) for path in files)
        known = self._known.get(run.unit)
        if known is not None and known[0] == run.id and known[1] == stamps:
            return known[2]
        self._problems.pop(run.unit, None)
        if run.id not in self._files and self._untouched_since(Path(profile_path), created):
            return ()
        found = self._compare(run, profile_path)
        stamps = tuple((str(p), _mtime(p)) for p in self._files.get(run.id, files))
        self._known[run.unit] = (run.id, stamps, found)
        return found

    def _untouched_since(self, path: Path, created: float) -> bool:
        """No profile file was written since: nothing to parse. A parent may be in either place."""
        newest = _mtime(path)
        if not newest:
            return False  # it is gone
        for directory in {path.parent, self.dirs.profiles}:
            try:
                newest = max([newest, *(_mtime(file) for file in directory.iterdir())])
            except OSError:
                continue
        return newest <= created * 1e9

    def _compare(self, run: Run, profile_path: str) -> tuple[str, ...]:
        from profiles.loading import ProfileStore

        try:
            was = atomic.read_record(run.dir / "profile.json", Profile)
        except Failed:
            return ()
        if was is None:
            return ()
        try:
            resolved = ProfileStore(self.dirs.profiles).load(Path(profile_path))
        except (StokerError, OSError) as error:
            self._problems[run.unit] = str(error)
            return ("file",)
        self._files[run.id] = resolved.files
        return drift(was, resolved.profile)


def look_for_drift(drift: DriftWatch, watch: UnitWatch) -> None:
    """What differs, what is wrong with the file, and the sweep whose point runs though nobody works
    on it, into the watch. Raises OSError."""
    watch.drift, watch.profile_problem, watch.sweep = (), "", ""
    if watch.run is not None and watch.spec is not None:
        watch.sweep = interrupted_sweep(drift.dirs, watch.run, watch.spec)
        watch.drift = drift.of(watch.run, watch.spec.profile_path, watch.spec.created)
        watch.profile_problem = drift.problem(watch.unit)
        return
    record = watch.record
    if watch.run is None and record is not None and record.kind is Kind.ENGINE and record.profile:
        watch.profile_problem = drift.check(watch.unit, record.profile)


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
