"""Filters, budget, limit and share on a large run of known composition: exactly the trajectories that are meant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from verl_trace.commands.filters import with_filters
from verl_trace.reader import Run, find_runs, iter_trajectories
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.filters import Filters
from verl_trace.reader.pick import matching
from verl_trace.reader.selection import is_sampled
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.ops import op_object_id
from verl_trace.uploader.payload import encode_trajectory
from verl_trace.uploader.pipeline import upload

from .known_run import ATTEMPTS, Known, known_run, stored_size

# Peak memory of choosing by a budget: what the program and the calls of a few requests take, about 70 MiB, and what is
# known of a trajectory until the choice is made, at most 300 bytes.
PEAK = {10_000: (80 << 20) + 300 * 10_000, 100_000: (80 << 20) + 300 * 100_000}


class Made(NamedTuple):
    run: Run
    known: list[Known]


@pytest.fixture(scope="module", params=[10_000, pytest.param(100_000, marks=pytest.mark.soak)], ids=["10k", "100k"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("runs") / "known"
    known = known_run(folder, request.param)
    (run,) = find_runs(folder)
    return Made(run, known)


def number(value: Any) -> float:
    """A sample index as a number; not a number for names and for none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def by_call(holds: Callable[..., bool]) -> Callable[[Known], bool]:
    return lambda one: any(holds(call) for call in one.calls)


def between(value: float, first: float, last: float, every: int = 1) -> bool:
    return first <= value <= last and (value - first) % every == 0


UNSCORED = "not reward < 0.5 and not reward >= 0.5"
# What is typed, and of which trajectories it is true.
MEANT: dict[str, Callable[[Known], bool]] = {
    "--step 0": lambda one: one.step == 0,
    "--step 3:7": lambda one: 3 <= one.step <= 7,
    "--step 5:65:20": lambda one: one.step in (5, 25, 45, 65),
    "--step 60:": lambda one: one.step >= 60,
    "--step :2": lambda one: one.step <= 2,
    "--step ::30": lambda one: one.step % 30 == 0,
    "--step 1,4,80:82": lambda one: one.step in (1, 4, 80, 81, 82),
    "--sample-index 25": lambda one: number(one.sample_index) == 25,
    "--sample-index 0:49:7": lambda one: between(number(one.sample_index), 0, 49, 7),
    "--sample-index {uuid}": lambda one: False,
    "--rollout-n 1:3:2": lambda one: one.rollout_n in (1, 3),
    "--rollout-n 0": lambda one: one.rollout_n == 0,
    "--validate": lambda one: one.validate,
    "--train": lambda one: not one.validate,
    "--attempt 2": lambda one: one.attempt == ATTEMPTS[1],
    "--attempt last": lambda one: one.attempt == ATTEMPTS[2],
    "--attempt a1 --attempt c3": lambda one: one.attempt in (ATTEMPTS[0], ATTEMPTS[2]),
    "--op execute": by_call(lambda call: call.op == "Calc.execute"),
    "--op ToolAgentLoop.run": by_call(lambda call: call.op == "ToolAgentLoop.run"),
    "--op Single*": by_call(lambda call: fnmatchcase(call.op, "Single*")),
    "--op generate --op execute": lambda one: True,
    "--op Nothing": lambda one: False,
    "--status error": by_call(lambda call: call.status == "error"),
    "--status unfinished": by_call(lambda call: call.status == "unfinished"),
    "--status success": by_call(lambda call: call.status == "success"),
    "--min-duration 10s": by_call(lambda call: call.status != "unfinished" and call.duration >= 10),
    "--min-duration 500ms": by_call(lambda call: call.status != "unfinished" and call.duration >= 0.5),
    "--min-duration 5m": by_call(lambda call: call.status != "unfinished" and call.duration == 300),
    "--op execute --status error --min-duration 1s": by_call(
        lambda call: call.op == "Calc.execute" and call.status == "error" and call.duration >= 1
    ),
    "--where reward<0.25": lambda one: one.reward is not None and one.reward < 0.25,
    "--where reward>=0.999": lambda one: one.reward is not None and one.reward >= 0.999,
    f"--where {UNSCORED}": lambda one: one.reward is None,
    "--where reward_extra_acc and calls == 3": lambda one: (
        one.reward is not None and one.correct and len(one.calls) == 3
    ),
    "--where step % 25 == 0 and not validate": lambda one: one.step % 25 == 0 and not one.validate,
    "--where status != 'success' or errors > 0": lambda one: one.status != "success",
    "--where op in ['SingleTurnAgentLoop.run'] and rollout_n is None": lambda one: (
        one.calls[0].op == "SingleTurnAgentLoop.run" and one.rollout_n is None
    ),
    "--where sample_index is None": lambda one: one.sample_index is None,
    "--step 10:90:10 --train --rollout-n 0,2 --where reward>0.5 --attempt 1 --op run": lambda one: (
        between(one.step, 10, 90, 10)
        and not one.validate
        and one.rollout_n in (0, 2)
        and one.reward is not None
        and one.reward > 0.5
        and one.attempt == ATTEMPTS[0]
    ),
}


