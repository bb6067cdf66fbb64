"""`stoker demo`: a real engine on a tiny real model, on any machine, and its complete removal.

What the demo made is noted in `demo.json` before it is made, so that `--down` removes exactly
that, also after an interruption.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine_ctl import atomic
from engine_ctl.answers import ForecastView
from engine_ctl.errors import Failed, NotFound, StokerError
from engine_ctl.model import Verdict
from engine_ctl.operations import completion, lifecycle
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import is_live
from engine_ctl.operations.weights import SUFFIX
from engine_ctl.paths import ensure_private
from engine_ctl.runtimes import manage
from engine_ctl.runtimes.install import recipe
from engine_ctl.runtimes.probe import clean_environment
from engine_ctl.runtimes.progress import Report
from engine_ctl.runtimes.store import Runtime, choose, missing
from engine_ctl.standby import lifecycle as standby
from engine_ctl.state.store import Run
from engine_ctl.weights import socket_dir

UNIT = "demo"
OTHER = "demo-float32"
WARM = ("cpu", "cuda", "rocm")
PROMPT = "Say something about weights."
SCRIPT = Path(__file__).parents[1] / "inside" / "demo_model.py"

Tell = Callable[[str], None]
Progress = Callable[[str], AbstractContextManager[Report]]


class Made(msgspec.Struct, kw_only=True):
    """demo.json: what the demo made on this machine, and so what `--down` removes."""

    schema: int = 1
    runtime: str | None = None
    model: str | None = None
    profile: str | None = None
    profiles: list[str] = msgspec.field(default_factory=list)
    units: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Demo:
    """What `up` ended with: the run, its address and one completion's text."""

    run: Run
    url: str
    text: str
    start_s: float | None


def _note(ctx: Context) -> Path:
    return ctx.store.root / "demo.json"


def made(ctx: Context) -> Made:
    return atomic.read_record(_note(ctx), Made) or Made()


def up(ctx: Context, tell: Tell, progress: Progress) -> Demo:
    """Make what is missing, start the unit, wait until it serves and ask it for a completion."""
    note = made(ctx)
    runtime = _runtime(ctx, note, tell, progress)
    model = _model(ctx, note, runtime, tell)
    _profile(ctx, note, model, runtime)
    if UNIT not in note.units:
        note.units += [UNIT, f"{UNIT}{SUFFIX}"]
        atomic.write_record(_note(ctx), note)
    run = ctx.store.current(UNIT) if ctx.store.exists(UNIT) else None
    if run is None or not is_live(run):
        run = lifecycle.start(ctx, UNIT, UNIT, tell)
    else:
        tell(f"{UNIT}: {run.id} runs already")
    run = lifecycle.ready_run(ctx, run, tell)
    spec, ready = run.spec(), run.ready()
    url = completion.base_url(spec)
    text = completion.ask(url, spec.served_name or spec.model or UNIT, PROMPT)
    return Demo(run, url, text, ready.seconds if ready else None)


def fall_back(ctx: Context) -> ForecastView | None:
    """What a swap to the demo's other profile would meet: weights that the daemon does not hold.
    None where the demo keeps no weights."""
    from engine_ctl.swap.forecast import forecast

    try:
        found = forecast(ctx, UNIT, OTHER)
    except NotFound:
        return None
    return found if found.verdict is Verdict.FALLBACK else None


def down(ctx: Context, tell: Tell) -> list[str]:
    """Stop and remove everything that the demo made; returns what was removed."""
    note, removed = made(ctx), []
    standbys: set[str] = set()
    benched = [f"bench-{unit}" for unit in note.units]
    for unit in (*benched, *note.units):
        if ctx.store.exists(unit):
            standbys |= _standbys_of(ctx, unit)
            lifecycle.stop(ctx, unit, tell)
            lifecycle.remove(ctx, unit, lambda _: None)
            removed.append(f"unit {unit}")
    for unit in sorted(standbys):
        standby.stop(ctx.store, unit, by=ctx.by, reason="the demo goes")
        if ctx.store.exists(unit):
            with ctx.store.lock(unit):
                ctx.store.remove(unit)
        removed.append(f"unit {unit}")
    for path in filter(None, (note.profile, *note.profiles, note.model)):
        target = Path(path)
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        else:
            continue
        removed.append(path)
    if note.runtime:
        removed += [f"unit {unit}" for unit in standby.stop_all_of(ctx, note.runtime)]
        try:
            ctx.runtimes.remove(note.runtime)
            removed.append(f"runtime {note.runtime}")
        except NotFound:
            pass
    directory = socket_dir.discard(ctx.store)
    removed += [directory] if directory else []
    _note(ctx).unlink(missing_ok=True)
    _tidy(ctx)
    return removed


