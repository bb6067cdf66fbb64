"""Reading profile files: YAML as vLLM reads `--config` files, with the place of every key.

Values come from PyYAML's safe loader (YAML 1.1), which is what vLLM uses, so that `no`, `1e3`,
`32k` or `010` mean here what they mean there. What would be lost or guessed silently is an error
instead: duplicate keys, keys that are not text, tags, several documents, alias bombs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from engine_ctl.atomic import open_regular
from engine_ctl.errors import NotFound, Usage

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 50
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
KeyPath = tuple[str, ...]


class BadProfile(Usage):
    """A profile that cannot be used. `path`, `line` and `key` say where (line counts from 1)."""

    def __init__(
        self, message: str, path: str | None = None, line: int | None = None, key: str = ""
    ) -> None:
        place = ":".join(str(part) for part in (path, line) if part is not None)
        super().__init__(": ".join(part for part in (place, key, message) if part))
        self.path, self.line, self.key, self.message = path, line, key, message


@dataclass(frozen=True, slots=True)
class Source:
    """One read file: plain values, the (line, column) of each key path counted from 1, and the
    text of each scalar as it was written."""

    path: str
    data: dict[str, Any]
    places: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    texts: Mapping[KeyPath, str] = field(default_factory=dict)

    def line(self, *keys: str) -> int | None:
        """The line of a key, or of the nearest key above it."""
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.places:
                return self.places[keys[:end]][0]
        return None

    def error(self, message: str, *keys: str) -> BadProfile:
        return BadProfile(message, self.path, self.line(*keys), ".".join(keys))


def read(path: Path) -> Source:
    """Read a profile file. Raises NotFound, or BadProfile with file, line and key."""
    try:
        file = open_regular(path)
        if file is None:
            raise BadProfile("is not a regular file", str(path))
        with file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no profile file {path}") from None
    except OSError as error:
        raise BadProfile(f"cannot be read: {error.strerror}", str(path)) from None
    return parse(data, str(path))


def parse(data: bytes | str, path: str = "profile") -> Source:
    """Parse the content of a profile file; a BOM and CRLF line ends are fine."""
    text = _decode(data, path)
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        raise _unreadable(error, text, path) from None
    try:
        root = loader.get_single_node()
        if root is None:
            raise BadProfile("is empty; a profile needs at least a model or extends", path)
        if not isinstance(root, yaml.MappingNode):
            raise BadProfile("must be a map of keys and values", path, root.start_mark.line + 1)
        _check_size(root, path)
        places: dict[KeyPath, tuple[int, int]] = {}
        texts: dict[KeyPath, str] = {}
        _check_keys(root, (), path, places, texts)
        values = _plain(_construct(loader, root, path), (), path, places)
    except yaml.YAMLError as error:
        raise _unreadable(error, text, path) from None
    except RecursionError:
        raise BadProfile("is nested too deeply", path) from None
    finally:
        loader.dispose()
    return Source(path, values, places, texts)


def _construct(loader: yaml.SafeLoader, root: yaml.MappingNode, path: str) -> Any:
    """Values of the whole document; a scalar that YAML cannot read is named with its line."""
    try:
        return loader.construct_document(root)
    except (ValueError, OverflowError):
        for keys, node in _scalars(root, ()):
            try:
                yaml.SafeLoader("").construct_object(node)
            except (ValueError, OverflowError):
                kind, line = node.tag.rpartition(":")[2], node.start_mark.line + 1
                raise BadProfile(
                    f"{node.value[:40]} looks like {kind} but is none; quote it",
                    path,
                    line,
                    ".".join(keys),
                ) from None
        raise


def _scalars(node: yaml.Node, at: KeyPath) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield at, node
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*at, str(key.value)))
    else:
        for item in node.value:
            yield from _scalars(item, at)


def _decode(data: bytes | str, path: str) -> str:
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    if len(data) > MAX_BYTES:
        raise BadProfile(f"is larger than {MAX_BYTES >> 20} MiB; this is no profile", path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadProfile(
            f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8", path, line
        ) from None


def _unreadable(error: yaml.YAMLError, text: str, path: str) -> BadProfile:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return BadProfile(f"character #x{error.character:04x} is not allowed in YAML", path, line)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        at = None if mark is None else mark.line + 1
        problem = error.problem or error.context or "is not YAML"
        if "'\\t'" in problem:
            problem = "a tab cannot indent or separate in YAML; use spaces"
        elif "expected a single document" in str(error):
            problem = "holds more than one YAML document; a profile is one"
        elif "could not determine a constructor" in problem:
            problem = f"{problem.partition('tag ')[2]} is not allowed; write a plain value"
        elif mark is not None:
            problem = f"{problem} (column {mark.column + 1})"
        return BadProfile(problem, path, at)
    return BadProfile(f"is not YAML: {error}", path)


def _check_size(root: yaml.Node, path: str) -> None:
    """Refuse aliases that contain themselves or that would expand to a huge document."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, depth: int) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in open_nodes:
            raise BadProfile("an alias contains itself", path, node.start_mark.line + 1)
        if depth > MAX_DEPTH:
            raise BadProfile("is nested too deeply", path, node.start_mark.line + 1)
        if id(node) not in sizes:
            open_nodes.add(id(node))
            pairs = isinstance(node, yaml.MappingNode)
            children = [part for pair in node.value for part in pair] if pairs else node.value
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in children)
            open_nodes.discard(id(node))
        if sizes[id(node)] > MAX_NODES:
            raise BadProfile(
                f"expands to more than {MAX_NODES} values (aliases)", path, node.start_mark.line + 1
            )
        return sizes[id(node)]

    size(root, 0)


def _check_keys(
    node: yaml.Node,
    at: KeyPath,
    path: str,
    places: dict[KeyPath, tuple[int, int]],
    texts: dict[KeyPath, str],
) -> None:
    """Keys are text and appear once; note where each one is and how scalars were written."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag != _NULL:
            texts[at] = node.value
        return
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check_keys(item, (*at, str(index)), path, places, texts)
        return
    seen: set[str] = set()
    for key, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
        mark = key.start_mark
        here = ".".join(at)
        if key.tag == _MERGE:
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(merged, yaml.MappingNode):
                    _check_keys(merged, at, path, places, texts)
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise BadProfile("a key must be a plain word", path, mark.line + 1, here)
        if key.tag != "tag:yaml.org,2002:str":
            kind = key.tag.rpartition(":")[2]
            raise BadProfile(
                f'the key {key.value} is read as {kind} by YAML; write "{key.value}"',
                path,
                mark.line + 1,
                here,
            )
        if key.value in seen:
            raise BadProfile(
                "is set twice; vLLM would silently use the last one",
                path,
                mark.line + 1,
                ".".join((*at, key.value)),
            )
        seen.add(key.value)
        places[*at, key.value] = (mark.line + 1, mark.column + 1)
        _check_keys(value, (*at, key.value), path, places, texts)


def _plain(value: Any, at: KeyPath, path: str, places: Mapping[KeyPath, tuple[int, int]]) -> Any:
    """Values that JSON can hold; dates become the text that vLLM would make of them."""
    if isinstance(value, dict):
        return {key: _plain(item, (*at, key), path, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, (*at, str(i)), path, places) for i, item in enumerate(value)]
    if isinstance(value, datetime.date):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    line = next((places[at[:n]][0] for n in range(len(at), 0, -1) if at[:n] in places), None)
    raise BadProfile(
        f"a value of type {type(value).__name__} is not allowed; write text, a number, true or "
        "false, a list or a map",
        path,
        line,
        ".".join(at),
    )
