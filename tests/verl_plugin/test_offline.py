"""W&B offline or not, and the folder of the span files: decided as people expect from the variables they set."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_trace.verl_plugin.folder import span_folder
from verl_trace.verl_plugin.offline import decide


def settings(folder: Path, mode: str) -> None:
    """A settings file as `wandb offline` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings").write_text(f"[default]\nmode = {mode}\n")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"WANDB_MODE": "offline"}, True),
        ({"WANDB_MODE": "dryrun"}, True),
        ({"WANDB_MODE": "OFFLINE"}, True),
        ({"WANDB_MODE": "online"}, False),
        ({"WANDB_MODE": "disabled"}, False),
        ({"WANDB_MODE": ""}, False),
        ({"VERL_TRACE_OFFLINE": "1"}, True),
        ({"VERL_TRACE_OFFLINE": "true", "WANDB_MODE": "online"}, True),
        ({"VERL_TRACE_OFFLINE": "0", "WANDB_MODE": "offline"}, False),
    ],
)
def test_variables_decide(tmp_path: Path, variables: dict[str, str], expected: bool) -> None:
    """Our variable goes before W&B's; a value that is empty says nothing."""
    assert decide({"WANDB_CONFIG_DIR": str(tmp_path), **variables}, tmp_path).offline is expected


@pytest.mark.parametrize(
    ("workspace", "user", "expected"),
    [("offline", None, True), (None, "offline", True), ("online", "offline", False), ("offline", "online", True)],
)
def test_settings_files_decide(tmp_path: Path, workspace: str | None, user: str | None, expected: bool) -> None:
    """`mode` in the program's settings file goes before the user's."""
    if workspace is not None:
        settings(tmp_path / "wandb", workspace)
    if user is not None:
        settings(tmp_path / "config", user)

    assert decide({"WANDB_CONFIG_DIR": str(tmp_path / "config")}, tmp_path).offline is expected


def test_user_file_is_found_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without WANDB_CONFIG_DIR the user's file is ~/.config/wandb/settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    settings(tmp_path / ".config/wandb", "offline")

    assert decide({}, tmp_path).offline
    assert str(tmp_path) in decide({}, tmp_path).because


def test_variable_goes_before_files(tmp_path: Path) -> None:
    """WANDB_MODE=online is the word of this run, whatever `wandb offline` wrote once."""
    settings(tmp_path / "wandb", "offline")

    assert not decide({"WANDB_MODE": "online", "WANDB_CONFIG_DIR": str(tmp_path)}, tmp_path).offline


@pytest.mark.parametrize(
    "content", [b"mode = offline\n", b"\xff\xfe\x00", b"[default\nmode", b"[other]\nmode = offline\n"]
)
def test_unreadable_settings_say_nothing(tmp_path: Path, content: bytes) -> None:
    """A damaged settings file is passed over, as W&B passes over it."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/settings").write_bytes(content)

    assert not decide({"WANDB_CONFIG_DIR": str(tmp_path)}, tmp_path).offline


def test_default_folder_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VERL_TRACE_DIR it is `runs` where the program runs, as an absolute path."""
    monkeypatch.chdir(tmp_path)

    assert span_folder({}) == tmp_path / "runs"
    assert span_folder({"VERL_TRACE_DIR": "spans"}) == tmp_path / "spans"


def test_default_folder_leaves_rays_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose current folder Ray will delete records in the home folder; a folder that was named stays as named."""
    inside = tmp_path / "ray/session_2026-11-29_16-11-00_123456_4711/runtime_resources/working_dir_files/_ray_pkg_1"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert span_folder({}) == tmp_path / "home/runs"
    assert span_folder({"VERL_TRACE_DIR": "here"}) == inside / "here"
