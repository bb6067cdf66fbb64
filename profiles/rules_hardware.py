"""Lint rules: kernels and types that exist for some chips only.

Read from the `supports_compute_capability` and `is_supported` tests of vLLM 0.33's backends.
`major` are majors of the CUDA compute capability: 9 Hopper, 10 Blackwell (data centre),
12 Blackwell (workstation).
"""

from __future__ import annotations

from collections.abc import Iterator

from profiles.rules import FAIL, Hit, Rule, View, When

CHIPS = {8: "Ampere/Ada", 9: "Hopper", 10: "Blackwell", 12: "Blackwell (workstation)"}

# argument -> value -> majors it exists for
KERNELS: dict[str, dict[str, tuple[int, ...]]] = {
    "attention_backend": {
        "B12X": (12,),
        "HPC_ATTN": (9,),
        "CUTLASS_MLA": (10,),
        "FLASHMLA": (9, 10),
        "FLASHMLA_SPARSE": (9, 10),
        "FLASH_ATTN_MLA": (9,),
        "FLASH_ATTN_MLA_SPARSE": (9,),
        "FLASHINFER_MLA": (10,),
        "FLASHINFER_MLA_SPARSE": (10,),
        "FLASHINFER_MLA_SPARSE_SM120": (12,),
        "FLASHINFER_MLA_SPARSE_SM90": (9,),
        "TOKENSPEED_MLA": (10,),
    },
    "kv_cache_dtype": {
        "nvfp4": (10, 12),
        "nvfp4_ds_mla": (10,),
    },
    "moe_backend": {
        "b12x": (12,),
        "flashinfer_b12x": (12,),
        "flashinfer_trtllm": (10,),
        "flashinfer_cutedsl": (10,),
        "flashinfer_cutlass": (9, 10, 11, 12),
        "deep_gemm": (9, 10, 12),
        "deep_gemm_mega_moe": (10,),
    },
    "linear_backend": {
        "b12x": (12,),
        "flashinfer_b12x": (12,),
        "flashinfer_trtllm": (10,),
        "flashinfer_cutedsl": (10,),
        "machete": (9,),
        "deep_gemm": (9, 10, 12),
    },
}
_OTHER_PLATFORM = {
    "moe_backend": ("aiter", "flydsl", "rdna3"),
    "linear_backend": ("aiter", "xpu"),
}


def _spelt(value: object) -> str:
    return str(value).lower().replace("-", "_")


def _no_kernel(view: View) -> Iterator[Hit]:
    if view.facts.capability is None:
        return
    major = view.facts.capability[0]
    for name, table in KERNELS.items():
        value = view.args.get(name)
        majors = {_spelt(key): chips for key, chips in table.items()}.get(_spelt(value))
        if value is not None and majors is not None and major not in majors:
            chips = " or ".join(CHIPS.get(chip, f"capability {chip}") for chip in majors)
            here = CHIPS.get(major, f"compute capability {major}")
            yield f"args.{name}", f"{value} exists for {chips}, this GPU is {here}"


def _other_platform(view: View) -> Iterator[Hit]:
    if view.facts.platform not in ("cuda", "cpu"):
        return
    for name, prefixes in _OTHER_PLATFORM.items():
        value = view.args.get(name)
        if value is not None and _spelt(value).startswith(prefixes):
            yield f"args.{name}", f"{value} does not exist on {view.facts.platform}"


# method -> least compute capability, by their get_min_capability; fp8 with all its kinds.
_LEAST = {
    "awq": (7, 5),
    "awq_marlin": (7, 5),
    "fp8": (7, 5),
    "modelopt": (8, 0),
    "modelopt_fp4": (7, 5),
    "modelopt_mxfp8": (8, 0),
}


def _old_chip(view: View) -> Iterator[Hit]:
    has, value = view.facts.capability, view.args.get("quantization")
    if has is None or not isinstance(value, str):
        return
    least = _LEAST.get("fp8" if value.startswith("fp8") else value)
    if least is not None and has < least:
        needs, found = (".".join(map(str, pair)) for pair in (least, has))
        yield "args.quantization", f"{value} needs compute capability {needs}, this GPU has {found}"


def _bfloat16(view: View) -> Iterator[Hit]:
    old = view.facts.capability is not None and view.facts.capability < (8, 0)
    if old and view.args.get("dtype") == "bfloat16":
        yield "args.dtype", "bfloat16 needs compute capability 8.0"


def _rule(id: str, when: When, instead: str, source: str) -> Rule:
    return Rule(
        id=id,
        severity=FAIL,
        when=when,
        what="{detail}",
        effect="the start fails",
        instead=instead,
        source=source,
    )


_METHODS = "vllm/model_executor/layers/quantization"

RULES = (
    _rule("no-kernel-for-chip", _no_kernel, "auto, or leave it out", "vllm/v1/attention/backends"),
    _rule("kernel-of-other-platform", _other_platform, "auto", "vllm/config/kernel.py"),
    _rule("quantization-chip", _old_chip, "another checkpoint format", _METHODS),
    _rule("bfloat16-chip", _bfloat16, "dtype: float16", "vllm/platforms/cuda.py"),
)
