"""Acceptance on real GPUs: `acceptance.py PART… --python EXE --big DIR --small DIR --out DIR`.

Parts run unattended in under 9 minutes each, use `stoker` commands and library calls only, write
one line of JSON per check and archive what they saw. With two GPUs the big model's daemon is on
GPU 0 and the small one's on GPU 1. See CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.gpu.machine import Machine, complete, first_token

LEN = 8192
PORT_BIG, PORT_HAND = 8100, 8200


def profiles(m: Machine, gpus: int) -> None:
    other = 1 if gpus > 1 else 0
    args = {"max_model_len": LEN}
    m.profile("big", model=m.big, served_name=["m"], gpus=[0], port=PORT_BIG, args=args, preload={})
    m.profile("big-eager", extends="big", args={"enforce_eager": True})
    m.profile(
        "big-fast", extends="big", args={"enforce_eager": True, "kv_cache_memory_bytes": "64G"}
    )
    m.profile("big-plan", extends="big", env={"VLLM_ENABLE_STARTUP_PLAN": "1"})
    small = {"max_model_len": LEN, "enforce_eager": True, "gpu_memory_utilization": 0.3}
    m.profile("small", model=m.small, served_name=["s"], gpus=[other], args=small, preload={})
    m.profile("small-dtype", extends="small", args={"dtype": "float16"})
    m.profile("small-kv", extends="small", args={"kv_cache_dtype": "fp8"})
    m.profile("small-quant", extends="small", args={"quantization": "fp8_per_tensor"})
    m.profile("small-seqs", extends="small", args={"max_num_seqs": 8, "max_num_active_seqs": 4})


def part_base(m: Machine, gpus: int) -> None:
    """Checks 1 and 2: the runtime, the daemons, mapped starts, the ledger."""

    def runtime() -> dict[str, Any]:
        made = m.stoker("runtime", "add", m.python, "--name", "gpu")["runtime"]
        found = m.stoker("args")
        checked = m.stoker("profile", "show", "big", "--check")["check"]
        return {
            "ok": made["platform"] == "cuda" and checked["ok"] and len(found["arguments"]) > 250,
            "version": made["version"],
            "arguments": len(found["arguments"]),
        }

    def daemon(unit: str, gpu: int) -> dict[str, Any]:
        began = time.monotonic()
        m.stoker("preload", "start", unit, "--wait")
        took = time.monotonic() - began
        rows = [d for d in m.stoker("weights")["daemons"] if d["unit"] == f"{unit}-weights"]
        view = m.snapshot()
        held = [h for h in view.gpus[gpu].holders if h.role == "weights"]
        smi = m.smi()[gpu]
        agrees = all(abs(h.bytes / 2**20 - smi.get(h.pid, -1)) <= 2 for h in held)
        return {
            "ok": bool(rows and rows[0]["fields"] and held) and agrees,
            "ready_s": round(took, 1),
            "socket": rows[0]["socket_state"] if rows else None,
            "fields": len(rows[0]["fields"]) if rows else 0,
            "holders": [(h.pid, h.role, h.bytes) for h in held],
            "smi": smi,
        }

    def mapped(unit: str) -> dict[str, Any]:
        expected = m.stoker("forecast", unit)
        done = m.stoker("start", unit, "--wait")["units"][0]
        row = m.unit(unit)
        return {
            "ok": expected["verdict"] == row["verdict"] == "mapped",
            "forecast": expected["verdict"],
            "verdict": row["verdict"],
            "start_s": done["start_s"],
        }

    m.check("1 runtime add, schema, check", runtime)
    m.check("2 daemon big", lambda: daemon("big", 0))
    m.check("2 mapped big", lambda: mapped("big"))
    if gpus > 1:
        m.check("2 daemon small", lambda: daemon("small", 1))
        m.check("2 mapped small", lambda: mapped("small"))
    m.check("5 ledger with daemon and engine", lambda: ledger(m))
    m.screens("big", "g", "w", "k", "W")


def ledger(m: Machine) -> dict[str, Any]:
    """The ledger's figures against nvidia-smi's, for every process of every GPU."""
    view, smi = m.snapshot(), m.smi()
    rows, ok = [], True
    for gpu in view.gpus:
        ours = {h.pid: h for h in gpu.holders}
        for pid, mib in smi[gpu.index].items():
            held = ours.get(pid)
            near = (
                held is not None and held.bytes is not None and abs(held.bytes / 2**20 - mib) < 64
            )
            ok = ok and near
            rows.append((gpu.index, pid, held.role if held else None, mib))
        ok = ok and not any(h.role == "other" for h in gpu.holders)
    return {"ok": ok, "rows": rows}


def holder(m: Machine, gpu: int, role: str, unit: str | None = None) -> Any:
    """The process that holds memory of a GPU in that role (of that unit)."""
    found = m.snapshot().gpus[gpu].holders
    return next(h for h in found if h.role == role and unit in (None, h.unit))


def part_table(m: Machine, gpus: int) -> None:
    """Check 2, the table: forecast equals verdict, case by case, on the small model."""
    other = 1 if gpus > 1 else 0

    def case(profile: str) -> dict[str, Any]:
        expected = m.stoker("forecast", "small", profile, ok=False)
        done = m.stoker("swap", "small", profile, ok=False)
        row = m.unit("small")
        reasons = [r["category"] for r in row.get("reasons", [])]
        wanted = [r["category"] for r in expected.get("reasons", [])]
        same = expected.get("verdict") == row.get("verdict") and set(wanted) <= set(reasons)
        return {
            "ok": same and done.get("outcome") == "committed",
            "forecast": [expected.get("verdict"), wanted, expected.get("errors")],
            "verdict": [row.get("verdict"), reasons],
            "outcome": done.get("outcome"),
            "seconds": done.get("seconds"),
            "fields": [r["fields"] for r in row.get("reasons", [])],
        }

    def second() -> dict[str, Any]:
        m.profile("small-twin", extends="small")
        before = m.used()
        began = time.monotonic()
        said = m.stoker("preload", "start", "small-twin", "--no-wait", ok=False)
        took = time.monotonic() - began
        return {
            "ok": said.get("rc") == 4 and m.used()[other] <= before[other] + 64,
            "said": said,
            "s": round(took, 2),
        }

    def other_checkpoint() -> dict[str, Any]:
        twin = Path(m.small + "-twin")
        if not twin.exists():
            shutil.copytree(m.small, twin)
            for file in twin.glob("*.safetensors"):
                with file.open("r+b") as weights:
                    weights.seek(-4096, os.SEEK_END)
                    weights.write(os.urandom(4096))
        m.profile("small-other", extends="small", model=str(twin))
        run = m.unit("small")["run"]
        said = m.stoker("swap", "small", "small-other", ok=False)
        return {"ok": "rc" in said and m.unit("small")["run"] == run, "said": said.get("error")}

    def not_ready() -> dict[str, Any]:
        m.stoker("preload", "start", "small", "--no-wait")
        expected = m.stoker("forecast", "small")
        wanted = [r["category"] for r in expected["reasons"]]
        deadline = time.monotonic() + 90
        while m.unit("small-weights").get("phase") != "ready" and time.monotonic() < deadline:
            time.sleep(1)
        return {"ok": expected["verdict"] == "fallback", "forecast": wanted}

    if m.unit("small").get("phase") != "ready":
        m.stoker("start", "small", "--wait", ok=False)
    for profile in ("small", "small-dtype", "small-kv", "small-quant"):
        m.check(f"2 forecast = verdict: {profile}", lambda p=profile: case(p))
    m.check("2 back to mapped", lambda: case("small"))
    m.check("2 second daemon refused before it loads", second)
    m.check("2 another checkpoint of the same layout is refused", other_checkpoint)

    def without() -> dict[str, Any]:
        m.stoker("preload", "stop", "small", "--yes")
        m.stoker("stop", "small")
        m.profile("small-cold", extends="small", preload={"socket_dir": "/tmp/no-daemon-here"})
        expected = m.stoker("forecast", "small", "small-cold")
        return {"ok": expected["verdict"] == "fallback", "forecast": expected["reasons"]}

    m.check("2 no daemon", without)
    m.check("2 daemon not ready", not_ready)
    m.check("2 mapped again", lambda: started(m, "small"))


def started(m: Machine, unit: str) -> dict[str, Any]:
    done = m.stoker("start", unit, "--wait")["units"][0]
    row = m.unit(unit)
    return {"ok": row["verdict"] == "mapped", "verdict": row["verdict"], "start_s": done["start_s"]}


def by_hand(m: Machine, cache: bool, port: int) -> float:
    """Stop-to-first-token of `vllm serve` as an operator types it: start, wait, ask, end."""
    vllm = [m.python, "-m", "vllm.entrypoints.cli.main", "serve", m.big]
    words = ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-model-len", str(LEN)]
    if cache:
        words += ["--load-format", "ipc_cache"]
    log = (m.out / f"hand-{port}-{int(time.time())}.log").open("wb")
    began = time.monotonic()
    process = subprocess.Popen(
        [*vllm, *words],
        stdout=log,
        stderr=log,
        env={**m.env, "CUDA_VISIBLE_DEVICES": "0"},
        start_new_session=True,
    )
    try:
        first_token(port, "m")
        return time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        log.close()


def part_ratios(m: Machine, gpus: int) -> None:
    """Check 3: A B A B after warm-up starts. The old engine's stop is part of both sides."""

    def ours(profile: str) -> float:
        began = time.monotonic()
        if m.unit("big").get("phase") != "ready":
            m.stoker("start", "big", "--wait")
        now = m.unit("big")["profile"]
        began = time.monotonic()
        if now == profile:
            m.stoker("restart", "big", "--wait")
        else:
            m.stoker("swap", "big", profile)
        complete(PORT_BIG, "m")
        return time.monotonic() - began

    figures: dict[str, list[float]] = {}

    def turn(name: str, run: Any) -> None:
        figures.setdefault(name, []).append(round(run(), 2))
        m.note("figure", name=name, s=figures[name][-1])

    def stop() -> None:
        m.stoker("stop", "big")

    turn("stoker warm-up", lambda: ours("big"))
    turn("stoker plan warm-up", lambda: ours("big-plan"))
    stop()
    turn("hand ipc warm-up", lambda: by_hand(m, True, PORT_HAND))
    for _ in range(2):
        turn("hand ipc_cache", lambda: by_hand(m, True, PORT_HAND))
        m.stoker("start", "big", "--wait")
        turn("stoker restart", lambda: ours("big"))
        turn("stoker swap to plan", lambda: ours("big-plan"))
        turn("stoker restart plan", lambda: ours("big-plan"))
        turn("stoker swap to eager", lambda: ours("big-eager"))
        turn("stoker restart eager", lambda: ours("big-eager"))
        turn("stoker restart fast-iteration", lambda: (ours("big-fast"), ours("big-fast"))[1])
        stop()
    turn("hand disk", lambda: by_hand(m, False, PORT_HAND))

    def ratios() -> dict[str, Any]:
        hand = statistics.median(figures["hand ipc_cache"])
        share = {
            name: round(statistics.median(values) / hand, 3) for name, values in figures.items()
        }
        ok = min(share["stoker restart"], share["stoker restart plan"]) <= 0.30
        fast = min(share["stoker restart eager"], share["stoker restart fast-iteration"])
        return {"ok": ok and fast <= 0.15, "seconds": figures, "share_of_hand_ipc": share}

    m.check("3 restart ratios", ratios)
    m.stoker("start", "big", "--wait")


