"""A trainer that calls no agent loop, as verl before 0.7 does by default, says that nothing will be recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_default_mode_and_async(version: str, program: Callable[..., Any], tmp_path: Path) -> None:
    """One line where the mode is `sync`, none where agent loops run; the trainer goes on as it would have."""
    explicit, default = program(version, tmp_path, "start_trainer")

    assert default["mode"] == ("sync" if version < "0.7" else "async")
    assert ["nothing will be recorded" in line for line in default["said"]] == [True] * (version < "0.7")
    assert explicit["said"] == []
    # both get as far as to what a trainer without a constructor lacks
    assert explicit["raised"] == default["raised"] == "AttributeError"
