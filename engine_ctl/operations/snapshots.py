"""The profile that a run was started with, kept beside it: history, drift and rollback read it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed, NotFound
from engine_ctl.state.store import Run, Store
from profiles.model import Profile

if TYPE_CHECKING:
    from engine_ctl.operations.context import Context
    from engine_ctl.state.records import UnitRecord
    from profiles.loading import Resolved

FILE = "profile.json"
KEPT = "profile.yaml"


def save(store: Store, run: Run, profile: Profile) -> None:
    """Keep the resolved profile with the run and, as a profile file, with the unit."""
    import yaml

    atomic.write_record(run.dir / FILE, profile)
    plain: dict[str, Any] = msgspec.to_builtins(profile)
    defaults: dict[str, Any] = msgspec.to_builtins(Profile(name=profile.name))
    plain.pop("path")
    plain["env"] = {
        name: {kind: of for kind, of in value.items() if of} if isinstance(value, dict) else value
        for name, value in plain["env"].items()
    }
    shown = {k: v for k, v in plain.items() if v != defaults.get(k) or k == "model"}
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    header = f"# what {run.id} was started with, of {profile.path or profile.name}; by stoker\n"
    atomic.write_bytes(store.unit_dir(run.unit) / KEPT, (header + text).encode())


def of_unit(ctx: Context, record: UnitRecord) -> Resolved:
    """The unit's profile as its files are now. Raises NotFound, with how to have it back where the
    unit has run, and the profile's own errors."""
    try:
        return ctx.profiles.load(record.profile)
    except NotFound:
        kept = ctx.store.unit_dir(record.unit) / KEPT
        if not kept.exists() or not record.profile:
            raise
    named = record.profile
    place = Path(named) if "/" in named else ctx.dirs.profiles / f"{named}.yaml"
    raise NotFound(
        f"the profile {named} of {record.unit} is gone; as it last ran it is kept, "
        f"to have it back: cp {shlex.quote(str(kept))} {shlex.quote(str(place))}"
    )


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