def part_endurance(m: Machine, gpus: int) -> None:
    """Check 4: twenty restarts with changing arguments, memory back after each."""
    other = 1 if gpus > 1 else 0

    def twenty() -> dict[str, Any]:
        if m.unit("small").get("phase") != "ready":
            m.stoker("start", "small", "--wait")
        figures, seconds, standby = [], [], []
        for n in range(20):
            args = {"max_num_seqs": 8 + 8 * (n % 4), "gpu_memory_utilization": 0.2 + 0.02 * (n % 5)}
            m.profile("small-loop", extends="small", args=args)
            began = time.monotonic()
            done = m.stoker("swap", "small", "small-loop", ok=False)
            seconds.append(round(time.monotonic() - began, 2))
            if done.get("outcome") != "committed":
                return {"ok": False, "n": n, "said": done}
            if n % 5 == 0:
                figures.append(m.used()[other])
                standby.append(m.stoker("standby", "list")["standbys"][0]["memory_bytes"] >> 20)
        m.stoker("stop", "small")
        time.sleep(1)
        left = m.used()[other]
        pids = m.smi()[other]
        return {
            "ok": max(figures) - min(figures) < 64 and max(standby) - min(standby) < 64,
            "used_mib_every_5th": figures,
            "standby_mib": standby,
            "median_s": statistics.median(seconds),
            "total_s": round(sum(seconds), 1),
            "after_stop_mib": left,
            "pids": pids,
        }

    m.check("4 twenty restarts", twenty)


