"""`verl-trace doctor` inside of real Ray workers, on a cluster whose own variables say otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.fixture
def doctor(cluster: str, verl_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., Any]:
    """Exit code and findings, by check, of a doctor that attaches to the cluster."""

    def run(**variables: str) -> tuple[int, dict[str, dict[str, str]]]:
        here = {"VERL_TRACE_DIR": str(tmp_path / "runs"), "VERL_TRACE_STEPS": "0::10", "VERL_TRACE_MIN_FREE": "0"}
        environment = verl_environment(RAY_ADDRESS=cluster, **{**here, **variables})
        words = [str(Path(sys.executable).with_name("verl-trace")), "doctor", "--no-upload", "--json"]
        done = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.stdout, done.stderr
        return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)["checks"]}

    return run


def test_workers_see_what_the_driver_says(doctor: Callable[..., Any], tmp_path: Path) -> None:
    """The variables arrive by verl's own runtime environment, verl loads the plugin there, the clocks agree."""
    code, findings = doctor()

    assert (code, findings["ray"]["state"]) == (0, "ok"), findings
    assert "VERL_TRACE_DIR, VERL_TRACE_EXTRA, VERL_TRACE_MIN_FREE" in findings["ray"]["message"]
    assert "as verl's trainer gives them" in findings["ray"]["message"]
    assert f"verl loads the plugin there, records go to {tmp_path / 'runs'}" in findings["worker"]["message"]
    assert findings["ray-clock"]["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_workers_that_the_variables_do_not_reach(doctor: Callable[..., Any], tmp_path: Path) -> None:
    """Without the plugin on the driver nothing is carried: the workers have the cluster's folder, and it is said."""
    code, findings = doctor(VERL_USE_EXTERNAL_PLUGINS="none")

    assert (code, findings["ray"]["state"]) == (1, "fail"), findings["ray"]
    assert f"instead of {tmp_path / 'runs'}" in findings["ray"]["message"]
    assert "no VERL_TRACE_STEPS" in findings["ray"]["message"]
    assert findings["ray"]["remedy"]
