"""Names on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.schemas.files import parse_segment_name, run_folder_name, segment_file_name, writer_id


@pytest.mark.parametrize("name", ["exp1", "qwen2.5-7b_grpo", "_x", "A" * 100])
def test_plain_names_are_kept(name: str) -> None:
    """An experiment name that is a plain file name is the folder's name."""
    assert run_folder_name(name) == name


def test_the_example_of_the_format_page() -> None:
    """docs/format.md promises this very name."""
    assert run_folder_name("a/b") == "a_b-c14cddc0"


@given(st.text(max_size=300))
def test_any_name_makes_one_safe_component(name: str) -> None:
    """No separator, no leading dot or dash, never empty, short enough for any file system."""
    folder = run_folder_name(name)

    assert folder
    assert "/" not in folder
    assert "\0" not in folder
    assert folder[0] not in ".-"
    assert len(folder.encode()) < 200


@given(st.text(max_size=50), st.text(max_size=50))
def test_different_names_have_different_folders(one: str, other: str) -> None:
    """What was made safe carries a hash of the whole name."""
    assert (run_folder_name(one) == run_folder_name(other)) == (one == other)


def test_segment_names_round_trip() -> None:
    """A name says writer, index and state; a temporary file is no segment."""
    writer = writer_id("20261129T161100", "node.example.org", 4711, "9f3c2b7a1d04")
    assert writer == "20261129T161100-node-example-org-4711-9f3c2b7a1d04"

    for sealed in (False, True):
        parsed = parse_segment_name(segment_file_name(writer, 7, sealed=sealed))
        assert parsed is not None
        assert (parsed.writer, parsed.index, parsed.sealed) == (writer, 7, sealed)
    assert parse_segment_name(segment_file_name(writer, 7, sealed=True) + ".tmp") is None
    assert parse_segment_name(".attempt-123") is None
