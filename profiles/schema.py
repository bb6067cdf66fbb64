"""What arguments a vLLM version has: names, aliases, kinds, choices, defaults, help.

An `ArgumentSchema` is made from a dump of vLLM's own parser (`from_dump`: the shape that the
standby's `schema` request answers with), cached as one file per runtime version, and shipped
without help texts for the versions that Stoker was tested with (profiles/data/arguments-*.json).
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl.atomic import read_record, write_record
from engine_ctl.errors import Failed

SHIPPED = ("0.32", "0.33")
_DATA = Path(__file__).parent / "data"
# Names of the functions with which vLLM's parser converts values.
_CONVERTERS = {
    "str": "text",
    "int": "int",
    "float": "float",
    "loads": "json",
    "_parse_type": "json",
    "parse_dataclass": "json",
    "union_dict_and_str": "json_or_text",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size_or_auto",
}
_LEVEL = re.compile(r"-O=?([^.=]+)|O([0-3])")


class Argument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One argument of `vllm serve` or `vllm preload`.

    `kind` is flag (has a `--no-…` form), switch (has none), int, float, size (`32k` is decimal,
    `32K` binary), size_or_auto, text, json, json_or_text, csv or lora. `many`: takes several
    values. `append`: is repeated instead. `optional_value`: may stand without a value. `default`
    is the plain value, `default_text` stands in where it is not one. `commands`: serve, preload.
    """

    name: str
    options: tuple[str, ...] = ()
    kind: str = "text"
    many: bool = False
    append: bool = False
    optional_value: bool = False
    choices: tuple[str, ...] = ()
    default: Any = None
    default_text: str = ""
    group: str = ""
    commands: tuple[str, ...] = ("serve",)
    help: str = ""

    @property
    def option(self) -> str:
        """The long spelling, `--max-model-len`."""
        long = (option for option in self.options if option.startswith("--"))
        return next(long, "--" + self.name.replace("_", "-"))


class _Stored(msgspec.Struct):
    version: str
    arguments: list[Argument]
    schema: int = 1


class ArgumentSchema:
    """The arguments of one vLLM version, found under any of their spellings."""

    def __init__(self, version: str, arguments: Iterable[Argument]) -> None:
        self.version = version
        self.arguments = {argument.name: argument for argument in arguments}
        self._spellings: dict[str, str] = {}
        self._near: dict[str, str | None] = {}
        for argument in self.arguments.values():
            for option in argument.options:
                if not _is_negative(option, argument):
                    self._spellings.setdefault(_plain(option), argument.name)

    def find(self, spelling: str, command: str | None = None) -> Argument | None:
        """The argument with this name, option or alias (`-tp`, `max-model-len`), else None."""
        plain = _plain(spelling.partition(".")[0])
        argument = self.arguments.get(self._spellings.get(plain, plain))
        if argument is None or (command is not None and command not in argument.commands):
            return None
        return argument

    def negated(self, spelling: str) -> Argument | None:
        """The boolean that this spelling switches off (`no-enable-x`, `disable_x`)."""
        plain = _plain(spelling)
        if self.find(plain) is not None:
            return None
        for prefix, positive in (("no_", ""), ("disable_", "enable_"), ("enable_", "disable_")):
            if plain.startswith(prefix):
                argument = self.find(positive + plain.removeprefix(prefix))
                if argument is not None and argument.kind == "flag":
                    return argument
        return None

    def nearest(self, spelling: str) -> str | None:
        """The closest existing name, for "did you mean"."""
        plain = _plain(spelling.partition(".")[0])
        if plain not in self._near:
            names = difflib.get_close_matches(plain, self._spellings, n=1, cutoff=0.75)
            self._near[plain] = self._spellings[names[0]] if names else None
        return self._near[plain]

    def search(self, word: str = "") -> tuple[Argument, ...]:
        """Arguments whose name, alias, group or help contains `word`; names first."""
        needle = word.lower().lstrip("-")
        plain = needle.replace("-", "_")

        def rank(argument: Argument) -> int | None:
            if plain == argument.name or plain in map(_plain, argument.options):
                return 0
            if plain in argument.name:
                return 1
            if needle in argument.group.lower():
                return 2
            return 3 if needle in argument.help.lower() else None

        ranked = [(rank(argument), argument) for argument in self.arguments.values()]
        hits = [(place, argument) for place, argument in ranked if place is not None]
        return tuple(argument for _, argument in sorted(hits, key=lambda hit: hit[0]))

    def options(self, command: str = "serve") -> tuple[str, ...]:
        """Every option string of a command as vLLM's help shows it."""
        chosen = (a for a in self.arguments.values() if command in a.commands)
        return tuple(option for argument in chosen for option in argument.options)


def canonical(key: str, value: Any, schema: ArgumentSchema | None = None) -> tuple[str, Any]:
    """One spelling for one meaning: (`tensor_parallel_size`, 2) out of (`-tp`, 2).

    Dashes and underscores are equal, aliases become names, `no-x: true` becomes `x: false`,
    `-O3` becomes `optimization_level`. Dotted names keep their tail: `-cc.mode` becomes
    `compilation_config.mode`. Unknown names stay, with underscores.
    """
    schema = schema or shipped()
    if key in ("-O", "O"):
        return "optimization_level", value
    level = _LEVEL.fullmatch(key)
    if level:
        return "optimization_level", level[1] or level[2]
    head, dot, tail = key.partition(".")
    argument = schema.find(head)
    if argument is not None:
        return argument.name + dot + tail, value
    negated = None if dot else schema.negated(head)
    if negated is not None and (isinstance(value, bool) or value is None):
        return negated.name, None if value is None else not value
    return _plain(head) + dot + tail, value


