"""A run as tables of DuckDB, in a file that lives as long as the query.

The rows come from the reader, as everything does: torn ends, damage, files that are there twice, text that is a record
of its own are its business. What the user typed runs afterwards, with no access to any file but its own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..reader import Run, Trajectory, iter_trajectories
from ..reader.conversation import Decode
from ..reader.digest_cache import digests
from ..reader.filters import Filters
from ..reader.payloads import json_text
from ..reader.trees import Reading
from ..schemas.errors import BadQuery, MissingExtra
from .rows import TABLES, Row, call_rows, trajectory_row, turn_rows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["Tables", "checked_query", "open_tables", "quoted", "tables_in"]

# Rows on their way to DuckDB: enough for its readers to be quick, little in memory and on disk.
_BATCH_BYTES = 16 << 20
# One value may be a trajectory of 100 MB.
_MAX_OBJECT = 1 << 30


class Tables:
    """An open database with the tables that were asked for; `readings` say what could not be read."""

    def __init__(self, connection: DuckDBPyConnection, readings: list[Reading]) -> None:
        self.connection = connection
        self.readings = readings


def tables_in(query: str) -> set[str]:
    """The tables that a query may be about; what it says of columns decides whether payloads are loaded."""
    return {name for name in TABLES if re.search(rf"\b{name}\b", query, re.IGNORECASE)}


@contextmanager
def open_tables(
    runs: Sequence[Run], names: set[str], filters: Filters, *, payloads: bool, command: str, decode: Decode = None,
    writable: Sequence[Path] = (),
) -> Iterator[Tables]:  # fmt: skip
    """Load the tables; then nothing but the files `writable` can be read or written by this database.

    Raises:
        MissingExtra: DuckDB is not installed.
        BadFilter: an attempt that a run does not have.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtra(command, "read", "duckdb") from None
    with tempfile.TemporaryDirectory(prefix="verl-trace-sql-") as scratch:
        connection = duckdb.connect(str(Path(scratch) / "run.duckdb"))
        try:
            connection.execute(f"SET temp_directory = {quoted(scratch)}")
            readings = _load(connection, Path(scratch) / "rows.json", runs, names, filters, payloads, decode)
            if writable:
                # DuckDB writes beside the target first
                allowed = [
                    str(path.absolute().with_name(begin + path.name)) for path in writable for begin in ("", "tmp_")
                ]
                connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, allowed))}]")
            for setting in ("enable_external_access = false", "autoload_known_extensions = false"):
                connection.execute(f"SET {setting}")
            connection.execute("SET lock_configuration = true")
            yield Tables(connection, readings)
        finally:
            connection.close()


def _load(
    connection: DuckDBPyConnection, file: Path, runs: Sequence[Run], names: set[str], filters: Filters,
    payloads: bool, decode: Decode,
) -> list[Reading]:  # fmt: skip
    for name in names:
        columns = ", ".join(f'"{column}" {kind}' for column, kind in TABLES[name].items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
    batches = {name: _Batch(connection, name, file) for name in names}
    readings = []
    for run in runs:
        reading, mine = Reading(), filters.of_run(run.attempts)
        readings.append(reading)
        whole = payloads or "turns" in names
        source = iter_trajectories(run, reading) if whole else iter_trajectories(run, reading, source=digests)
        for trajectory in source:
            if mine.trajectory(trajectory):
                for name, rows in _rows(run, trajectory, names, payloads, decode):
                    for row in rows:
                        batches[name].add(row)
    for batch in batches.values():
        batch.flush()
    return readings


def _rows(
    run: Run, trajectory: Trajectory, names: set[str], payloads: bool, decode: Decode
) -> Iterator[tuple[str, Iterator[Row]]]:
    if "trajectories" in names:
        yield "trajectories", iter([trajectory_row(run.experiment_name, run.project_name, trajectory)])
    if "calls" in names:
        yield "calls", call_rows(run.experiment_name, trajectory, payloads=payloads)
    if "turns" in names:
        yield "turns", turn_rows(run.experiment_name, trajectory, decode)


class _Batch:
    """Collects rows of a table and hands them to DuckDB as JSON lines."""

    def __init__(self, connection: DuckDBPyConnection, name: str, file: Path) -> None:
        self._connection, self._name, self._file = connection, name, file
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, row: Row) -> None:
        line = json_text(row).encode("utf-8", "surrogatepass") + b"\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        self._file.write_bytes(b"".join(self._lines))
        # JSON columns are text here: their content is parsed where a query looks into it
        table = TABLES[self._name]
        kinds = {column: "VARCHAR" if kind in ("JSON", "TIMESTAMP") else kind for column, kind in table.items()}
        columns = ", ".join(f"{quoted(column)}: {quoted(kind)}" for column, kind in kinds.items())
        names = ", ".join(f'"{column}"' for column in kinds)
        # a time that a damaged record does not tell is null
        values = ", ".join(
            f'TRY_CAST("{column}" AS TIMESTAMP)' if kind == "TIMESTAMP" else f'"{column}"'
            for column, kind in table.items()
        )
        self._connection.execute(
            f"INSERT INTO {self._name} ({names}) SELECT {values} FROM read_json({quoted(str(self._file))}, "
            f"format = 'newline_delimited', columns = {{{columns}}}, maximum_object_size = {_MAX_OBJECT})"
        )
        self._file.unlink()
        self._lines, self._size = [], 0


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def checked_query(query: str) -> str:
    """The query without its last semicolon, where it is one that only reads.

    Raises:
        BadQuery: it is none, or several.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise BadQuery(f"this is no SQL: {_first_line(error)}", hint="verl-trace sql --help shows an example") from None
    if len(statements) != 1:
        raise BadQuery("one statement at a time, please")
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise BadQuery(f"only SELECT and EXPLAIN; this is {kind.name}", hint="the run is never changed")
    return str(statements[0].query).strip().rstrip(";")


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
