"""Root causes of the recorded runs, their hints, and what is known from outside a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_ctl.logs import excerpt
from engine_ctl.logs.classify import classify, classify_file
from engine_ctl.logs.observations import RunFacts
from engine_ctl.model import Verdict
from tests.unit.test_logs_cases import CONFIG, DEAD, GONE, READY, SHUT, core, pydantic, raw

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
FAILED = {
    "badchat": "bad_value",
    "badlora": "lora_missing",
    "badpath": "model_path_missing",
    "badreason": "bad_value",
    "badtool": "bad_value",
    "badutil": "bad_value",
    "gptqact": "quant_removed",
    "ipc": "wc_fatal.platform",
    "killcore": "engine_core_killed",
    "killworker": "worker_killed",
    "kvlen": "kv_too_small_for_max_model_len",
    "kvnone": "kv_no_memory",
    "lt_args": "normal_shutdown",
    "lt_config": "normal_shutdown",
    "lt_group": "normal_shutdown",
    "lt_tasks": "normal_shutdown",
    "maxlen": "max_model_len_over_model",
    "medusa": "unknown",
    "notfound": "model_not_cached_offline",
    "notok": "tokenizer_missing",
    "nowt": "weights_missing",
    "portinuse": "port_in_use",
    "pp2async": "not_enough_gpus",
    "preload": "wc_fatal.platform",
    "qbnb": "quant_removed",
    "qfbgemm": "quant_removed",
    "qfp8": "quant_unsupported_gpu",
    "qgguf": "quant_removed",
    "slowtok": "bad_value",
    "tp3": "tp_not_divisible",
    "trunc": "weights_corrupt",
    "trust": "trust_remote_code",
    "unkarch": "arch_unsupported",
    "unktype": "arch_unsupported",
    "32_not_ready": "wc_fallback.stale_socket",
    "33_second_daemon": "wc_daemon_duplicate",
    "34_dtype": "wc_fallback.key_mismatch",
    "35_kvdtype": "wc_fallback.key_mismatch",
    "36_quant": "wc_fallback.key_mismatch",
    "37_nofallback": "wc_fallback.key_mismatch",
    "38_preload_ipc": "bad_value",
    "39_preload_pp": "not_enough_gpus",
    "40_load": "engine_core_killed",
}


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*/*.log")), ids=lambda path: path.stem)
def test_every_recording(path: Path) -> None:
    cause = classify(path.read_bytes())
    assert (cause.category if cause else None) == FAILED.get(path.stem)


def hint(log: str, facts: RunFacts | None = None) -> str:
    cause = classify(log, facts)
    assert cause is not None
    return cause.hint


def recorded(name: str, facts: RunFacts | None = None) -> str:
    (path,) = RECORDINGS.glob(f"*/{name}.log")
    return hint(path.read_bytes().decode(), facts)


def test_hints_carry_the_numbers_of_the_text() -> None:
    assert "524160" in recorded("kvlen")
    assert "2048" in recorded("maxlen")
    assert "/data/no/such/dir" in recorded("badpath")
    assert "18100" in recorded("portinuse")
    assert "1, 2, 4" in recorded("tp3")
    assert "gpu_memory_utilization" in recorded("badutil") and "1.2" in recorded("badutil")
    assert "asks for 2 GPUs and 1" in recorded("39_preload_pp")
    assert "brandnew9" in recorded("unktype")
    assert "0.24" in recorded("qgguf") and "0.28" in recorded("qbnb")
    assert "/no/such" in recorded("badlora")
    assert "SIGKILL" in recorded("killworker")


def test_a_busy_gpu_gets_the_utilization_that_fits() -> None:
    text = (
        "ValueError: Free memory on device cuda:0 (31.2/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.92, 72.77 GiB)."
    )
    advice = hint(core(text))
    assert "gpu_memory_utilization 0.38" in advice
    assert 0.38 * 79.1 < 31.2 < 0.40 * 79.1


def test_unknown_arguments_get_the_nearest_right_one() -> None:
    line = "vllm: error: unrecognized arguments: --max-modellen 8192 --swap-space 4\n"
    advice = hint(line)
    assert "--max-model-len" in advice and "--swap-space (removed" in advice
    told = RunFacts(known_arguments=("--maximal-modellen", "--port"))
    assert "--maximal-modellen" in hint(line, told)


def test_the_port_and_its_owner_come_from_outside() -> None:
    log = raw("OSError: [Errno 98] Address already in use")
    facts = RunFacts(port=8123, port_owners=("nginx (pid 77)",))
    assert "8123" in hint(log, facts) and "nginx (pid 77)" in hint(log, facts)


def test_the_lowest_process_speaks_first() -> None:
    cause = classify((RECORDINGS / "cpu-vllm-0.32.0" / "nowt.log").read_bytes())
    assert cause is not None
    assert cause.line == "RuntimeError: Cannot find any model weights with `models/nowt`"
    assert any("WorkerProc failed to start" in line for line in cause.evidence)


def test_unknown_shows_the_first_root_exception() -> None:
    cause = classify((RECORDINGS / "cpu-vllm-0.32.0" / "medusa.log").read_bytes())
    assert cause is not None
    assert cause.line == "ValueError: Duplicate layer name: model.layers.0.self_attn.attn"


def test_of_several_starts_in_one_log_the_last_counts() -> None:
    failed = CONFIG.replace("pid=700", "pid=600") + core("ValueError: odd")
    assert classify(failed + CONFIG + READY) is None
    cause = classify(CONFIG + READY + SHUT + failed)
    assert cause is not None and cause.category == "unknown"


def test_a_stop_that_was_asked_for_is_no_failure_but_a_death_before_it_is() -> None:
    asked = CONFIG.replace("non-default args: {", "[shutdown] API server: shutdown triggered {")
    assert classify(CONFIG + READY + asked + DEAD + SHUT) is None
    cause = classify(CONFIG + READY + GONE + DEAD + asked + SHUT)
    assert cause is not None and cause.category == "engine_core_killed"


def test_a_supported_list_of_kilobytes_does_not_become_the_line() -> None:
    names = ", ".join(f"'Arch{index}ForCausalLM'" for index in range(2000))
    text = (
        f"Model architectures ['NewOne'] are not supported for now. Supported: dict_keys([{names}])"
    )
    cause = classify(pydantic("ModelConfig", text))
    assert cause is not None and len(cause.line) <= 2000 and "NewOne" in cause.hint


def test_bytes_text_and_files_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (RECORDINGS / "cpu-vllm-0.32.0" / "killworker.log").read_bytes()
    path = tmp_path / "log"
    path.write_bytes(data)
    assert classify_file(path) == classify(data) == classify(data.decode())
    monkeypatch.setattr(excerpt, "HEAD_BYTES", 4000)
    monkeypatch.setattr(excerpt, "TAIL_BYTES", 9000)
    big = data[:4000] + b"INFO:     filler\n" * 20_000 + data[4000:]
    path.write_bytes(big)
    cause = classify_file(path)
    assert cause is not None and cause.category == "worker_killed"


@pytest.mark.parametrize(
    ("facts", "category"),
    [
        (RunFacts(), None),
        (
            RunFacts(args={"enable_sleep_mode": True, "load_format": "ipc_cache"}),
            "lint.wc_sleep_mode",
        ),
        (
            RunFacts(
                args={
                    "enable_sleep_mode": True,
                    "load_format": "ipc_cache",
                    "model_loader_extra_config": {"mode": "copy"},
                }
            ),
            None,
        ),
        (
            RunFacts(verdict=Verdict.MAPPED, daemon_checkpoint="a", engine_checkpoint="b"),
            "lint.wc_same_layout_other_model",
        ),
        (RunFacts(verdict=Verdict.MAPPED, daemon_checkpoint="a", engine_checkpoint="a"), None),
        (RunFacts(daemon_ranks=2, daemon_ranks_alive=1), "wc_daemon_partial"),
        (RunFacts(daemon_ranks=2, daemon_ranks_alive=2), None),
        (RunFacts(api_server_alive=False, engine_core_alive=True), "orphan_engine"),
        (RunFacts(api_server_alive=True, engine_core_alive=False), "engine_dead_parent_alive"),
        (RunFacts(api_server_alive=True, engine_core_alive=True), None),
        (
            RunFacts(asked_while_starting=True, reached_ready_after_ask=True),
            "stop_ignored_during_load",
        ),
        (RunFacts(port=8000, port_owners=("a", "b")), "port_shared_silently"),
        (RunFacts(exit_signal=9, asked=False), "worker_killed"),
        (RunFacts(exit_signal=15, asked=True), None),
        (RunFacts(nvml_memory_supported=False), "nvml_unified_memory"),
        (RunFacts(nvml_memory_supported=True), None),
        (RunFacts(mig_device="MIG-1111"), "nvml_mig"),
        (RunFacts(nvml_processes_visible=False), "nvml_no_process_info"),
        (RunFacts(visible_devices="2,0", mixed_devices=True), "nvml_index_mapping"),
        (RunFacts(visible_devices="0,1", mixed_devices=True), None),
        (
            RunFacts(visible_devices="2,0", mixed_devices=True, device_order="PCI_BUS_ID"),
            None,
        ),
    ],
)
def test_causes_that_no_log_line_shows(facts: RunFacts, category: str | None) -> None:
    for log in ("", CONFIG + READY):
        cause = classify(log, facts)
        assert (cause.category if cause else None) == category


def test_a_cause_in_the_log_goes_before_observations() -> None:
    cause = classify(
        core("ValueError: No available memory for the cache blocks."), RunFacts(exit_signal=9)
    )
    assert cause is not None and cause.category == "kv_no_memory"


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("vllm serve m --load-format ipc_cache --enable-sleep-mode", "lint.wc_sleep_mode"),
        (
            "vllm preload org/base\nvllm serve org/tuned --load-format ipc_cache",
            "lint.wc_same_layout_other_model",
        ),
        ("vllm preload org/base\nvllm serve org/base --load-format ipc_cache", None),
        ("vllm serve org/base --port 8000", None),
        (
            'LISTEN 0 2048 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=11,fd=3))\n'
            'LISTEN 0 2048 0.0.0.0:8000 0.0.0.0:* users:(("vllm",pid=22,fd=3))',
            "port_shared_silently",
        ),
        ("  4711     1 VLLM::EngineCore", "orphan_engine"),
        ("hello, this is no log", None),
    ],
)
def test_notes_that_are_no_log(text: str, category: str | None) -> None:
    cause = classify(text)
    assert (cause.category if cause else None) == category


def test_which_of_several_engine_cores_was_killed() -> None:
    lost = "RuntimeError: Engine core process EngineCore_DP1 died unexpectedly."
    cause = classify(CONFIG + READY + raw(lost))
    assert cause is not None and cause.category == "engine_core_killed"
    assert cause.hint.startswith("EngineCore_DP1 was killed from outside")
