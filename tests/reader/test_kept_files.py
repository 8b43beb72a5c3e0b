"""Where the cache is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_trace.reader.kept_files import cache_folder, kept_file, store


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without settings, in an empty folder."""
    for name in ("VERL_TRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_it_is_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative XDG_CACHE_HOME counts as none."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for base in (None, "", "cache"):
        if base is not None:
            monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert cache_folder("x") == tmp_path / "home/.cache/verl-trace/x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert cache_folder("x") == tmp_path / "c/verl-trace/x"
    monkeypatch.setenv("VERL_TRACE_CACHE", "mine")
    assert cache_folder("x") == Path("mine/x")


def test_nothing_is_kept_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container's user of whom the system knows nothing: `~` stays `~`, and is no folder to be made here."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    run = tmp_path / "a.jsonl.zst"
    run.write_bytes(b"x")
    file = kept_file(run, cache_folder("x"), "1")
    assert file is not None
    store(file, b"data")

    assert os.listdir(tmp_path) == ["a.jsonl.zst"]
