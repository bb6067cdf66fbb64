"""Causes in the model's files: access, architecture, tokenizer, weights, adapters, lengths."""

from __future__ import annotations

import re

from engine_ctl.logs.rules.base import Context, Rule, rule


def _length_hint(found: re.Match[str], context: Context) -> str:
    limit = re.search(
        r"(?:max_position_embeddings|model_max_length|derived max_model_len|max_seq_len\w*|"
        r"n_positions)\)?=?\s*\(?=?(\d{1,12})",
        found.string[found.start() :],
    )
    length = f"at most {limit[1]}" if limit else "within the model's own limit"
    return (
        f"set max_model_len to {length}, or configure RoPE scaling through --hf-overrides "
        "(VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 can give wrong output)"
    )


def _arch_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    name = re.search(r"architectures? \[?'?([\w, ']+?)'?\]? (?:are|is|was|failed)", text)
    kind = re.search(r"model type [`'\"](\S+?)[`'\"]", text)
    until = re.search(r"until v?([\d.]+)", text)
    plugin = re.search(r"plugin at (\S+)", text)
    what = name[1].strip("' ") if name else kind[1] if kind else "this architecture"
    if until:
        return f"{what} was supported until vLLM {until[1].rstrip('.')}: use that version"
    if plugin:
        return f"{what} is served by a plugin now: install it from {plugin[1]}"
    if kind and not name:
        return (
            f"this Transformers does not know the model type {what}: a newer vLLM (and "
            "Transformers), or the model's own code with --trust-remote-code"
        )
    return f"this vLLM does not know {what}: a newer vLLM, or a plugin for it"


def _path_hint(found: re.Match[str], context: Context) -> str:
    named = re.search(r"(?:namespace/repo_name'|alphanumeric[^\n]*?): '([^'\n]+)'", found.string)
    groups = [value for value in found.groupdict().values() if value]
    path = named[1] if named else groups[0] if groups else "the path"
    return (
        f"{path} does not exist on this host (or is not mounted in the container), or holds no "
        "config.json: check the path and the mount before blaming the hub"
    )


_ADAPTER = r"adapter_config\.json|LoRAAdapterNotFoundError|No adapter found for|[Ll]oading lora "


def _lora_hint(found: re.Match[str], context: Context) -> str:
    path = re.search(r"No adapter found for (\S+)", found.string) or re.search(
        r"'([^'\n]*)/adapter_config\.json'", found.string
    )
    name = re.search(r"[Ll]oading lora (\S+) failed", found.string)
    which = f" {name[1]}" if name else ""
    where = f": nothing at {path[1].rstrip('.,')}" if path else ""
    return (
        f"the LoRA adapter{which} cannot be read{where}; check the path of this --lora-modules "
        "entry and its mount"
    )


def _corrupt_hint(found: re.Match[str], context: Context) -> str:
    path = re.search(r"([^\s'\"`(]+\.(?:safetensors|bin|pt|pth|gguf))\b", found.string)
    which = path[1] if path else "a weight file (compare the sizes with the index or the hub)"
    if re.search(r"HeaderTooLarge|header too large|invalid load key, 'v'", found.string):
        return f"{which} is perhaps a Git LFS pointer: fetch the real file (git lfs pull)"
    return f"{which} is truncated or damaged: delete it and download it again"


def _missing_hint(found: re.Match[str], context: Context) -> str:
    path = re.search(r"[`'\"]([^`'\"\n]+)[`'\"]", found.string[found.start() :])
    where = path[1] if path else "the model's directory"
    return (
        f"weight files are missing in {where}: an interrupted download or Git LFS pointers; fetch "
        "them again"
    )


def _not_lora(found: re.Match[str], context: Context) -> bool:
    return "adapter" not in found.string.lower()


