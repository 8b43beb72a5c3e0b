"""The bars of `stats`."""

from __future__ import annotations

import pytest

from verl_trace.viewer.statistics import histogram


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [([0.1, 0.5, 0.9], 10), ([0.0145001, 0.0145002], 1), ([1.0, 1.0], 1), ([4e-6, 6e-6], 2)],
)
def test_no_two_rows_have_one_name(seconds: list[float], rows: int) -> None:
    """Ten parts, or as many as are written differently; every value is in one of them."""
    lines = histogram(seconds).splitlines()

    assert len({line[:24] for line in lines}) == len(lines) == rows
    assert sum(int(line.split()[-1]) for line in lines) == len(seconds)
