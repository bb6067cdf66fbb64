"""What runs underneath an engine: backends, kernels, fusions, graphs, from its log.

Each fact carries the line that it comes from; `degraded` says in words when the engine took a
slower path than was asked for or than the chip allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine_ctl.logs.facts import untagged
from engine_ctl.logs.kernel_falls import FALLS, Fall
from engine_ctl.logs.lines import Record, records_of

TOPICS = (
    "attention",
    "flash attention",
    "MLA prefill",
    "MoE",
    "linear",
    "all2all",
    "all-reduce",
    "sampler",
    "fusions",
    "cudagraph mode",
    "compile mode",
    "model runner",
    "speculative",
    "KV dtype",
    "KV layout",
    "quantization",
    "scheduling",
)


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One thing that is active. `topic` is one of TOPICS; `degraded` is empty when all is well."""

    topic: str
    value: str
    line: str
    degraded: str = ""


LONGEST_LINE = 2000
_QUOTED = r"['\"]?(?:AttentionBackendEnum\.|\w+Backend\.)?(?P<v>[\w.+-]+)['\"]?"
_ACTIVE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (topic, re.compile(pattern))
    for topic, pattern in (
        ("attention", rf"Using {_QUOTED} attention backend\b"),
        ("attention", rf"Using {_QUOTED} backend(?: out of| \(selected|\.?$)"),
        ("attention", r"Using (?P<v>Flash Attention|FlashInfer|Triton|XFormers) backend on V1"),
        ("flash attention", r"Using FlashAttention version (?P<v>\d+)"),
        ("MLA prefill", rf"Using {_QUOTED} MLA prefill backend"),
        ("MoE", rf"Using {_QUOTED} (?P<k>[\w ]*?)\s?MoE backend\b"),
        ("linear", r"Selected (?P<v>\w+) for (?P<k>[\w.]+)"),
        ("linear", r"Using (?P<v>\w+) for (?P<k>NVFP4 GEMM|MXFP\d GEMM|mixed-precision linear)"),
        ("all2all", r"Using (?P<v>\w+) all2all manager"),
        ("all-reduce", r"Using \[(?P<v>[^\]]*)\] all-reduce backends"),
        ("sampler", r"Using (?P<v>FlashInfer|aiter sampler|fused XPU\w*) (?:for top-p|on|for top)"),
        ("fusions", r"Enabled custom fusions: (?P<v>.+)"),
        ("model runner", r"Using (?P<v>V[12]) Model Runner"),
        ("KV layout", r"Using (?P<v>\w+) KV cache layout"),
        ("KV dtype", r"Using (?P<v>\w+) data type to store kv cache"),
        ("scheduling", r"Asynchronous scheduling is (?P<v>enabled|disabled)"),
    )
)
_CONFIG: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (topic, re.compile(pattern))
    for topic, pattern in (
        ("cudagraph mode", r"'cudagraph_mode': <CUDAGraphMode\.(\w+)"),
        ("compile mode", r"'mode': <CompilationMode\.(\w+)"),
        ("KV dtype", r"\bkv_cache_dtype='?([\w.]+)"),
        ("quantization", r"\bquantization=(?!None)'?([\w-]+)"),
        ("speculative", r"speculative_config=SpeculativeConfig\(method='?(\w+)'?"),
    )
)
_DRAFT = re.compile(r"speculative_config=SpeculativeConfig\([^)]*num_spec_tokens=(\d+)")
_PASSES = re.compile(r"'pass_config': \{([^}]*)\}")
_SWITCH = re.compile(r"'(?:enable_|fuse_)?(\w+?)(?:_fusion)?': (True|False)")


def _filled(template: str, found: re.Match[str]) -> str:
    groups = {name: (value or "").strip(" .:,") for name, value in found.groupdict().items()}
    return template.format(**groups).strip()


def _clean(text: str) -> str:
    return text.replace("'", "").replace('"', "").strip()


