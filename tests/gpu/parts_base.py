"""Checks 1 and 2: the runtime, daemons, mapped starts, forecast against verdict."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from tests.gpu.machine import Machine
from tests.gpu.parts_failures import ledger


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
    for size in ((80, 24), (200, 60)):
        m.screens("big", size=size)


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
        deadline = time.monotonic() + 90
        while m.unit("small-weights").get("phase") != "ready" and time.monotonic() < deadline:
            time.sleep(1)
        note = expected["weights_note"]
        ok = expected["verdict"] == "mapped" and note.startswith("the daemon that loads")
        return {"ok": ok, "forecast": [expected["verdict"], note]}

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
        note = expected["weights_note"]
        ok = expected["verdict"] == "mapped" and note.startswith("a daemon is loaded first")
        return {"ok": ok, "forecast": [expected["verdict"], note]}

    m.check("2 no daemon: one is made first", without)
    m.check("2 daemon not ready: it is waited for", not_ready)
    m.check("2 mapped again", lambda: started(m, "small"))


def started(m: Machine, unit: str) -> dict[str, Any]:
    done = m.stoker("start", unit, "--wait")["units"][0]
    row = m.unit(unit)
    return {"ok": row["verdict"] == "mapped", "verdict": row["verdict"], "start_s": done["start_s"]}
