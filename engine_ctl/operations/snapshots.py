"""The profile that a run was started with, kept beside it: history, drift and rollback read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed
from engine_ctl.state.store import Run, Store
from profiles.model import Profile

FILE = "profile.json"


def save(store: Store, run: Run, profile: Profile) -> None:
    """Keep the resolved profile with the run and, as YAML to read, with the unit."""
    import yaml

    atomic.write_record(run.dir / FILE, profile)
    plain: dict[str, Any] = msgspec.to_builtins(profile)
    defaults: dict[str, Any] = msgspec.to_builtins(Profile(name=profile.name))
    shown = {k: v for k, v in plain.items() if v != defaults.get(k) or k == "model"}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    header = f"# what {run.id} was started with (written by stoker; not read as a profile)\n"
    atomic.write_bytes(store.unit_dir(run.unit) / "profile.yaml", (header + text).encode())


def load(run: Run) -> Profile | None:
    """The profile of a run, None for runs without one (adopted, of another kind)."""
    return load_from(run.dir)


def load_from(run_dir: Path) -> Profile | None:
    return atomic.read_record(run_dir / FILE, Profile)


def require(run: Run) -> Profile:
    profile = load(run)
    if profile is None:
        raise Failed(f"run {run.id} kept no profile; start the unit with --profile NAME")
    return profile
