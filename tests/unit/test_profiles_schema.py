"""Argument schemas: spellings, dumps, cache, search, and the JSON Schema made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_ctl.errors import Failed
from profiles.jsonschema import json_schema
from profiles.loading import ProfileStore
from profiles.schema import (
    SHIPPED,
    canonical,
    for_version,
    from_dump,
    load_cached,
    shipped,
    store,
)
from profiles.values import same, size
from profiles.yaml_source import read


def entry(dest: str, *options: str, **fields: Any) -> dict[str, Any]:
    base = {
        "dest": dest,
        "options": list(options) or ["--" + dest.replace("_", "-")],
        "nargs": None,
        "choices": None,
        "default": "None",
        "action": "_StoreAction",
        "group": "g",
        "metavar": None,
        "type": "str",
        "help": None,
    }
    return base | fields


DUMP = {
    "vllm": "0.34.0",
    "serve": [
        entry("help", "-h", action="_HelpAction", default="'==SUPPRESS=='"),
        entry("model_tag", nargs="?"),
        entry("tensor_parallel_size", "--tensor-parallel-size", "-tp", type="int", default="1"),
        entry("new_size", type="human_readable_int", default="8192"),
        entry("new_config", type="parse_dataclass", default="NewConfig(a=1)"),
        entry("new_flag", "--new-flag", "--no-new-flag", nargs=0, action="BooleanOptionalAction"),
        entry("new_switch", nargs=0, action="_StoreTrueAction", default="False"),
        entry("new_list", nargs="+", type="int", default="[1, 2]"),
        entry("level", default="<Level.O2: 2>", help="How much."),
        entry("hidden", default="'==SUPPRESS=='"),
        entry("max_model_len", type=None, choices=["1", "2"]),
    ],
    "preload": [entry("tensor_parallel_size", "-tp", type="int", default="1"), entry("only_there")],
}


@pytest.mark.parametrize("version", SHIPPED)
def test_shipped_schemas_hold_every_argument(version: str) -> None:
    schema = shipped(version)
    serve = [a for a in schema.arguments.values() if "serve" in a.commands]
    preload = [a for a in schema.arguments.values() if "preload" in a.commands]
    assert (len(serve), len(preload)) == {"0.32": (316, 255), "0.33": (320, 263)}[version]
    assert schema.version == version


def test_any_spelling_finds_the_argument() -> None:
    schema = shipped()
    for spelling in ("-tp", "tp", "--tensor-parallel-size", "tensor_parallel_size"):
        found = schema.find(spelling)
        assert found is not None
        assert found.name == "tensor_parallel_size"
    assert schema.find("-cc.mode") is schema.find("compilation-config")
    assert schema.find("swap_space") is None
    assert schema.find("api_key", "preload") is None
    assert schema.nearest("max-modle-len") == "max_model_len"
    assert schema.nearest("zzqq") is None


@pytest.mark.parametrize(
    ("key", "value", "meaning"),
    [
        ("-tp", 2, ("tensor_parallel_size", 2)),
        ("--max-model-len", "32k", ("max_model_len", "32k")),
        ("no-enable-prefix-caching", True, ("enable_prefix_caching", False)),
        ("no_enable_prefix_caching", False, ("enable_prefix_caching", True)),
        ("disable_prefix_caching", True, ("enable_prefix_caching", False)),
        ("enable_sliding_window", True, ("disable_sliding_window", False)),
        ("disable_sliding_window", True, ("disable_sliding_window", True)),
        ("disable_log_stats", True, ("disable_log_stats", True)),
        ("no-enable-prefix-caching", None, ("enable_prefix_caching", None)),
        ("device-memory-utilization", 0.5, ("gpu_memory_utilization", 0.5)),
        ("-cc.pass_config.x_y", 1, ("compilation_config.pass_config.x_y", 1)),
        ("-O3", None, ("optimization_level", "3")),
        ("-O=2", True, ("optimization_level", "2")),
        ("O1", True, ("optimization_level", "1")),
        ("-O", 0, ("optimization_level", 0)),
        ("Other-Thing", 1, ("Other_Thing", 1)),
        ("no_such_thing", True, ("no_such_thing", True)),
    ],
)
def test_one_spelling_for_one_meaning(key: str, value: Any, meaning: tuple[str, Any]) -> None:
    assert canonical(key, value) == meaning


def test_a_dump_of_a_parser_becomes_a_schema() -> None:
    schema = from_dump(DUMP)
    kinds = {name: argument.kind for name, argument in schema.arguments.items()}
    assert kinds == {
        "tensor_parallel_size": "int",
        "new_size": "size",
        "new_config": "json",
        "new_flag": "flag",
        "new_switch": "switch",
        "new_list": "int",
        "level": "text",
        "hidden": "text",
        "max_model_len": "size_or_auto",
        "only_there": "text",
    }
    assert schema.arguments["tensor_parallel_size"].commands == ("serve", "preload")
    assert schema.arguments["only_there"].commands == ("preload",)
    assert schema.arguments["new_list"].many
    assert schema.arguments["new_list"].default == [1, 2]
    assert schema.arguments["new_config"].default_text == "NewConfig(a=1)"
    assert schema.arguments["level"].default == 2
    assert schema.arguments["hidden"].default is None
    assert schema.version == "0.34.0"
    assert from_dump({**DUMP, "preload": None}).find("only_there") is None


@pytest.mark.parametrize("dump", [{}, {"vllm": "1", "serve": [{}]}, {"vllm": "1", "serve": [3]}])
def test_a_dump_of_another_shape_is_refused(dump: dict[str, Any]) -> None:
    with pytest.raises(Failed, match="unknown shape"):
        from_dump(dump)


def test_schemas_are_cached_per_runtime_version(tmp_path: Path) -> None:
    schema = from_dump(DUMP, "0.34.0+cpu")
    path = store(tmp_path, schema)
    assert path.parent == tmp_path / "schemas"
    again = load_cached(tmp_path, "0.34.0+cpu")
    assert again is not None
    assert again.arguments == schema.arguments
    assert load_cached(tmp_path, "0.34.0") is None
    assert for_version("0.34.0+cpu", tmp_path).find("new_size") is not None
    path.write_text("{")
    assert load_cached(tmp_path, "0.34.0+cpu") is None
    assert for_version("0.34.0+cpu", tmp_path).version == "0.33"
    assert for_version("0.32.0+cpu", tmp_path).version == "0.32"


def test_search() -> None:
    schema = from_dump(DUMP)
    assert schema.search("-tp")[0].name == "tensor_parallel_size"
    assert [a.name for a in schema.search("new-")] == [
        "new_size",
        "new_config",
        "new_flag",
        "new_switch",
        "new_list",
    ]
    assert [a.name for a in schema.search("how much")] == ["level"]
    assert len(schema.search("")) == len(schema.arguments)


def test_sizes_are_counted_as_vllm_counts_them() -> None:
    assert [size(t) for t in ("32k", "32K", "1.5k", "1M", "7")] == [32000, 32768, 1500, 1 << 20, 7]
    assert [size(t) for t in ("1.5K", "x", "1kb", "")] == [None] * 4


@pytest.mark.parametrize(
    ("name", "left", "right", "equal"),
    [
        ("gpu_memory_utilization", 0.90, ".9", True),
        ("max_model_len", "32k", 32000, True),
        ("max_model_len", "32K", 32000, False),
        ("max_model_len", "auto", -1, True),
        ("max_num_seqs", 64, "64", True),
        ("compilation_config", '{"b": 1, "a": 2}', {"a": 2, "b": 1.0}, True),
        ("compilation_config", {"a": True}, {"a": 1}, False),
        ("allowed_origins", '["*"]', ["*"], True),
        ("cudagraph_capture_sizes", [1, 2], ["1", "2"], True),
        ("cudagraph_capture_sizes", [1, 2], [2, 1], False),
        ("optimization_level", 3, "3", True),
        ("device_ids", [0, 1], "0,1", True),
        ("middleware", "a.B", ["a.B"], True),
        ("enforce_eager", True, "true", False),
        ("dtype", "half", "float16", False),
    ],
)
def test_values_are_compared_as_they_are_parsed(
    name: str, left: Any, right: Any, equal: bool
) -> None:
    assert same(left, right, shipped().arguments[name]) is equal


# A validator for the part of JSON Schema that is generated.


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if "$ref" in schema:
        return valid(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(valid(value, option, root) for option in schema["anyOf"])
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema.get("type", [])
    if kinds and not any(is_kind(value, k) for k in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if isinstance(value, dict):
        extra = schema.get("additionalProperties", True)
        for key, item in value.items():
            known = schema.get("properties", {}).get(
                key, extra if isinstance(extra, dict) else None
            )
            if known is None and extra is False:
                return False
            if known is not None and not valid(item, known, root):
                return False
    if isinstance(value, list) and "items" in schema:
        return all(valid(item, schema["items"], root) for item in value)
    return True


def is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == {True: "boolean", False: "boolean", None: "null"}[value]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}
    return kind in kinds and isinstance(value, kinds[kind])


def test_the_json_schema_takes_the_built_in_profiles_and_refuses_mistakes(tmp_path: Path) -> None:
    root = json_schema()
    for path in ProfileStore(tmp_path).builtin_files():
        assert valid(read(path).data, root, root), path
    for wrong in (
        {"modle": "x"},
        {"port": "8000"},
        {"args": {"max_num_seqs": "many"}},
        {"args": {"dtype": "bf16"}},
        {"restart": {"policy": "sometimes"}},
        {"preload": {"mod": "copy"}},
        {"env": {"A": {"from_evn": "X"}}},
    ):
        assert not valid(wrong, root, root), wrong


def test_the_json_schema_offers_both_spellings_and_plugins_are_free() -> None:
    root = json_schema()
    arguments = root["properties"]["args"]["anyOf"][0]
    assert "max_model_len" in arguments["properties"]
    assert "max-model-len" in arguments["properties"]
    assert arguments["additionalProperties"] is True
    daemon = root["$defs"]["Preload"]["properties"]["args"]["properties"]
    assert "weight_cache_master_port" in daemon
    assert "api_key" not in daemon
