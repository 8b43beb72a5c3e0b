"""A run of several nodes: chosen by node and rank, clocks that disagree, and nothing that lasts less than no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories, summarise
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.reader.stats import shares_of
from verl_trace.recorder.identity import Identity
from verl_trace.viewer.listing import listing, run_facts


def of(spans: Any, writer: int, node: str | None, rank: str | None = None, **more: Any) -> bytes:
    """The header of a process on a node of Slurm's; with None, of one that knows nothing but its host."""
    slurm = {} if node is None else {"procid": "9", "node_name": node}
    header: bytes = spans.header(writer, slurm=slurm, rank={} if rank is None else {"RANK": rank}, **more)
    return header


@pytest.fixture
def nodes(spans: Any) -> Path:
    """A trajectory on n1, one on n2 with a call on n3, one of a process without Slurm."""
    spans.raw(of(spans, 1, "n1", "0"), spans.start(1), spans.end(1), spans.close(), writer=1)
    spans.raw(of(spans, 2, "n2", "12"), spans.start(10), spans.end(10), spans.close(), writer=2)
    spans.raw(of(spans, 3, "n3"), spans.start(12, 10, 10), spans.end(12, 10, 10), spans.close(), writer=3)
    spans.raw(of(spans, 4, None, host="login"), spans.start(20), spans.end(20), spans.close(), writer=4)
    return Path(spans.folder)


@pytest.mark.parametrize(
    ("filters", "roots"),
    [
        (Filters(nodes=("n1",)), [1]),
        (Filters(nodes=("n3",)), [10]),
        (Filters(nodes=("n[12]",)), [1, 10]),
        (Filters(nodes=("n1", "login")), [1, 20]),
        (Filters(nodes=("node3",)), []),
        (Filters(ranks=Numbers("0", "--rank")), [1]),
        (Filters(ranks=Numbers("8:15", "--rank")), [10]),
        # the number of the task in Slurm's step, where there is no launcher
        (Filters(ranks=Numbers("9", "--rank")), [10]),
        # of one and the same call
        (Filters(nodes=("n3",), ranks=Numbers("12", "--rank")), []),
    ],
)
def test_chosen_by_node_and_rank(nodes: Path, spans: Any, filters: Filters, roots: list[int]) -> None:
    """Slurm's name of the node, else the host's; patterns; the rank of the launcher, else Slurm's."""
    (run,) = find_runs(nodes)
    found = [tree.trace_id for tree in iter_trajectories(run) if filters.trajectory(tree)]

    assert sorted(found) == [spans.id(root) for root in roots]


def test_node_and_rank_are_facts(nodes: Path) -> None:
    """`--where` and `--sort` know them; an attribute of this name is the attribute."""
    (run,) = find_runs(nodes)
    facts = [trajectory_facts(tree) for tree in iter_trajectories(run)]

    assert sorted((fact["node"], fact.get("rank", "")) for fact in facts) == [("login", ""), ("n1", "0"), ("n2", "12")]


def test_clocks_that_disagree_are_told(spans: Any) -> None:
    """Calls that begin before their parents on another node say by how much its clock is behind, at least."""
    late = [spans.start(n, 10, 10, started_at=spans.time(10 - back)) for n, back in ((11, 3), (12, 7))]
    spans.raw(of(spans, 1, "n1"), spans.start(10), spans.end(10), spans.close(), writer=1)
    spans.raw(of(spans, 2, "n2"), *late, spans.close(), writer=2)
    (run,) = find_runs(spans.folder)
    facts = run_facts(run, summarise(run))

    assert facts["nodes"] == ["n1", "n2"]
    assert facts["clock_differences"] == [{"node": "n2", "behind": "n1", "seconds": 7.0, "calls": 2}]
    assert "the clock of n2 is behind that of n1 by at least 7.00 s (2 calls" in listing([facts])


@pytest.mark.parametrize("shift", [-3600, -1, 0, 1, 3600])
def test_no_share_of_the_time_is_negative(spans: Any, shift: int) -> None:
    """A tool on a node whose clock is an hour off: it takes what it took, the model and the rest the other part."""
    root = {"started_at": "2026-03-01T12:00:10.000000Z", "ended_at": "2026-03-01T12:00:20.000000Z", "duration": 10.0}
    begun = f"2026-03-01T{12 + (15 + shift) // 3600:02d}:{(15 + shift) // 60 % 60:02d}:{(15 + shift) % 60:02d}.000000Z"
    tool = {"op": "Tool.execute", "started_at": begun, "duration": 4.0}
    spans.raw(of(spans, 1, "n1"), spans.start(1, **root), spans.end(1, **root), spans.close(), writer=1)
    spans.raw(of(spans, 2, "n2"), spans.end(2, 1, 1, **tool), spans.close(), writer=2)
    (tree,) = spans.read()[0]

    assert shares_of(tree) == {"model": 0.0, "tools": 4.0, "rest": 6.0}


def test_a_process_writes_under_the_name_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of Slurm's on one host: two names, in the file's and in the header."""
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-17")
    identity = Identity()

    assert "-gpu-17-" in identity.writer
    assert identity.header({}, 0)["slurm"]["node_name"] == "gpu-17"
    assert identity.header({}, 0)["host"] != "gpu-17"
