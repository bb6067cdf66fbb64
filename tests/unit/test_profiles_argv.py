"""From a profile to vLLM's command lines and environment."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_ctl.errors import Usage
from profiles.argv import (
    argument_words,
    environment,
    expanded,
    preload_argv,
    serve_argv,
)
from profiles.model import EnvRef, Preload, Profile
from profiles.schema import Argument, ArgumentSchema, shipped
from profiles.values import same, size


def profile(**fields: Any) -> Profile:
    return Profile(**{"name": "x", "model": "org/m", **fields})


def after(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_the_model_comes_first_and_the_host_is_always_said() -> None:
    argv = serve_argv(profile(served_name=("a", "b"), port=8001))
    assert argv == [
        "serve",
        "org/m",
        "--served-model-name",
        "a",
        "b",
        "--host",
        "127.0.0.1",
        "--port",
        "8001",
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_model_len": "32k"}, ["--max-model-len", "32k"]),
        ({"max-model-len": 4096}, ["--max-model-len", "4096"]),
        ({"-tp": 2}, ["--tensor-parallel-size", "2"]),
        ({"enable_prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"disable_sliding_window": False}, ["--no-disable-sliding-window"]),
        ({"no_enable_prefix_caching": True}, ["--no-enable-prefix-caching"]),
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"disable_log_stats": False}, []),
        ({"max_model_len": None}, []),
        ({"hf_token": True}, ["--hf-token"]),
        ({"hf_token": "${T}"}, ["--hf-token", "${T}"]),
        ({"compilation_config": {"mode": 3}}, ["--compilation-config", '{"mode":3}']),
        ({"-cc": '{"mode": 3}'}, ["--compilation-config", '{"mode": 3}']),
        ({"-cc.mode": "none"}, ["--compilation-config.mode", "none"]),
        ({"-cc.mode": 3}, ["--compilation-config.mode", "3"]),
        ({"-cc.x": "3"}, ["--compilation-config.x", '"3"']),
        ({"-cc.x": True}, ["--compilation-config.x", "true"]),
        ({"-cc.pass_config.a_b": [1]}, ["--compilation-config.pass_config.a_b", "[1]"]),
        ({"-cc.custom_ops+": ["+a", "b"]}, ["--compilation-config.custom_ops+", "+a,b"]),
        ({"-cc.custom_ops+": ["-a"]}, ["--compilation-config.custom_ops+=-a"]),
        ({"-O": 3}, ["--optimization-level", "3"]),
        ({"-O3": None}, ["--optimization-level", "3"]),
        ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"allowed_origins": []}, ["--allowed-origins", "[]"]),
        ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "1", "2"]),
        ({"cudagraph_capture_sizes": []}, []),
        ({"middleware": ["a.B", "c.D"]}, ["--middleware", "a.B", "--middleware", "c.D"]),
        ({"device_ids": [0, 1]}, ["--device-ids", "0,1"]),
        (
            {"lora_modules": [{"name": "a", "path": "/a"}, "b=/b"]},
            ["--lora-modules", '{"name":"a","path":"/a"}', "b=/b"],
        ),
        ({"max_logprobs": -1}, ["--max-logprobs=-1"]),
        ({"watermark": -0.5}, ["--watermark=-0.5"]),
        ({"chat_template": "-x.jinja"}, ["--chat-template=-x.jinja"]),
        ({"chat_template": ""}, ["--chat-template", ""]),
        ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"mm_processor_kwargs": {"ü": "é"}}, ["--mm-processor-kwargs", '{"ü":"é"}']),
        ({"plugin_flag": True}, ["--plugin-flag"]),
        ({"plugin_flag": False}, ["--no-plugin-flag"]),
        ({"plugin_list": ["a", 1]}, ["--plugin-list", "a", "1"]),
        ({"plugin_map": {"a": 1}}, ["--plugin-map", '{"a":1}']),
    ],
)
def test_words(args: dict[str, Any], words: list[str]) -> None:
    assert argument_words(args) == words


def test_what_a_command_line_cannot_say_is_refused() -> None:
    with pytest.raises(Usage, match="begins with a dash"):
        argument_words({"allowed_media_domains": ["a", "-b"]})
    with pytest.raises(Usage, match="names no model"):
        serve_argv(Profile(name="x"))


def test_preload_makes_the_engine_map_its_weights() -> None:
    argv = serve_argv(
        profile(
            args={"load_format": "safetensors", "model_loader_extra_config": {"num_threads": 4}},
            preload=Preload(socket_dir="/run/w", state_timeout_s=600),
        )
    )
    assert argv.count("--load-format") == 1
    assert after(argv, "--load-format") == "ipc_cache"
    assert json.loads(after(argv, "--model-loader-extra-config")) == {
        "mode": "zero_copy",
        "fallback": True,
        "socket_dir": "/run/w",
        "state_timeout_s": 600,
    }


def test_an_explicit_loader_config_is_merged_and_wins() -> None:
    argv = serve_argv(
        profile(
            args={"model_loader_extra_config": '{"fallback": false, "socket_path": "/s"}'},
            preload=Preload(mode="copy"),
        )
    )
    assert json.loads(after(argv, "--model-loader-extra-config")) == {
        "mode": "copy",
        "fallback": False,
        "socket_path": "/s",
    }


def test_the_daemon_gets_the_same_weights_but_no_server() -> None:
    given_ = profile(
        port=8000,
        served_name=("a",),
        args={
            "tensor_parallel_size": 2,
            "enable_auto_tool_choice": True,
            "load_format": "safetensors",
            "dtype": "bfloat16",
            "model_loader_extra_config": {"num_threads": 4, "fallback": False},
            "plugin_flag": True,
        },
        preload=Preload(
            socket_dir="/run/w",
            health_port=9300,
            args={"weight-cache-master-port": 29600, "dtype": None, "max_model_len": 1024},
        ),
    )
    assert preload_argv(given_) == [
        *("preload", "--model", "org/m", "--tensor-parallel-size", "2"),
        *("--load-format", "safetensors"),
        *("--model-loader-extra-config", '{"num_threads":4}'),
        *("--weight-cache-master-port", "29600", "--max-model-len", "1024"),
        *("--weight-cache-socket-dir", "/run/w", "--weight-cache-health-port", "9300"),
        *("--weight-cache-health-host", "127.0.0.1"),
    ]


def test_the_daemon_loads_from_disk() -> None:
    argv = preload_argv(profile(args={"load_format": "ipc_cache"}, preload=Preload()))
    assert "--load-format" not in argv


def test_a_seed_token_needs_a_version_that_has_it() -> None:
    given_ = profile(preload=Preload(seed_token=EnvRef(from_env="T")))
    assert after(preload_argv(given_, shipped("0.33"), "s3"), "--seed-token") == "s3"
    with pytest.raises(Usage, match=r"0\.32 has no --seed-token"):
        preload_argv(given_, shipped("0.32"), "s3")
    with pytest.raises(Usage, match="no preload section"):
        preload_argv(profile())


def test_environment() -> None:
    values, refs = environment(
        profile(
            gpus=(2, 0),
            env={"A": "1", "B": "${B_HERE}", "C": "${D:-x}", "T": EnvRef(from_file="/t")},
        )
    )
    assert values == {
        "CUDA_VISIBLE_DEVICES": "2,0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "A": "1",
        "C": "${D:-x}",
    }
    assert refs == {"B": EnvRef(from_env="B_HERE"), "T": EnvRef(from_file="/t")}


def test_uuids_and_explicit_devices() -> None:
    values, _ = environment(profile(gpus=("GPU-1", "MIG-2")))
    assert values == {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}
    values, _ = environment(profile(gpus=(0,), env={"CUDA_VISIBLE_DEVICES": "7"}))
    assert values["CUDA_VISIBLE_DEVICES"] == "7"


def test_references_are_filled_in_before_a_start() -> None:
    given_ = profile(
        model="${MODELS:-/models}/m",
        args={"a": ["${X}", {"b": "$${X}"}], "n": 3},
        env={"E": "${X}", "F": "pre-${X}"},
    )
    got = expanded(given_, {"X": "1"})
    assert got.model == "/models/m"
    assert got.args == {"a": ["1", {"b": "${X}"}], "n": 3}
    assert got.env == {"E": "${X}", "F": "pre-1"}
    with pytest.raises(Usage, match=r"args\.a needs X, which is not set"):
        expanded(given_, {})
    with pytest.raises(Usage, match=r"args\.a needs \$\(id\)"):
        expanded(profile(args={"a": "$(id)"}), {})


# A parser made of the schema, as argparse users would make it: what it reads must be what the
# profile said.


def converter(argument: Argument) -> Any:
    kinds: dict[str, Any] = {
        "int": int,
        "float": float,
        "json": json.loads,
        "size": size,
        "size_or_auto": lambda text: -1 if text.lower() == "auto" else size(text),
        "json_or_text": lambda text: json.loads(text) if text.lstrip()[:1] == "{" else text,
        "lora": lambda text: json.loads(text) if text[:1] == "{" else text,
        "csv": lambda text: text.split(","),
    }
    return kinds.get(argument.kind, str)


def build(schema: ArgumentSchema, command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("command")
    if command == "serve":
        parser.add_argument("model_tag")
    for argument in schema.arguments.values():
        if command not in argument.commands:
            continue
        if argument.kind == "flag":
            long = [o for o in argument.options if o == argument.option]
            parser.add_argument(*long, dest=argument.name, action=argparse.BooleanOptionalAction)
        elif argument.kind == "switch":
            parser.add_argument(argument.option, dest=argument.name, action="store_true")
        elif argument.append:
            parser.add_argument(argument.option, dest=argument.name, action="append")
        else:
            parser.add_argument(
                argument.option,
                dest=argument.name,
                type=converter(argument),
                nargs="+" if argument.many else "?" if argument.optional_value else None,
                const=True if argument.optional_value else None,
            )
    return parser


PARSER = build(shipped(), "serve")
TEXTS = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=12).filter(
    lambda text: "\0" not in text
)
JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def values_for(argument: Argument) -> st.SearchStrategy[Any]:
    if argument.kind in ("flag", "switch"):
        return st.booleans()
    if argument.choices:
        one: st.SearchStrategy[Any] = st.sampled_from(argument.choices)
    elif argument.kind == "int":
        one = st.integers(-5, 10**6)
    elif argument.kind == "float":
        one = st.floats(-1, 100, allow_nan=False)
    elif argument.kind in ("size", "size_or_auto"):
        one = st.one_of(st.integers(1, 10**9), st.sampled_from(["32k", "32K", "1.5k", "1G"]))
    elif argument.kind in ("json", "json_or_text"):
        one = st.dictionaries(TEXTS, JSONS, max_size=3)
    elif argument.kind == "csv":
        return st.lists(st.integers(0, 7), min_size=1, max_size=4)
    elif argument.kind == "lora":
        one = st.dictionaries(st.sampled_from(["name", "path"]), TEXTS, min_size=1)
    else:
        one = TEXTS
    if argument.append:
        return st.lists(TEXTS, min_size=1, max_size=3)
    if argument.many:
        no_dash = one.filter(lambda value: not str(value).startswith("-"))
        return st.lists(no_dash, min_size=1, max_size=3)
    return one


OWN = ("model", "host", "port", "served_model_name")


@st.composite
def argument_sets(draw: st.DrawFn, version: str | None = None) -> dict[str, Any]:
    """Arguments of `vllm serve` with values of the right kind."""
    all_ = shipped(version).arguments.values()
    serve = [a for a in all_ if "serve" in a.commands and a.name not in OWN]
    chosen = draw(st.lists(st.sampled_from(serve), max_size=6, unique_by=lambda a: a.name))
    return {argument.name: draw(values_for(argument)) for argument in chosen}


@settings(max_examples=300, deadline=None)
@given(argument_sets())
def test_what_a_parser_reads_is_what_the_profile_says(args: dict[str, Any]) -> None:
    argv = serve_argv(profile(args=args))
    got = vars(PARSER.parse_args(argv))
    schema = shipped()
    for name, value in args.items():
        argument = schema.arguments[name]
        if argument.kind == "switch" and value is False:
            assert got[name] is False
        else:
            assert same(got[name], value, argument), (name, value, argv)
    assert got["model_tag"] == "org/m"


@settings(max_examples=200, deadline=None)
@given(argument_sets())
def test_no_value_can_be_taken_for_an_option(args: dict[str, Any]) -> None:
    """vLLM's parser looks at every word that begins with a dash before it knows what it is."""
    options = {option for a in shipped().arguments.values() for option in a.options}
    options |= {"--no-" + option.removeprefix("--") for option in options}
    for word in serve_argv(profile(args=args)):
        if word.startswith("-"):
            assert word.partition("=")[0] in options
