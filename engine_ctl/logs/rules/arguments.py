"""Causes in the command line and in configuration values."""

from __future__ import annotations

import difflib
import re

from engine_ctl.logs.errors import PARENT
from engine_ctl.logs.rules.base import Context, Rule, rule
from engine_ctl.model import Phase

_GONE_ARGUMENTS = {
    "--swap-space": "removed: drop it (KV offload is --kv-offloading-size)",
    "--num-scheduler-steps": "removed: drop it",
    "--guided-decoding-backend": "now --structured-outputs-config.backend",
    "--enable-reasoning": "removed: --reasoning-parser is enough",
    "--max-seq-len-to-capture": "now -cc.max_cudagraph_capture_size",
    "--cuda-graph-sizes": "now -cc.cudagraph_capture_sizes",
    "--use-v2-block-manager": "removed: drop it",
    "--rope-scaling": "now --hf-overrides",
    "--rope-theta": "now --hf-overrides",
    "--device": "removed: use --device-ids for a choice of GPUs",
    "--task": "now --runner and --convert",
    "--max-num-partial-prefills": "removed in 0.27: drop it",
    "--max-long-partial-prefills": "removed in 0.27: drop it",
    "--calculate-kv-scales": "removed in 0.28: drop it",
    "--override-attention-dtype": "removed in 0.28: drop it",
    "--enable-bf16x3-router-gemm": "removed in 0.30: drop it",
    "--disable-log-requests": "gone from 0.2x to 0.32: use --no-enable-log-requests",
    "--enable-mamba-fine-grained-prefix-cache": "now --enable-mamba-shared-prefix-checkpoint",
}
_COMMON_ARGUMENTS = [
    "--model",
    "--tokenizer",
    "--tokenizer-mode",
    "--trust-remote-code",
    "--dtype",
    "--kv-cache-dtype",
    "--seed",
    "--max-model-len",
    "--quantization",
    "--enforce-eager",
    "--served-model-name",
    "--load-format",
    "--download-dir",
    "--revision",
    "--reasoning-parser",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--distributed-executor-backend",
    "--gpu-memory-utilization",
    "--kv-cache-memory-bytes",
    "--block-size",
    "--enable-prefix-caching",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--enable-chunked-prefill",
    "--async-scheduling",
    "--speculative-config",
    "--compilation-config",
    "--kv-transfer-config",
    "--enable-lora",
    "--lora-modules",
    "--max-loras",
    "--max-lora-rank",
    "--host",
    "--port",
    "--api-key",
    "--api-server-count",
    "--chat-template",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "--limit-mm-per-prompt",
    "--hf-overrides",
    "--generation-config",
    "--attention-backend",
    "--moe-backend",
    "--enable-sleep-mode",
    "--uvicorn-log-level",
    "--disable-log-stats",
    "--enable-log-requests",
    "--max-logprobs",
    "--structured-outputs-config",
    "--model-loader-extra-config",
    "--device-ids",
]


def _argument_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    known = context.run.known_arguments or _COMMON_ARGUMENTS
    unknown = re.search(r"unrecognized arguments?: (.*)", text)
    if unknown:
        flags = [part.split("=")[0] for part in unknown[1].split() if part.startswith("-")]
        said = [_nearest(flag, known) for flag in flags] or [
            f"{unknown[1].strip()}: not a flag"
            + (" (this command takes the model as --model)" if "preload" in text else "")
        ]
        return f"this version does not know {'; '.join(said)}"
    ambiguous = re.search(r"ambiguous option: (\S+) could match (.*)", text)
    if ambiguous:
        return f"{ambiguous[1]} is cut off or gone: write one of {ambiguous[2].strip()}"
    choice = re.search(r"argument (\S+?):? invalid choice: '?(.*?)'? \(choose from (.*?)\)", text)
    if choice:
        allowed = [item.strip(" '\"") for item in choice[3].split(",")]
        near = difflib.get_close_matches(choice[2], allowed, 1, 0.5)
        best = f" (did you mean {near[0]}?)" if near else ""
        some = ", ".join(allowed[:12])
        return f"{choice[1].rstrip(':')} cannot be {choice[2]}{best}; allowed: {some}"
    field = re.search(r"argument (\S+?): \d+ validation errors? for (\w+)\s+(\S+)", text)
    if field:
        return f"{field[1]}: {field[2]} of this version has no valid {field[3]}; drop or correct it"
    value = re.search(r"argument (\S+?): (.*)", text)
    if value:
        return f"{value[1]}: {value[2].strip()[:200]}"
    required = re.search(r"following arguments are required: (.*)", text)
    if required:
        return f"missing: {required[1].strip()}"
    return "the argument parser refused the command line: see the line"


