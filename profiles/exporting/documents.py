"""YAML out of plain data, one value a line and without aliases."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(data: Any) -> str:
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000, indent=2
    )


def dump_all(documents: list[Any]) -> str:
    return "---\n".join(dump(document) for document in documents)
