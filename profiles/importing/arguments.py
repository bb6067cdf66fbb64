"""From the words after `vllm serve` to a profile's `args`, read as vLLM's parser reads them.

What its parser does with a line is done here on names and values only: dashes and underscores,
aliases, unique abbreviations, `-O3`, dotted keys that become JSON, list flags of which the last
one wins, `--config` files put in front. Values keep the author's spelling where types allow it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from profiles.importing.argument_values import (
    item,
    loose_value,
    mapping_of,
    plain_number,
    scalar,
    update,
)
from profiles.importing.config_file import config_words
from profiles.importing.references import has_references
from profiles.schema import Argument, ArgumentSchema

_NEGATIVE_NUMBER = re.compile(r"-\d+(?:\.\d*)?\Z|-\.\d+\Z|-\d+[eE][-+]?\d+\Z")
MAPPINGS = frozenset(("limit_mm_per_prompt", "default_mm_loras"))


@dataclass
class Parsed:
    """`args` in the author's order; `positional` is the model, if it was given as one."""

    args: dict[str, Any] = field(default_factory=dict)
    positional: str | None = None
    notes: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    config: str | None = None


def parse_arguments(
    words: list[str],
    schema: ArgumentSchema,
    command: str = "serve",
    read_config: Callable[[str], str | None] = lambda path: None,
) -> Parsed:
    """Read an argument list (in the profile's notation, without the sub-command).

    `read_config` gives the content of a `--config` file that came with the text, or None."""
    return _Reader(schema, command, read_config).read(words)


