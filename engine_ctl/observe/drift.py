"""What changed in a profile's files since a run was started with it."""

from __future__ import annotations

from pathlib import Path

from engine_ctl import atomic
from engine_ctl.errors import Failed, StokerError
from engine_ctl.paths import Dirs
from engine_ctl.state.store import Run
from profiles.model import Profile

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
        self._dirs = dirs
        self._known: dict[str, tuple[str | None, tuple[tuple[str, int], ...], tuple[str, ...]]] = {}
        self._files: dict[str, tuple[Path, ...]] = {}

    def of(self, run: Run, profile_path: str | None, created: float) -> tuple[str, ...]:
        """Drift of a run. Files that do not parse now are said to differ: ("file",)."""
        if profile_path is None:
            return ()
        files = self._files.get(run.id) or (Path(profile_path),)
        stamps = tuple((str(path), _mtime(path)) for path in files)
        known = self._known.get(run.unit)
        if known is not None and known[0] == run.id and known[1] == stamps:
            return known[2]
        if run.id not in self._files and self._untouched_since(Path(profile_path), created):
            return ()
        found = self._compare(run, profile_path)
        stamps = tuple((str(p), _mtime(p)) for p in self._files.get(run.id, files))
        self._known[run.unit] = (run.id, stamps, found)
        return found

    def _untouched_since(self, path: Path, created: float) -> bool:
        """No profile file was written since: nothing to parse. A parent may be in either place."""
        newest = _mtime(path)
        for directory in {path.parent, self._dirs.profiles}:
            try:
                newest = max([newest, *(_mtime(file) for file in directory.iterdir())])
            except OSError:
                continue
        return 0 < newest <= created * 1e9

    def _compare(self, run: Run, profile_path: str) -> tuple[str, ...]:
        from profiles.loading import ProfileStore

        try:
            was = atomic.read_record(run.dir / "profile.json", Profile)
        except Failed:
            return ()
        if was is None:
            return ()
        try:
            resolved = ProfileStore(self._dirs.profiles).load(Path(profile_path))
        except (StokerError, OSError):
            return ("file",)
        self._files[run.id] = resolved.files
        return drift(was, resolved.profile)


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
