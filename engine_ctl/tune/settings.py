"""What a benchmark asks of an engine: settings out of a profile and options, and vLLM's words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from engine_ctl.inside.standby_bench import ALSO
from engine_ctl.tune.results import LATENCIES, PERCENTILES

# dataset of ours -> --dataset-name of vllm bench serve
DATASETS = {"random": "random", "sharegpt": "sharegpt", "recorded": "custom", "custom": "custom"}
RECORDED = ("recorded", "custom")
# vLLM counts goodput by the mean time per output token where others say inter-token latency.
GOODPUT = {"ttft": "ttft", "tpot": "tpot", "itl": "tpot", "e2el": "e2el"}
DEFAULT_INPUT, DEFAULT_OUTPUT = 512, 128
DEFAULT_REQUESTS = 64
# So many times the requests in flight are enough for its rise and fall to weigh little.
WAVES = 4


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One benchmark. Lengths in tokens (None: what fits), `request_rate` in requests/s (None: all
    at once), `concurrency` the most requests in flight (None: no limit), `goodput` limits in
    milliseconds by ttft, tpot (or itl) and e2el.

    `dataset` is random, sharegpt or recorded (`path`: a ShareGPT JSON file, or a .jsonl with
    "prompt" and, if it is known, "output_tokens" in each line). `warmups` requests go first; the
    whole is measured `repeats` times. `seed` None: new prompts for every measurement on one
    engine, so that its prefix cache does not answer. `stall_s`: given up when nothing moves for
    so long. `extra` are further arguments of vllm bench serve."""

    dataset: str = "random"
    path: str | None = None
    requests: int = DEFAULT_REQUESTS
    input_len: int | None = None
    output_len: int | None = None
    request_rate: float | None = None
    concurrency: int | None = 16
    goodput: dict[str, float] = msgspec.field(default_factory=dict)
    warmups: int = 4
    repeats: int = 3
    seed: int | None = None
    stall_s: float = 180.0
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


def settings(*layers: Mapping[str, Any]) -> BenchSettings:
    """Settings out of layers, later ones win (a profile's `bench:` section, then options). One
    that names other prompts forgets the lengths of those before. A rate without a concurrency has
    no limit of requests in flight: one would hold requests back in the client, where no latency
    shows it. A concurrency without a number of requests asks for enough of them.

    Raises Usage naming the key and, for an unknown one, the nearest."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if merged and {"path", "dataset"} & layer.keys():
            # Lengths that were meant for other prompts do not count for these.
            for name in ("input_len", "output_len"):
                merged.pop(name, None)
        for key, value in layer.items():
            name = key.replace("-", "_")
            if name not in BenchSettings.__struct_fields__:
                near = difflib.get_close_matches(name, BenchSettings.__struct_fields__, n=1)
                hint = f"did you mean {near[0]}?" if near else "see: stoker bench --help"
                raise Usage(f"bench.{key} is no setting of a benchmark; {hint}")
            merged[name] = value
    if merged.get("request_rate") is not None:
        merged.setdefault("concurrency", None)
    at_once = merged.get("concurrency")
    if isinstance(at_once, int) and at_once > 0:
        merged.setdefault("requests", max(DEFAULT_REQUESTS, WAVES * at_once))
    if "path" in merged and merged["path"] and "dataset" not in merged:
        merged["dataset"] = "sharegpt" if str(merged["path"]).endswith(".json") else "recorded"
    try:
        made = msgspec.convert(merged, BenchSettings)
    except msgspec.ValidationError as error:
        raise Usage(f"bench: {_words(str(error))}") from None
    return _checked(made)


def _words(text: str) -> str:
    """msgspec's words with the key first: `requests: expected int, got str`."""
    what, _, where = text.replace("`", "").partition(" - at $.")
    return f"{where}: {what[:1].lower()}{what[1:]}" if where else what


def _checked(made: BenchSettings) -> BenchSettings:
    if made.dataset not in DATASETS:
        raise Usage(f"bench.dataset must be one of {', '.join(DATASETS)}, not {made.dataset!r}")
    if (made.path is None) != (made.dataset == "random"):
        text = "needs a file: bench.path" if made.path is None else "takes no bench.path"
        raise Usage(f"dataset {made.dataset} {text}")
    for name in ("requests", "repeats"):
        if getattr(made, name) < 1:
            raise Usage(f"bench.{name} must be at least 1")
    for name in ("input_len", "output_len", "request_rate", "concurrency", "stall_s"):
        value = getattr(made, name)
        if value is not None and not value > 0:
            raise Usage(f"bench.{name} must be more than 0")
    if made.warmups < 0:
        raise Usage("bench.warmups must not be negative")
    for name, limit in made.goodput.items():
        if name not in GOODPUT:
            raise Usage(f"goodput {name!r} is none of {', '.join(GOODPUT)}")
        if not limit > 0:
            raise Usage(f"goodput {name} must be more than 0 ms")
    return made