class _Reader:
    def __init__(
        self, schema: ArgumentSchema, command: str, read_config: Callable[[str], str | None]
    ) -> None:
        self.schema = schema
        self.command = command
        self.read_config = read_config
        self.out = Parsed()
        self.dotted: dict[str, dict[str, Any]] = {}
        self.given: set[str] = set()
        self.in_config = False

    def read(self, words: list[str]) -> Parsed:
        words = list(words)
        config = self._config(words)
        if config is not None:
            self.in_config = True
            self._walk(config_words(config, self.out.notes, self.schema))
            self.in_config = False
            self.given = set()
        self._walk(words)
        self._fold()
        return self.out

    def _config(self, words: list[str]) -> str | None:
        for place, word in enumerate(words):
            if word.startswith("--config="):
                self.out.notes.append(
                    f"{word}: vLLM ignores --config with an equals sign, so it was left out"
                )
                del words[place]
                return self._config(words)
        if "--config" not in words[:-1]:
            return None
        place = words.index("--config")
        path = words[place + 1]
        content = self.read_config(path)
        if content is None:
            self.out.args["config"] = path
            self.out.notes.append(
                f"--config {path}: the file is not part of the text, its values were not read"
            )
        else:
            self.out.config = path
        del words[place : place + 2]
        return content

    def _walk(self, words: list[str]) -> None:
        i = 0
        if words and self.command == "serve" and not self.in_config and not _is_option(words[0]):
            self.out.positional = words[0]
            i = 1
        while i < len(words):
            word = words[i]
            i += 1
            if word == "--":
                self._loose(words[i:])
                return
            if not _is_option(word):
                self._loose([word])
                continue
            i = self._option(word, words, i)

    def _loose(self, words: list[str]) -> None:
        for word in words:
            if not word.strip():
                continue
            if self.out.positional is None and self.command == "serve":
                self.out.positional = word
            else:
                self.out.extra.append(word)
                if word in ("${@}", "${*}"):
                    self.out.notes.append(f"{word}: arguments that the script is given")
                elif has_references(word):
                    self.out.notes.append(f"{word}: arguments that only the environment knows")
                else:
                    self.out.notes.append(f"{word!r} belongs to no option; vLLM would refuse it")

    def _option(self, word: str, words: list[str], i: int) -> int:
        name, equals, value = word.partition("=")
        if word.startswith("-O") and word != "-O" and not word.startswith("--"):
            level = word[3:] if word[2:3] == "=" else word[2:]
            if level.startswith("."):
                self.out.notes.append(
                    f"{word}: vLLM reads this as the optimisation level {level!r}; "
                    "for a field of the compilation use -cc."
                )
            self._put("optimization_level", level, None)
            return i
        if name == "-O":
            if equals:
                self._put("optimization_level", value, None)
            elif i < len(words):
                self._put("optimization_level", words[i], None)
                i += 1
            return i
        head, dot, tail = name.partition(".")
        if dot:
            if not equals:
                if i >= len(words):
                    self._loose([word])
                    return i
                value = words[i]
                i += 1
            self._dotted(head, tail, value)
            return i
        argument, negative = self._find(name)
        if argument is None:
            return self._unknown(name, value if equals else None, words, i)
        if argument.kind in ("flag", "switch"):
            if equals:
                if not self.in_config:
                    text = f"{word}: a switch takes no value in vLLM, which would refuse it"
                    self.out.notes.append(text)
                if value.lower() in ("false", "0", "no", "off"):
                    negative = not negative
            self._set(argument.name, not negative)
            return i
        if argument.many:
            values = [value] if equals else []
            while not equals and i < len(words) and not _is_option(words[i]):
                values.append(words[i])
                i += 1
            if not values:
                self.out.notes.append(f"{name} has no value; it was left out")
                return i
            self._put(argument.name, [item(argument, v) for v in values], argument)
            return i
        if not equals:
            if i < len(words) and not _is_option(words[i]):
                value = words[i]
                i += 1
            elif argument.optional_value:
                self._set(argument.name, True)
                return i
            else:
                self.out.notes.append(f"{name} has no value; it was left out")
                return i
        if argument.append:
            before = self.out.args.get(argument.name, [])
            self.out.args[argument.name] = [*before, scalar(argument, value)]
            return i
        self._put(argument.name, scalar(argument, value), argument)
        return i

    def _find(self, name: str) -> tuple[Argument | None, bool]:
        """The argument and whether the spelling switches it off."""
        if name.startswith("--") or len(name) > 1:
            argument = self.schema.find(name)
            known = name if name.startswith("--") else None
            if argument is not None and (known or name in argument.options):
                return argument, False
            if name.startswith("--"):
                argument = self.schema.negated(name)
                if argument is not None:
                    return argument, True
                return self._abbreviated(name)
        return None, False

    def _abbreviated(self, name: str) -> tuple[Argument | None, bool]:
        """argparse accepts a unique beginning of a long option."""
        plain = name.replace("_", "-")
        found = {
            (argument.name, option)
            for argument in self.schema.arguments.values()
            for option in (*argument.options, "--no-" + argument.option[2:])
            if option.startswith(plain)
            and self.command in argument.commands
            and (option in argument.options or argument.kind == "flag")
        }
        names = {name for name, _ in found}
        if len(names) != 1 or len(plain) < 5:
            return None, False
        argument = self.schema.arguments[names.pop()]
        negatives = {self.schema.negated(option) is not None for _, option in found}
        return (argument, negatives.pop()) if len(negatives) == 1 else (None, False)

    def _unknown(self, name: str, value: str | None, words: list[str], i: int) -> int:
        if not name.startswith("--"):
            taken = [name if value is None else f"{name}={value}"]
            while i < len(words) and not _is_option(words[i]):
                taken.append(words[i])
                i += 1
            self.out.extra += taken
            self.out.notes.append(f"{' '.join(taken)}: vLLM has no such short option")
            return i
        key = name.lstrip("-").replace("-", "_")
        if self.in_config and value == "false":
            self._put(key, False, None)
            return i
        values = [] if value is None else [value]
        while value is None and i < len(words) and not _is_option(words[i]):
            values.append(words[i])
            i += 1
        numbers = [plain_number(v) for v in values]
        given: Any = True if not values else numbers[0] if len(numbers) == 1 else numbers
        self._put(key, given, None)
        return i

    def _put(self, name: str, value: Any, argument: Argument | None) -> None:
        if argument is not None and name in MAPPINGS and isinstance(value, str):
            fixed = mapping_of(value)
            if fixed is not None:
                self.out.notes.append(
                    f"{argument.option} {value}: vLLM wants JSON here, so it became "
                    f"{json.dumps(fixed)}"
                )
                value = fixed
        self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        if name in self.given and self.out.args.get(name) != value:
            option = "--" + name.replace("_", "-")
            self.out.notes.append(f"{option} is given more than once; the last one counts")
        self.given.add(name)
        self.out.args.pop(name, None) if self.in_config else None
        self.out.args[name] = value

    def _dotted(self, head: str, tail: str, value: str) -> None:
        """`-cc.pass_config.x=True`: the parser turns such words into one JSON value per spelling,
        placed after everything else."""
        key = head if not head.startswith("--") else "--" + head[2:].replace("_", "-")
        keys = tail.split(".")
        data: Any
        if keys[-1].endswith("+"):
            keys[-1] = keys[-1][:-1]
            data = value.split(",")
        else:
            data = loose_value(value)
        for part in reversed(keys):
            data = {part: data}
        target = self.dotted.setdefault(key, {})
        if not isinstance(data, dict):
            return
        update(target, data)

    def _fold(self) -> None:
        seen: dict[str, str] = {}
        for key, data in self.dotted.items():
            argument = self._find(key)[0]
            name = argument.name if argument else key.lstrip("-").replace("-", "_")
            if name in seen:
                self.out.notes.append(
                    f"{seen[name]}.… and {key}.…: vLLM keeps only the one that it meets last"
                )
            elif name in self.out.args:
                self.out.notes.append(
                    f"{key}.… replaces the value of --{name.replace('_', '-')} as a whole"
                )
            seen[name] = key
            self.out.args[name] = data


def _is_option(word: str) -> bool:
    return (
        word.startswith("-")
        and word != "-"
        and not _NEGATIVE_NUMBER.match(word)
        and (" " not in word or (word.startswith("--") and "=" in word.partition(" ")[0]))
    )