def _standbys_of(ctx: Context, unit: str) -> set[str]:
    """The standbys that forked the unit's runs and are still there."""
    found = set()
    for run in ctx.store.runs(unit):
        with suppress(StokerError):
            name = (run.spec().standby or "").partition("/")[0]
            if name and ctx.store.exists(name):
                found.add(name)
    return found


def _tidy(ctx: Context) -> None:
    """Directories that are empty now, and the caches about runtimes when none is left."""
    if not any(ctx.runtimes.all()):
        shutil.rmtree(ctx.dirs.cache, ignore_errors=True)
    data = ctx.dirs.data
    for path in (data / "models", ctx.dirs.runtimes, data, ctx.dirs.profiles, ctx.dirs.config):
        with suppress(OSError):
            path.rmdir()


def _runtime(ctx: Context, note: Made, tell: Tell, progress: Progress) -> Runtime:
    known = [r for r in ctx.runtimes.all()[0] if not missing(r)]
    if known:
        return choose(known, None)
    found = manage.offer(ctx.dirs)
    if found:
        python, why = found
        tell(f"{why}: using {python}")
        with progress("runtime") as report:
            return manage.add_interpreter(ctx.dirs, python, report)
    wanted = recipe("cpu")
    assert wanted is not None
    tell("installing real vLLM for the CPU, once (about 2 minutes and 4 GB of disk)")
    note.runtime = wanted.name
    atomic.write_record(_note(ctx), note)
    with progress("runtime cpu") as report:
        return manage.add(ctx.dirs, "cpu", report)


def _model(ctx: Context, note: Made, runtime: Runtime, tell: Tell) -> Path:
    out = ctx.dirs.data / "models" / "demo"
    if (out / "config.json").exists():
        return out
    tell("writing a tiny random model")
    ensure_private(ctx.dirs.data)
    note.model = str(out)
    atomic.write_record(_note(ctx), note)
    done = subprocess.run(
        [runtime.python, "-I", str(SCRIPT), str(out)],
        env=clean_environment(runtime.environment()),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failed(f"the demo model could not be written: {lines[-1] if lines else 'no output'}")
    return out


def _profile(ctx: Context, note: Made, model: Path, runtime: Runtime) -> None:
    """The operator's `demo` profile: the built-in one with the model's path. Kept if edited."""
    path = ctx.dirs.profiles / "demo.yaml"
    if path.exists():
        return
    ctx.dirs.profiles.mkdir(parents=True, exist_ok=True)
    note.profile = str(path)
    atomic.write_record(_note(ctx), note)
    text = (
        "# Written by `stoker demo`; yours to edit. Press r in the console to restart with it.\n"
        f"extends: demo\nmodel: {model}\nruntime: {runtime.name}\n"
    )
    if runtime.platform in WARM:
        text += "preload: {}            # a daemon keeps the weights; engines map them\n"
        _other_profile(ctx, note)
    atomic.write_bytes(path, text.encode(), mode=0o644)


def _other_profile(ctx: Context, note: Made) -> None:
    """The same model as the daemon does not hold it: a swap to it falls back, and says why."""
    path = ctx.dirs.profiles / f"{OTHER}.yaml"
    if path.exists():
        return
    note.profiles.append(str(path))
    atomic.write_record(_note(ctx), note)
    text = (
        "# Written by `stoker demo`: the demo in a dtype that its weights daemon does not hold.\n"
        f"extends: {UNIT}\nargs: {{dtype: float32}}\n"
        "notes: Swap the demo to it to see weights come from disk, and why.\n"
    )
    atomic.write_bytes(path, text.encode(), mode=0o644)
