"""What vLLM makes of an argument vector: parsed and configured by vLLM itself, without a GPU.

Runs in a process of its own (a fork of the standby, or the one-shot probe): building a
configuration changes environment variables, caches and logging.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import time
import traceback
from typing import Any

from engine_ctl.inside.probe_keys import weight_cache_keys
from engine_ctl.inside.probe_schema import build_parser
from engine_ctl.inside.weight_cache_client import quantization_support

OUTPUT_LIMIT = 8000

# (category, what the text of the root exception says); names as in `stoker why`
WORDS = (
    ("trust_remote_code", r"trust_remote_code"),
    ("auth_gated_repo", r"gated repo|401 Client Error|403 Client Error|GatedRepo"),
    ("model_not_cached_offline", r"offline mode|LocalEntryNotFound|HF_HUB_OFFLINE"),
    (
        "model_path_missing",
        r"Repo id must|not a valid model identifier|Invalid repository ID|RepositoryNotFound|"
        r"is not a local folder|No such file or directory|does not exist|Can't load the config",
    ),
    ("max_model_len_over_model", r"greater than the derived max_model_len"),
    (
        "arch_unsupported",
        r"[Aa]rchitectures? .*not supported|does not recognize this architecture|"
        r"No model architectures|not support(ed)? .*architecture",
    ),
    ("tp_not_divisible", r"must be divisible by tensor parallel size|not divisible by .*parallel"),
    ("not_enough_gpus", r"larger than the number of available GPUs|not enough GPUs"),
    ("quant_unsupported_gpu", r"quantization method .*not supported (for|on) the current|capab"),
    ("quant_removed", r"Unknown quantization method|quantization.*(removed|not supported in)"),
    ("dtype_unsupported", r"(Bfloat16|bfloat16|float16).*only supported|dtype.*not supported"),
    ("tokenizer_missing", r"[Tt]okenizer .*(not|cannot|could not)|Can't load tokenizer"),
    ("async_pp_conflict", r"[Aa]sync scheduling.*pipeline"),
    ("wc_fatal.platform", r"does not support CUDA IPC"),
)


def check(argv: list[str]) -> dict[str, Any]:
    """Everything vLLM says about `argv` (`["serve", …]` or `["preload", …]`), as JSON types.

    `ok` is False when `error` is set: `{stage, category, message, exception, argument, nearest,
    allowed}`; `stage` is parse, validate or config. `effective` are the values that the engine
    would run with, `non_default` what was asked for, `keys` see `weight_cache_keys`, `config_hash`
    vLLM's own hash of what is compiled, `quantization` see `quantization_support` (where there are
    keys and a method), `warnings` what vLLM warned of, `seconds` how long,
    `version` vLLM's own.
    """
    began = time.monotonic()
    kind = argv[0] if argv else ""
    out: dict[str, Any] = {"ok": False, "kind": kind, "error": None, "warnings": []}
    warned = _record_warnings(out["warnings"])
    try:
        if kind not in ("serve", "preload"):
            raise LookupError("arguments must start with serve or preload")
        _fill(out, kind, argv)
        out["ok"] = out["error"] is None
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        out["error"] = _words(error, out.pop("stage", "parse"), _output(), kind)
    finally:
        setattr(logging.Logger, "callHandlers", warned)  # noqa: B010
    out.pop("stage", None)
    out["seconds"] = round(time.monotonic() - began, 3)
    out["cuda_initialized"] = cuda_initialized()
    out["version"] = getattr(sys.modules.get("vllm"), "__version__", None)
    return out


def _fill(out: dict[str, Any], kind: str, argv: list[str]) -> None:
    from vllm.usage.usage_lib import UsageContext

    out["stage"] = "parse"
    sys.argv = ["vllm", *argv]
    top, parser, sub = build_parser(kind)
    args = top.parse_args(argv)
    out["stage"] = "validate"
    sub.validate(args)
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    out["non_default"] = _non_default(parser, args)
    out["stage"] = "config"
    # A node that serves nothing is configured as one: else it would balance requests of its own.
    headless = {"headless": True} if getattr(args, "headless", False) else {}
    config = _engine_args(kind, args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER, **headless
    )
    if kind == "preload":
        _refuse_what_preload_refuses(config)
    out["effective"] = effective(config, args, kind)
    try:
        out["config_hash"] = str(config.compute_hash())
    except Exception:
        out["config_hash"] = None
    found = weight_cache_keys(config, args, kind)
    out["keys"], out["keys_note"] = found["keys"], found["note"]
    method = out["effective"]["quantization"]
    if method and out["keys"]:
        try:
            out["quantization"] = quantization_support(method)
        except Exception:
            out["quantization"] = None


def _engine_args(kind: str, args: Any) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    if kind == "preload":
        return EngineArgs.from_cli_args(args)
    return AsyncEngineArgs.from_cli_args(args)


def _refuse_what_preload_refuses(config: Any) -> None:
    """The daemon checks these two after the configuration; say them before anything is stopped."""
    from vllm.model_executor.model_loader.weight_cache.protocol import check_ipc_platform_support

    if str(config.load_config.load_format) == "ipc_cache":
        raise ValueError(
            "the weight cache daemon loads from disk itself: leave out --load-format ipc_cache"
        )
    check_ipc_platform_support()


def _non_default(parser: Any, args: Any) -> dict[str, Any]:
    given = {}
    for action in parser._actions:
        value = getattr(args, action.dest, action.default)
        if action.dest not in ("help", "dispatch_function") and value != action.default:
            given[action.dest] = plain(value)
    return given


EFFECTIVE = (
    ("model", "model_config.model"),
    ("tokenizer", "model_config.tokenizer"),
    ("revision", "model_config.revision"),
    ("architecture", "model_config.architecture"),
    ("runner", "model_config.runner_type"),
    ("served_model_name", "model_config.served_model_name"),
    ("dtype", "model_config.dtype"),
    ("max_model_len", "model_config.max_model_len"),
    ("quantization", "model_config.quantization"),
    ("enforce_eager", "model_config.enforce_eager"),
    ("trust_remote_code", "model_config.trust_remote_code"),
    ("is_moe", "model_config.is_moe"),
    ("tensor_parallel_size", "parallel_config.tensor_parallel_size"),
    ("pipeline_parallel_size", "parallel_config.pipeline_parallel_size"),
    ("data_parallel_size", "parallel_config.data_parallel_size"),
    ("enable_expert_parallel", "parallel_config.enable_expert_parallel"),
    ("distributed_executor_backend", "parallel_config.distributed_executor_backend"),
    ("block_size", "cache_config.block_size"),
    ("kv_cache_dtype", "cache_config.cache_dtype"),
    ("gpu_memory_utilization", "cache_config.gpu_memory_utilization"),
    ("kv_cache_memory_bytes", "cache_config.kv_cache_memory_bytes"),
    ("enable_prefix_caching", "cache_config.enable_prefix_caching"),
    ("max_num_seqs", "scheduler_config.max_num_seqs"),
    ("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens"),
    ("async_scheduling", "scheduler_config.async_scheduling"),
    ("load_format", "load_config.load_format"),
    ("model_loader_extra_config", "load_config.model_loader_extra_config"),
    ("optimization_level", "optimization_level"),
    ("compilation_mode", "compilation_config.mode"),
    ("compilation_backend", "compilation_config.backend"),
    ("cudagraph_mode", "compilation_config.cudagraph_mode"),
    ("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size"),
    ("speculative_method", "speculative_config.method"),
    ("speculative_model", "speculative_config.model"),
    ("num_speculative_tokens", "speculative_config.num_speculative_tokens"),
    ("lora", "lora_config.max_loras"),
    ("enable_sleep_mode", "model_config.enable_sleep_mode"),
)


def effective(config: Any, args: Any, kind: str) -> dict[str, Any]:
    """The resolved values by name; None where this vLLM or this configuration has none."""
    values = {name: plain(_get(config, path)) for name, path in EFFECTIVE}
    served = values["served_model_name"]
    values["served_model_name"] = [served] if isinstance(served, str) else served
    if kind == "serve":
        for name in ("host", "port", "uds", "api_server_count", "root_path"):
            values[name] = plain(getattr(args, name, None))
    else:
        values["host"] = plain(getattr(args, "weight_cache_health_host", None))
        values["port"] = plain(getattr(args, "weight_cache_health_port", None))
    return values


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        try:
            config = getattr(config, name)
        except Exception:
            return None
        if config is None:
            return None
    return config


def plain(value: Any) -> Any:
    """JSON types: enum members by name, torch dtypes without the prefix, the rest as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(value, "name") and hasattr(value, "value") and hasattr(type(value), "__members__"):
        return str(value.name)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value).removeprefix("torch.")[:OUTPUT_LIMIT]


