"""Records in any order, in any file: one tree a trace, and marks on what is missing."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from verl_trace.reader import iter_trajectories

Shape = Callable[[Any], dict[int, list[tuple[int, int | None, str]]]]


def test_a_tree_whatever_the_order_of_its_lines(spans: Any, shape: Shape) -> None:
    """Child before parent, end before start, text before end: every order gives the same tree, yielded once."""
    lines = [spans.start(1), spans.start(2, 1, 1), spans.end(2, 1, 1, text=True), spans.text(2, 1, 1), spans.end(1)]
    for order in itertools.permutations(lines):
        spans.raw(spans.header(), *order)
        trees, reading = spans.read()

        assert shape(trees) == {1: [(1, None, "success"), (2, 1, "success")]}
        assert [(c.inputs, c.orphan, c.awaits_text) for c in trees[0].calls] == [
            (b'{"n":1}', False, False),
            (b'{"n":2}', False, False),
        ]
        assert (reading.damages, reading.duplicates) == ([], 0)


def test_one_trajectory_though_its_records_lie_with_several_writers(spans: Any, shape: Shape) -> None:
    """Whatever the order of the files, and though the root has long ended where a child is read later."""
    parts = [[spans.start(1), spans.end(1)], [spans.start(2, 1, 1)], [spans.end(2, 1, 1), spans.start(3, 2, 1)]]
    for order in itertools.permutations(range(3)):
        for writer, part in enumerate(order):
            spans.raw(spans.header(writer), *parts[part], spans.close(), writer=writer)
        trees, _ = spans.read()

        assert shape(trees) == {1: [(1, None, "success"), (2, 1, "success"), (3, 2, "unfinished")]}
        assert not any(call.orphan for call in trees[0].calls)


def test_a_call_that_begins_after_its_root_has_ended(spans: Any, shape: Shape) -> None:
    """A task that nobody awaited belongs to the tree as any other call."""
    spans.raw(spans.header(), spans.start(1), spans.end(1), spans.start(2, 1, 1), spans.end(2, 1, 1))

    assert shape(spans.read()[0]) == {1: [(1, None, "success"), (2, 1, "success")]}


def test_what_is_missing_is_marked(spans: Any, shape: Shape) -> None:
    """No parent: an orphan. No start: no inputs. No end: unfinished, with the last time its writer was seen."""
    spans.raw(spans.header(), spans.start(5, 4, 1), spans.end(5, 4, 1), spans.end(6), spans.start(7))
    trees, reading = spans.read()
    calls = {call.op: call for tree in trees for call in tree.calls}

    assert shape(trees) == {1: [(5, 4, "success")], 6: [(6, None, "success")], 7: [(7, None, "unfinished")]}
    assert (calls["op5"].orphan, calls["op6"].orphan) == (True, False)
    assert (calls["op6"].inputs, calls["op6"].started_at) == (None, spans.time(6))
    assert (calls["op7"].output(), calls["op7"].last_seen_at) == (None, spans.time(7))
    assert (trees[0].root, trees[0].children()) == (None, {None: [calls["op5"]]})
    assert reading.damages == []


def test_a_text_without_its_call(spans: Any) -> None:
    """Damage took start and end: the call is still known, and the tree has its root's attributes."""
    spans.raw(spans.header(), spans.text(2, 1, 1), spans.start(1), spans.end(1))
    [tree], _ = spans.read()

    assert [(c.op, c.status, c.started_at) for c in tree.calls] == [
        ("op2", "unfinished", ""),
        ("op1", "success", spans.time(1)),
    ]
    assert tree.attributes == {"step": 1}


def test_a_text_joins_its_output(spans: Any) -> None:
    """Into an object as further keys; into nothing else."""
    outputs = {1: {"ids": [1]}, 2: {}, 3: [1], 4: None}
    lines = [spans.end(n, output=output, text=True) + spans.text(n) for n, output in outputs.items()]
    spans.raw(spans.header(), *lines)
    found = {c.op: json.loads(c.output()) for tree in spans.read()[0] for c in tree.calls}

    text = {"prompt_text": "Hi"}
    assert found == {"op1": {"ids": [1], **text}, "op2": text, "op3": [1], "op4": None}


def test_duplicates_count_once(spans: Any, shape: Shape) -> None:
    """The first of each kind is taken, also when the copy comes long after or with another writer."""
    lines = [spans.start(1), spans.end(1), spans.text(1)]
    spans.raw(spans.header(1), *lines, spans.start(2), spans.end(2), *lines, writer=1)
    spans.raw(spans.header(2), *lines, writer=2)
    trees, reading = spans.read()

    assert shape(trees) == {1: [(1, None, "success")], 2: [(2, None, "success")]}
    assert reading.duplicates == 6


