"""Taking over what others wrote: command lines, scripts, containers, units, running engines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.errors import Usage
from profiles.importing.assemble import build, document
from profiles.importing.carried import apply_carried, read_carried
from profiles.importing.draft import Draft
from profiles.importing.recognise import KINDS, recognise
from profiles.model import Profile
from profiles.schema import ArgumentSchema, shipped

MAX_BYTES = 4 << 20
MAX_LINES = 20_000

__all__ = [
    "KINDS",
    "MAX_BYTES",
    "Imported",
    "document",
    "import_pid",
    "import_profile",
    "recognise",
]


@dataclass(frozen=True, slots=True)
class Imported:
    """A profile, what could not be said in it (sentences without secrets), and the kind of text.

    Nothing that `unrepresented` names is lost: it is in the profile's `origin`, unless the
    sentence says that it was left out. `notes` say what was rewritten on the way: paths under a
    mount as the host's, the port as the published one."""

    profile: Profile
    unrepresented: tuple[str, ...]
    kind: str
    notes: tuple[str, ...] = ()


def import_profile(
    text: str | bytes,
    kind: str | None = None,
    name: str | None = None,
    schema: ArgumentSchema | None = None,
    base: Path | None = None,
) -> Imported:
    """Read a text of one of KINDS; without `kind` it is recognised.

    `name` names the profile (and chooses the service or container of that name, if there is
    one). Relative mounts of a container count from `base`. Raises Usage, one line, with the line
    number where there is one."""
    plain = _decoded(text)
    body, carried = read_carried(plain)
    found = kind or carried.get("kind") or recognise(body)
    if found is None:
        raise Usage(f"{_first_line(body)}; give its kind: {', '.join(KINDS)}")
    if found not in KINDS:
        raise Usage(f"unknown kind {found!r}; there are {', '.join(KINDS)}")
    draft = Draft(found, base=base, as_written=bool(carried))
    _read(draft, body, name)
    profile = build(draft, schema or shipped(), name)
    profile = apply_carried(profile, carried)
    notes = tuple(dict.fromkeys(draft.notes))
    return Imported(profile, tuple(dict.fromkeys(draft.unrepresented)), found, notes)


def import_pid(
    pid: int,
    name: str | None = None,
    schema: ArgumentSchema | None = None,
    proc: Path = Path("/proc"),
) -> Imported:
    """The profile of a running engine (`vllm serve`), read from /proc without touching it.

    Raises NotFound, Failed (not readable) or Usage (the process is no engine)."""
    from profiles.importing.process import import_process

    draft = Draft("pid")
    import_process(draft, pid, proc)
    profile = build(draft, schema or shipped(), name)
    return Imported(profile, tuple(dict.fromkeys(draft.unrepresented)), "pid")


def _decoded(text: str | bytes) -> str:
    lines = text.count(b"\n" if isinstance(text, bytes) else "\n")  # type: ignore[arg-type]
    if len(text) > MAX_BYTES or lines > MAX_LINES:
        raise Usage(
            f"the text is larger than what starts an engine (at most {MAX_BYTES >> 20} MiB and "
            f"{MAX_LINES} lines): give only the part with `vllm serve` or the container"
        )
    if isinstance(text, bytes):
        try:
            plain = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            raise Usage(f"line {line}: byte 0x{text[error.start]:02x} is not UTF-8") from None
        return _decoded(plain)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Usage(f"line {line}: holds a NUL character; this is no text")
    if not text.strip():
        raise Usage("line 1: the text is empty")
    fence = re.fullmatch(r"\s*```[\w-]*\n(.*?)\n?```\s*", text, re.S)
    return fence[1] + "\n" if fence else text


def _first_line(text: str) -> str:
    number, row = next(
        ((n, row) for n, row in enumerate(text.split("\n"), 1) if row.strip()), (1, "")
    )
    shown = row.strip()
    return f"line {number}: no `vllm serve` or other known form in {shown[:60]!r}"


def _read(draft: Draft, text: str, name: str | None) -> None:
    if draft.kind in ("shell", "docker"):
        from profiles.importing.commands import import_script

        import_script(draft, text)
    elif draft.kind == "compose":
        from profiles.importing.compose import import_compose

        import_compose(draft, text, name)
    elif draft.kind == "systemd":
        from profiles.importing.systemd import import_unit

        import_unit(draft, text)
    elif draft.kind == "kubernetes":
        from profiles.importing.kubernetes import import_kubernetes

        import_kubernetes(draft, text, name)
    else:
        _config(draft, text)


def _config(draft: Draft, text: str) -> None:
    """A `vllm serve --config` file. References in it are the author's templating."""
    from profiles.importing.documents import load_yaml

    data = load_yaml(text)
    if not isinstance(data, dict):
        raise Usage("line 1: a --config file is a map of arguments")
    draft.words = ["--config", "-"]
    draft.read_config = lambda path: text if path == "-" else None