def cuda_initialized() -> bool:
    """Whether this process has a CUDA (or HIP) context. False without torch."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda._is_compiled() and torch.cuda.is_initialized())


def _record_warnings(into: list[str]) -> Any:
    """Note WARNING and worse of any logger; returns what to restore.

    A handler would be lost: vLLM configures logging again from the arguments."""
    original = logging.Logger.callHandlers

    def record(self: logging.Logger, entry: logging.LogRecord) -> None:
        if entry.levelno >= logging.WARNING and len(into) < 100:
            text = " ".join(entry.getMessage().split())
            if text not in into:
                into.append(text[:1000])
        original(self, entry)

    setattr(logging.Logger, "callHandlers", record)  # noqa: B010
    return original


def _output() -> str:
    """What this process wrote to stderr, where that is a file (the caller sees to it)."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        size = os.fstat(2).st_size
        return os.pread(2, OUTPUT_LIMIT, max(0, size - OUTPUT_LIMIT)).decode(errors="replace")
    except OSError:
        return ""


def _words(error: BaseException, stage: str, output: str, kind: str) -> dict[str, Any]:
    """An error for people: one line, a category, and for arguments which one and what is near."""
    if isinstance(error, SystemExit):
        found = re.search(r"^\s*\S.*?: error: (.*)\Z", output, re.M | re.S)
        text = " ".join((found.group(1) if found else output[-500:]).split())
        argument, nearest, allowed = _argument(text, kind)
        return {
            "stage": stage,
            "category": "bad_argument",
            "message": text or f"exit status {error.code}",
            "exception": "SystemExit",
            "argument": argument,
            "nearest": nearest,
            "allowed": allowed,
        }
    root = _root(error)
    text = _text(root)
    category = next((name for name, words in WORDS if re.search(words, text)), "bad_value")
    if stage == "parse":
        category = "bad_argument"
    return {
        "stage": stage,
        "category": category,
        "message": text,
        "exception": type(root).__name__,
        "argument": None,
        "nearest": None,
        "allowed": None,
        "traceback": "".join(traceback.format_exception(type(root), root, root.__traceback__))[
            -OUTPUT_LIMIT:
        ],
    }


