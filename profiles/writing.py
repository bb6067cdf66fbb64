"""Writing profile files: comments and order stay, and a file is never half-written.

An edit touches only the lines of what it changes; where that is not possible the document is
written anew by ruamel.yaml. Either way the result is read back the way profiles are read and
compared with what was meant before anything replaces the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import time
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from engine_ctl.atomic import read_regular, write_bytes
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from profiles.patching import REMOVE, patched
from profiles.schema import canonical
from profiles.yaml_source import BadProfile, KeyPath, parse

_MODE = 0o644
_WAIT_S = 5.0


def save_text(path: Path, text: str, expected: bytes | None = None) -> None:
    """Replace a profile file by an editor's text, after checking that it can be read.

    `expected` is the content that the editor started from: when the file holds something else by
    now, Busy is raised and nothing is written. Raises BadProfile for text that is no profile, and
    Failed for what cannot be written."""
    parse(text, str(path))
    with _sole_writer(path):
        _write(path, text.encode(), expected)


def edit(path: Path, changes: Mapping[KeyPath, Any], expected: bytes | None = None) -> str:
    """Set (or with REMOVE, remove) keys of a profile file; returns the new text.

    Keys are paths such as ("args", "max_num_seqs"); an argument that the file spells differently
    (`max-num-seqs`, `-tp`) is changed where it stands. Missing sections are added at the end.
    Edits of several processes follow each other; none is lost. Raises NotFound, Busy, BadProfile
    or Failed."""
    with _sole_writer(path):
        before = _content(path)
        if expected is not None and before != expected:
            raise _changed_meanwhile(path)
        parse(before, str(path))
        mark = "\ufeff" if before.startswith(BOM_UTF8) else ""
        text = edited(before.decode("utf-8-sig"), changes, str(path))
        _write(path, (mark + text).encode(), before)
    return text


def _content(path: Path) -> bytes:
    try:
        found = read_regular(path)
    except FileNotFoundError:
        raise NotFound(f"no profile file {path}") from None
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    if found is None:
        raise Failed(f"{path} is not a regular file")
    return found


@contextlib.contextmanager
def _sole_writer(path: Path) -> Iterator[None]:
    """Only one process of Stoker at a time writes into the folder of a file. Where a folder cannot
    be locked (some network file systems), nobody waits. Raises Busy after _WAIT_S."""
    try:
        folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        _lock(folder, path)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, path: Path) -> None:
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise Busy(f"{path.parent} is locked by another process; try again") from None
            time.sleep(0.01)
        except OSError:
            return


def edited(text: str, changes: Mapping[KeyPath, Any], path: str = "profile") -> str:
    """The text of a profile with changes made. Raises BadProfile, or Failed when the change
    cannot be made without changing something else."""
    source = parse(text, path)
    spelled = dict(_own_spelling(source.data, keys, value) for keys, value in changes.items())
    wanted = _applied(source.data, spelled)
    for way in (_patched, _rewritten):
        result = way(text, spelled)
        if result is not None and _reads_as(result, wanted):
            return result
    raise Failed(f"{path} cannot be changed without changing more; edit it by hand")


def _patched(text: str, changes: Mapping[KeyPath, Any]) -> str | None:
    """Only what was changed is touched."""
    found: str | None = text
    for keys, value in changes.items():
        try:
            found = None if found is None else patched(found, keys, value)
        except yaml.YAMLError:
            return None
    return found


def _rewritten(text: str, changes: Mapping[KeyPath, Any]) -> str | None:
    """The whole document written anew, comments and order kept."""
    from ruamel.yaml.error import YAMLError

    unix = text.replace("\r\n", "\n")
    out = io.StringIO()
    try:
        loader = _round_trip(unix)
        document = loader.load(unix)
        for keys, value in changes.items():
            _set(document, keys, value)
        loader.dump(document, out)
    except YAMLError:
        return None
    return out.getvalue().replace("\n", "\r\n") if "\r\n" in text else out.getvalue()


def _reads_as(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return bool(parse(text).data == wanted)
    except BadProfile:
        return False


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


def create(path: Path, text: str, replace: bool = False) -> None:
    """Write a new profile file. Raises Usage when there is one already (unless it is to be
    replaced), BadProfile for text that is none, and Failed for what cannot be written."""
    parse(text, str(path))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{path.parent} cannot be made: {error.strerror}") from None
    with _sole_writer(path):
        if not replace and os.path.lexists(path):
            raise Usage(f"{path} exists; choose another name")
        _write(path, text.encode(), None)


def _write(path: Path, data: bytes, expected: bytes | None) -> None:
    target = Path(os.path.realpath(path))
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
