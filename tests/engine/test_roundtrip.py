"""Import and export against vLLM's own parser: what it makes of a line before and after is equal.

One process of the real CPU runtime builds the parser of `vllm` once and parses argument lists as
JSON lines; the exported texts are taken apart by plain readers (shlex, YAML), not by the importer.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.argv import serve_argv
from profiles.exporting import EXPORTS, export_profile
from profiles.importing import import_profile
from profiles.model import Profile
from profiles.schema import Argument, ArgumentSchema, shipped
from tests.engine.conftest import CpuRuntime
from tests.unit.test_import_commands import (
    CONFIG_SCRIPT,
    CONNECTOR,
    DOCKER,
    DOTTED,
    LAUNCHER,
    PAIR,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PARSER = r"""
import contextlib, io, json, sys
from vllm.entrypoints.cli import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser(description="vllm")
commands = parser.add_subparsers(required=False, dest="subparser")
for command in serve.cmd_init():
    command.subparser_init(commands)

def plain(value):
    fields = getattr(value, "__dataclass_fields__", None)
    if fields:
        # KVTransferConfig makes a random engine_id for itself.
        value = {n: getattr(value, n, None) for n in fields if n != "engine_id"}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)

answers = sys.stdout
sys.stdout = sys.stderr
print("ready", file=answers, flush=True)
for line in sys.stdin:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = vars(parser.parse_args(["serve", *json.loads(line)]))
        found.pop("dispatch_function", None)
        answer = {"parsed": {k: plain(v) for k, v in found.items()}}
    except (SystemExit, Exception) as error:
        answer = {"error": (said.getvalue() or repr(error))[-400:]}
    print(json.dumps(answer), file=answers, flush=True)
"""

VLLM = shipped("0.32")


class RealParser:
    """vLLM's parser behind a pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.cache: dict[tuple[str, ...], dict[str, Any]] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        key = tuple(words)
        if key not in self.cache or "--config" in key:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            self.cache[key] = json.loads(self.process.stdout.readline())
        return self.cache[key]

    def parse(self, words: list[str]) -> dict[str, Any]:
        """The namespace; a host that is not given is all interfaces."""
        answer = self.answer(words)
        assert "parsed" in answer, (words, answer)
        found: dict[str, Any] = dict(answer["parsed"])
        found["host"] = found["host"] or "0.0.0.0"
        found["model_tag"] = found["model_tag"] or found["model"]
        found["model"] = found["model_tag"]
        return {name: value for name, value in found.items() if name != "config"}