def from_dump(dump: Mapping[str, Any], version: str | None = None) -> ArgumentSchema:
    """A schema out of a parser dump: `{"vllm", "serve": [{"dest", "options", "nargs", "choices",
    "default" (repr), "action", "group", "metavar"[, "type"][, "help"]}], "preload": […] or null}`.

    Kinds that the dump does not tell are taken from the shipped schema, else guessed from the
    default. Raises Failed when the dump has another shape.
    """
    try:
        merged: dict[str, Argument] = {}
        for command in ("serve", "preload"):
            for entry in dump.get(command) or ():
                argument = _argument(entry, command)
                if argument is None:
                    continue
                known = merged.get(argument.name)
                if known is not None:
                    commands = (*known.commands, command)
                    argument = msgspec.structs.replace(known, commands=commands)
                merged[argument.name] = argument
        return ArgumentSchema(version or str(dump["vllm"]), merged.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise Failed(f"the argument schema from the runtime has an unknown shape: {error!r}") from (
            error
        )


def _argument(entry: Mapping[str, Any], command: str) -> Argument | None:
    action, name = entry["action"], entry["dest"]
    if action == "_HelpAction" or name == "model_tag":
        return None
    default, text = _default(entry.get("default") or "None")
    options = tuple(entry["options"])
    many = entry.get("nargs") in ("+", "*") or (
        isinstance(entry.get("nargs"), int) and (entry["nargs"] > 1)
    )
    return Argument(
        name=name,
        options=options,
        kind=_kind(name, action, entry.get("type"), default, text),
        many=many,
        append=action == "_AppendAction",
        optional_value=entry.get("nargs") == "?",
        choices=tuple(str(choice) for choice in _choices(entry)),
        default=default,
        default_text=text,
        group=entry.get("group") or "",
        commands=(command,),
        help=entry.get("help") or "",
    )


def _choices(entry: Mapping[str, Any]) -> Sequence[Any]:
    choices = entry.get("choices")
    return choices if isinstance(choices, list | tuple) else ()


def _kind(name: str, action: str, converter: str | None, default: Any, text: str) -> str:
    if action in ("BooleanOptionalAction", "EnableDisableAction"):
        return "flag"
    if action in ("_StoreTrueAction", "_StoreFalseAction"):
        return "switch"
    if action == "LoRAParserAction":
        return "lora"
    known = shipped().arguments.get(name)
    if converter in _CONVERTERS:
        return _CONVERTERS[converter]
    if known is not None:
        return known.kind
    if isinstance(default, bool):
        return "text"
    if isinstance(default, int | float):
        return "int" if isinstance(default, int) else "float"
    return "json" if isinstance(default, dict) or "Config(" in text else "text"


def _default(text: str) -> tuple[Any, str]:
    """(plain value, text where there is none) of a default's repr; enums count as their value."""
    enum = re.fullmatch(r"<[\w.]+: (.+)>", text)
    try:
        value = ast.literal_eval(enum[1] if enum else text)
    except (ValueError, SyntaxError):
        return None, text
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    return (None, "") if value == "==SUPPRESS==" else (value, "")


def _plain(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")


def _is_negative(option: str, argument: Argument) -> bool:
    if argument.kind != "flag" or not option.startswith("--"):
        return False
    plain, name = _plain(option), argument.name
    swapped = {"enable_": "disable_", "disable_": "enable_"}
    opposites = [
        new + name.removeprefix(old) for old, new in swapped.items() if name.startswith(old)
    ]
    return plain == "no_" + name or plain in opposites


@functools.cache
def shipped(version: str | None = None) -> ArgumentSchema:
    """The schema that Stoker ships for `version` ("0.32", "0.33.0"), or the newest one."""
    wanted = SHIPPED[-1] if version is None else ".".join(version.split(".")[:2])
    if wanted not in SHIPPED:
        raise Failed(
            f"no argument schema for vLLM {version} is shipped (there are {', '.join(SHIPPED)}); "
            "check the profile with an installed runtime"
        )
    return _load(_DATA / f"arguments-{wanted}.json")


def _cache_path(cache_dir: Path, version: str) -> Path:
    return cache_dir / "schemas" / (re.sub(r"[^\w.+-]", "_", version) + ".json")


def store(cache_dir: Path, schema: ArgumentSchema) -> Path:
    """Keep a schema for its runtime version; returns the file."""
    path = _cache_path(cache_dir, schema.version)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_record(path, _Stored(schema.version, list(schema.arguments.values())))
    return path


def load_cached(cache_dir: Path, version: str) -> ArgumentSchema | None:
    """The kept schema of exactly this runtime version, None when there is none (or an unusable
    one: it is only a cache)."""
    try:
        path = _cache_path(cache_dir, version)
        return _load(path) if path.exists() else None
    except Failed:
        return None


def for_version(version: str | None, cache_dir: Path | None = None) -> ArgumentSchema:
    """The best schema known for a version: the runtime's own, the shipped one of the same minor
    version, else the newest shipped one."""
    if version is not None and cache_dir is not None:
        cached = load_cached(cache_dir, version)
        if cached is not None:
            return cached
    minor = None if version is None else ".".join(version.split(".")[:2])
    return shipped(minor if minor in SHIPPED else None)


def _load(path: Path) -> ArgumentSchema:
    stored = read_record(path, _Stored)
    if stored is None:
        raise Failed(f"{path} is missing or empty; reinstall Stoker or remove the file")
    return ArgumentSchema(stored.version, stored.arguments)
