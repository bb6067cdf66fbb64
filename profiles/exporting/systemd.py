"""A systemd unit. It has no shell, so `sh -c` is used where a value needs one."""

from __future__ import annotations

from typing import Any

from profiles.exporting.command import Export
from profiles.exporting.quoting import is_simple, shell, systemd
from profiles.exporting.shell import needs_shell, one_line
from profiles.model import EnvRef, Restart


def export_systemd(export: Export) -> str:
    origin = export.origin
    kept = origin.get("systemd")
    sections: dict[str, list[list[str]]] = dict(kept) if isinstance(kept, dict) else {}
    specifiers = frozenset(map(str, origin.get("specifiers", ())))
    chosen: dict[str, Any] = {}
    unit = sections.get("Unit")
    if unit is None:
        unit = [["Description", f"vLLM: {export.profile.name}"], ["After", "network-online.target"]]
        chosen["Unit"] = unit
    install = sections.get("Install")
    if install is None:
        install = [["WantedBy", "multi-user.target"]]
        chosen["Install"] = install
    if chosen:
        export.chosen["systemd"] = chosen
    body = [
        *_environment(export, specifiers),
        *_start(export, specifiers),
        *_restart(export),
        *(f"{key}={value}" for key, value in sections.get("Service", ())),
    ]
    lines = _section("Unit", [f"{key}={value}" for key, value in unit])
    lines += _section("Service", body)
    for name, pairs in {**sections, "Install": install}.items():
        if name not in ("Unit", "Service"):
            lines += _section(name, [f"{key}={value}" for key, value in pairs])
    comments = _daemon(export)
    return "\n".join([export.header(), *comments, *lines]).rstrip("\n") + "\n"


def _section(name: str, lines: list[str]) -> list[str]:
    return [f"[{name}]", *lines, ""]


def _environment(export: Export, specifiers: frozenset[str]) -> list[str]:
    out: list[str] = []
    passed: list[str] = []
    own = export.shadowing(export.words())
    for name, value in export.environment().items():
        if isinstance(value, EnvRef) and value.from_env == name:
            passed.append(name)
        elif isinstance(value, str) and not needs_shell(name, value) and name not in own:
            out.append("Environment=" + systemd(f"{name}={value}", specifiers, expand=False))
    files = export.origin.get("env_files")
    referring = any(isinstance(v, EnvRef) for v in export.profile.env.values())
    if referring and not isinstance(files, list):
        files = [f"-/etc/vllm/{export.profile.name}.env"]
        export.chosen["env_files"] = files
    if passed:
        out.append("PassEnvironment=" + " ".join(passed))
    out += [f"EnvironmentFile={path}" for path in files or ()]
    return out


def _start(export: Export, specifiers: frozenset[str]) -> list[str]:
    program = export.origin.get("program")
    launcher = [str(word) for word in export.origin.get("launcher", ())]
    words = export.words()
    path = program if isinstance(program, str) and program.startswith("/") else None
    marks = str(export.origin.get("exec_prefix", "")).replace("@", "").replace(":", "")
    shelled = any(needs_shell(n, v) for n, v in export.environment().items() if not _passed(n, v))
    own = export.shadowing(words)
    if shelled or own or not all(map(is_simple, words)):
        text = one_line(export, words, f"{shell(path or 'vllm')} serve", own=own)
        line = ["/bin/sh", "-c", text]
        rendered = [*line[:2], _shell_word(text, specifiers)]
        return [f"ExecStart={marks}" + " ".join(rendered)]
    command = [path] if path else ["/usr/bin/env", "vllm"]
    if launcher and launcher[0].startswith("/"):
        command = [*launcher, *command]
    rows: list[list[str]] = [[systemd(w, specifiers) for w in [*command, "serve"]]]
    for word in words:
        if word.startswith("-"):
            rows.append([])
        rows[-1].append(systemd(word, specifiers))
    return [f"ExecStart={marks}" + " \\\n    ".join(" ".join(row) for row in rows)]


def _passed(name: str, value: str | EnvRef) -> bool:
    return isinstance(value, EnvRef) and value.from_env == name


def _shell_word(text: str, specifiers: frozenset[str]) -> str:
    """Shell text as one systemd word: every dollar is the shell's."""
    from profiles.importing.references import literal

    return systemd(literal(text), specifiers)


def _restart(export: Export) -> list[str]:
    restart = export.profile.restart
    if restart == Restart(policy=restart.policy, backoff_s=restart.backoff_s):
        export.keep.pop("restart", None)
    if restart.policy == "never":
        if restart.backoff_s != Restart().backoff_s:
            export.keep["restart"] = {"policy": "never", "backoff_s": restart.backoff_s}
        return []
    out = [f"Restart={restart.policy}"]
    if restart.backoff_s != Restart().backoff_s:
        out.append(f"RestartSec={_seconds(restart.backoff_s)}")
    return out


def _seconds(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return text


def _daemon(export: Export) -> list[str]:
    """The daemon needs a unit of its own: its line is given as a comment."""
    if export.profile.preload is None:
        return []
    import msgspec

    export.keep["preload"] = msgspec.to_builtins(export.profile.preload)
    line = "vllm preload " + " ".join(shell(word) for word in export.preload_words())
    return [
        "# The weights come from a unit of their own that runs, as the same user:",
        f"# {line!r}",
    ]
