"""Finding and resolving profiles: files, built-ins, inheritance, checked types, provenance."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.errors import Failed, NotFound
from profiles.checking import check_values, to_profile
from profiles.merging import Layer, merge, normalise
from profiles.model import Profile
from profiles.schema import shipped
from profiles.yaml_source import Source, parse, read

BUILTIN = Path(__file__).parent / "builtin"
MAX_LAYERS = 500
MAX_DEPTH = 100
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written. `kind` is file or builtin; `name` the profile's name."""

    kind: str
    name: str
    path: str
    line: int | None

    def __str__(self) -> str:
        where = f"built-in {self.name}" if self.kind == "builtin" else self.path
        return where if self.line is None else f"{where}:{self.line}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A profile with its parents merged in. `provenance` maps dotted keys (`args.max_model_len`)
    to where they were written; `files` were read, in order of precedence (own file first);
    `unknown` are arguments that no known vLLM has (plugins add some)."""

    profile: Profile
    provenance: Mapping[str, Origin]
    files: tuple[Path, ...]
    unknown: tuple[str, ...] = ()

    def place(self, key: str) -> str:
        """`file:line` of a key or of the nearest key above it, empty when it is a default."""
        while key:
            if key in self.provenance:
                return str(self.provenance[key])
            key = key.rpartition(".")[0]
        return ""


class ProfileStore:
    """The profiles of one user (`user_dir`, normally `Dirs.profiles`) and the built-in ones.

    A user's profile hides the built-in of the same name, and may extend it."""

    def __init__(self, user_dir: Path, builtin_dir: Path = BUILTIN) -> None:
        self.user_dir = user_dir
        self.builtin_dir = builtin_dir

    def names(self) -> tuple[str, ...]:
        """All names, the user's and the built-in ones, sorted."""
        return tuple(sorted({path.stem for path in (*self.user_files(), *self.builtin_files())}))

    def user_files(self) -> tuple[Path, ...]:
        return _files(self.user_dir)

    def builtin_files(self) -> tuple[Path, ...]:
        return _files(self.builtin_dir)

    def is_builtin(self, path: Path) -> bool:
        return path.parent == self.builtin_dir

    def path_of(self, name_or_path: str | Path) -> Path:
        """The file of a profile: a path as it is, a name in the user's directory or built in.

        Raises NotFound with the nearest name."""
        if isinstance(name_or_path, Path) or _is_path(name_or_path):
            path = _expanded(Path(name_or_path))
            if not os.path.lexists(path):
                raise NotFound(f"no profile file {path}")
            return path.absolute()
        found = self._named(str(name_or_path), None)
        if found is None:
            raise NotFound(self._missing(str(name_or_path)))
        return found

    def reference(self, profile: Profile) -> str:
        """What finds this profile again from anywhere: its name where that leads to its file (or
        where it has none), else the absolute path of the file."""
        if profile.path is None:
            return profile.name
        path = Path(profile.path)
        named = self._named(path.stem, None)
        if named is None:
            return path.stem if path.parent in (self.user_dir, self.builtin_dir) else str(path)
        return path.stem if named.absolute() == path else str(path)

    def load(self, name_or_path: str | Path) -> Resolved:
        """Read, resolve and check one profile. Raises NotFound or BadProfile (file:line: key)."""
        path = self.path_of(name_or_path)
        return self._resolve(path, read(path))

    def load_text(self, text: str | bytes, path: Path) -> Resolved:
        """Resolve text that an editor holds as if it were the content of `path`."""
        return self._resolve(path, parse(text, str(path)))

    def _resolve(self, path: Path, source: Source) -> Resolved:
        layers = self._layers(path, source, (), {})
        merged = merge(layers)
        places = {key: layer.source for key, layer in merged.owners.items()}
        profile = to_profile(merged.data, path.stem, str(path), places)
        provenance = {
            key: Origin(
                "builtin" if self.is_builtin(layer.path) else "file",
                layer.path.stem,
                str(layer.path),
                layer.line(key),
            )
            for key, layer in merged.owners.items()
        }
        files = tuple(dict.fromkeys(layer.path for layer in reversed(layers)))
        unknown = tuple(name for name in profile.args if shipped().find(name) is None)
        return Resolved(profile, provenance, files, unknown)

    def _layers(
        self, path: Path, source: Source, above: tuple[Path, ...], known: dict[Path, list[Layer]]
    ) -> list[Layer]:
        """The file and its parents, weakest first. `above` are the files that extend this one,
        `known` the layers of files that were read already (many may extend one).

        Raises BadProfile for a cycle, and for more than MAX_DEPTH or MAX_LAYERS of them."""
        check_values(source)
        layers: list[Layer] = []
        for index, parent in enumerate(_parents(source)):
            keys = (
                ("extends",)
                if isinstance(source.data["extends"], str)
                else (
                    "extends",
                    str(index),
                )
            )
            try:
                found = self._parent(parent, path)
            except NotFound as error:
                raise source.error(str(error), *keys) from None
            chain = (*above, path)
            if found in chain:
                names = [step.name for step in (*chain[chain.index(found) :], found)]
                raise source.error(f"extends itself: {' -> '.join(names)}", *keys)
            if len(chain) > MAX_DEPTH:
                raise source.error(f"extends more than {MAX_DEPTH} files in a row", *keys)
            if found not in known:
                known[found] = self._layers(found, read(found), chain, known)
            layers += known[found]
            if len(layers) > MAX_LAYERS:
                raise source.error(f"extends more than {MAX_LAYERS} files, one by way of others")
        data = {key: value for key, value in source.data.items() if key != "extends"}
        return [*layers, normalise(path, source, data)]

    def _parent(self, parent: str, child: Path) -> Path:
        if _is_path(parent):
            path = _expanded(Path(parent))
            path = path if path.is_absolute() else child.parent / path
            if not os.path.exists(path):
                raise NotFound(f"no profile file {path}")
            return Path(os.path.realpath(path))
        found = self._named(parent, child)
        if found is None:
            raise NotFound(self._missing(parent))
        return found

    def _named(self, name: str, child: Path | None) -> Path | None:
        """A name's file; for a parent never the child itself, so that a user's `chat` can extend
        the built-in `chat`."""
        for directory in (self.user_dir, self.builtin_dir):
            for suffix in _SUFFIXES:
                path = directory / (name + suffix)
                if path != child and _is_file(path):
                    return path
        return child if child is not None and child.stem == name else None

    def _missing(self, name: str) -> str:
        for directory in (self.user_dir, self.builtin_dir):
            for suffix in _SUFFIXES:
                path = directory / (name + suffix)
                if os.path.lexists(path):
                    return f"{path} is no file that can be read; remove it or put a profile there"
        near = difflib.get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {near[0]}?" if near else "see: stoker profile list"
        return f"no profile {name}; {hint}"


def _parents(source: Source) -> tuple[str, ...]:
    value = source.data.get("extends")
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _expanded(path: Path) -> Path:
    """The path with its `~`; one of a user that is not known stays as it is."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(_SUFFIXES)


def _files(directory: Path) -> tuple[Path, ...]:
    try:
        return tuple(
            sorted(
                path
                for path in directory.iterdir()
                if path.suffix in _SUFFIXES and not path.name.startswith(".")
            )
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise Failed(
            f"{directory} cannot be read: {error.strerror}; mend its permissions"
        ) from None
