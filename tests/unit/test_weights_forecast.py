"""The forecast's rules one by one; against the real runtime see tests/engine/test_preload_table."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from engine_ctl.model import Reason, Verdict
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.forecast import (
    DaemonBehind,
    EngineAsks,
    FieldRow,
    compare,
    forecast_weights,
    mismatch_hint,
    refine,
    shares,
)
from engine_ctl.weights.records import RankKey, keys_of
from engine_ctl.weights.refusals import Refusal
from engine_ctl.weights.sockets import SocketJudgement

SOCKET = "/d/x.sock"
KEY = RankKey(
    device="GPU-1", socket=SOCKET, fields={"dtype": "bf16", "tp_size": "1", "revision": None}
)
FINE = SocketJudgement(None, (), True)
SERVING = DaemonStatus(socket=SOCKET, state="serving", memory_bytes=5)
HELD = DaemonBehind(FINE, SERVING, KEY, unit="w", run="w/1")
ASKS = EngineAsks(True, (KEY,))


def _key(**fields: str | None) -> RankKey:
    return msgspec.structs.replace(KEY, fields={**KEY.fields, **fields})


def test_mapped_and_copied() -> None:
    found = forecast_weights(ASKS, {SOCKET: HELD})
    assert found.verdict is Verdict.MAPPED and found.reasons == () and found.warnings == ()
    assert [row.equal for row in found.ranks[0].rows] == [True] * 3
    assert found.ranks[0].daemon == "w"
    copied = forecast_weights(replace(ASKS, mode="copy"), {SOCKET: HELD})
    assert copied.verdict is Verdict.COPIED


def test_from_disk_when_not_asked_for() -> None:
    assert forecast_weights(EngineAsks(False), {}).verdict is Verdict.DISK


def test_fields_with_both_values() -> None:
    asks = replace(ASKS, keys=(_key(dtype="fp32", revision="v2"),))
    found = forecast_weights(asks, {SOCKET: HELD})
    (reason,) = found.reasons
    assert found.verdict is Verdict.FALLBACK and reason.category == "wc_fallback.key_mismatch"
    assert reason.fields == (("dtype", "bf16", "fp32"), ("revision", "None", "v2"))
    assert found.differing == ("dtype", "revision")


def test_the_daemons_own_answer_wins_over_the_record() -> None:
    status = msgspec.structs.replace(SERVING, mismatched=("tp_size", "new_field"))
    (reason,) = forecast_weights(ASKS, {SOCKET: replace(HELD, status=status)}).reasons
    assert reason.fields == (("tp_size", "1", "1"), ("new_field", "unknown", "unknown"))
    agrees = replace(HELD, status=msgspec.structs.replace(SERVING, mismatched=()))
    asks = replace(ASKS, keys=(_key(dtype="fp32"),))
    assert forecast_weights(asks, {SOCKET: agrees}).verdict is Verdict.MAPPED


@pytest.mark.parametrize(
    ("state", "category"),
    [
        ("missing", "socket_missing"),
        ("stale", "stale_socket"),
        ("silent", "not_ready"),
        ("garbage", "ipc_failed"),
        ("gone", "ipc_failed"),
        ("released", "released"),
        ("error", "version_skew"),
    ],
)
def test_what_the_daemon_answers(state: str, category: str) -> None:
    status = DaemonStatus(socket=SOCKET, state=state, message="m")
    found = forecast_weights(ASKS, {SOCKET: replace(HELD, status=status)})
    assert found.verdict is Verdict.FALLBACK
    assert [r.category for r in found.reasons] == [f"wc_fallback.{category}"]


def test_a_daemon_that_still_loads() -> None:
    reason = Reason("wc_fallback.socket_missing", "h", "l")
    behind = DaemonBehind(SocketJudgement(reason), key=KEY, loading=True)
    (found,) = forecast_weights(ASKS, {SOCKET: behind}).reasons
    assert found.category == "wc_fallback.not_ready"
    assert refine([reason], True) == (found,)
    assert refine([reason], False) == (reason,)


def test_a_log_names_fields_without_the_daemons_values_and_the_forecast_has_them() -> None:
    fields = (("dtype", "", "torch.float32"), ("tp_size", "", ""), ("revision", "a", "b"))
    reason = Reason("wc_fallback.key_mismatch", "hint", "line", fields)
    (told,) = refine([reason], False, {"dtype": ("torch.bfloat16", "torch.half")})
    assert told.fields == (
        ("dtype", "torch.bfloat16", "torch.float32"),
        ("tp_size", "unknown", "unknown"),
        ("revision", "a", "b"),
    )


def test_nothing_behind_the_socket() -> None:
    (reason,) = forecast_weights(ASKS, {}).reasons
    assert reason.category == "wc_fallback.socket_missing"


def test_mismatch_comes_before_released_and_device() -> None:
    status = DaemonStatus(socket=SOCKET, state="released")
    asks = replace(ASKS, keys=(msgspec.structs.replace(_key(dtype="x"), device="GPU-2"),))
    (reason,) = forecast_weights(asks, {SOCKET: replace(HELD, status=status)}).reasons
    assert reason.category == "wc_fallback.key_mismatch"


def test_another_device() -> None:
    asks = replace(ASKS, keys=(msgspec.structs.replace(KEY, device="GPU-2"),))
    (reason,) = forecast_weights(asks, {SOCKET: HELD}).reasons
    assert reason.category == "wc_fallback.gpu_uuid" and "GPU-1" in reason.line


def test_another_protocol_by_its_fields() -> None:
    old = msgspec.structs.replace(KEY, fields={"dtype": "bf16"})
    (reason,) = forecast_weights(ASKS, {SOCKET: replace(HELD, key=old)}).reasons
    assert reason.category == "wc_fallback.version_skew"


def test_without_fallback_it_waits_or_fails() -> None:
    strict = replace(ASKS, fallback=False, state_timeout_s=7.0)
    waits = forecast_weights(strict, {})
    assert waits.verdict is None and waits.waits_s == 7.0 and not waits.fails
    fails = forecast_weights(replace(strict, keys=(_key(dtype="x"),)), {SOCKET: HELD})
    assert fails.verdict is None and fails.fails and fails.waits_s is None


def test_one_rank_of_two() -> None:
    other = msgspec.structs.replace(KEY, rank=1, socket="/d/y.sock")
    found = forecast_weights(replace(ASKS, keys=(KEY, other)), {SOCKET: HELD})
    assert found.verdict is Verdict.FALLBACK
    assert [rank.reason is None for rank in found.ranks] == [True, False]


def test_the_same_reason_is_said_once() -> None:
    keys = tuple(msgspec.structs.replace(KEY, rank=n, socket=f"/d/{n}") for n in range(8))
    assert len(forecast_weights(replace(ASKS, keys=keys), {}).reasons) == 1


def test_refusals_end_the_start() -> None:
    eplb = Refusal(Reason("wc_fatal.eplb", "h", "l"))
    found = forecast_weights(replace(ASKS, refusals=(eplb,)), {SOCKET: HELD})
    assert found.verdict is None and found.fails and found.reasons == (eplb.reason,)
    warned = forecast_weights(replace(ASKS, refusals=(replace(eplb, fatal=False),)), {SOCKET: HELD})
    assert warned.verdict is Verdict.MAPPED and warned.warnings == ("l: h",)


def test_quantization_is_looked_at_only_once_the_daemon_answers() -> None:
    quant = Refusal(Reason("wc_fatal.quant", "h", "l"))
    asks = replace(ASKS, refusals=(quant,))
    assert forecast_weights(asks, {SOCKET: HELD}).fails
    assert forecast_weights(asks, {}).verdict is Verdict.FALLBACK


def test_other_weights_of_the_same_layout() -> None:
    found = forecast_weights(ASKS, {SOCKET: replace(HELD, content=("a differs", "b differs"))})
    assert found.verdict is Verdict.MAPPED and found.refuse is not None
    assert found.refuse.category == "lint.wc_same_layout_other_model"
    assert found.refuse.line == "a differs and 1 more"


def test_the_wrong_role() -> None:
    (reason,) = forecast_weights(replace(ASKS, draft=True), {SOCKET: HELD}).reasons
    assert reason.category == "wc_fallback.role"


def test_a_daemon_of_unknown_fingerprint_is_said() -> None:
    found = forecast_weights(ASKS, {SOCKET: replace(HELD, key=None)})
    assert found.verdict is Verdict.MAPPED and "not known" in found.warnings[0]


def test_without_keys_nothing_is_promised() -> None:
    found = forecast_weights(EngineAsks(True), {})
    assert found.verdict is None and not found.fails


def test_rows_of_two_versions() -> None:
    old = msgspec.structs.replace(KEY, fields={"dtype": "bf16", "gone": "1"})
    rows = compare(old, KEY)
    assert rows[0] == FieldRow("dtype", "bf16", "bf16", True)
    assert FieldRow("gone", "1", None, False) in rows
    # Absent on one side is not the same as None on both.
    assert FieldRow("revision", None, None, False) in rows
    assert compare(None, KEY) == ()


def test_sharing_a_daemon() -> None:
    assert shares([KEY], [KEY])
    assert shares([KEY], [msgspec.structs.replace(KEY, socket=None)])
    assert not shares([KEY], [_key(dtype="x")])
    assert not shares([KEY], [KEY, msgspec.structs.replace(KEY, rank=1)])
    assert not shares([KEY], [msgspec.structs.replace(KEY, socket="/other")])
    assert not shares([KEY], [])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (["vllm_version"], "version"),
        (["tp_size", "tp_rank"], "parallel sizes"),
        (["checkpoint", "dtype"], "another checkpoint"),
        (["dtype"], "reload the daemon"),
    ],
)
def test_hints(fields: list[str], word: str) -> None:
    assert word in mismatch_hint(fields)


def test_keys_of_an_answer() -> None:
    raw = {"role": "target", "rank": 3, "local_rank": 1, "device": None, "socket": "/s"}
    (key,) = keys_of({"keys": [{**raw, "fields": {"a": None}}], "keys_note": ""})
    assert key.rank == 3 and key.fields == {"a": None}
    assert keys_of({"ok": False}) == ()
