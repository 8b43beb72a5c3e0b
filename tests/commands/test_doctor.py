"""`verl-trace doctor` says what would keep an environment from recording, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_trace.commands import checks_upload

SCRIPT = Path(sys.executable).with_name("verl-trace")


def doctor(folder: Path, *options: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings, by check, of a doctor that would record below `folder`."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("VERL_", "WANDB_", "WF_", "SLURM", "RAY_"))}
    environment = clean | {"VERL_TRACE_DIR": str(folder)} | variables
    words = [SCRIPT, "doctor", "--json", *(options or ["--no-upload"])]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {finding["check"]: finding for finding in report["checks"]}


def test_healthy_environment_passes(tmp_path: Path) -> None:
    """A folder that can be written and no switch set: exit code 0, no failure."""
    code, findings = doctor(tmp_path / "runs", VERL_TRACE_MIN_FREE="0")

    assert [finding for finding in findings.values() if finding["state"] == "fail"] == []
    assert code == 0
    assert str(tmp_path / "runs") in findings["folder"]["message"]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Folder and file that the check made are gone afterwards; a folder that was there stays."""
    doctor(tmp_path / "a" / "b")

    assert list(tmp_path.iterdir()) == []


def test_switched_off_is_a_failure(tmp_path: Path) -> None:
    """VERL_TRACE_DISABLED keeps everything from being recorded: the doctor names it and exits with 1."""
    code, findings = doctor(tmp_path, VERL_TRACE_DISABLED="1")

    assert code == 1
    assert findings["switch"]["state"] == "fail"
    assert findings["switch"]["remedy"] == "unset VERL_TRACE_DISABLED"


def test_unreadable_setting_is_a_failure(tmp_path: Path) -> None:
    """A value that the recorder would pass over is named with its variable."""
    code, findings = doctor(tmp_path, VERL_TRACE_MAX_BYTES="plenty")

    assert code == 1
    assert "VERL_TRACE_MAX_BYTES" in findings["settings"]["message"]


def test_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    """A folder below a file can't be made: the doctor says where and proposes VERL_TRACE_DIR."""
    (tmp_path / "file").write_text("")
    code, findings = doctor(tmp_path / "file" / "runs")

    assert code == 1
    assert findings["folder"]["state"] == "fail"
    assert str(tmp_path / "file" / "runs") in findings["folder"]["message"]
    assert "VERL_TRACE_DIR" in findings["folder"]["remedy"]


def test_folder_that_the_system_cannot_name_is_a_failure(tmp_path: Path) -> None:
    """A name that is too long is a finding like any other, also for the check of free space."""
    code, findings = doctor(tmp_path / ("x" * 300) / "runs")

    assert code == 1
    assert "too long" in findings["folder"]["message"]
    assert str(tmp_path) in findings["space"]["message"]


def test_full_disk_is_a_failure(tmp_path: Path) -> None:
    """Less free space than the recorder leaves to others means that nothing is recorded."""
    code, findings = doctor(tmp_path, VERL_TRACE_MIN_FREE="900T")

    assert code == 1
    assert findings["space"]["state"] == "fail"


