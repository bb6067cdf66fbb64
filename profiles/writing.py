"""Writing profile files: comments and order stay, and a file is never half-written.

Edits go through ruamel.yaml's round trip; the result is read back the way profiles are read and
compared with what was meant before anything replaces the file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from engine_ctl.atomic import write_bytes
from engine_ctl.errors import Busy, Failed, Usage
from profiles.schema import canonical
from profiles.yaml_source import KeyPath, parse

REMOVE = object()
_MODE = 0o644


def save_text(path: Path, text: str, expected: bytes | None = None) -> None:
    """Replace a profile file by an editor's text, after checking that it can be read.

    `expected` is the content that the editor started from: when the file holds something else by
    now, Busy is raised and nothing is written. Raises BadProfile for text that is no profile."""
    parse(text, str(path))
    _write(path, text.encode(), expected)


def edit(path: Path, changes: Mapping[KeyPath, Any], expected: bytes | None = None) -> str:
    """Set (or with REMOVE, remove) keys of a profile file; returns the new text.

    Keys are paths such as ("args", "max_num_seqs"); an argument that the file spells differently
    (`max-num-seqs`, `-tp`) is changed where it stands. Missing sections are added at the end."""
    before = path.read_bytes()
    if expected is not None and before != expected:
        raise _changed_meanwhile(path)
    text = edited(before.decode("utf-8-sig"), changes, str(path))
    crlf = b"\r\n" in before
    data = (text.replace("\n", "\r\n") if crlf else text).encode()
    _write(path, data, before)
    return text


def edited(text: str, changes: Mapping[KeyPath, Any], path: str = "profile") -> str:
    """The text of a profile with changes made. Raises BadProfile, or Failed when the change
    cannot be made without changing something else."""
    source = parse(text, path)
    spelled = dict(_own_spelling(source.data, keys, value) for keys, value in changes.items())
    wanted = _applied(source.data, spelled)
    text = text.replace("\r\n", "\n")
    loader = _round_trip(text)
    document = loader.load(text)
    for keys, value in spelled.items():
        _set(document, keys, value)
    out = io.StringIO()
    loader.dump(document, out)
    result = out.getvalue()
    if parse(result, path).data != wanted:
        raise Failed(f"{path} cannot be changed without changing more; edit it by hand")
    return result


def new_text(values: Mapping[str, Any], comment: str = "") -> str:
    """The text of a new profile file: values in their order, below a comment."""
    from ruamel.yaml.comments import CommentedMap

    document = CommentedMap({key: _styled(value) for key, value in values.items()})
    if comment:
        document.yaml_set_start_comment(comment)
    out = io.StringIO()
    _round_trip("").dump(document, out)
    result = out.getvalue()
    if parse(result).data != values:
        raise Failed("the profile holds a value that YAML cannot write")
    return result


def create(path: Path, text: str) -> None:
    """Write a new profile file. Raises Usage when there is one already."""
    parse(text, str(path))
    if path.exists():
        raise Usage(f"{path} exists; choose another name")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(path, text.encode(), None)


def _write(path: Path, data: bytes, expected: bytes | None) -> None:
    target = path.resolve()
    try:
        if expected is not None and target.read_bytes() != expected:
            raise _changed_meanwhile(path)
        mode = os.stat(target).st_mode & 0o777 if target.exists() else _MODE
        write_bytes(target, data, mode)
    except OSError as error:
        raise Failed(f"{path} was not written ({error.strerror}); it is as it was") from None


def _changed_meanwhile(path: Path) -> Busy:
    return Busy(f"{path} was changed by somebody else meanwhile; read it again")


def _own_spelling(data: Mapping[str, Any], keys: KeyPath, value: Any) -> tuple[KeyPath, Any]:
    """A change in the file's own spelling: `-tp` for `tensor_parallel_size`, and
    `no-enable-x: false` for `enable_x: true`."""
    for depth in (1, 2):
        if keys[:depth] not in (("args",), ("preload", "args")) or len(keys) <= depth:
            continue
        section: Any = data
        for key in keys[:depth]:
            section = section.get(key) if isinstance(section, dict) else None
        for spelling in section if isinstance(section, dict) else ():
            name, sign = canonical(spelling, True)
            if name == keys[depth]:
                turned = sign is False and isinstance(value, bool)
                own = (*keys[:depth], spelling, *keys[depth + 1 :])
                return own, not value if turned else value
    return keys, value


def _applied(data: Mapping[str, Any], changes: Mapping[KeyPath, Any]) -> dict[str, Any]:
    out = dict(data)
    for keys, value in changes.items():
        _set(out, keys, value, copy=True)
    return out


def _set(into: Any, keys: KeyPath, value: Any, copy: bool = False) -> None:
    *path, last = keys
    for key in path:
        child = into.get(key)
        if not isinstance(child, dict):
            if value is REMOVE:
                return
            child = into[key] = {} if copy else _styled({})
        elif copy:
            child = into[key] = dict(child)
        into = child
    if value is REMOVE:
        into.pop(last, None)
    else:
        into[last] = value if copy else _styled(value)


def _styled(value: Any, flow: bool = False) -> Any:
    """A value for ruamel.yaml such that PyYAML (YAML 1.1) reads the same value back."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(value, dict):
        return CommentedMap({_styled(key): _styled(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        short = not any(isinstance(item, dict | list) for item in value)
        items = CommentedSeq([_styled(item, short) for item in value])
        if short:
            items.fa.set_flow_style()
        return items
    if isinstance(value, str):
        if (
            not flow
            and "\n" in value.strip("\n")
            and all(c.isprintable() or c == "\n" for c in value)
        ):
            return LiteralScalarString(value)
        if not _reads_as_text(value, flow):
            return DoubleQuotedScalarString(value)
    return value


def _reads_as_text(value: str, flow: bool) -> bool:
    """Whether the bare text is read as itself, inside [ ] too where it stands there."""
    if not value.isprintable():
        return False
    try:
        if flow and yaml.safe_load(f"[{value}]") != [value]:
            return False
        return bool(yaml.safe_load(value) == value)
    except (yaml.YAMLError, ValueError):
        return False


def _round_trip(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.util import load_yaml_guess_indent

    loader = YAML()
    loader.preserve_quotes = True
    loader.width = 1 << 16
    loader.allow_unicode = True
    _, mapping, offset = load_yaml_guess_indent(text) if text else (None, 2, 0)
    mapping, offset = mapping or 2, offset or 0
    loader.indent(mapping=mapping, sequence=offset + 2, offset=offset)
    return loader