def typed(text: str) -> Filters:
    """The filters that a command with these options gets."""
    found: list[Filters] = []
    app = typer.Typer()

    def command(filters: Filters) -> None:
        found.append(filters)

    app.command()(with_filters(command))
    option, _, expression = text.partition("--where ")
    words = text.split() if " " not in expression else [*option.split(), "--where", expression]
    if " --" in expression:
        words = text.split()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return found[0]


def test_every_filter_means_what_it_says(made: Made) -> None:
    """Each alone and several together, over the whole run: exactly the trajectories that the generator knows of."""
    name = next(one.sample_index for one in made.known if "-" in str(one.sample_index))
    meant = {text.format(uuid=name) if "{uuid}" in text else text: holds for text, holds in MEANT.items()}
    meant[f"--sample-index {name}"] = lambda one: one.sample_index == name
    filters = {text: typed(text).of_run(made.run.attempts) for text in meant}
    found: dict[str, set[str]] = {text: set() for text in meant}
    total = 0
    for trajectory in iter_trajectories(made.run, payloads=False):
        total += 1
        # once for all of them: they are most of the time
        facts = trajectory_facts(trajectory)
        for text, one in filters.items():
            if one.trajectory(trajectory, facts):
                found[text].add(trajectory.trace_id)

    assert total == len(made.known)
    sizes = {}
    for text, holds in meant.items():
        expected = {one.trace_id for one in made.known if holds(one)}
        assert found[text] == expected, text
        sizes[text] = len(expected)
    # a filter that means nothing, or everything, proves nothing
    assert [text for text, size in sizes.items() if not size] == ["--op Nothing"]
    assert [text for text, size in sizes.items() if size == total] == ["--op generate --op execute"]


def test_what_lists_read_from_the_digest_is_the_same(made: Made) -> None:
    """Listing commands know the run by its digest: they mean the same trajectories."""
    text = "--status error --step 5:65:20"
    expected = {one.trace_id for one in made.known if one.status == "error" and one.step in (5, 25, 45, 65)}
    assert {trajectory.trace_id for trajectory in matching(made.run, typed(text))} == expected


def measure(trajectory: Any) -> int:
    """As `upload` measures what a trajectory takes on the server."""
    return sum(call.stored_size for call in encode_trajectory(trajectory, "bench/known", op_object_id))


def chosen(made: Made, **options: Any) -> set[str]:
    selection = Choosing(**options).of(made.run, measure).selection
    assert selection is not None
    return selection.chosen


def groups_of(known: list[Known]) -> dict[tuple[Any, ...], list[Known]]:
    groups: dict[tuple[Any, ...], list[Known]] = {}
    for one in known:
        groups.setdefault(one.group, []).append(one)
    return groups


def first_of_all(known: list[Known]) -> set[str]:
    """What comes before all else: groups with a failure, and of every step those of the best and the worst reward."""
    taken = {one.group for one in known if one.status != "success"}
    by_step: dict[int, list[Known]] = {}
    for one in known:
        if one.reward is not None:
            by_step.setdefault(one.step, []).append(one)
    for scored in by_step.values():
        for end in (max, min):
            reward = end(one.reward for one in scored if one.reward is not None)
            # steps that two attempts have may have the same reward twice
            taken |= {one.group for one in scored if one.reward == reward}
    return {one.trace_id for one in known if one.group in taken}


def test_a_budget_that_is_just_enough(made: Made) -> None:
    """For every step, all failures, best and worst of each step, to the byte: exactly these, whatever the seed. The
    bytes are those that the generator computes for them as W&B's server does.
    """
    expected = first_of_all(made.known)
    sizes = {one.trace_id: stored_size(one) for one in made.known}
    budget = sum(sizes[trace_id] for trace_id in expected)

    assert 0.1 < len(expected) / len(made.known) < 0.5
    assert chosen(made, budget=budget, seed=1) == expected
    assert {one.step for one in made.known if one.trace_id in expected} == {one.step for one in made.known}


