"""What the installed vLLM makes of a profile, asked of vLLM itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.local_files import files_problem
from engine_ctl.operations.planning import DEFAULT_PORT, Endpoint, engine_spec
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.client import Check
from engine_ctl.standby.lifecycle import Wanted
from engine_ctl.supervise import exec_limits


@dataclass(frozen=True, slots=True)
class Checked:
    """vLLM's answer, the version that gave it, and what a start would miss on this machine."""

    answer: Check
    version: str
    missing: str | None = None

    @property
    def refused(self) -> tuple[str, ...]:
        error = self.answer.error
        return (error.line,) if error is not None and not self.answer.ok else ()

    @property
    def errors(self) -> tuple[str, ...]:
        return (*self.refused, *((self.missing,) if self.missing else ()))

    def document(self) -> dict[str, Any]:
        """`{"ok", "version", "errors", "warnings", "effective", "non_default", …}`."""
        plain: dict[str, Any] = msgspec.to_builtins(self.answer)
        return {**plain, "version": self.version, "errors": list(self.errors)}

    def text(self) -> str:
        accepts = "accepts it, but its start would fail:" if self.missing else "accepts it:"
        lines = [f"vLLM {self.version} " + ("refuses it:" if self.refused else accepts)]
        lines += [f"  {error}" for error in self.errors]
        shown = {k: v for k, v in self.answer.effective.items() if v is not None}
        width = max((len(key) for key in shown), default=0)
        lines += [f"  {key:{width}}  {value}" for key, value in shown.items()]
        lines += [f"  note: {warning}" for warning in self.answer.warnings]
        return "\n".join(lines)


def check(ctx: Context, name: str) -> Checked:
    """Parse and configure the profile with its runtime's own vLLM: 0.1 s with a standby, 10 s
    without. Raises Failed when nobody could be asked."""
    resolved = ctx.profiles.load(name)
    runtime = usable_runtime(ctx, resolved)
    profile = ctx.concrete(resolved.profile)
    endpoint = Endpoint(profile.host, profile.port or DEFAULT_PORT)
    spec = engine_spec("check", profile, runtime, ctx.schema_for(runtime), endpoint, ctx.by)
    answer = standbys.check(ctx.store, Wanted.of(runtime, spec), spec.argv)
    too_long = exec_limits.problem(spec.argv, {**os.environ, **spec.env})
    return Checked(answer, runtime.version, files_problem(resolved.profile) or too_long)
