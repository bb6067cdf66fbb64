"""The root causes as data: one table per field, tried in this order."""

from __future__ import annotations

from engine_ctl.logs.rules import arguments, engine, memory, models, platform, weights
from engine_ctl.logs.rules.base import Context, Rule
from engine_ctl.logs.rules.notices import NOTICES, Notice

RULES: tuple[Rule, ...] = (
    *arguments.FIRST,
    *weights.RULES,
    *memory.RULES,
    *platform.RULES,
    *models.RULES,
    *engine.RULES,
    *arguments.RULES,
)
CONSEQUENCES: tuple[Rule, ...] = engine.CONSEQUENCES

__all__ = ["CONSEQUENCES", "NOTICES", "RULES", "Context", "Notice", "Rule"]
