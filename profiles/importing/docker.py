"""`docker run` (podman, nerdctl): its options in compose's words, the image, then the command."""

from __future__ import annotations

import re
from typing import Any

from profiles.importing.beside import plain_variables, read_beside
from profiles.importing.container import (
    entry_command,
    loopback_only,
    restart_policy,
    take_environment,
)
from profiles.importing.draft import Draft
from profiles.importing.mounts import bind, volume
from profiles.importing.references import literal, sole_name
from profiles.importing.secrets import scrub
from profiles.importing.visible import parse_gpus

# docker's option -> compose's service key; lists are repeatable.
_LISTS = {
    "-v": "volumes",
    "--volume": "volumes",
    "--mount": "mounts",
    "-p": "ports",
    "--publish": "ports",
    "--device": "devices",
    "--cap-add": "cap_add",
    "--cap-drop": "cap_drop",
    "--security-opt": "security_opt",
    "--add-host": "extra_hosts",
    "--tmpfs": "tmpfs",
    "--group-add": "group_add",
    "--dns": "dns",
    "--expose": "expose",
    "--ulimit": "ulimits",
    "-l": "labels",
    "--label": "labels",
    "--env-file": "env_file",
    "--volumes-from": "volumes_from",
    "--sysctl": "sysctls",
    "--log-opt": "log_opt",
}
_VALUES = {
    "--name": "container_name",
    "--ipc": "ipc",
    "--pid": "pid",
    "--shm-size": "shm_size",
    "--network": "network_mode",
    "--net": "network_mode",
    "-u": "user",
    "--user": "user",
    "-w": "working_dir",
    "--workdir": "working_dir",
    "-h": "hostname",
    "--hostname": "hostname",
    "--runtime": "runtime",
    "-m": "mem_limit",
    "--memory": "mem_limit",
    "--memory-swap": "memswap_limit",
    "--cpus": "cpus",
    "--cpuset-cpus": "cpuset",
    "-c": "cpu_shares",
    "--cpu-shares": "cpu_shares",
    "--platform": "platform",
    "--pull": "pull_policy",
    "--stop-timeout": "stop_grace_period",
    "--stop-signal": "stop_signal",
    "--userns": "userns_mode",
    "--uts": "uts",
    "--cgroupns": "cgroup",
    "--cgroup-parent": "cgroup_parent",
    "--log-driver": "log_driver",
    "--pids-limit": "pids_limit",
    "--oom-score-adj": "oom_score_adj",
    "--health-cmd": "health_cmd",
    "--health-interval": "health_interval",
    "--health-retries": "health_retries",
    "--health-start-period": "health_start_period",
    "--health-timeout": "health_timeout",
}
_SAID_APART = ("volumes", "mounts", "env_file")
_OWN = ("--gpus", "-e", "--env", "--restart", "--entrypoint")
_SWITCHES = {
    "--privileged": "privileged",
    "--init": "init",
    "--read-only": "read_only",
}
_SHORT_SWITCHES = frozenset("dit")
_OTHER = """
--cidfile --label-file --link --mac-address --ip --ip6 --network-alias --net-alias --pod
--gidmap --uidmap --secret --annotation --blkio-weight --cpu-period --cpu-quota --cpuset-mems
--detach-keys --device-cgroup-rule --dns-option --dns-search --domainname --isolation
--kernel-memory --memory-reservation --memory-swappiness --storage-opt --volume-driver
--authfile --arch --conmon-pidfile --hooks-dir --image-volume --timeout --tz --variant -a
--attach
"""
_OTHER_VALUES = frozenset(_OTHER.split())


