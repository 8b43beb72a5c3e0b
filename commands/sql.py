"""`verl-trace sql`: DuckDB over a run."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from ..reader.filters import Filters
from ..schemas.errors import BadQuery, MissingExtra
from ..schemas.wording import counted
from ..viewer.database import checked_query, open_tables, quoted, tables_in
from ..viewer.rows import TABLES
from ..viewer.tables import fitting_table
from ..viewer.terminal import columns_of
from ..viewer.text import cut_to_width, visible, visible_json
from ..viewer.tokenizer import load_tokenizer
from .filters import check_names, with_filters
from .printing import opened
from .runs import RunArgument, report_damage, runs_named

__all__ = ["sql"]

FORMATS = ("table", "csv", "json", "parquet")
_FETCH = 1_000
# Rows of a table that are printed; files and pipes have no limit.
_TABLE_ROWS = 1_000
_CELL = 60


@with_filters
def sql(
    run: RunArgument,
    query: Annotated[str, typer.Argument(metavar="SELECT", help="SQL over trajectories, calls and turns.")],
    filters: Filters = Filters(),  # noqa: B008
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="table, csv, json (a line a row) or parquet.")
    ] = "table",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Decode token ids that have no text.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask a run by SQL (DuckDB): tables trajectories, calls and turns; `DESCRIBE calls` as query lists columns.

    Read-only. Only the tables that the query names are loaded, and inputs and outputs only where it names them or *.

    Example: verl-trace sql runs/exp1 'SELECT step, avg(reward), sum(tokens) FROM trajectories GROUP BY step'
    """
    format = "json" if as_json else format
    if format not in FORMATS:
        raise BadQuery(f"--format {format}: none of {', '.join(FORMATS)}")
    if format == "parquet" and out is None:
        raise BadQuery("Parquet is not for a terminal", hint="--out FILE")
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("sql", "read", "duckdb") from None
    text = checked_query(query)
    decode = load_tokenizer(tokenizer, "sql") if tokenizer is not None else None
    payloads = re.search(r"\binputs\b|\boutput\b|\*(?!\s*\))", text, re.IGNORECASE) is not None
    target = out.absolute() if out is not None and format == "parquet" else None
    runs = runs_named(run)
    with open_tables(
        runs,
        tables_in(text),
        filters,
        payloads=payloads,
        command="sql",
        decode=decode,
        writable=[target] if target is not None else [],
    ) as tables:
        check_names(filters, runs)
        try:
            if target is not None:
                copied = tables.connection.execute(
                    f"COPY ({text}) TO {quoted(str(target))} (FORMAT parquet)"
                ).fetchone()
                written = 0 if copied is None else copied[0]
            else:
                written = _write(tables.connection.execute(text), format, out)
        except duckdb.Error as error:
            hint = "; ".join(f"{name}: {', '.join(TABLES[name])}" for name in sorted(tables_in(text)) or sorted(TABLES))
            raise BadQuery(str(error).strip().splitlines()[0], hint=hint) from None
        readings = tables.readings
    if out is not None:
        typer.echo(f"{visible(out)}: {counted(written, 'row')}", err=_is_stdout(out))
    report_damage(readings)


def _is_stdout(out: Path) -> bool:
    """Whether rows were written to where a word about them would be one of them: /dev/stdout, in a pipe."""
    try:
        return os.path.samestat(out.stat(), os.fstat(1))
    except OSError:
        return False


def _write(result: Any, format: str, out: Path | None) -> int:
    """How many rows were written."""
    names = [column[0] for column in result.description]
    rows = _Rows(result)
    if format == "table":
        text, shown = _table(names, rows)
        if out is None:
            typer.echo(text)
        else:
            with opened(out, out) as file:
                file.write(f"{text}\n".encode())
        return shown
    if out is None:
        _stream(sys.stdout.buffer, names, rows, format, shown=sys.stdout.isatty())
    else:
        with opened(out, out) as file:
            _stream(file, names, rows, format)
    return rows.count


class _Rows:
    """All rows of a result, once; `count`: so many were taken."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.count = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while batch := self._result.fetchmany(_FETCH):
            for row in batch:
                self.count += 1
                yield row


def _stream(
    file: Any, names: Sequence[str], rows: Iterable[tuple[Any, ...]], format: str, *, shown: bool = False
) -> None:
    """`shown`: a terminal reads it, which is not to obey what a text says."""
    if format == "json":
        for row in rows:
            line = orjson.dumps(dict(zip(names, row, strict=True)), default=str)
            file.write((visible_json(line.decode()).encode() if shown else line) + b"\n")
        return
    if shown:
        rows = (tuple(visible(value) if isinstance(value, str) else value for value in row) for row in rows)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows(rows)
    text.detach()


def _table(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> tuple[str, int]:
    """The text, and how many rows are in it."""
    shown: list[list[str]] = []
    more = 0
    numbers = [True] * len(names)
    for row in rows:
        if len(shown) >= _TABLE_ROWS:
            more += 1
            continue
        numbers = [
            number and isinstance(value, (int, float, type(None))) for number, value in zip(numbers, row, strict=True)
        ]
        shown.append(["" if value is None else cut_to_width(visible(_told(value)), _CELL) for value in row])
    left = next((index for index, number in enumerate(numbers) if number), len(names))
    head = [visible(name) for name in names]
    text = fitting_table(head, shown, columns_of() if sys.stdout.isatty() else None, left=left)
    return f"{text}\n… {counted(more, 'more row')}; --format csv has all" if more else text, len(shown)


def _told(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