def _nearest(flag: str, known: tuple[str, ...] | list[str]) -> str:
    plain = "--" + flag.lstrip("-").replace("_", "-") if flag.startswith("--") else flag
    if plain in _GONE_ARGUMENTS:
        return f"{flag} ({_GONE_ARGUMENTS[plain]})"
    near = difflib.get_close_matches(plain, known, 1, 0.6)
    return f"{flag} (did you mean {near[0]}?)" if near else flag


def _value_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    ranged = re.search(
        r"validation errors? for (\w+)\s+(\S+)\s+(.*?) \[type=(\w+)"
        r"(?:, input_value=(.*?), input_type)?",
        text,
        re.DOTALL,
    )
    if ranged and "Value error" not in ranged[3]:
        given = f" (given: {ranged[5]})" if ranged[5] else ""
        return f"{ranged[2]} of {ranged[1]}: {' '.join(ranged[3].split())[:300]}{given}"
    inner = re.search(
        r"(?:Value|Assertion) error, (.*?)(?: \[type=|\n\s+For further|$)", text, re.DOTALL
    )
    if inner:
        return f"a value was refused: {' '.join(inner[1].split())[:300]}"
    parser = re.search(
        r"parser:? '?(\w+)'?.{0,30}?(?:\(chose from|not found|Available)[^{:]*[{:]?\s*(.*)",
        text,
        re.DOTALL,
    )
    if parser:
        names = [
            name.strip(" '{}\"") for name in re.split(r"[,\s]+", parser[2]) if name.strip(" '{}\"")
        ]
        near = difflib.get_close_matches(parser[1], names, 3, 0.5) or names[:8]
        return f"there is no parser {parser[1]} in this version; some of its: {', '.join(near)}"
    return f"a value was refused: {found.string.strip().splitlines()[-1][:300]}"


def _while_configuring(found: re.Match[str], context: Context) -> bool:
    candidate = context.candidate
    return (candidate is not None and candidate.rank == PARENT) or context.phase in (
        Phase.IMPORTING,
        Phase.CONFIGURING,
    )


_TAKES_ARGUMENTS = ("serve.py", "preload.py", "snapshot.py", "argparse_utils.py", "arg_utils.py")


def _in_command_line(context: Context) -> bool:
    frames = context.candidate.frames if context.candidate is not None else ()
    return bool(frames) and frames[-1][0] in _TAKES_ARGUMENTS


_BY_OPTION = re.compile(
    r"(?<![\w-])--[a-z][\w-]{2,}|(?<![\w-])-cc\.[a-z]|\bVLLM_[A-Z_]{3,}|model_loader_extra_config|"
    r"[Mm]odel loader extra config|Unknown (?:load_format|scheduling policy|distributed executor)"
)
_BY_NAME = re.compile(
    r"(?:Invalid (?P<invalid>[a-z_]+)=|\b(?P<name>[a-z]+(?:_[a-z]+)+) (?:\([^()\n]{1,30}\) )?"
    r"(?:must be|exceeds|is (?:larger|smaller) than|cannot be))"
)
# Settings without an option of their own, or with one that few use.
_SETTINGS = frozenset(
    {
        "prefix_match_unit",
        "prefix_cache_retention_interval",
        "max_tokens_per_mm_item",
        "enable_multithread_load",
        "num_threads",
        "num_speculative_tokens",
        "speculative_config",
    }
)


def _names_a_setting(found: re.Match[str], context: Context) -> bool:
    """Before the engine serves, an error that names an option, or a setting as being too much."""
    if context.phase is None or context.phase is Phase.READY:
        return False
    if _BY_OPTION.search(found["why"]):
        return True
    known = {flag.lstrip("-").replace("-", "_") for flag in _COMMON_ARGUMENTS} | _SETTINGS
    return any(
        (said["invalid"] or said["name"]) in known for said in _BY_NAME.finditer(found["why"])
    )


def _in_environment(context: Context) -> bool:
    frames = context.candidate.frames if context.candidate is not None else ()
    return bool(frames) and frames[-1][0] == "envs.py"


FIRST: tuple[Rule, ...] = (
    rule(
        "bad_value",
        r"VLLM_PORT '?tcp://",
        "Kubernetes sets VLLM_PORT for a Service that is called vllm: rename the Service, or set "
        "enableServiceLinks: false in the pod",
    ),
    rule(
        "bad_argument",
        r"^(?:usage: [^\n]*\n)?[\w.][\w./ -]{0,60}: error: ",
        _argument_hint,
    ),
    rule(
        "env_unknown",
        r"Unknown vLLM environment variable detected: (?P<name>\w+)",
        "{name} is not known to this version (removed or misspelt): drop it from the profile",
    ),
)

