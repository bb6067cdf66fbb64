"""Why weights were not taken from the daemon: vLLM's words, the category, and what to do.

The words are those of 0.30 (`CacheConfig mismatch`) to 0.33 (`WeightCacheKey mismatch`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine_ctl.model import Reason


@dataclass(frozen=True, slots=True)
class _Rule:
    category: str
    pattern: re.Pattern[str]
    hint: str


def _rule(category: str, pattern: str, hint: str) -> _Rule:
    return _Rule(category, re.compile(pattern), hint)


LONGEST_TEXT = 8000
_RULES: tuple[_Rule, ...] = (
    _rule(
        "wc_fallback.key_mismatch",
        r"(?:WeightCacheKey|CacheConfig|[Cc]ache key) mismatch",
        "daemon and engine differ in {fields}: make the profile's values the daemon's, or reload "
        "the daemon with this profile",
    ),
    _rule(
        "wc_fallback.role",
        r"role mismatch",
        "a draft model needs a daemon group of its own: preload with the same speculative "
        "configuration and --weight-cache-draft-master-port",
    ),
    _rule(
        "wc_fallback.gpu_uuid",
        r"Daemon GPU \S+ != engine GPU|Cannot infer the physical GPU id",
        "the socket belongs to a daemon of another GPU{detail}: check CUDA_VISIBLE_DEVICES and "
        "the socket path",
    ),
    _rule(
        "wc_fallback.version_skew",
        r"Missing cache_(?:config|key)|Unknown command|Can't get attribute|"
        r"unexpected keyword argument|No module named|has no attribute '|"
        r"rejected the memory query",
        "daemon and engine speak different versions of the protocol: restart the daemon with "
        "this engine's vLLM version",
    ),
    _rule(
        "wc_fallback.released",
        r"[Ww]eights (?:were|have been|are) released|released (?:its |the )?(?:cached )?weights",
        "the daemon has released its weights (copy mode, or a release request): reload it",
    ),
    _rule(
        "wc_fallback.permissions",
        r"group/world accessible|not owned by the current user|[Ss]ymlinked socket|"
        r"is not a directory|Rejecting weight cache connection|"
        r"\[Errno 13\]|\[Errno 1\]|Permission denied",
        "the socket must be in a directory of mode 700 that belongs to the engine's own user"
        "{detail}: run daemon and engine as the same user and chmod 700 the directory",
    ),
    _rule(
        "wc_fallback.not_ready",
        r"did not become ready within|[Tt]imed? ?out|\[Errno 11\]|\[Errno 110\]|"
        r"temporarily unavailable",
        "the daemon did not answer in time{detail}: it is still loading or hangs; start the engine "
        "when the daemon is READY, or raise state_timeout_s in model_loader_extra_config",
    ),
    _rule(
        "wc_fallback.stale_socket",
        r"\[Errno 111\]|Connection refused",
        "the socket file exists and nobody listens{detail}: the daemon was killed, or a new one is "
        "still loading; (re)start it and wait for READY",
    ),
    _rule(
        "wc_fallback.socket_missing",
        r"\[Errno 2\]|No such file or directory|is unavailable",
        "no daemon serves this GPU here{detail}: not started, another user or TMPDIR (PrivateTmp), "
        "or a container that does not share the socket directory",
    ),
)
_IPC_FAILED = (
    "the daemon answered but its memory could not be mapped: check --ipc=host and --pid=host of "
    "containers, the allocator settings, and that both run the same build"
)
_FIELDS = re.compile(r"mismatch on fields:? ?[\[(]([^\])]*)[\])]")
_BOTH_VALUES = re.compile(
    r"(\w+)(?:=|: )(?:daemon(?:=| ))?'?([^'(),\[\]]+?)'? (?:!=|vs\.?) (?:engine(?:=| ))?'?"
    r"([^'(),\[\]]+)"
)
FATAL: tuple[_Rule, ...] = (
    _rule(
        "wc_fatal.platform",
        r"UnsupportedPlatformForIPCError|does not support CUDA IPC weight sharing",
        "the weight cache needs CUDA or ROCm: use the default --load-format on this platform",
    ),
    _rule(
        "wc_fatal.quant",
        r"UnsupportedQuantForIPCError|does not support loading from pre-processed weights",
        "this quantization method cannot be served from the weight cache (it stops the start in "
        "spite of fallback): use the default --load-format for this model",
    ),
    _rule(
        "wc_fatal.eplb",
        r"(?:weight cache daemon|IPC weight cache loader) does not support EPLB",
        "EPLB and the weight cache exclude each other: drop --enable-eplb or the preload",
    ),
)


def mismatched_fields(text: str) -> tuple[str, ...]:
    """The field names of a mismatch message, in vLLM's order."""
    found = _FIELDS.search(text)
    if found is None:
        return ()
    return tuple(name.strip(" '\"") for name in found[1].split(",") if name.strip(" '\""))


def reason_of(text: str, line: str = "", values: dict[str, str] | None = None) -> Reason:
    """The reason in a message of the loader (what `Weight cache unusable (…)` has in brackets,
    or the end of a traceback). `values` are the engine's own values of the fingerprint's fields.

    Always answers: what no rule knows is `wc_fallback.ipc_failed`."""
    text, line = text[:LONGEST_TEXT], line[:LONGEST_TEXT]
    for rule in _RULES:
        if rule.pattern.search(text):
            if rule.category != "wc_fallback.key_mismatch":
                hint = rule.hint.replace("{detail}", _detail(text))
                return Reason(rule.category, hint, line or text)
            names = mismatched_fields(text)
            both = {
                name: (daemon.strip(), engine.strip())
                for name, daemon, engine in _BOTH_VALUES.findall(text)
            }
            fields = tuple(
                (name, *(both.get(name) or ("", (values or {}).get(name, "")))) for name in names
            )
            hint = rule.hint.format(fields=_listed(names, values or {}))
            return Reason(rule.category, hint, line or text, fields)
    return Reason("wc_fallback.ipc_failed", _IPC_FAILED, line or text)


_DETAIL = re.compile(
    r"ready within (?P<limit>[\d.]+ ?s)|Daemon GPU (?P<theirs>\S+) != engine GPU (?P<ours>[\w-]+)|"
    r"(?P<path>/[^\s:,;()']+)"
)


def _detail(text: str) -> str:
    """The name or number that the message gives, in brackets; empty when it gives none."""
    found = _DETAIL.search(text)
    if found is None:
        return ""
    if found["theirs"]:
        return f" (daemon {found['theirs']}, engine {found['ours']})"
    return f" ({found['limit'] or found['path']})"


def _listed(names: tuple[str, ...], values: dict[str, str]) -> str:
    if not names:
        return "their fingerprints"
    return ", ".join(
        f"{name} (engine: {values[name]})" if values.get(name) else name for name in names
    )


def fatal_reason(text: str, line: str = "") -> Reason | None:
    """A refusal of the weight cache that no fallback softens, None when there is none."""
    for rule in FATAL:
        if rule.pattern.search(text):
            return Reason(rule.category, rule.hint, line or text)
    return None
