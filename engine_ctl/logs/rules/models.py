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
    wanted = re.search(r"max_model_len \((\d{1,12})\)", found.string)
    asked = f" instead of {wanted[1]}" if wanted else ""
    return (
        f"set max_model_len to {length}{asked}, or configure RoPE scaling through --hf-overrides "
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


def _repository(text: str, context: Context) -> str | None:
    """The hub's name of the model in question, None when nothing says it."""
    named = re.search(
        r"(?:huggingface\.co|hf\.co)/(?:api/models/)?(?!docs/)([\w.-]+/[\w.-]*\w)", text
    ) or re.search(r"(?:[Mm]odel|repo(?:sitory)?) '?([\w.-]+/[\w.-]*\w)'? is ", text)
    model = context.start.model
    return named[1] if named else model if model and not model.startswith(("/", ".")) else None


def _access_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    name = _repository(text, context)
    where = f" {name}" if name else ""
    if re.search(r"Repository ?Not ?Found", text):
        return (
            f"the hub does not show{where} to this account: the name is misspelt, or the "
            "repository is private and HF_TOKEN is missing or of an account without access"
        )
    if re.search(r"Invalid credentials|[Ii]nvalid user token|Invalid username or password", text):
        return f"the hub refuses the token{' for' + where if where else ''}: replace HF_TOKEN"
    if re.search(r"403|not in the authorized list|awaiting a review|ask for access", text):
        return (
            f"the token's account has not been let in to{where or ' the model'}: accept the "
            "licence on the model's page (or wait for the review), with the account of HF_TOKEN"
        )
    return (
        f"the hub refuses{where}: the token is missing (HF_TOKEN) or its account has not accepted "
        "the model's licence"
    )


def _offline_hint(found: re.Match[str], context: Context) -> str:
    name = _repository(found.string, context) or "the model"
    off = re.search(
        r"outgoing traffic has been disabled|[Oo]ffline ?[Mm]ode ?(?:is|Is) ?[Ee]nabled|"
        r"HF_HUB_OFFLINE",
        found.string,
    )
    why = "offline mode is on (HF_HUB_OFFLINE)" if off else "the hub is out of reach"
    return (
        f"{why} and {name} is not in this user's cache: wrong HF_HOME, other user or revision; "
        "download it first, or give a local path"
    )


def _trust_hint(found: re.Match[str], context: Context) -> str:
    named = re.search(
        r"[Tt]he repository (?:for )?(\S+) contains custom code|[Ll]oading (\S+) requires you",
        found.string,
    )
    name = (named[1] or named[2]) if named else _repository(found.string, context)
    return (
        f"{name or 'the repository'} wants to run its own code: if you trust it, set "
        "trust_remote_code in the profile (--trust-remote-code); Stoker never does that by itself"
    )


def _tokenizer_hint(found: re.Match[str], context: Context) -> str:
    text = found.string
    named = re.search(
        r"Can't load tokenizer for '([^'\n]+)'|No such file or directory: '([^'\n]+)'|"
        r"[Tt]okenizer class (\S+) does not",
        text,
    )
    library = re.search(r"[Ss]entence[Pp]iece|tiktoken|mistral[_-]common|protobuf", text)
    if library and re.search(r"ImportError|ModuleNotFoundError|not found in your env", text):
        return (
            f"the tokenizer needs the package {library[0].lower()}, which this runtime lacks: "
            "install it there, or set tokenizer to a repository with a tokenizer.json"
        )
    where = next((value for value in named.groups() if value), None) if named else None
    return (
        f"{where or 'the model'} has no usable tokenizer: set tokenizer to the base model's, or "
        "copy its tokenizer files beside the weights"
    )


def _revision_hint(found: re.Match[str], context: Context) -> str:
    revision = re.search(r"[Ii]nvalid rev id: (\S+)", found.string) or re.search(
        r"/resolve/([^/\s]+)/", found.string
    )
    which = f" {revision[1]}" if revision else ""
    name = _repository(found.string, context) or "the repository"
    return (
        f"{name} has no revision{which}: set revision to a branch, tag or commit that it has (or "
        "drop it)"
    )


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
    loose = re.search(r"not initialized from checkpoint:? [{\[]([^}\]]*)", found.string)
    if loose:
        names = [name.strip(" '\"") for name in loose[1].split(",") if name.strip()]
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return (
            f"the checkpoint does not hold {some}: it is incomplete, or of another architecture "
            "than its config.json says; fetch it again"
        )
    listed = re.search(r"missing: \[([^\]]*)\]", found.string)
    if listed:
        names = [name.strip(" '\"") for name in listed[1].split(",") if name.strip()]
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return (
            f"the index names {some}, which are not there: an interrupted download; fetch them "
            "again"
        )
    path = re.search(r"[`'\"]([^`'\"\n]+)[`'\"]", found.string[found.start() :])
    where = path[1] if path else "the model's directory"
    return (
        f"weight files are missing in {where}: an interrupted download or Git LFS pointers; fetch "
        "them again"
    )


def _not_lora(found: re.Match[str], context: Context) -> bool:
    return "adapter" not in found.string.lower()


RULES: tuple[Rule, ...] = (
    rule(
        "tokenizer_missing",
        r"did not match any variant of untagged enum",
        "tokenizer.json was written by a newer tokenizers than this runtime has: a newer vLLM (or "
        "tokenizers), or set tokenizer to an older copy of the model",
    ),
    rule("lora_missing", _ADAPTER, _lora_hint, lambda f, c: "rank" not in f[0]),
    rule(
        "trust_remote_code",
        r"trust[_-]remote[_-]code|contains custom code which must be executed|"
        r"requires you to execute the (?:configuration|tokenizer|modeling|\w+) file",
        _trust_hint,
    ),
    rule(
        "auth_gated_repo",
        r"GatedRepoError|[Gg]ated repo|Access to model \S+ is restricted|401 Client Error|"
        r"403 (?:Client Error|Forbidden)|awaiting a review|must be authenticated to access|"
        r"[Ii]nvalid user token|Invalid credentials in Authorization|Invalid username or password|"
        r"ask for access|Token is required|LocalTokenNotFoundError|"
        r"private or gated repo.{0,80}authenticated",
        _access_hint,
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
        _offline_hint,
    ),
    rule(
        "weights_corrupt",
        r"SafetensorError|Error while deserializing header|incomplete metadata, file not fully|"
        r"MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader|"
        r"PytorchStreamReader failed|invalid load key|central directory|Ran out of input|"
        r"UnpicklingError|unexpected end of (?:file|data)|unexpected EOF|checksum mismatch|"
        r"Incomplete checkpoint headers|Invalid checkpoint index entry|"
        r"Empty or invalid weight map|Consistency check failed|[Ff]ile size mismatch|"
        r"storage has wrong byte size",
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
        r"Found no tokenizer|[Ss]entence[Pp]iece.{0,60}(?:not found|not installed|required)|"
        r"requires the (?:SentencePiece|tiktoken|protobuf|mistral[\w-]*) (?:library|package)|"
        r"No module named '(?:sentencepiece|tiktoken|mistral_common)",
        _tokenizer_hint,
    ),
    rule(
        "weights_missing",
        r"Cannot find any (?:\w+ )?model weights|Could not find checkpoint files|"
        r"No (?:model )?weights (?:files? )?found|"
        r"[Ww]eights? files? [^\n:]{0,60}(?:not found|missing)|"
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
    rule("model_path_missing", r"RevisionNotFoundError|Revision Not Found", _revision_hint),
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
        r"Can't load (?:the )?config(?:uration)? (?:for|of) '(?P<conf>[^']*)'|"
        r"[Mm]odel (?:path|directory|file) '?(?P<model>\S+?)'? (?:does not exist|not found)|"
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<other>/[^']*)'",
        _path_hint,
        lambda f, c: not c.frame("jit", "compile", "ninja", "nvcc") and not _in_cache(c),
    ),
)


def _in_cache(context: Context) -> bool:
    frames = context.candidate.frames if context.candidate is not None else ()
    text = context.candidate.text if context.candidate is not None else ""
    files = {file for file, _ in frames}
    cached = {"compiler_interface.py", "decorators.py", "caching.py", "codecache.py"}
    return bool(files & cached) or "torch_compile_cache" in text or "torchinductor" in text