def _root(error: BaseException) -> BaseException:
    """The first exception of the chain: the cause that was given, else what was being handled."""
    seen = {id(error)}
    while True:
        inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if inner is None or id(inner) in seen or not isinstance(inner, Exception):
            return error
        # libraries wrap a miss of theirs (KeyError in a table) into words worth showing
        if isinstance(inner, (KeyError, AttributeError, StopIteration, ImportError)):
            return error
        seen.add(id(inner))
        error = inner


def _text(error: BaseException) -> str:
    """One line. pydantic's errors give one message for each field."""
    details = getattr(error, "errors", None)
    if callable(details):
        try:
            parts = []
            for item in details():
                where = ".".join(str(part) for part in item.get("loc", ()))
                message = str(item.get("msg", "")).removeprefix("Value error, ")
                parts.append(f"{where}: {message}" if where else message)
            if parts:
                return " ".join("; ".join(parts).split())[:2000]
        except Exception:
            pass
    return " ".join(f"{error}".split())[:2000] or type(error).__name__


def _argument(text: str, kind: str) -> tuple[str | None, str | None, list[str] | None]:
    """(argument, nearest right spelling, allowed values) out of the parser's words."""
    unknown = re.search(r"unrecognized arguments: (\S+)", text)
    named = re.search(r"argument ([^:]+):", text)
    options = [o for a in build_parser(kind)[1]._actions for o in a.option_strings]
    if unknown:
        word = unknown.group(1).partition("=")[0]
        near = difflib.get_close_matches(word.replace("_", "-"), options, 1, 0.6)
        return word, near[0] if near else None, None
    if named:
        argument = named.group(1)
        choices = re.search(r"invalid choice: '?([^']*?)'? \(choose from (.*)\)", text)
        if choices:
            allowed = [part.strip(" '") for part in choices.group(2).split(",")]
            near = difflib.get_close_matches(choices.group(1), allowed, 1, 0.5)
            return argument, near[0] if near else None, allowed
        return argument, None, None
    return None, None, None