def fitted(asked: BenchSettings, max_len: int | None) -> BenchSettings:
    """Lengths filled in such that they fit in the engine's `max_model_len` (None: unknown).

    Raises Usage when lengths that were asked for do not fit."""
    if asked.dataset != "random":
        return asked
    room = None if max_len is None else max_len - 8  # the tokenizer may add special tokens
    inp, out = asked.input_len, asked.output_len
    if inp is not None and out is not None:
        if max_len is not None and inp + out > max_len:
            raise Usage(
                f"bench: {inp} input and {out} output tokens do not fit in the engine's "
                f"max_model_len {max_len}; make them shorter"
            )
        return asked
    if room is None:
        inp, out = inp or DEFAULT_INPUT, out or DEFAULT_OUTPUT
    elif inp is None and out is None:
        inp = max(1, min(DEFAULT_INPUT, room * 4 // 5))
        out = max(1, min(DEFAULT_OUTPUT, room - inp))
    elif inp is None:
        inp = min(DEFAULT_INPUT, room - (out or 0))
    else:
        out = min(DEFAULT_OUTPUT, room - inp)
    if inp < 1 or (out or 0) < 1:
        raise Usage(f"bench: nothing is left of the engine's max_model_len {max_len}; use less")
    return msgspec.structs.replace(asked, input_len=inp, output_len=out)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The engine to measure: where it listens, its model, how its tokenizer is read, and how
    (`backend`, of vllm bench serve) and where (`route`) it is asked for what it is for."""

    host: str
    port: int
    tls: bool = False
    model: str
    served_name: str
    tokenizer: str | None = None
    tokenizer_mode: str | None = None
    trust_remote_code: bool = False
    backend: str = "openai"
    route: str = "/v1/completions"


# A pooling model has no completions: (backend, route) of what it may have instead, in this order.
POOLING = (("openai-embeddings", "/v1/embeddings"), ("vllm-pooling", "/pooling"))


def bench_words(
    made: BenchSettings, target: Target, seed: int, result_dir: str, result_name: str
) -> list[str]:
    """The words after `vllm` of one measurement, with the result file to write."""
    words = ["bench", "serve", "--backend", target.backend, "--host", target.host]
    words += ["--port", str(target.port), "--endpoint", target.route]
    if target.tls:
        host = f"[{target.host}]" if ":" in target.host else target.host
        words += ["--base-url", f"https://{host}:{target.port}", "--insecure"]
    words += ["--model", target.model, "--served-model-name", target.served_name]
    if target.tokenizer:
        words += ["--tokenizer", target.tokenizer]
    if target.tokenizer_mode:
        words += ["--tokenizer-mode", target.tokenizer_mode]
    if target.trust_remote_code:
        words.append("--trust-remote-code")
    words += ["--dataset-name", DATASETS[made.dataset]]
    if made.path:
        words += ["--dataset-path", made.path]
    if made.dataset == "random":
        words += ["--random-input-len", str(made.input_len or DEFAULT_INPUT)]
        words += ["--random-output-len", str(made.output_len or DEFAULT_OUTPUT)]
    elif made.output_len is not None:
        words += ["--output-len", str(made.output_len)]
    words += ["--num-prompts", str(made.requests), "--seed", str(seed)]
    if made.request_rate is not None:
        words += ["--request-rate", f"{made.request_rate:g}"]
    if made.concurrency is not None:
        words += ["--max-concurrency", str(made.concurrency)]
    if made.warmups:
        words += ["--num-warmups", str(made.warmups)]
    limits = {GOODPUT[name]: value for name, value in made.goodput.items()}
    if limits:
        words += ["--goodput", *(f"{name}:{value:g}" for name, value in limits.items())]
    words += ["--percentile-metrics", ",".join(LATENCIES)]
    words += ["--metric-percentiles", ",".join(map(str, PERCENTILES))]
    for name, value in made.extra.items():
        option = "--" + name.lstrip("-").replace("_", "-")
        if value is False or value is None:
            continue
        words += [option] if value is True else [option, str(value)]
    return [*words, "--save-result", "--result-dir", result_dir, "--result-filename", result_name]


def repeated_words(made: BenchSettings, target: Target, seed: int, directory: str) -> list[str]:
    """The words of all measurements of a bench in one process (see inside/standby_bench.py): each
    with the seed after the one before, and with a result file of its own."""
    words = bench_words(made, target, seed, directory, result_name(0))
    for repeat in range(1, made.repeats):
        words += [ALSO, "--seed", str(seed + repeat), "--result-filename", result_name(repeat)]
    return words


def result_name(repeat: int) -> str:
    """The file of a measurement, counted from 0."""
    return f"result-{repeat + 1}.json"


def describe(made: BenchSettings) -> str:
    """The settings in one line."""
    what = f"{made.requests} requests"
    if made.dataset == "random":
        what += f" of {made.input_len or '?'} in, {made.output_len or '?'} out"
    else:
        what += f" from {made.path}"
    if made.concurrency is not None:
        what += f", {made.concurrency} at once"
    if made.request_rate is not None:
        what += f", {made.request_rate:g}/s"
    return f"{what}, {made.repeats} times" if made.repeats > 1 else what
