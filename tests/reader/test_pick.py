"""Short names of trajectories, found by bytes, and the cache of digests: the same as reading everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import Filters, find_runs, iter_trajectories
from verl_trace.reader import pick as picking
from verl_trace.reader.digest import digest_line
from verl_trace.reader.digest_cache import cache_folder, digests
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.trees import Reading
from verl_trace.schemas.errors import BadFilter, NotFound

Facts = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VERL_TRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture(params=["raw", "sealed", "cached", "damaged"])
def run(request: pytest.FixtureRequest, tmp_path: Path, writer: Callable[..., Any]) -> Any:
    """Two writers; payloads and names that look like what is searched for."""
    for pid in (1, 2):
        made = writer(tmp_path / "runs", "p", pid=pid)
        for step in (1, 2, "s-1"):
            for sample in (0, "7", 7, "0193e1a2", None):
                head = made.start("Loop.run", step=step, sample_index=sample, rollout_n=0, inputs={"id": "0193e1a2"})
                text = '"trace_id":"0193e1a2", {"kind":"score","step":1,"sample_index":0,"rollout_n":0,'
                made.call("Client.generate", {"token_ids": [1] * 2000, "id": head["id"], "t": text}, parent=head)
                made.end(head, {"step": 1, "sample_index": 7, "trace_id": head["trace_id"]})
        made.close()
        made.age(3600)
        if request.param != "raw":
            lines = made.path.read_bytes().splitlines(keepends=True)
            parts = [b"".join(lines[:30]), b"".join(lines[30:])]
            data = b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in parts)
            made.path.with_name(made.path.name + ".zst").write_bytes(data[:-9] if request.param == "damaged" else data)
            made.path.unlink()
    (found,) = find_runs(tmp_path / "runs")
    if request.param == "cached":
        list(iter_trajectories(found, source=digests))
    return found


def named(run: Any, selector: str, *, by_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the name means, or how many it may mean."""
    with monkeypatch.context() as patched:
        patched.setattr(picking, "are_at_hand", lambda run: not by_bytes)
        try:
            picked = picking.pick([run], selector, Filters())
        except NotFound as error:
            return str(error)
    whole = {call.id: (call.inputs, call.output()) for call in picked.trajectory.calls}
    return picked.trajectory.trace_id, picked.call and picked.call.id, whole


def test_both_ways_find_the_same(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every kind of name: whole and short ids, of calls too, numbers, names, what is missing."""
    trajectories = list(iter_trajectories(run))
    ids = [call.id for trajectory in trajectories[:3] for call in trajectory.calls]
    names = [
        *ids,
        *(call_id[:20] for call_id in ids),
        "0193",
        "0193e1a2",
        "ffffffff",
        "1:0:0",
        "1:7:0",
        "s-1:0193e1a2:0",
    ]
    names += ["2:-:0", "1:7", "::0", "9:9:9", "1:0:1", "True:0:0", "x", "", "s-1::"]

    for name in names:
        both = [named(run, name, by_bytes=quick, monkeypatch=monkeypatch) for quick in (True, False)]
        assert both[0] == both[1], name
    assert named(run, ids[0], by_bytes=True, monkeypatch=monkeypatch)[0] == trajectories[0].trace_id


def read(run: Any, **how: Any) -> tuple[Facts, Reading]:
    reading = Reading()
    return [trajectory_facts(trajectory) for trajectory in iter_trajectories(run, reading, **how)], reading


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_name_that_no_trajectory_has(run: Any, monkeypatch: pytest.MonkeyPatch, at_hand: bool) -> None:
    """It is an error, however the trajectory was found, though the expression is true of it."""
    for path in run.folder.iterdir():
        os.utime(path, (0, 0))
    (run,) = find_runs(run.folder)
    first = next(iter(iter_trajectories(run)))
    monkeypatch.setattr(picking, "are_at_hand", lambda run: at_hand)
    filters = Filters.of(where="not stepp")

    with pytest.raises(BadFilter, match="no trajectory has 'stepp'"):
        picking.pick([run], first.trace_id, filters)
    assert picking.pick([run], first.trace_id, Filters.of(where="step")).trajectory.trace_id == first.trace_id


def test_digests_say_the_same(run: Any) -> None:
    """Facts and damage, without the cache, when it is made, and out of it."""
    whole, expected = read(run)

    for _ in range(3):
        facts, reading = read(run, source=digests)
        assert facts == whole
        assert reading == expected


def test_the_cache_may_be_anything(run: Any, cache: Path, tmp_path: Path) -> None:
    """Deleted, cut, garbage, not writable, not there: only the time differs."""
    expected, _ = read(run)
    read(run, source=digests)
    for file in cache.glob("*") if cache.is_dir() else []:
        whole = file.read_bytes()
        for broken in (whole[:-5], b"", b"garbage" * 10, whole[:8] + whole[9:]):
            file.write_bytes(broken)
            assert read(run, source=digests)[0] == expected
    if cache.is_dir():
        for file in cache.iterdir():
            file.unlink()
        cache.rmdir()
    cache.parent.mkdir(exist_ok=True, parents=True)
    cache.write_text("in the way")

    assert read(run, source=digests)[0] == expected


def test_a_changed_file_is_read_anew(tmp_path: Path, writer: Callable[..., Any], cache: Path) -> None:
    """Another size or time is another file; what the cache kept of it before is not asked."""
    made = writer(tmp_path / "runs", "p")
    for _ in range(2):
        made.call("a", {"token_ids": [1] * 5000}, step=1)
    data = made.path.read_bytes()
    sealed = made.path.with_name(made.path.name + ".zst")
    made.path.unlink()
    for step in (b"1", b"2"):
        sealed.write_bytes(zstandard.ZstdCompressor().compress(data.replace(b'"step":1,', b'"step":%b,' % step)))
        os.utime(sealed, (int(step), int(step)))
        (run,) = find_runs(tmp_path / "runs")
        assert {fact["step"] for fact in read(run, source=digests)[0]} == {int(step)}
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{}\n", b'{"kind":"end","bytes":5}\n', b'{"kind":"end","bytes":99,"output":[1]}\n', b"garbage\n",
     b'{"kind":"header","bytes":2,"a":{}}\n', b'{"kind":"end","bytes":2,"output":{}}',
     b'{"kind":"end","bytes":0,"output":}\n'],
)  # fmt: skip
def test_odd_lines_are_their_own_digest(line: bytes) -> None:
    """Nothing is changed that is not understood."""
    assert digest_line(line) == line


def test_another_file_of_that_size_and_time_is_read_anew(spans: Any, cache: Path) -> None:
    """zstd's checksum tells them apart."""
    for step in (1, 2):
        path = spans.sealed(spans.header(), spans.start(1), spans.end(1, step=step, output={"token_ids": [1] * 9999}))
        os.utime(path, (0, 0))
        assert {fact["step"] for fact in read(spans.run(), source=digests)[0]} == {step}
    assert len(list(cache.iterdir())) == 2


def test_what_is_odd_is_told_out_of_the_cache_too(spans: Any, cache: Path) -> None:
    """A line that is no record, at its place in the segment; a line break that is white space within a record."""
    whole = spans.end(1, output={"token_ids": [1] * 9999})
    spans.sealed(spans.header(), whole, b"no record\n", spans.start(2).replace(b',"op"', b',\r"op"'), spans.end(2))
    looks = [read(spans.run(), source=digests) for _ in range(2)]

    assert list(cache.iterdir())
    assert [damage.offset for damage in looks[0][1].damages] == [len(spans.header() + whole)]
    assert looks[0] == looks[1] == read(spans.run())
