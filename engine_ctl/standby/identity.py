"""Which standby is good for which start: what was read when vLLM was imported must be the same."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import engine_ctl.inside
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby.environment import MARK

# May differ from start to start: read when CUDA is initialised, which a standby never does, when a
# compiler is looked for, or a socket bound. Keep in step with `LATE` of inside/standby_become.py.
LATE = frozenset({"CUDA_VISIBLE_DEVICES", "PATH", "VLLM_RPC_BASE_PATH"})


def installed(runtime: Runtime) -> list[object]:
    """What changes when pip touches the runtime: files by time and size, not directories, whose
    time also changes when bytecode is cached."""
    package = Path(runtime.package) if runtime.package else None
    files = [] if package is None else [package / name for name in ("__init__.py", "version.py")]
    facts: list[object] = [runtime.python]
    for path in (Path(runtime.python), *files):
        try:
            info = path.stat()
        except OSError:
            facts.append(None)
        else:
            facts.append((info.st_mtime_ns, info.st_size))
    return facts


@functools.cache
def scripts() -> str:
    """A hash of the scripts that a standby runs: one of another Stoker answers otherwise."""
    found = hashlib.sha256()
    for path in sorted(Path(engine_ctl.inside.__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def standby_identity(runtime: Runtime, env: Mapping[str, str]) -> str:
    """A short hash of the runtime as it is installed now and of `env`, all that is set for the
    engine (environment.relevant). Two starts with the same one can come from the same standby."""
    counted = {
        name: value for name, value in env.items() if name not in LATE and not name.startswith(MARK)
    }
    facts = [runtime.name, runtime.version, installed(runtime), scripts(), sorted(counted.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]
