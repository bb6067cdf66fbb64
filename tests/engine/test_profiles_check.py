"""Profiles against the real parser of the CPU runtime: schema, built-ins, any argument set.

One process of the runtime answers everything, so that vLLM is imported once.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from profiles.argv import environment, expanded, preload_argv, serve_argv
from profiles.loading import ProfileStore
from profiles.model import Profile
from profiles.schema import from_dump, shipped
from profiles.values import same
from tests.unit.test_profiles_argv import argument_sets
from tests.unit.test_profiles_builtin import ENV

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]

# Run under the runtime's interpreter: reads {"schema": true} or {"argv": [...]} a line.
SERVER = """
import contextlib, io, json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from engine_ctl.inside.probe_schema import build_parser, schema

parsers = {}

def plain(value):
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "name") and hasattr(value, "path"):
        return {"name": value.name, "path": value.path}
    if hasattr(value, "value"):
        return plain(value.value)
    return repr(value)

def parse(argv):
    kind = argv[0]
    if kind not in parsers:
        parsers[kind] = build_parser(kind)[0]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            space = parsers[kind].parse_args(argv)
    except SystemExit as stop:
        return {"exit": stop.code, "said": said.getvalue()[-800:]}
    except Exception as error:
        return {"exit": 1, "said": repr(error)}
    return {"values": {key: plain(value) for key, value in vars(space).items()
                       if key != "dispatch_function"}}

for line in sys.stdin:
    asked = json.loads(line)
    answer = schema() if "schema" in asked else parse(asked["argv"])
    answers.write(json.dumps(answer) + "\\n")
    answers.flush()
"""


class Runtime(Protocol):
    python: Path
    env: dict[str, str]


class Parser:
    """vLLM's own parser in one child process."""

    def __init__(self, runtime: Runtime) -> None:
        env = {**os.environ, **runtime.env, "VLLM_LOGGING_LEVEL": "ERROR"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [str(runtime.python), "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the parser's process has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)


@pytest.fixture(scope="module")
def parser(cpu_runtime: Runtime) -> Any:
    made = Parser(cpu_runtime)
    yield made
    made.close()


def test_the_schema_is_that_of_the_parser_and_the_shipped_one_agrees(parser: Parser) -> None:
    dump = parser.ask(schema=True)
    real = from_dump(dump)
    for command in ("serve", "preload"):
        said = {
            option
            for entry in dump[command]
            if entry["action"] != "_HelpAction"
            for option in entry["options"]
        }
        assert set(real.options(command)) == said
    fallback = shipped(real.version)
    assert set(fallback.arguments) == set(real.arguments)
    for name, argument in real.arguments.items():
        other = fallback.arguments[name]
        assert (argument.kind, argument.many, argument.append, argument.options) == (
            other.kind,
            other.many,
            other.append,
            other.options,
        ), name
    assert sum(bool(argument.help) for argument in real.arguments.values()) > 50


STORE = ProfileStore(Path("/nonexistent"))


@pytest.mark.parametrize("name", STORE.names())
def test_vllm_parses_the_built_in_profiles(parser: Parser, name: str) -> None:
    profile = expanded(STORE.load(name).profile, ENV)
    if not profile.model:
        profile = msgspec.structs.replace(profile, model="org/m")
    environment(profile)
    schema = shipped("0.32")
    answer = parser.ask(argv=serve_argv(profile, schema))
    assert "values" in answer, answer
    for key, value in profile.args.items():
        argument = schema.arguments[key]
        got = answer["values"][key]
        if isinstance(got, str) and argument.kind == "json":
            continue  # a configuration object: vLLM filled in its defaults
        assert same(got, value, argument), key
    if profile.preload is not None:
        assert "values" in parser.ask(argv=preload_argv(profile, schema))


# vLLM checks what these hold, so that arbitrary values are refused for good reasons.
CHECKED = frozenset({"config", "reasoning_parser", "block_size", "lora_modules"})


@settings(
    max_examples=150,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(argument_sets("0.32"))
def test_vllm_reads_back_what_a_profile_says(parser: Parser, args: dict[str, Any]) -> None:
    schema = shipped("0.32")
    kept = {
        name: value
        for name, value in args.items()
        if name not in CHECKED and not _is_object(schema.arguments[name].default_text, name)
    }
    answer = parser.ask(argv=serve_argv(Profile(name="x", model="org/m", args=kept), schema))
    assert "values" in answer, (kept, answer)
    for name, value in kept.items():
        argument = schema.arguments[name]
        if argument.kind == "switch" and value is False:
            continue
        assert same(answer["values"][name], value, argument), name


def _is_object(default: str, name: str) -> bool:
    """Whether vLLM makes a checked configuration object of the value."""
    return name.endswith("_config") or "Config(" in default