@pytest.fixture(scope="module")
def real(cpu_runtime: CpuRuntime) -> Iterator[RealParser]:
    process = subprocess.Popen(
        [cpu_runtime.python, "-c", PARSER],
        env=cpu_runtime.full_env() | {"VLLM_LOGGING_LEVEL": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield RealParser(process)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(120)


def shell_words(text: str) -> list[str]:
    lines = text.replace("\\\n", " ")
    return shlex.split(re.split(r"\n[^\n'\"#]*vllm serve ", lines, maxsplit=1)[1])


def exported_words(text: str, kind: str, path: Path) -> list[str]:
    """The words that an exported text starts `vllm serve` with, by that format's own rules."""
    if kind == "shell":
        return shell_words(text)
    if kind == "config":
        path.write_text(text)
        return ["--config", str(path)]
    if kind == "systemd":
        joined = text.replace("\\\n", " ")
        line = next(r for r in joined.split("\n") if r.startswith("ExecStart=")).split("=", 1)[1]
        # Literal line ends and tabs are C escapes there, percent and dollar signs are doubled.
        words = [
            _systemd_escapes(word)
            for word in shlex.split(line.replace("\\n", "\ue000").replace("\\t", "\ue001"))
        ]
        return words[3:]
    data = yaml.safe_load(text)
    if kind == "compose":
        words = list(data["services"].values())[-1]["command"]
    else:
        words = data["spec"]["template"]["spec"]["containers"][0]["args"]
    return [word.replace("$$", "$") for word in words]


def _systemd_escapes(word: str) -> str:
    return (
        word.replace("\ue000", "\n").replace("\ue001", "\t").replace("%%", "%").replace("$$", "$")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # The port that was published is the one that clients know.
        (DOCKER, DOCKER.split("v0.33.0 \\\n", 1)[1].replace("\\\n", " ") + " --port 8001"),
        (CONFIG_SCRIPT, None),
        (DOTTED, DOTTED.replace("\\\n", " ").removeprefix("vllm serve ")),
        (PAIR, None),
        (
            CONNECTOR.replace("--disable-log-requests --swap-space 4", ""),
            CONNECTOR.replace("--disable-log-requests --swap-space 4", "")
            .split("vllm serve ", 1)[1]
            .replace("\\\n", " "),
        ),
        (LAUNCHER.replace("--swap-space 2", ""), LAUNCHER.replace("--swap-space 2", "")),
    ],
)
def test_pasted_lines_mean_the_same(
    real: RealParser, tmp_path: Path, text: str, words: str | None
) -> None:
    profile = import_profile(text, schema=VLLM).profile
    if words is not None:
        before = shlex.split(words.rpartition("vllm serve ")[2])
    elif text is CONFIG_SCRIPT:
        file = tmp_path / "serve.yaml"
        file.write_text(text.split("EOF\n")[1])
        before = ["--config", str(file), "--port", "8010"]
    else:
        before = yaml.safe_load(text)["services"]["engine"]["command"]
    meant = real.parse(before)
    after = real.parse(serve_argv(profile, VLLM)[1:])
    if profile.preload is not None:
        # vLLM's default is the same; the profile says it.
        assert after.pop("model_loader_extra_config") == meant.pop("model_loader_extra_config")
    assert after == meant
    for kind in EXPORTS:
        if profile.preload is None:
            exported = export_profile(profile, kind, VLLM)
            assert real.parse(exported_words(exported, kind, tmp_path / "e.yaml")) == meant


def test_what_vllm_refuses_is_known(real: RealParser) -> None:
    """The traps that an import corrects or reports are real ones."""
    assert "error" in real.answer(["m", "--limit-mm-per-prompt", "image=4"])
    assert "error" in real.answer(["m", "--swap-space", "4"])
    assert "error" in real.answer(["m", "--disable-log-requests"])
    repaired = import_profile("vllm serve m --limit-mm-per-prompt image=4", schema=VLLM).profile
    assert real.parse(serve_argv(repaired, VLLM)[1:])["limit_mm_per_prompt"] == {"image": 4}
    off = import_profile("vllm serve m --disable-log-requests", schema=VLLM).profile
    assert real.parse(serve_argv(off, VLLM)[1:])["enable_log_requests"] is False


def test_false_in_a_config_file_is_dropped_by_vllm_and_not_by_us(
    real: RealParser, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: m\nenable-prefix-caching: false\n")
    assert real.parse(["--config", str(file)])["enable_prefix_caching"] is None
    profile = import_profile(file.read_text(), "config", schema=VLLM).profile
    file.write_text(export_profile(profile, "config", VLLM))
    assert real.parse(["--config", str(file)])["enable_prefix_caching"] is False


@pytest.mark.parametrize(
    "line",
    [
        "m -tp=2 --max_model_len 32k --gpu-mem 0.9 -q fp8 -O2 --seed -1",
        "m --served-model-name a --served-model-name b c --port 8000 --port 8001",
        'm --middleware a.B --middleware c.D --lora-modules x=/y \'{"name":"n","path":"/p"}\'',
        "m -cc.mode=3 -cc.pass_config.fuse_norm_quant=true --compilation-config.debug_dump_path=/d",
        "m --compilation-config '{\"mode\":3}' -cc.cudagraph_mode=NONE",
        "m --limit-mm-per-prompt.image 4 --limit-mm-per-prompt.video=1",
        "--model m --hf-token --no-enable-prefix-caching --no_async_scheduling",
        "m --kv-transfer-config.kv_connector X --kv-transfer-config.kv_role=kv_both "
        "--kv-transfer-config.kv_connector_extra_config.size 80k",
        'm --hf-overrides \'{"a": {"b": [1, 2.5, null, "x y"]}}\' --allowed-origins \'["*"]\'',
        "m --cudagraph-capture-sizes 1 2 4 --numa-bind-nodes 0 1 --api-server-count=2",
        "m --revision 0123 --tokenizer 1e3 --max-logprobs -1 --chat-template \"{% a %}\n'b'\"",
        "m --tensor-parallel-s 2 --enable-prefix --model-loader-extra '{\"a\":1}'",
    ],
)
def test_spellings_mean_the_same(real: RealParser, line: str) -> None:
    profile = import_profile("vllm serve " + line, schema=VLLM).profile
    before, after = real.parse(shlex.split(line)), real.parse(serve_argv(profile, VLLM)[1:])
    assert after == before


SAMPLES: dict[str, list[Any]] = {
    "compilation_config": [{"mode": 3, "custom_ops": ["+rms_norm"]}, {"cudagraph_mode": "NONE"}],
    "kv_transfer_config": [{"kv_connector": "X", "kv_role": "kv_both"}],
    "kv_events_config": [{"enable_kv_cache_events": True}],
    "speculative_config": [{"method": "ngram", "num_speculative_tokens": 4}],
    "structured_outputs_config": [{"backend": "xgrammar"}],
    "eplb_config": [{"window_size": 10}],
    "limit_mm_per_prompt": [{"image": 4, "video": {"count": 1}}],
    "hf_overrides": [{"a b": [1, {"c": "$5 ${x} 100%"}]}],
}
TEXTS = ["plain", "two words", 'it\'s "so"', "100% $5 $(x) ${y} `z`", "a\nb\tc", "#x", "é~*", "3"]
SKIPPED = {"model", "served_model_name", "host", "port", "config", "api_key", "hf_token"}


def candidates(argument: Argument) -> list[Any]:
    """Values in the profile's notation; vLLM's parser decides which of them it takes."""
    from profiles.importing.references import literal

    if argument.kind in ("flag", "switch"):
        return [True, False] if argument.kind == "flag" else [True]
    numbers: dict[str, list[Any]] = {
        "int": [1, 64],
        "size": [4096, "32k", "2M"],
        "size_or_auto": ["auto", "32K", 1000],
        "float": [0.5, 3.0],
        "lora": ["a=/b", {"name": "n", "path": "/p x"}],
        "csv": ["0", "0,1"],
    }
    if argument.name in SAMPLES:
        values = [_literal(value) for value in SAMPLES[argument.name]]
    elif argument.kind in ("json", "json_or_text"):
        other = ["*", "x"] if argument.kind == "json" else "auto"
        values = [{}, {"a": {"b": 1.5, "c": "x y"}}, other]
    elif argument.choices:
        values = [int(c) if argument.kind == "int" else c for c in argument.choices]
    else:
        values = numbers.get(argument.kind) or [literal(text) for text in TEXTS]
    if argument.many or argument.append:
        return [values[:2], values[-1:]]
    return values


def _literal(value: Any) -> Any:
    from profiles.importing.references import literal

    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return literal(value) if isinstance(value, str) else value


def plain_words(profile: Profile, schema: ArgumentSchema) -> list[str]:
    """The profile's own argument vector with its notation's doubled dollars undone."""
    from profiles.importing.references import expand

    return [expand(word, {})[0] for word in serve_argv(profile, schema)[1:]]


@pytest.fixture(scope="module")
def accepted(real: RealParser) -> dict[str, list[Any]]:
    """For every argument the candidate values that the real parser takes."""
    found: dict[str, list[Any]] = {}
    for argument in VLLM.arguments.values():
        if argument.name in SKIPPED or "serve" not in argument.commands:
            continue
        for value in candidates(argument):
            profile = Profile(name="m", model="m", args={argument.name: value})
            if "parsed" in real.answer(plain_words(profile, VLLM)):
                found.setdefault(argument.name, []).append(value)
    return found


def test_nearly_every_argument_is_tried(accepted: dict[str, list[Any]]) -> None:
    every = {a.name for a in VLLM.arguments.values() if "serve" in a.commands} - SKIPPED
    assert len(accepted) >= 0.97 * len(every), sorted(every - set(accepted))


def test_every_argument_alone_survives_every_kind(
    real: RealParser, accepted: dict[str, list[Any]], tmp_path: Path
) -> None:
    """Groups of a dozen arguments, so that each one is exported to each kind and parsed."""
    names = list(accepted)
    for place in range(0, len(names), 12):
        for turn in range(2):
            args = {n: accepted[n][turn % len(accepted[n])] for n in names[place : place + 12]}
            same_in_every_kind(real, args, tmp_path)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_sets_mean_the_same(
    real: RealParser, accepted: dict[str, list[Any]], tmp_path: Path, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(accepted)), max_size=8, unique=True))
    args = {name: data.draw(st.sampled_from(accepted[name])) for name in names}
    same_in_every_kind(real, args, tmp_path)


def same_in_every_kind(real: RealParser, args: dict[str, Any], tmp_path: Path) -> None:
    profile = Profile(name="m", model="acme/m", served_name=("a", "b c"), port=8123, args=args)
    meant = real.parse(plain_words(profile, VLLM))
    for kind in EXPORTS:
        text = export_profile(profile, kind, VLLM)
        again = import_profile(text, kind, schema=VLLM).profile
        assert msgspec.to_builtins(again) == msgspec.to_builtins(profile)
        found = real.parse(exported_words(text, kind, tmp_path / "export.yaml"))
        if kind == "compose":
            found["host"] = meant["host"]
        if kind == "config":
            # A file can say an argument once: the rest is in its comments.
            found["middleware"] = meant["middleware"]
        assert found == meant, (kind, args)