def import_run(draft: Draft, words: list[str], engine: str = "docker") -> None:
    """Read the words after `docker run` into the draft."""
    container: dict[str, Any] = {}
    other: list[str] = []
    env: list[str] = []
    entrypoint: list[str] | None = None
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            break
        if not word.startswith("-") or word == "-":
            break
        i += 1
        for option, value, taken in _options(word, words[i:]):
            i += taken
            if option in ("-e", "--env"):
                env.append(value)
            elif option == "--gpus":
                _gpus(draft, value)
            elif option == "--restart":
                restart_policy(draft, value)
            elif option == "--entrypoint":
                entrypoint = value.split() if value else []
            elif option in _LISTS:
                container.setdefault(_LISTS[option], []).append(value)
            elif option in _VALUES:
                container[_VALUES[option]] = value
            elif option in _SWITCHES and value in ("", "true"):
                container[_SWITCHES[option]] = True
            elif option in ("--rm", "--detach", "-d", "-i", "-t", "--interactive", "--tty"):
                container.setdefault("run", []).append(option)
            else:
                other.append(option + (f"={value}" if value else ""))
    if i < len(words):
        draft.origin["image"] = words[i]
        draft.note(f"image {words[i]}: a profile runs in a runtime, not in an image")
        i += 1
    if engine != "docker":
        draft.origin["engine"] = engine
    if other:
        container["options"] = other
    take_environment(draft, _env_files(draft, container.get("env_file", [])))
    take_environment(draft, [_pair(item) for item in env])
    draft.name = draft.name or container.get("container_name")
    draft.loopback = loopback_only(container.get("ports", []))
    _mounts(draft, container)
    if container.get("network_mode") != "host":
        draft.ports = list(container.get("ports", []))
    for key, value in container.items():
        if key not in _SAID_APART and not (key == "ports" and draft.takes_ports()):
            draft.note(f"{key}: {_shown(value)}")
    if container:
        draft.origin["container"] = container
    entry_command(draft, entrypoint, words[i:])


def _env_files(draft: Draft, files: list[str]) -> list[tuple[str, str]]:
    """The variables of `--env-file`s that are here; of the others, that they are not."""
    out: list[tuple[str, str]] = []
    for name in files:
        text = read_beside(name, draft.base)
        if text is None:
            draft.note(f"--env-file {name}: is not here, its values were not read")
            continue
        draft.notes.append(f"--env-file {name}: was read, its values are in `env`")
        for key, value in plain_variables(text):
            out.append((key, "${" + key + "}" if value is None else literal(value)))
    return out


def _mounts(draft: Draft, container: dict[str, Any]) -> None:
    for key in ("volumes", "mounts"):
        for text in container.get(key, []):
            found = volume(text, draft.base) if key == "volumes" else bind(text, draft.base)
            if found is None:
                draft.note(f"{key}: {scrub(text)}")
            else:
                draft.mounts.append(found)


def _options(word: str, following: list[str]) -> list[tuple[str, str, int]]:
    """(option, value, words taken) of one word: `--a=b`, `--a b`, `-itd`, `-p80:80`."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        if equals:
            return [(name, _unquoted(value), 0)]
        takes = name in _LISTS or name in _VALUES or name in _OWN or name in _OTHER_VALUES
        if takes and following:
            return [(name, _unquoted(following[0]) if name == "--gpus" else following[0], 1)]
        return [(name, "", 0)]
    out: list[tuple[str, str, int]] = []
    for place, letter in enumerate(word[1:], 1):
        option = "-" + letter
        if option in _LISTS or option in _VALUES or option in _OWN or option in _OTHER_VALUES:
            rest = word[place + 1 :].removeprefix("=")
            if rest:
                return [*out, (option, rest, 0)]
            return [*out, (option, following[0], 1)] if following else out
        out.append((option, "", 0))
    return out


def _unquoted(value: str) -> str:
    """docker reads `--gpus` as CSV, hence a second layer of quotes."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _gpus(draft: Draft, value: str) -> None:
    devices = re.search(r"device=([^\"]+?)(?:,capabilities=.*)?\"?\Z", value)
    if devices:
        found = parse_gpus(devices[1].strip("\"'"))
        if found is not None:
            draft.gpus = found
            return
    draft.origin["gpus"] = int(value) if value.isdecimal() else value.removeprefix("count=")
    if value != "all":
        draft.note(f"gpus {value}: a profile names GPUs by index or UUID; all are visible")


def _pair(item: str) -> tuple[str, str]:
    """`-e NAME` without a value passes the caller's variable on."""
    name, equals, value = item.partition("=")
    if not equals:
        sole = sole_name(name)
        return (sole or name, "${" + (sole or name) + "}")
    return name, value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return scrub(", ".join(map(str, value)))
    return scrub(str(value))