def test_values_of_odd_types_are_kept(spans: Any) -> None:
    """Sample indices of any type, ids of none, statuses of another: nothing raises, what is readable is there."""
    odd = [3, "three", None, 1.5, [1], {"a": 1}, True]
    lines = [spans.start(n, sample_index=value, step=value) + spans.end(n, step=value) for n, value in enumerate(odd)]
    broken = [spans.end(50, status=3, exception="x", attributes=[1], duration="long", ended_at=7)]
    broken.append(spans.start(51, id=7) + spans.start(52, trace_id=None) + spans.start(53, parent_id=7))
    spans.raw(spans.header(), *lines, *broken)
    trees, reading = spans.read()
    calls = {call.op: call for tree in trees for call in tree.calls}

    assert set(calls) == {*(f"op{n}" for n in range(len(odd))), "op50", "op53"}
    call = calls["op50"]
    assert (call.status, call.exception, call.attributes, call.duration, call.ended_at) == (
        "success",
        None,
        {},
        None,
        None,
    )
    assert reading.unknown_kinds == {"start without ids": 2}


def test_unknown_kinds_are_counted_and_passed_over(spans: Any, shape: Shape) -> None:
    """Rule 2 of the format's evolution; rule 1: keys that nobody knows are kept."""
    spans.raw(spans.header(new=1), b'{"kind":"reward","id":1}\n', b'{"kind":"reward"}\n', b"{}\n", spans.end(1, new={}))
    trees, reading = spans.read()

    assert trees[0].calls[0].head["new"] == {}
    assert (reading.unknown_kinds, reading.damages) == ({"reward": 2, "": 1}, [])


def test_a_chain_of_three_thousand_calls(spans: Any) -> None:
    """Depth is no matter."""
    begun = [spans.start(n, n - 1 if n > 1 else None, 1) for n in range(1, 3001)]
    ended = [spans.end(n, n - 1 if n > 1 else None, 1) for n in range(3000, 0, -1)]
    spans.sealed(spans.header() + b"".join(begun + ended))
    [tree], _ = spans.read()

    children, at, depth = tree.children(), tree.root, 0
    while at is not None:
        at, depth = next(iter(children.get(at.id, [])), None), depth + 1
    assert depth == 3000


def test_memory_holds_what_is_open_and_not_the_run(spans: Any) -> None:
    """A trajectory comes as soon as its last record was read, not at the end of the file."""
    lines = [spans.start(n) + spans.end(n) for n in range(1, 50)]
    spans.raw(spans.header(), spans.start(100), *lines, spans.end(100))
    trees = iter_trajectories(spans.run())

    assert [int(next(trees).trace_id[-12:], 16) for _ in range(50)] == [*range(1, 50), 100]


def test_the_second_pass_reads_what_the_first_one_counted(spans: Any, shape: Shape) -> None:
    """Records that arrive while trees are built wait for the next command: no trace is yielded in two parts."""
    path = spans.raw(spans.header(), spans.start(1), spans.end(1), spans.start(2), spans.end(2))
    trees = iter_trajectories(spans.run())
    first = next(trees)
    with path.open("ab") as file:
        file.write(spans.start(3, 1, 1) + spans.end(3, 1, 1))

    assert shape([first, *trees]) == {1: [(1, None, "success")], 2: [(2, None, "success")]}


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_records_over_writers_segments_and_forms(spans: Any, shape: Shape, seed: int) -> None:
    """A hundred trees, their records dealt at random to 4 writers with 3 segments, raw and sealed: all as they were."""
    chance = random.Random(seed)
    parents: dict[int, int | None] = {}
    roots: dict[int, int] = {}
    for number in range(1, 801):
        parent = chance.choice([None, *range(max(1, number - 20), number)])
        parents[number], roots[number] = parent, number if parent is None else roots[parent]
    lines = [kind(n, parents[n], roots[n]) for n in parents for kind in (spans.start, spans.end)]
    chance.shuffle(lines)
    for writer, segment in itertools.product(range(4), range(3)):
        mine = lines[(writer * 3 + segment) :: 12]
        write = chance.choice([spans.raw, spans.sealed])
        write(spans.header(writer, segment), *mine, writer=writer, segment=segment)
    trees, reading = spans.read()

    expected: dict[int, list[tuple[int, int | None, str]]] = {}
    for number, parent in parents.items():
        expected.setdefault(roots[number], []).append((number, parent, "success"))
    assert shape(trees) == expected
    assert (reading.damages, reading.duplicates) == ([], 0)
    assert not any(call.orphan for tree in trees for call in tree.calls)
