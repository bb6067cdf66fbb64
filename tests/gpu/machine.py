"""What the acceptance parts share: `stoker` as a command, checks as lines of JSON, evidence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
LEN = 8192


class Machine:
    """The GPU machine: directories of this acceptance, the runtime's interpreter, two models."""

    def __init__(self, work: Path, out: Path, python: str, big: str, small: str) -> None:
        self.work, self.out, self.python = work, out, python
        self.big, self.small = big, small
        out.mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(work / "state"),
            "XDG_DATA_HOME": str(work / "data"),
            "XDG_CONFIG_HOME": str(work / "config"),
            "XDG_CACHE_HOME": str(work / "cache"),
        }
        os.environ.update(self.env)
        (work / "config" / "stoker" / "profiles").mkdir(parents=True, exist_ok=True)
        self.failed = 0

    def stoker(self, *words: str, ok: bool = True, timeout: float = 300.0) -> Any:
        """Run a command with --json; its document, or the error line when it failed."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "console.main", *words, "--json"],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        self.note("command", words=words, rc=done.returncode, s=time.monotonic() - began)
        if done.returncode and ok:
            raise RuntimeError(f"stoker {' '.join(words)}: {done.stderr.strip()[-500:]}")
        if done.returncode and not done.stdout.strip():
            return {"error": done.stderr.strip(), "rc": done.returncode}
        return json.loads(done.stdout)

    def profile(self, name: str, **data: Any) -> str:
        path = self.work / "config" / "stoker" / "profiles" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data))
        return name

    def unit(self, name: str) -> dict[str, Any]:
        rows = self.stoker("ps")["units"]
        return next((row for row in rows if row["unit"] == name), {})

    def run(self, named: str) -> Path:
        """The directory of a run by its name, `UNIT/NUMBER`."""
        unit, number = named.split("/")
        return self.work / "state" / "stoker" / "units" / unit / "runs" / number

    def note(self, what: str, **data: Any) -> None:
        """One line of evidence."""
        line = json.dumps({"t": round(time.time(), 2), "what": what, **data}, default=str)
        with (self.out / "notes.jsonl").open("a") as file:
            file.write(line + "\n")

    def check(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """One check: `run` returns its data with `ok`; an exception is a failed check."""
        began = time.monotonic()
        try:
            data = run()
        except Exception as error:
            data = {"ok": False, "error": f"{type(error).__name__}: {error}"[:600]}
            self.note("trace", check=name, text=traceback.format_exc()[-3000:])
        self.failed += not data.get("ok")
        line = json.dumps({"check": name, "s": round(time.monotonic() - began, 2), **data})
        print(line, flush=True)
        with (self.out / "checks.jsonl").open("a") as file:
            file.write(line + "\n")

    def smi(self) -> dict[int, dict[int, int]]:
        """MiB by pid by GPU index, as nvidia-smi says."""
        gpus = _smi("--query-gpu=index,uuid")
        index = {uuid: int(number) for number, uuid in gpus}
        found: dict[int, dict[int, int]] = {number: {} for number in index.values()}
        for uuid, pid, used in _smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
            found[index[uuid]][int(pid)] = int(used.split()[0])
        return found

    def used(self) -> list[int]:
        """MiB in use by GPU."""
        return [int(used.split()[0]) for (used,) in _smi("--query-gpu=memory.used")]

    def snapshot(self) -> Any:
        """One look of the sampler, GPUs included."""
        from engine_ctl.observe.sampler import Sampler
        from engine_ctl.paths import Dirs

        return Sampler(Dirs.from_env(self.env)).sample_once()

    def screens(self, unit: str, *keys: str, size: tuple[int, int] = (140, 42)) -> None:
        """The console on this machine, driven by Pilot; one SVG for the deck and each key."""
        import asyncio

        from console.app import StokerApp
        from console.wiring import ConsoleOperations, LazyFeed

        async def drive() -> None:
            app = StokerApp(ConsoleOperations(), LazyFeed(), select=unit)
            async with app.run_test(size=size) as pilot:
                await pilot.pause(3.5)
                self._save(app, unit, "deck")
                for key in keys:
                    await pilot.press(key)
                    await pilot.pause(1.5)
                    self._save(app, unit, key)
                    await pilot.press("escape")
                    await pilot.pause(0.3)

        asyncio.run(drive())

    def _save(self, app: Any, unit: str, name: str) -> None:
        stamp = time.strftime("%H%M%S")
        (self.out / f"screen-{stamp}-{unit}-{name}.svg").write_text(app.export_screenshot())

    def archive(self, name: str) -> None:
        """Run directories, logs, events and this part's lines in one file."""
        with tarfile.open(self.out / f"{name}.tar.gz", "w:gz") as archive:
            state = self.work / "state" / "stoker"
            for path in sorted(state.rglob("*")):
                if path.is_file() and path.suffix != ".sock" and path.stat().st_size < 4 << 20:
                    archive.add(path, f"state/{path.relative_to(state)}")
            for path in sorted((self.work / "hand").glob("*.log")):
                archive.add(path, f"hand/{path.name}")
            for path in sorted(self.out.glob("*.jsonl")) + sorted(self.out.glob("*.svg")):
                archive.add(path, path.name)
        for path in self.out.glob("*.svg"):
            path.unlink()


def _smi(query: str) -> list[list[str]]:
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]


def complete(port: int, model: str, tokens: int = 1, timeout: float = 60.0) -> str:
    body = {"model": model, "prompt": "the quick", "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        answer = json.load(reply)
    # Random weights may say half a character, which is no text: the tokens are what counts.
    return f"{answer['usage']['completion_tokens']} tokens: {answer['choices'][0]['text']!r}"


def first_token(
    port: int, model: str, limit: float = 180.0, alive: Callable[[], bool] = lambda: True
) -> float:
    """Seconds from now until a completion comes back."""
    began = time.monotonic()
    while time.monotonic() - began < limit and alive():
        try:
            complete(port, model, timeout=30)
            return time.monotonic() - began
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing on port {port} after {time.monotonic() - began:.0f} s")
