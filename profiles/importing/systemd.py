"""systemd units and drop-ins: their own quoting, `%` and `$`; there is no shell."""

from __future__ import annotations

import re
from typing import Any

from engine_ctl.errors import Usage
from profiles.importing.beside import read_beside, unit_variables
from profiles.importing.container import container_invocation, take_environment
from profiles.importing.docker import import_run
from profiles.importing.draft import Draft, take_invocation
from profiles.importing.launching import Invocation, find_invocation
from profiles.importing.references import Literal, Piece, Reference, literal, parse, render
from profiles.importing.secrets import scrub
from profiles.model import Restart

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_UNITS = {"": 1.0, "s": 1, "sec": 1, "second": 1, "seconds": 1, "ms": 0.001, "msec": 0.001}
_UNITS |= {"m": 60, "min": 60, "minute": 60, "minutes": 60, "h": 3600, "hr": 3600, "hour": 3600}
_POLICIES = {"no": "never", "always": "always", "on-failure": "on-failure"}
_START = ("ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "ExecReload", "ExecStopPost")
Line = tuple[str, str, str, int]


def unit_lines(text: str) -> list[Line]:
    """(section, key, value, line) of a unit, continuation lines joined, comments dropped.

    Raises Usage for a line that is neither."""
    out: list[Line] = []
    section = ""
    rows = text.split("\n")
    i = 0
    while i < len(rows):
        number = i + 1
        row = rows[i].strip()
        i += 1
        if not row or row[0] in "#;":
            continue
        while row.endswith("\\") and i < len(rows):
            following = rows[i].strip()
            i += 1
            if following[:1] in ("#", ";"):
                following = "\\"
            row = row[:-1].rstrip() + " " + following
        row = row.removesuffix("\\").rstrip()
        if row.startswith("[") and row.endswith("]"):
            section = row[1:-1]
            continue
        key, equals, value = row.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", key.strip()):
            raise Usage(f"line {number}: neither a section nor Key=value in a unit")
        out.append((section, key.strip(), value.strip(), number))
    return out


_QUADLET = {
    "PublishPort": "--publish",
    "Volume": "--volume",
    "Environment": "--env",
    "EnvironmentFile": "--env-file",
    "AddDevice": "--device",
    "ContainerName": "--name",
    "Network": "--network",
    "ShmSize": "--shm-size",
    "Ulimit": "--ulimit",
    "Entrypoint": "--entrypoint",
    "PodmanArgs": "",
    "Image": "",
    "Exec": "",
}
_QUADLET_KEPT = frozenset(
    {"AutoUpdate", "HealthCmd", "HealthInterval", "Label", "Notify", "Pull", "SecurityLabelDisable"}
    | {"User", "Group", "UserNS", "LogDriver", "Secret", "Timezone", "WorkingDir", "HealthTimeout"}
)


def _quadlet(lines: list[Line]) -> tuple[str, int] | None:
    """The `podman run` that a Quadlet file's [Container] section stands for, and its line.

    Raises Usage for a key that would change the command and is not understood."""
    own = [line for line in lines if line[0] == "Container"]
    if not own:
        return None
    last = {key: value for _, key, value, _ in own}
    if "Image" not in last:
        raise Usage("the [Container] section has no Image=")
    options = []
    for _, key, value, number in own:
        if key not in _QUADLET and key not in _QUADLET_KEPT:
            raise Usage(f"line {number}: {key}= in [Container] is not understood")
        option = _QUADLET.get(key, "")
        if key == "Environment":
            options += [f"{option} {word}" for word in _unsplit(value)]
        elif option or key == "PodmanArgs":
            options.append(f"{option} {value}".strip())
    number = next(line[3] for line in own if line[1] == "Image")
    text = " ".join(["podman run", *options, last["Image"], last.get("Exec", "")])
    return text.strip(), number


def _unsplit(value: str) -> list[str]:
    """The assignments of an Environment= line, each still in its quotes."""
    return re.findall(r'(?:"(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s"\'])+', value)


def import_unit(draft: Draft, text: str) -> None:
    """Read a unit, or a unit with its drop-ins one after the other, into the draft."""
    lines = unit_lines(text)
    specifiers: list[str] = []
    kept: dict[str, list[list[str]]] = {}
    start: tuple[str, int] | None = None
    env: dict[str, str] = {}
    env_files: list[str] = []
    restart: dict[str, Any] = {}
    quadlet = _quadlet(lines)
    if quadlet is not None:
        start = quadlet
        lines = [line for line in lines if line[0] != "Container" or line[1] in _QUADLET_KEPT]
    for section, key, value, number in lines:
        if section not in ("Service", ""):
            kept.setdefault(section, []).append([key, value])
        elif key == "ExecStart":
            start = (value, number) if value else None
        elif key == "Environment":
            if not value:
                env = {}
            for word in words(value, number, specifiers, expand=False):
                name, _, text_ = word.partition("=")
                env[name] = text_
        elif key == "PassEnvironment":
            env |= {name: "${" + name + "}" for name in value.split()}
        elif key == "EnvironmentFile":
            env_files = [*env_files, value] if value else []
        elif key in ("Restart", "RestartSec", "StartLimitBurst"):
            restart[key] = value
        else:
            kept.setdefault("Service", []).append([key, value])
    if start is None:
        raise Usage("the unit has no ExecStart=")
    draft.origin |= {"env_files": env_files} if env_files else {}
    read_all = True
    for path in env_files:
        found = None if draft.as_written else _variables(draft, path)
        read_all = read_all and found is not None
        env |= found or {}
    _restart(draft, restart, kept)
    if kept:
        draft.origin["systemd"] = kept
        for section, pairs in kept.items():
            if section not in ("Unit", "Install"):
                draft.note(scrub("; ".join(f"{key}={value}" for key, value in pairs)))
    take_environment(draft, env.items())
    _start(draft, start[0], start[1], specifiers, read_all)
    if specifiers:
        draft.origin["specifiers"] = sorted(set(specifiers))
        draft.note(f"{', '.join(sorted(set(specifiers)))}: filled in by systemd only")


def _variables(draft: Draft, path: str) -> dict[str, str] | None:
    """The variables of an `EnvironmentFile=` that is on this machine, else that it is not."""
    name = path.removeprefix("-")
    text = read_beside(name, draft.base) if name.startswith("/") and "%" not in name else None
    if text is None:
        draft.note(f"EnvironmentFile={path}: a file on that machine, its values are not here")
        return None
    draft.notes.append(f"EnvironmentFile={path}: was read here, its values are in `env`")
    return {key: literal(value) for key, value in unit_variables(text)}


def _start(
    draft: Draft, value: str, number: int, specifiers: list[str], env_is_known: bool
) -> None:
    prefix = re.match(r"[-@:+!|]*", value)
    marks = prefix.group(0) if prefix else ""
    if marks:
        draft.origin["exec_prefix"] = marks
        draft.note(f"ExecStart={marks}…: how systemd runs it")
    line = words(value[len(marks) :], number, specifiers, expand=":" not in marks)
    if "@" in marks and len(line) > 1:
        del line[1]
    known = {
        name: text
        for name, text in draft.env.items()
        if env_is_known and not name_is_open(name, text)
    }
    line = [_filled(word, known) for word in line]
    found = container_invocation(draft, line, contained=False) or find_invocation(line)
    if found is None:
        raise Usage(f"line {number}: ExecStart starts no `vllm serve`")
    if found.what == "container":
        import_run(draft, found.words, found.program)
        return
    _take(draft, found)


def _take(draft: Draft, found: Invocation) -> None:
    if found.what == "preload":
        raise Usage("the unit starts a `vllm preload` daemon; import the engine's unit")
    take_invocation(draft, found)


def name_is_open(name: str, text: str) -> bool:
    from profiles.importing.secrets import is_secret

    return is_secret(name) or any(not isinstance(piece, Literal) for piece in parse(text))


def _filled(word: str, known: dict[str, str]) -> str:
    pieces: list[Piece] = []
    for piece in parse(word):
        if isinstance(piece, Reference) and not piece.rest and piece.name in known:
            pieces += parse(known[piece.name])
        else:
            pieces.append(piece)
    return render(pieces)


def words(value: str, number: int, specifiers: list[str], expand: bool) -> list[str]:
    """systemd's splitting: quotes only around a whole word or from `=` on, C escapes, `%%`, `$$`.

    `expand`: whether `$NAME` and `${NAME}` are references here (not in `Environment=`)."""
    out: list[str] = []
    current: list[Piece] | None = None
    quote = ""
    i = 0
    while i < len(value):
        c = value[i]
        if quote:
            if c == quote:
                quote = ""
                i += 1
                continue
        elif c in " \t\n":
            if current is not None:
                out.append(render(current))
                current = None
            i += 1
            continue
        elif c in "'\"":
            quote = c
            current = current if current is not None else []
            i += 1
            continue
        current = current if current is not None else []
        i = _character(value, i, current, specifiers, expand)
    if quote:
        raise Usage(f"line {number}: a quote ({quote}) is never closed")
    if current is not None:
        out.append(render(current))
    return out


def _character(
    value: str, i: int, current: list[Piece], specifiers: list[str], expand: bool
) -> int:
    c = value[i]
    following = value[i + 1 : i + 2]
    if c == "\\" and following:
        code = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([0-7]{3})").match(value, i + 1)
        if code:
            number = int(code[1] or code[2], 16) if code[1] or code[2] else int(code[3], 8)
            current.append(Literal(chr(number)))
            return code.end()
        current.append(Literal(_ESCAPES.get(following, following)))
        return i + 2
    if c == "%" and following:
        if following == "%":
            current.append(Literal("%"))
        else:
            current.append(Literal(c + following))
            specifiers.append(c + following)
        return i + 2
    if c == "$" and expand:
        if following == "$":
            current.append(Literal("$"))
            return i + 2
        match = re.compile(r"\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)").match(value, i + 1)
        if match:
            current.append(Reference(match[1] or match[2]))
            return match.end()
    current.append(Literal(c))
    return i + 1


def seconds(text: str) -> float | None:
    """A time span such as `5`, `500ms`, `1min 30s`; None when it is not one."""
    parts = re.findall(r"([0-9.]+)\s*([a-z]*)", text)
    if not parts or re.sub(r"[0-9.]+\s*[a-z]*\s*", "", text):
        return None
    if not all(unit in _UNITS for _, unit in parts):
        return None
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def _restart(draft: Draft, restart: dict[str, str], kept: dict[str, list[list[str]]]) -> None:
    policy = _POLICIES.get(restart.get("Restart", "no"))
    wait = seconds(restart.get("RestartSec", ""))
    burst = restart.get("StartLimitBurst", "")
    if "Restart" in restart and policy is not None:
        draft.restart = Restart(policy=policy)
        if wait is not None:
            draft.restart = Restart(policy=policy, backoff_s=wait)
    else:
        if "Restart" in restart:
            draft.note(f"Restart={restart['Restart']}: has no counterpart in a profile")
            kept.setdefault("Service", []).append(["Restart", restart["Restart"]])
        if "RestartSec" in restart:
            kept.setdefault("Service", []).append(["RestartSec", restart["RestartSec"]])
    if burst:
        kept.setdefault("Service", []).append(["StartLimitBurst", burst])
