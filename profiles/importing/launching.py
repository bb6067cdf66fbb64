"""Which words start an engine, a daemon or a container, and what stands before them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh", "fish"))
CONTAINER_ENGINES = frozenset(("docker", "podman", "nerdctl"))
SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main", "vllm.entrypoints.cli")
_TALKERS = """
echo printf pip pip3 pkill pgrep grep egrep rg cat curl wget kill killall alias which type logger
tee sed awk watch ls man rm touch ps test [ [[ cd source . mkdir cp mv hf huggingface-cli trap
return exit function systemctl journalctl
"""
TALKERS = frozenset(_TALKERS.split())
_NEUTRAL = ("$", "#", ">", "exec", "eval", "command", "and", "time", "builtin")


@dataclass
class Invocation:
    """One start of an engine, a preload daemon or a container, in the profile's notation.

    `what` is serve, preload, server (the API server's module: the model is `--model`) or
    container. `words` are the arguments after it, `launcher` the words before it, `program` what
    was called. `before` and `after` are the texts around it that were not understood."""

    what: str
    words: list[str]
    program: str = "vllm"
    launcher: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    line: int = 1
    tail: str = ""


def program_name(word: str) -> str:
    return posixpath.basename(word.replace("\\", "/")).removesuffix(".exe")


def prefix(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Launcher words without the environment that they set (`env A=b`, `sudo A=b`, `-E A=b`)."""
    env: dict[str, str] = {}
    kept: list[str] = []
    settable = True
    valued = ""
    for word in words:
        name = program_name(word)
        setting = re.match(r"(?:--setenv=|--env=)?([A-Za-z_][A-Za-z0-9_]*)=", word)
        if setting and (settable or kept[-1:] in (["-E"], ["--setenv"]) or word[0] == "-"):
            if kept[-1:] in (["-E"], ["--setenv"]) and not settable:
                kept.pop()
            env[setting[1]] = word[setting.end() :]
            continue
        if valued:
            valued = ""
        elif settable and word in (
            "$",
            "#",
            ">",
            "exec",
            "eval",
            "command",
            "and",
            "time",
            "builtin",
        ):
            continue
        elif word.startswith("-"):
            valued = word if settable and word in ("-u", "-g", "-C", "-D", "-h", "-p", "-U") else ""
        elif name in ("env", "sudo", "doas"):
            settable = True
        else:
            settable = False
        kept.append(word)
    while "env" in map(program_name, kept):
        place = [program_name(w) for w in kept].index("env")
        if kept[place + 1 : place + 2] and kept[place + 1].startswith("-"):
            break
        del kept[place]
    return kept, env


def find_invocation(words: list[str]) -> Invocation | None:
    """The engine, daemon or container that these words start, if they start one."""
    if not words or (program_name(words[0]) in TALKERS and words[0] not in ("$",)):
        return None
    for place, word in enumerate(words):
        name = program_name(word)
        following = words[place + 1 :]
        found: Invocation | None = None
        if name in CONTAINER_ENGINES:
            run = following[1:] if following[:1] == ["container"] else following
            if run[:1] == ["run"] or run[:1] == ["create"]:
                found = Invocation("container", run[1:], name)
            elif following[:1] == ["exec"]:
                continue
        elif name == "vllm" and following[:1] and following[0] in ("serve", "preload"):
            found = Invocation(following[0], following[1:], word)
        elif word.endswith("#vllm") and following[:2] == ["--", "serve"]:
            found = Invocation("serve", following[2:])
        elif word == "-m" and following[:1] and following[0] in SERVER_MODULES:
            found = Invocation("server", following[1:])
        elif re.fullmatch(r"python[0-9.]*|\$\{PYTHON[^}]*\}", name):
            found = _python(word, following)
        if found is not None:
            found.launcher, found.env = prefix(words[:place])
            _exec_environment(found)
            return found
    return None


def _exec_environment(found: Invocation) -> None:
    """`docker exec -e NAME=value box …`: the variables that it gives to the server."""
    program = [program_name(word) for word in found.launcher]
    if "exec" not in program or not any(word in CONTAINER_ENGINES for word in program):
        return
    kept: list[str] = []
    words = iter(found.launcher)
    for word in words:
        option, equals, value = word.partition("=")
        if word in ("-e", "--env"):
            value = next(words, "")
        elif not (equals and option == "--env"):
            kept.append(word)
            continue
        name, _, text = value.partition("=")
        found.env[name] = text if "=" in value else "${" + name + "}"
    found.launcher = kept


def _python(word: str, following: list[str]) -> Invocation | None:
    """`python [-u …] -m module …` or `python …/bin/vllm serve …`."""
    rest = list(following)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        taken = 2 if rest[0] in ("-X", "-W") else 1
        rest = rest[taken:]
    if len(rest) > 1 and rest[0] == "-m":
        if rest[1] in SERVER_MODULES:
            return Invocation("server", rest[2:], word)
        if rest[1] in CLI_MODULES and rest[2:3] and rest[2] in ("serve", "preload"):
            return Invocation(rest[2], rest[3:], word)
    elif len(rest) > 1 and program_name(rest[0]) == "vllm" and rest[1] in ("serve", "preload"):
        return Invocation(rest[1], rest[2:], rest[0])
    elif rest and rest[0].endswith("api_server.py"):
        return Invocation("server", rest[1:], word)
    return None
