"""Checks 5, 6 and 8: the ledger, deaths, orphans, queues under load."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from typing import Any

from tests.gpu.machine import Machine, complete


def ledger(m: Machine, strangers: bool = False) -> dict[str, Any]:
    """The ledger's figures against nvidia-smi's, for every process of every GPU. `strangers`: what
    Stoker did not start is expected."""
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
        ok = ok and (strangers or not any(h.role == "other" for h in gpu.holders))
    return {"ok": ok, "rows": rows}


def holder(m: Machine, gpu: int, role: str, unit: str | None = None) -> Any:
    """The process that holds memory of a GPU in that role (of that unit)."""
    found = m.snapshot().gpus[gpu].holders
    return next(h for h in found if h.role == role and unit in (None, h.unit))


def part_failures(m: Machine, gpus: int) -> None:
    """Checks 5, 6 and 8: deaths, orphans, queues under load."""

    def queues() -> dict[str, Any]:
        m.stoker("stop", "small")
        m.stoker("start", "small", "--profile", "small-seqs", "--wait")
        port = m.unit("small")["port"]

        def ask() -> None:
            # Ends with the engine, which is stopped while it answers.
            with contextlib.suppress(OSError, http.client.HTTPException):
                complete(port, "s", 3000, 300)

        askers = [threading.Thread(target=ask, daemon=True) for _ in range(64)]
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

    def room() -> dict[str, Any]:
        """The daemon is gone and the engine goes on: a restart makes a new one beside it."""
        expected = m.stoker("forecast", "small", "small")
        began = time.monotonic()
        m.stoker("restart", "small", "--wait")
        took = time.monotonic() - began
        row = m.unit("small")
        note = expected["weights_note"]
        return {
            "ok": expected["verdict"] == row["verdict"] == "mapped"
            and note.startswith("a daemon is loaded first"),
            "forecast": [expected["verdict"], note],
            "verdict": row["verdict"],
            "s": round(took, 1),
        }

    def no_room() -> dict[str, Any]:
        """The engine leaves less than a daemon needs: said with figures, then from disk."""
        m.stoker("swap", "small", "small-full")
        m.stoker("preload", "stop", "small", "--yes")
        time.sleep(2)
        used = m.used()
        expected = m.stoker("forecast", "small", "small-full")
        said = m.stoker("restart", "small", "--wait", ok=False)
        row = m.unit("small")
        return {
            "ok": expected["verdict"] == row["verdict"] == "fallback",
            "used_mib": used,
            "forecast": [expected["verdict"], expected["weights_note"]],
            "forecast_lines": [r["line"] for r in expected["reasons"]],
            "verdict": [row["verdict"], [r["line"] for r in row["reasons"]]],
            "said": said,
        }

    def api_dies() -> dict[str, Any]:
        m.stoker("stop", "small")
        m.stoker("start", "small", "--profile", "small", "--wait")
        row = m.unit("small")
        shim = json.loads((m.run(row["run"]) / "identity.json").read_text())["shim"]["pid"]
        os.kill(shim, signal.SIGKILL)
        os.kill(row["pid"], signal.SIGKILL)
        time.sleep(1)
        view = m.snapshot()
        seen = ledger(m)
        orphans = [h for g in view.gpus for h in g.holders if h.role == "orphan"]
        m.screens("small", "g")
        reaped = m.stoker("reap", "--yes", ok=False)
        time.sleep(1)
        left = [h for g in m.snapshot().gpus for h in g.holders if h.role == "orphan"]
        return {
            "ok": bool(orphans) and not left and seen["ok"],
            "ledger": seen["rows"],
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
        began = time.monotonic()
        deadline = began + 120
        while time.monotonic() < deadline:
            row = m.unit("small")
            if row["run"] != first and row["phase"] == "ready":
                break
            time.sleep(0.5)
        took = time.monotonic() - began
        card = m.stoker("why", "small", "--run", first, ok=False)
        memory = json.loads((m.run(first) / "memory.json").read_text())
        m.screens("small", "e")
        return {
            "ok": row["phase"] == "ready"
            and row["verdict"] == "mapped"
            and row["run"] != first
            and bool(memory.get("gpus")),
            "killed_to_ready_s": round(took, 1),
            "via": json.loads((m.run(row["run"]) / "spec.json").read_text())["via"],
            "memory": memory,
            "card": card.get("category") if isinstance(card, dict) else card,
            "row": {k: row[k] for k in ("phase", "verdict", "run", "start_s")},
        }

    def sleeps() -> dict[str, Any]:
        gpu = 1 if gpus > 1 else 0
        m.stoker("stop", "small")
        m.stoker("start", "small", "--profile", "small-sleep", "--wait")
        port = m.unit("small")["port"]
        awake = m.used()[gpu]
        said = [m.stoker("live", "small", "sleep")]
        asleep = m.used()[gpu]
        said.append(m.stoker("live", "small", "wake"))
        said_after = complete(port, "s", 4)
        return {
            "ok": asleep < awake / 2 and said_after.startswith("4 tokens"),
            "used_mib": [awake, asleep, m.used()[gpu]],
            "said": said,
        }

    m.check("6 queues under 64 requests", queues)
    m.check("5 daemon dies under a serving engine", daemon_dies)
    m.check("5 a daemon made beside the running engine", room)
    m.check("5 no room for a daemon beside the engine", no_room)
    m.check("5 orphan found and reaped", api_dies)
    m.check("8 EngineCore killed, restarted with mapped weights", core_dies)
    m.check("sleep and wake", sleeps)