def _from_config(message: str) -> list[KernelFact]:
    facts = [
        KernelFact(topic, found[1], _excerpt(message, found))
        for topic, pattern in _CONFIG
        if (found := pattern.search(message)) is not None
    ]
    draft = _DRAFT.search(message)
    facts = [
        replace(fact, value=f"{fact.value}, {draft[1]} tokens")
        if fact.topic == "speculative" and draft
        else fact
        for fact in facts
    ]
    passes = _PASSES.search(message)
    if passes is not None:
        on = [name for name, state in _SWITCH.findall(passes[1]) if state == "True"]
        off = [name for name, state in _SWITCH.findall(passes[1]) if state == "False"]
        value = f"on: {', '.join(on) or 'none'}; off: {', '.join(off) or 'none'}"
        facts.append(KernelFact("fusions", value, _excerpt(message, passes)))
    return facts


def _excerpt(message: str, found: re.Match[str]) -> str:
    """The part of the engine's long configuration line that says it."""
    return f"{message.partition(' with config:')[0]} … {found[0][:300]}"


class KernelReader:
    """Collects kernel facts record by record."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], KernelFact] = {}
        self._falls: list[tuple[Fall, str, str, str]] = []

    def take(self, record: Record) -> None:
        if record.shape == "bar" or record.level in ("ERROR", "CRITICAL"):
            return
        message = untagged(record.message)
        line = message.split("\n", 1)[0][:LONGEST_LINE]
        if message.startswith("Initializing a V"):
            for fact in _from_config(message):
                self._facts[(fact.topic, "")] = fact
            return
        if message.startswith(("Using ", "Selected ", "Enabled ", "Asynchronous ")):
            self._active(line)
        for fall in FALLS:
            found = fall.pattern.search(line) if fall.needs in line else None
            if found is not None and not line.startswith("non-default args"):
                entry = (fall, _filled(fall.why, found), _filled(fall.value, found), line[:400])
                if entry not in self._falls:
                    self._falls.append(entry)
                return

    def _active(self, line: str) -> None:
        for topic, pattern in _ACTIVE:
            found = pattern.match(line)
            if found is None:
                continue
            groups = found.groupdict()
            kind = (groups.get("k") or "").strip()
            value = _clean(groups["v"])
            key = (topic, kind if topic in ("linear", "MoE") else "")
            text = f"{value} ({kind})" if kind else value
            if topic == "fusions" and ("fusions", "") in self._facts:
                key = ("fusions", "named")
            self._facts[key] = KernelFact(topic, text, line[:400])
            return

    def result(self) -> tuple[KernelFact, ...]:
        """The facts in the order of TOPICS; a topic may have several (one for each kind)."""
        facts = dict(self._facts)
        named = facts.pop(("fusions", "named"), None)
        if named is not None:
            facts[("fusions", "")] = replace(facts[("fusions", "")], line=named.line)
        for fall, why, value, line in self._falls:
            keys = [key for key in facts if key[0] == fall.topic]
            if not keys:
                facts[(fall.topic, "")] = KernelFact(fall.topic, value or "fallback", line, why)
            for key in keys:
                known = facts[key]
                shown = value if value and fall.topic in _OVERRIDES else known.value
                both = f"{known.degraded}; {why}" if known.degraded else why
                source = line if shown != known.value else known.line
                facts[key] = KernelFact(known.topic, shown, source, both)
        return tuple(sorted(facts.values(), key=lambda fact: TOPICS.index(fact.topic)))


_OVERRIDES = ("cudagraph mode", "compile mode", "scheduling", "sampler")


def kernels_of_records(records: Iterable[Record]) -> tuple[KernelFact, ...]:
    reader = KernelReader()
    for record in records:
        reader.take(record)
    return reader.result()


def kernels_of(data: bytes) -> tuple[KernelFact, ...]:
    """What an engine's log says about the kernels it runs."""
    return kernels_of_records(records_of(data))