RULES: tuple[Rule, ...] = (
    rule("lora_missing", _ADAPTER, _lora_hint, lambda f, c: "rank" not in f[0]),
    rule(
        "trust_remote_code",
        r"trust[_-]remote[_-]code|contains custom code which must be executed|"
        r"requires you to execute the (?:configuration|tokenizer|modeling|\w+) file",
        "the repository wants to run its own code: if you trust it, set trust_remote_code in the "
        "profile; Stoker never does that by itself",
    ),
    rule(
        "auth_gated_repo",
        r"GatedRepoError|[Gg]ated repo|Access to model \S+ is restricted|401 Client Error|"
        r"403 (?:Client Error|Forbidden)|awaiting a review|must be authenticated to access|"
        r"[Ii]nvalid user token|Invalid credentials in Authorization|Invalid username or password|"
        r"ask for access|Token is required|LocalTokenNotFoundError|"
        r"private or gated repo.{0,80}authenticated",
        "the hub refuses: the token is missing (HF_TOKEN) or its account has not accepted the "
        "model's licence",
    ),
    rule(
        "model_not_cached_offline",
        r"LocalEntryNotFoundError|outgoing traffic has been disabled|OfflineModeIsEnabled|"
        r"offline mode is enabled|We couldn't connect to '?https?://|"
        r"couldn't find (?:it|them) in the cached files|HF_HUB_OFFLINE|"
        r"(?:HTTPSConnectionPool|Max retries exceeded|Failed to resolve|Name or service not known|"
        r"Temporary failure in name resolution|ConnectTimeout|Network is unreachable|"
        r"Connection (?:timed out|refused|error))[^\n]{0,200}(?:huggingface|hf\.co|modelscope)|"
        r"(?:huggingface|hf\.co|modelscope)[^\n]{0,300}(?:Max retries exceeded|Failed to resolve|"
        r"name resolution|ConnectTimeout|timed out|Network is unreachable)",
        "the hub is out of reach (offline mode or no network) and the model is not in this user's "
        "cache: wrong HF_HOME, other user or revision; download it first, or give a local path",
    ),
    rule(
        "weights_corrupt",
        r"SafetensorError|Error while deserializing header|incomplete metadata, file not fully|"
        r"MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader|"
        r"PytorchStreamReader failed|invalid load key|central directory|Ran out of input|"
        r"UnpicklingError|unexpected end of (?:file|data)|unexpected EOF|checksum mismatch|"
        r"Consistency check failed|[Ff]ile size mismatch|storage has wrong byte size",
        _corrupt_hint,
        lambda f, c: not _in_cache(c),
    ),
    rule(
        "tokenizer_missing",
        r"Couldn't instantiate the backend tokenizer|Can't load tokenizer|"
        r"Unable to load vocabulary|tokenizer\.model in |No tokenizer file|tokenizer class .{0,80}"
        r"(?:does not exist|not found)|Tokenizer class \S+ does not exist|"
        r"[Tt]okenizer (?:file |files )?(?:not found|missing|is missing)|"
        r"Cannot instantiate this tokenizer|(?:tokenizer|vocab)\S*\.(?:json|model|txt)'? ?"
        r"(?:not found|does not exist)|No such file or directory: '[^']*(?:tokenizer|vocab|tekken)|"
        r"does not appear to have a file named tokenizer|more than one tokenizer|"
        r"Found no tokenizer|sentencepiece.{0,60}(?:not found|not installed|required)",
        "the model has no usable tokenizer: set tokenizer to the base model's, or copy its "
        "tokenizer files beside the weights",
    ),
    rule(
        "weights_missing",
        r"Cannot find any (?:\w+ )?model weights|Could not find checkpoint files|"
        r"No (?:model )?weights (?:files? )?found|weights? files? (?:not found|missing)|"
        r"does not appear to have (?:a file named |files named )?\(?'?(?:pytorch_model|model\.safe|"
        r"model-\d|tf_model|consolidated)|No such file or directory: ['\"`(]*[^'\"\n]*\."
        r"(?:safetensors|bin|pt|pth)\b|weights were not initialized from checkpoint|"
        r"no file named .{0,60}(?:pytorch_model|model\.safetensors)|No safetensors",
        _missing_hint,
        _not_lora,
    ),
    rule(
        "max_model_len_over_model",
        r"is greater than the derived max_model_len|VLLM_ALLOW_LONG_MAX_MODEL_LEN|"
        r"max_model_len \(\d+\) (?:is greater|exceeds)|larger than the (?:model's )?max_position",
        _length_hint,
    ),
    rule(
        "arch_unsupported",
        r"[Mm]odel architectures? .{0,300}?(?:not supported|failed to be inspected|was supported)|"
        r"Transformers does not recognize this architecture|has no vLLM implementation|"
        r"Unrecognized model in |is not supported in-tree anymore|Cannot find model module|"
        r"Should have a `?model_type`? key|No supported (?:model )?architecture|"
        r"Pipeline parallelism is not supported for this model|"
        r"model type `\S+` but Transformers|Unsupported architecture|"
        r"is not a supported architecture",
        _arch_hint,
    ),
    rule(
        "model_path_missing",
        r"Repo id must (?:be in the form|use alphanumeric)|"
        r"Incorrect path_or_model_id: '(?P<id>[^']*)'|"
        r"Invalid repository ID or local directory specified:?\s*'?(?P<dir>[^'\n]*)'?|"
        r"HFValidationError|Could not detect config format|"
        r"(?P<repo>\S{1,200}) is not a (?:valid )?(?:local folder|model identifier)|"
        r"(?P<folder>\S{1,200}) does not appear to have a file named config\.json|"
        r"No such file or directory: '(?P<file>[^']*(?:config\.json|params\.json))'|"
        r"NotADirectoryError|404 Client Error|RepositoryNotFoundError|Repository Not Found|"
        r"RevisionNotFoundError|"
        r"Can't load (?:the )?config(?:uration)? (?:for|of) '(?P<conf>[^']*)'|"
        r"[Mm]odel (?:path|directory|file) '?(?P<model>\S+?)'? (?:does not exist|not found)|"
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<other>/[^']*)'",
        _path_hint,
        lambda f, c: not c.frame("jit", "compile", "ninja", "nvcc"),
    ),
)


def _in_cache(context: Context) -> bool:
    frames = context.candidate.frames if context.candidate is not None else ()
    text = context.candidate.text if context.candidate is not None else ""
    files = {file for file, _ in frames}
    cached = {"compiler_interface.py", "decorators.py", "caching.py", "codecache.py"}
    return bool(files & cached) or "torch_compile_cache" in text or "torchinductor" in text
