"""Random profiles, drawn from vLLM's own argument names, types and choices, survive every kind."""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.argv import serve_argv
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import import_profile
from profiles.importing.references import expand, literal, parse, render
from profiles.importing.secrets import is_secret, looks_secret, scrub
from profiles.model import EnvRef, Profile, Restart
from profiles.schema import Argument, ArgumentSchema, shipped

OWN = {"model", "served_model_name", "host", "port", "config", "load_format"}
CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t")


def harmless(text: str) -> bool:
    return not looks_secret(text) and scrub(text) == text


TEXT = (
    (st.text(CHARACTERS, min_size=1, max_size=12) | st.text("${}()ab%\\", min_size=1, max_size=9))
    .map(literal)
    .filter(lambda text: not text.startswith("-") and bool(text.strip()) and harmless(text))
)
REFERENCE = st.sampled_from(["${NAME}", "${NAME:-a b}", "x${NAME:?gone}y", "$(nproc)", "a$(id -u)"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT
    | st.floats(-1e6, 1e6, allow_nan=False).map(lambda n: round(n, 3)),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.from_regex(r"[a-z]{1,6}_[a-z]{1,6}", fullmatch=True), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEY = st.from_regex(r"[a-z]{2,6}", fullmatch=True)
JSON_MAP = st.dictionaries(KEY, JSON, min_size=1, max_size=3)


def value(argument: Argument) -> st.SearchStrategy[Any]:
    """Values that a profile holds for an argument, of its own kind."""
    if argument.choices:
        choices = [c for c in argument.choices if c != "None"] or list(argument.choices)
        one: st.SearchStrategy[Any] = st.sampled_from(choices)
        if argument.kind == "int":
            one = one.map(int)
    elif argument.kind in ("flag",):
        return st.booleans()
    elif argument.kind == "switch":
        return st.just(True)
    elif argument.kind in ("int", "size", "size_or_auto"):
        one = st.integers(0, 10**9)
        if argument.kind != "int":
            one = one | st.sampled_from(["32k", "32K", "1.5m"])
    elif argument.kind == "float":
        one = st.floats(0, 1000, allow_nan=False).map(lambda n: round(n, 4))
    elif argument.kind == "json":
        return JSON_MAP
    elif argument.kind == "json_or_text":
        one = JSON_MAP | st.sampled_from(["auto", "a.b.C"])
    elif argument.kind == "lora":
        one = st.sampled_from(["a=/b", "c=d"]) | st.fixed_dictionaries({"name": TEXT, "path": TEXT})
    elif argument.kind == "csv":
        return st.sampled_from(["0", "0,1"])
    else:
        one = TEXT | REFERENCE
    return st.lists(one, min_size=1, max_size=3) if argument.many or argument.append else one


def arguments(schema: ArgumentSchema) -> st.SearchStrategy[dict[str, Any]]:
    usable = [
        a
        for a in schema.arguments.values()
        if "serve" in a.commands and a.name not in OWN and not is_secret(a.name)
    ]
    chosen = st.lists(st.sampled_from(usable), max_size=6, unique_by=lambda a: a.name)
    return chosen.flatmap(lambda some: st.fixed_dictionaries({a.name: value(a) for a in some}))


ENV_NAME = st.from_regex(r"(VLLM|LMCACHE|NCCL)_[A-Z]{1,6}", fullmatch=True).filter(
    lambda name: not is_secret(name)
)
ENV_VALUE = (
    st.just("")
    | st.text(CHARACTERS, max_size=10).map(literal).filter(harmless)
    | st.sampled_from(["${OUTER:-1}", "/x:${PATH}"])
    | st.just(EnvRef(from_env="CALLERS"))
    | st.just(EnvRef(from_file="/run/x y"))
)


@st.composite
def profiles(draw: st.DrawFn, schema: ArgumentSchema) -> Profile:
    return Profile(
        name="m",
        model=draw(TEXT | REFERENCE),
        served_name=tuple(draw(st.lists(TEXT, max_size=2))),
        gpus=draw(st.sampled_from([(), (0,), (1, 3), ("GPU-ab", "GPU-cd")])),
        host=draw(st.sampled_from(["127.0.0.1", "0.0.0.0", "::1", "${HOST_IP}"])),
        port=draw(st.none() | st.integers(1, 65535)),
        args=draw(arguments(schema)),
        env=draw(st.dictionaries(ENV_NAME, ENV_VALUE, max_size=3)),
        restart=Restart(policy=draw(st.sampled_from(["never", "always", "on-failure"]))),
    )


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("kind", EXPORTS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_random_profile_comes_back(kind: str, version: str, data: st.DataObject) -> None:
    schema = shipped(version)
    profile = data.draw(profiles(schema))
    text = export_profile(profile, kind, schema)
    again = import_profile(text, kind, schema=schema).profile
    assert msgspec.to_builtins(again) == msgspec.to_builtins(profile)
    assert serve_argv(again, schema) == serve_argv(profile, schema)


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_literal_text_stays_itself(text: str) -> None:
    assert expand(literal(text), {}) == (text, ())
    assert render(parse(literal(text))) == literal(text)


@settings(deadline=None)
@given(text=st.text(st.sampled_from(list("$${}()ab:-? \"'\\"))))
def test_the_notation_is_stable(text: str) -> None:
    again = render(parse(text))
    assert render(parse(again)) == again


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"),
                              min_size=1), max_size=4))  # fmt: skip
def test_quoted_words_are_read_as_a_shell_reads_them(words: list[str]) -> None:
    line = "vllm serve m --plugin-json " + shlex.join(["x", *words])
    found = import_profile(line, "shell").profile
    given_words = found.args["plugin_json"]
    taken = given_words if isinstance(given_words, list) else [given_words]
    assert str(taken[0]) == "x"
    plain = [w for w in words if not w.startswith("-") and harmless(w)]
    if plain == words:
        assert [expand(str(w), {})[0] for w in taken] == ["x", *words]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_text_is_more_than_one_clear_line_of_trouble(data: st.DataObject) -> None:
    from engine_ctl.errors import StokerError
    from profiles.importing import KINDS

    seeds = ["vllm serve m", "docker run i m", "services:\n  a:\n", "[Service]\n", "ExecStart=",
             "args: [", "command:", "- ", "${", "$(", "'", '"', "\\\n", "<<EOF\n", "\nEOF\n", "{}",
             "--config x", "-cc.", "=", "|", "&&", "containers:", "image: vllm", "env:", "\t", "%",
             "apiVersion: v1\n", "# stoker: {}", "`\n", "@(", "\x07", "&a", "*a", "!"]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(seeds) | st.text(max_size=4), max_size=8)))
    kind = data.draw(st.none() | st.sampled_from(KINDS))
    try:
        found = import_profile(text, kind)
        json.dumps(msgspec.to_builtins(found.profile))
    except StokerError as error:
        assert "\n" not in str(error)