RULES: tuple[Rule, ...] = (
    rule(
        "bad_value",
        r"validation errors? for \w+|VLLMValidationError|No tokenizer registered for|"
        r"[Rr]easoning parser .{0,60}not found|[Ii]nvalid [\w ]{0,24}parser\b|"
        r"Configuration mismatch detected for engine|"
        r"Unknown quantization method|appears path-like, but doesn't exist|"
        r"(?:Invalid|Unsupported|Unexpected|Unknown) (?:value|weight cache mode|extra config|"
        r"choice|option|speculative|kv_cache|attention|load format)|LoRA rank \d+ is greater than|"
        r"(?:cannot|can't|must) be (?:used|combined|specified|set|enabled|one of|at least|"
        r"greater|less|positive|>=?|<=?)|does not match the quantization|"
        r"is not compatible with|are mutually exclusive|is only supported (?:with|when|for)|"
        r"not a valid value|is not a valid \w+|requires --|is not valid for this configuration|"
        r"No valid (?:MLA prefill |attention )\w*backend found|"
        r"(?:--[\w-]{1,60}|`[\w_]{1,60}`) (?:is|must|requires|cannot)|"
        r"expected one of|Expected one of|not supported (?:with|when|together)|"
        r"does not support (?:--|pipeline|async|sleep|LoRA|load_format)|reject\w* --|"
        r"incompatible with|weight cache daemon itself must load from disk",
        _value_hint,
        _while_configuring,
    ),
    rule(
        "bad_value",
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<limit>\d+)",
        "the adapter has rank {rank} and the engine takes {limit}: set max_lora_rank to {rank}",
    ),
    rule(
        "bad_value",
        r"While loading (?P<adapter>\S+), expected target modules in .{0,4000}? but received "
        r"(?P<modules>[^\n]{1,200}?)\. Please",
        "the adapter {adapter} changes modules that this model has not ({modules}): it was trained "
        "on another base model; drop it from --lora-modules",
    ),
    rule(
        "bad_value",
        r"Selected backend (?:\w+\.)?(?P<backend>\w+) is not valid for this configuration\.? "
        r"Reason:? (?P<why>[^\n]{1,300})",
        "the attention backend {backend} cannot serve this: {why}; drop --attention-backend, or "
        "name another",
    ),
    rule(
        "bad_value",
        r"No valid (?:MLA prefill |attention )?backend found (?:for|with) (?P<why>[^\n]{1,400})",
        "no attention backend fits {why}: change what the reasons name (--kv-cache-dtype, dtype, "
        "--block-size)",
    ),
    rule(
        "bad_value",
        r"[Uu]nsupported (?:KV |EC )?connector(?: type)?:? (?P<name>\S+)",
        "this version has no KV connector {name}: correct kv_connector in kv_transfer_config (or "
        "set kv_connector_module_path)",
    ),
    rule(
        "bad_value",
        r"Unknown level: '?(?P<level>\w+)|Unable to configure (?P<part>[^\n]{1,80})",
        lambda found, context: (
            f"the logging configuration is not valid ({found[0]}): correct VLLM_LOGGING_LEVEL or "
            "the file of --log-config-file"
        ),
    ),
    rule(
        "bad_value",
        r"Configuration mismatch detected for engine (?P<rank>\d+)[^\n]*\s*(?P<what>[^\n]*)",
        "data parallel rank {rank} has another configuration than the head node ({what}): start "
        "every node with the same engine arguments",
    ),
    rule(
        "bad_value",
        r"(?:ValueError|KeyError|TypeError): [^\n]*",
        lambda found, context: (
            "a VLLM_* variable has a value that it cannot have "
            f"({found[0].split(': ', 1)[1][:200]}): correct it in the profile's env"
        ),
        lambda found, context: _in_environment(context),
    ),
    rule(
        "bad_argument",
        r"ValueError: (?P<why>No (?:model|config file) specified|`model` should be provided[^\n]*|"
        r"Config file must be of a yaml[^\n]*)",
        lambda found, context: f"the command line was refused: {found['why'].strip()[:300]}",
    ),
    rule(
        "bad_argument",
        r"ArgumentTypeError: (?P<why>[^\n]+)",
        lambda found, context: f"the command line was refused: {found['why'].strip()[:300]}",
    ),
    rule(
        "bad_value",
        r"(?:^|\n)(?:\w+\.)*(?:ValueError|NotImplementedError|TypeError|KeyError|"
        r"FileNotFoundError): (?!\[Errno)",
        _value_hint,
        lambda found, context: (
            context.frame(
                "create_engine_config",
                "create_model_config",
                "from_cli_args",
                "validate_parsed_serve",
            )
            or _in_command_line(context)
        ),
    ),
    rule(
        "bad_value",
        r"(?:ValueError|NotImplementedError|TypeError): (?P<why>[^\n]{1,500})",
        lambda found, context: f"a value was refused: {' '.join(found['why'].split())[:300]}",
        _names_a_setting,
    ),
)