def test_a_larger_budget_adds_what_the_seed_says(made: Made) -> None:
    """No byte beyond it, groups whole, the first ones in it, and nothing that would still fit is left out; another
    seed, another choice."""
    sizes = {one.trace_id: stored_size(one) for one in made.known}
    budget = sum(sizes.values()) * 6 // 10
    one, other = (chosen(made, budget=budget, seed=seed) for seed in (1, 2))

    assert one != other
    for found in (one, other):
        assert first_of_all(made.known) < found
        taken = sum(sizes[trace_id] for trace_id in found)
        groups = groups_of(made.known)
        left = [members for members in groups.values() if members[0].trace_id not in found]
        assert {len({member.trace_id in found for member in members}) for members in groups.values()} == {1}
        assert taken <= budget < taken + min(sum(sizes[member.trace_id] for member in members) for members in left)


def test_a_limit(made: Made) -> None:
    """So many trajectories at most, whole groups, of what the filters leave; every step in it; the same seed, the same
    choice."""
    steps = {one.step for one in made.known}
    limit = 4 * len(steps) + 3
    found, again = (chosen(made, limit=limit, seed=3, filters=typed("--train")) for _ in range(2))
    of_step = Counter(one.step for one in made.known if one.trace_id in found)

    assert len(found) == limit - 3
    assert found == again
    assert not any(one.validate for one in made.known if one.trace_id in found)
    trained = {one.step for one in made.known if not one.validate}
    assert set(of_step) == trained
    assert all(len(members) == 4 for members in groups_of([o for o in made.known if o.trace_id in found]).values())


def test_a_share(made: Made) -> None:
    """Of the groups, whole ones; a larger share holds a smaller one, and another seed is another choice."""
    asked = {key: Choosing(sample_rate=key[0], seed=key[1]) for key in ((0.1, 0), (0.3, 0), (0.1, 1))}
    choices = {key: choosing.of(made.run, measure) for key, choosing in asked.items()}
    found: dict[tuple[float, int], set[str]] = {key: set() for key in asked}
    for trajectory in iter_trajectories(made.run, payloads=False):
        for key, choice in choices.items():
            if choice.takes(trajectory):
                found[key].add(trajectory.trace_id)

    for (rate, seed), ids in found.items():
        assert ids == {one.trace_id for one in made.known if is_sampled(one.group, rate, seed)}
        assert abs(len(ids) / len(made.known) / rate - 1) < 0.25
        assert all(len({m.trace_id in ids for m in members}) == 1 for members in groups_of(made.known).values())
    assert found[0.1, 0] < found[0.3, 0]
    assert found[0.1, 0] != found[0.1, 1]


def test_what_a_dry_run_counts(made: Made) -> None:
    """Trajectories, calls and the server's bytes, to the byte."""
    with_step = [one for one in made.known if one.step <= 20]
    report = upload(made.run.folder, dry_run=True, choosing=Choosing(typed("--step :20"))).runs[0]

    assert report.trajectories == len(made.known)
    assert report.to_send == sum(len(one.calls) for one in with_step)
    assert report.interrupted == sum(call.status == "unfinished" for one in with_step for call in one.calls)
    assert report.stored_bytes == sum(map(stored_size, with_step))


# VmHWM and not `ru_maxrss`, in which Linux counts what the process was before it executed another program: the tests'.
_PEAK = """
import sys
from verl_trace.cli import main
try:
    main()
finally:
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak", 1024 * int(line.split()[1]), file=sys.stderr)
"""


def test_memory_is_bounded(made: Made, tmp_path: Path) -> None:
    """Of a whole `upload --dry-run` with a budget, in a process of its own."""
    command = [sys.executable, "-c", _PEAK, "upload", str(made.run.folder), "--dry-run", "--budget", "10MB"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=600, check=True
    )
    peak = int(done.stderr.rsplit("peak ", 1)[1])

    print(f"{len(made.known):,} trajectories: peak {peak / (1 << 20):.0f} MiB")
    assert f"of {len(made.known):,} trajectories" in done.stdout
    assert peak < PEAK[len(made.known)]
