"""What of this machine a profile names and is read only when the engine starts, or has started:
files, directories, secrets. What is missing is said before anything is stopped for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.errors import StokerError
from engine_ctl.live.adapters import adapters_of
from engine_ctl.live.requirements import is_set
from engine_ctl.supervise import spawn
from profiles.argv import environment, expanded
from profiles.model import Profile, plain

_LOCAL = ("/", "./", "../", "~")
_FILES = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs")
# vLLM takes a value with one of these for the template itself.
_TEMPLATE = "{}\n"

# What a swap and a rollback write (a run: some 20 files of a block each), and the first of the log.
START_BYTES = 4 << 20
START_FILES = 64


def files_problem(profile: Profile) -> str | None:
    """The first secret or path of the arguments that is not there; None: go on. Names that are no
    local path (a hub's, a template of vLLM's own) are left for vLLM to find."""
    secret = _secrets_problem(profile)
    if secret:
        return f"profile {profile.name}: {secret}"
    try:
        args = plain(expanded(profile, os.environ).args)
    except StokerError:
        return None  # said by whoever fills in the values for the start
    named: list[tuple[str, Any]] = [
        (f"the LoRA adapter {adapter.name}", adapter.path)
        for adapter in (adapters_of(args.get("lora_modules")) or {}).values()
    ]
    template = args.get("chat_template")
    if isinstance(template, str) and not any(mark in template for mark in _TEMPLATE):
        named.append(("chat_template", template))
    if not is_set(args.get("skip_tokenizer_init")):
        named.append(("tokenizer", args.get("tokenizer")))
    named += [(name, args.get(name)) for name in _FILES]
    for what, path in named:
        if isinstance(path, str) and path.startswith(_LOCAL) and not _there(path):
            return f"profile {profile.name}: {what}: {path} does not exist"
    return None


def disk_problem(state: Path) -> str | None:
    """Why a start could not be recorded in the state directory; None: go on. Nothing that runs is
    to be stopped for what cannot be started."""
    try:
        disk = os.statvfs(state)
    except OSError:
        return None
    free = disk.f_bavail * disk.f_frsize
    if free < START_BYTES:
        return f"the disk of {state} has {free >> 10} KiB left, too little for a start's records"
    if disk.f_files and disk.f_favail < START_FILES:  # some file systems count no files
        return f"the disk of {state} has room for {disk.f_favail} files, too few for a start's"
    return None


def _secrets_problem(profile: Profile) -> str | None:
    """Why a value that the profile has by reference cannot be had by a start from here."""
    _, references = environment(profile)
    plain_references = msgspec.to_builtins(dict(references))
    for name, reference in references.items():
        if reference.from_file and not Path(reference.from_file).expanduser().is_absolute():
            return (
                f"{name} comes from the file {reference.from_file!r}, which is no absolute path, "
                "and an engine starts in no directory of yours"
            )
    try:
        spawn.environment(
            {"env_refs": plain_references, "run": "", "unit": ""}, "", dict(os.environ)
        )
    except spawn.SpawnError as error:
        return str(error)
    return None


def _there(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return True  # not ours to read: vLLM finds out
