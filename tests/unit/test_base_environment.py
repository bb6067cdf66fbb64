"""The environment of a run, as a shim that takes the place of a killed one gets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_ctl.supervise import base_environment


@pytest.mark.parametrize("kept", [[1], "VLLM_X=1", 3, None])
def test_a_damaged_note_of_the_environment_changes_nothing(tmp_path: Path, kept: object) -> None:
    note = {"schema": 1, "environment": kept}
    (tmp_path / base_environment.NAME).write_text(json.dumps(note))
    here = {"VLLM_LOGGING_LEVEL": "DEBUG", "LANG": "C"}
    assert base_environment.restored(str(tmp_path), here) == here