def test_missing_extra_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU node without weave is healthy; the finding says what to install where one uploads."""
    monkeypatch.setattr(checks_upload, "UPLOAD_MODULES", ("weave", "surely_not_installed"))
    finding = checks_upload.check_extra()

    assert finding.state == "warn"
    assert "surely_not_installed" in finding.message
    assert "verl-trace[upload]" in finding.remedy


def test_every_failure_has_a_remedy(tmp_path: Path) -> None:
    """Whatever is wrong, the line below says what to do; without --json too."""
    environment = os.environ | {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_DISABLED": "1", "VERL_TRACE_FSYNC": "x"}
    done = subprocess.run(
        [SCRIPT, "doctor", "--no-upload"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stdout.splitlines()
    failures = [number for number, line in enumerate(lines) if line.startswith("fail")]

    assert done.returncode == 1
    assert len(failures) >= 2
    assert all("→" in lines[number + 1] for number in failures)


def fake_verl(folder: Path, init: str) -> str:
    """PYTHONPATH with a package `verl` whose `__init__.py` is `init`: the doctor reads it and never runs it."""
    (folder / "verl").mkdir(parents=True)
    (folder / "verl" / "__init__.py").write_text(f"raise SystemExit('imported')\n{init}\n")
    return str(folder)


def test_verl_with_entry_points_is_found(tmp_path: Path) -> None:
    """A verl of 0.9 loads the plugin by itself."""
    path = fake_verl(tmp_path / "lib", 'entry_points(group="verl.plugins"); os.getenv("VERL_USE_EXTERNAL_MODULES")')
    code, findings = doctor(tmp_path, PYTHONPATH=path, VERL_TRACE_MIN_FREE="0")

    assert code == 0
    assert findings["verl"]["state"] == "ok"


def test_verl_without_entry_points_needs_the_variable(tmp_path: Path) -> None:
    """An older verl loads the plugin only when told to; the remedy is the variable's value, and it cures."""
    path = fake_verl(tmp_path / "lib", 'os.getenv("VERL_USE_EXTERNAL_MODULES", "")')
    code, findings = doctor(tmp_path, PYTHONPATH=path)

    assert code == 1
    assert "VERL_USE_EXTERNAL_MODULES=verl_trace.verl_plugin" in findings["verl"]["remedy"]

    code, findings = doctor(
        tmp_path, PYTHONPATH=path, VERL_USE_EXTERNAL_MODULES="verl_trace.verl_plugin", VERL_TRACE_MIN_FREE="0"
    )
    assert code == 0
    assert findings["verl"]["state"] == "ok"


def test_plugins_switched_off_is_a_failure(tmp_path: Path) -> None:
    """VERL_USE_EXTERNAL_PLUGINS=none keeps a new verl from loading anything."""
    path = fake_verl(tmp_path / "lib", 'entry_points(group="verl.plugins")')
    code, findings = doctor(tmp_path, PYTHONPATH=path, VERL_USE_EXTERNAL_PLUGINS="none")

    assert code == 1
    assert "VERL_USE_EXTERNAL_PLUGINS" in findings["verl"]["remedy"]


@pytest.mark.parametrize(("mode", "words"), [("offline", "so does weave"), ("online", "verl's own")])
def test_offline_decision_is_told(tmp_path: Path, mode: str, words: str) -> None:
    """Whether `trace.backend=weave` records follows W&B's mode, and the doctor says which."""
    _, findings = doctor(tmp_path, WANDB_MODE=mode)

    assert words in findings["backend"]["message"]
    assert f"WANDB_MODE={mode}" in findings["backend"]["message"]


def test_no_credential_is_shown(tmp_path: Path, free_port: int) -> None:
    """Reports are pasted into tickets: keys and passwords are left out, in addresses too, and of `upload`'s errors."""
    key = "0123456789abcdef0123456789abcdef01234567"
    host = f"http://user:passw0rd@127.0.0.1:{free_port}"
    variables = {
        "WANDB_API_KEY": key, "WANDB_BASE_URL": host, "WF_TRACE_SERVER_URL": f"{host}/?api_key=s3cr3t",
        "VERL_TRACE_COLLECT": "s3://AKIA1234:s3cr3t@bucket/runs", "VERL_TRACE_TOKENIZER": key, "HOME": str(tmp_path),
    }  # fmt: skip
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("VERL_", "WANDB_", "WF_"))} | variables
    said = ""
    (tmp_path / "run").mkdir()
    for words in (["doctor", "--upload"], ["doctor", "--upload", "--json"], ["upload", str(tmp_path / "run")]):
        done = subprocess.run(
            [SCRIPT, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode != 0
        said += done.stdout + done.stderr

    assert f"http://***@127.0.0.1:{free_port}" in said
    assert "s3://***@bucket/runs" in said
    assert not any(secret in said for secret in (key, "passw0rd", "s3cr3t", "AKIA1234"))


def test_a_setting_that_is_no_text(tmp_path: Path) -> None:
    """The report is JSON all the same."""
    _, findings = doctor(tmp_path / os.fsdecode(b"runs\xff"))

    assert findings["folder"]["state"] == "ok"
    assert "\\udcff" in findings["folder"]["message"]