def part_failures(m: Machine, gpus: int) -> None:
    """Checks 5, 6 and 8: deaths, orphans, queues under load."""

    def queues() -> dict[str, Any]:
        m.stoker("stop", "small")
        m.stoker("start", "small", "--profile", "small-seqs", "--wait")
        port = m.unit("small")["port"]
        askers = [
            threading.Thread(target=lambda: complete(port, "s", 3000, 300), daemon=True)
            for _ in range(64)
        ]
        for asker in askers:
            asker.start()
        seen: list[tuple[int | None, int | None]] = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            row = m.unit("small")
            seen.append((row["running"], row["waiting"]))
            if row["running"] == 4 and (row["waiting"] or 0) >= 50:
                break
            time.sleep(0.5)
        m.screens("small", "Q", "g", "h")
        return {"ok": any(r == 4 and (w or 0) >= 50 for r, w in seen), "seen": seen[-5:]}

    def daemon_dies() -> dict[str, Any]:
        m.stoker("stop", "small")
        m.stoker("start", "small", "--profile", "small", "--wait")
        gpu = 1 if gpus > 1 else 0
        before = m.smi()[gpu]
        os.kill(holder(m, gpu, "weights").pid, signal.SIGKILL)
        time.sleep(4)
        after, view = m.smi()[gpu], m.snapshot()
        text = complete(m.unit("small")["port"], "s", 4)
        engine = [h for h in view.gpus[gpu].holders if h.unit == "small"]
        moved = engine and engine[0].bytes / 2**20 - before.get(engine[0].pid, 0) > 500
        return {
            "ok": bool(moved and text),
            "before": before,
            "after": after,
            "alerts": [a.text for a in view.alerts],
        }

    def api_dies() -> dict[str, Any]:
        run = m.work / "state" / "stoker" / "units" / "small"
        m.stoker("stop", "small")
        m.stoker("start", "small", "--wait")
        row = m.unit("small")
        import json

        number = row["run"].split("/")[1]
        shim = json.loads((run / "runs" / number / "identity.json").read_text())["shim"]["pid"]
        os.kill(shim, signal.SIGKILL)
        os.kill(row["pid"], signal.SIGKILL)
        time.sleep(1)
        view = m.snapshot()
        orphans = [h for g in view.gpus for h in g.holders if h.role == "orphan"]
        m.screens("small", "g")
        reaped = m.stoker("reap", "--yes", ok=False)
        time.sleep(1)
        left = [h for g in m.snapshot().gpus for h in g.holders if h.role == "orphan"]
        return {
            "ok": bool(orphans) and not left,
            "orphans": [(h.pid, h.bytes) for h in orphans],
            "reaped": reaped,
        }

    def core_dies() -> dict[str, Any]:
        m.profile("small-again", extends="small", restart={"policy": "on-failure", "backoff_s": 1})
        m.stoker("preload", "start", "small", "--wait", ok=False)
        m.stoker("start", "small", "--profile", "small-again", "--wait")
        gpu = 1 if gpus > 1 else 0
        first = m.unit("small")["run"]
        os.kill(holder(m, gpu, "engine", "small").pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            row = m.unit("small")
            if row["run"] != first and row["phase"] == "ready":
                break
            time.sleep(1)
        card = m.stoker("why", "small", "--run", first, ok=False)
        return {
            "ok": row["phase"] == "ready" and row["verdict"] == "mapped" and row["run"] != first,
            "card": card.get("category") if isinstance(card, dict) else card,
            "row": {k: row[k] for k in ("phase", "verdict", "run", "start_s")},
        }

    m.check("6 queues under 64 requests", queues)
    m.check("5 daemon dies under a serving engine", daemon_dies)
    m.check("5 orphan found and reaped", api_dies)
    m.check("8 EngineCore killed, restarted with mapped weights", core_dies)


def part_tune(m: Machine, gpus: int) -> None:
    """Check 7: a sweep of ten points with short benches."""

    def sweep() -> dict[str, Any]:
        if m.unit("small").get("phase") != "ready":
            m.stoker("start", "small", "--profile", "small", "--wait")
        done = m.stoker(
            *("sweep", "small", "--set", "max_num_seqs=8,16,32,64,128"),
            *("--set", "max_num_batched_tokens=2048,8192", "--requests", "32"),
            *("--goal", "throughput where ttft_p95<2000ms"),
            timeout=540,
            ok=False,
        )
        points = done.get("points", [])
        good = [p for p in points if p.get("state") in ("done", "measured", "ok")]
        return {"ok": len(good) >= 10, "points": points, "best": done.get("best")}

    m.check("7 ten-point sweep", sweep)
    m.screens("small", "t")


def part_two(m: Machine, gpus: int) -> None:
    """Checks 9 and 10: tensor parallel 2, and two units swapped at the same time."""
    tp = {"max_model_len": LEN, "tensor_parallel_size": 2, "enforce_eager": True}
    tp["gpu_memory_utilization"] = 0.5
    m.profile("tp2", model=m.small, served_name=["s"], gpus=[0, 1], args=tp, preload={})
    plain = {"max_model_len": LEN, "enforce_eager": True, "gpu_memory_utilization": 0.3}
    for gpu in (0, 1):
        m.profile(f"solo-{gpu}", model=m.small, served_name=["s"], gpus=[gpu], args=plain)
        m.profile(f"solo-{gpu}b", extends=f"solo-{gpu}", args={"max_num_seqs": 16})

    def pair() -> dict[str, Any]:
        for unit in ("big", "small"):
            m.stoker("stop", unit, ok=False)
            m.stoker("preload", "stop", unit, "--yes", ok=False)
        done = m.stoker("start", "tp2", "--wait", timeout=400)["units"][0]
        row = m.unit("tp2")
        ranks = [d for d in m.stoker("weights")["daemons"] if d["unit"] == "tp2-weights"]
        sockets = {d["socket"] for d in ranks}
        m.screens("tp2", "w", "g")
        return {
            "ok": row["verdict"] == "mapped" and len(sockets) == 2,
            "verdict": row["verdict"],
            "start_s": done["start_s"],
            "sockets": len(sockets),
        }

    def partial() -> dict[str, Any]:
        os.kill(holder(m, 1, "weights").pid, signal.SIGKILL)
        time.sleep(3)
        text = complete(m.unit("tp2")["port"], "s", 4)
        states = [d["socket_state"] for d in m.stoker("weights")["daemons"]]
        expected = m.stoker("forecast", "tp2")
        m.screens("tp2", "w")
        return {
            "ok": bool(text) and expected["verdict"] == "fallback",
            "states": states,
            "forecast": [expected["verdict"], [r["category"] for r in expected["reasons"]]],
            "lines": [r["line"] for r in expected["reasons"]],
        }

    def both() -> dict[str, Any]:
        m.stoker("stop", "tp2")
        m.stoker("preload", "stop", "tp2", "--yes", ok=False)
        for gpu in (0, 1):
            m.stoker("start", f"solo-{gpu}", "--wait")
        results: dict[int, Any] = {}

        def swap(gpu: int) -> None:
            results[gpu] = m.stoker("swap", f"solo-{gpu}", f"solo-{gpu}b", ok=False)

        threads = [threading.Thread(target=swap, args=(gpu,)) for gpu in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = [m.unit(f"solo-{gpu}") for gpu in (0, 1)]
        texts = [complete(row["port"], "s", 2) for row in rows]
        for gpu in (0, 1):
            m.stoker("stop", f"solo-{gpu}")
        return {
            "ok": all(r.get("outcome") == "committed" for r in results.values())
            and len(texts) == 2,
            "seconds": [r.get("seconds") for r in results.values()],
        }

    m.check("9 tensor parallel 2 mapped on both ranks", pair)
    m.check("9 one daemon killed", partial)
    m.check("10 two units swapped at once", both)


PARTS = {
    "base": part_base,
    "table": part_table,
    "ratios": part_ratios,
    "endurance": part_endurance,
    "failures": part_failures,
    "tune": part_tune,
    "two": part_two,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--python", required=True)
    parser.add_argument("--big", required=True)
    parser.add_argument("--small", required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/stoker-acceptance"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    m = Machine(given.work, given.out, given.python, given.big, given.small)
    profiles(m, given.gpus)
    try:
        for part in given.parts:
            m.note("part", name=part)
            PARTS[part](m, given.gpus)
    finally:
        m.archive("-".join(given.parts))
    return 1 if m.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
