"""`verl-trace status`: what of a run is still to be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from ..reader import Filters, closed_folders, find_runs
from ..reader.runs import UNKNOWN, Run
from ..schemas.errors import MissingExtra
from ..uploader.ledger import Place, state_folder
from ..uploader.status import RunStatus, run_status
from ..viewer.text import visible
from .filters import with_filters
from .upload_options import (
    EntityOption,
    PartialOption,
    ProjectOption,
    RunArgument,
    SettleOption,
    StateDirOption,
    seconds,
)

if TYPE_CHECKING:
    from ..uploader.client import Client

__all__ = ["status"]

_NOTHING_LEFT, _SOMETHING_LEFT = 0, 1


@with_filters
def status(
    run: RunArgument,
    filters: Filters = Filters(),  # noqa: B008
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the server which calls it has, instead of what is remembered here.")
    ] = False,
    entity: EntityOption = None,
    project: ProjectOption = None,
    settle: SettleOption = "10m",
    partial: PartialOption = False,
    state_dir: StateDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """Say what of a run is stored in Weave, what is still to be sent, and what must wait. Changes nothing.

    Without --ask no network is used: it says what uploads from here, by this user, have seen confirmed. With filters,
    all of it is about the trajectories that they mean.

    Exit codes: 0 all is stored; 1 something is left to be sent, or must wait; 2 it could not start.

    Example: verl-trace status runs/exp1 --ask
    """
    folder = state_folder(state_dir)
    found = []
    for one in find_runs(run):
        questions = [_question(one, entity, project)] if ask else []
        wanted = filters.of_run(one.attempts)
        found.append(run_status(one, folder, filters=wanted, settle=seconds(settle), partial=partial, ask=questions))
    closed = closed_folders(run)
    if as_json:
        typer.echo(orjson.dumps([one.as_json() for one in found], option=orjson.OPT_INDENT_2).decode())
    else:
        for one_status in found:
            for line in _lines(one_status):
                typer.echo(visible(line))
    for name in closed:
        typer.echo(f"verl-trace: cannot be read: {visible(name)}", err=True)
    whole = not closed and all(one_status.complete for one_status in found)
    raise typer.Exit(_NOTHING_LEFT if whole else _SOMETHING_LEFT)


def _question(run: Run, entity: str | None, project: str | None) -> tuple[Place, Callable[[list[str]], list[str]]]:
    """The run's project, and how to ask it."""
    try:
        from ..uploader.client import Client
        from ..uploader.network import one_network
        from ..uploader.target import resolve
    except ImportError as error:
        raise MissingExtra("status --ask", "upload", error.name or "requests") from None
    with one_network():
        target = resolve(None if run.project_name == UNKNOWN else run.project_name, entity=entity, project=project)
        client = Client(target)
        client.check()
    return Place(client.url, target.project_id, run.project_name, run.experiment_name), _asker(client)


def _asker(client: Client) -> Callable[[list[str]], list[str]]:
    def stored(ids: list[str]) -> list[str]:
        from ..uploader.network import one_network

        with one_network():
            return [key for key, ended in client.existing(ids).items() if ended is not None]

    return stored


def _lines(status: RunStatus) -> list[str]:
    lines = [f"{status.project_name} · {status.experiment_name} ({status.folder})"]
    lines.append(f"  recorded {status.recorded:>9,} calls in {status.trajectories:,} trajectories")
    for reason, count in sorted(status.waiting.items()):
        lines.append(f"  waiting  {count:>9,} {reason}")
    for place in status.places:
        lines.append(f"  stored   {place.stored:>9,} in {place.project_id} on {place.server}")
        lines.append(f"  pending  {place.pending:>9,}")
    if not status.places:
        lines.append(
            f"  pending  {status.settled:>9,} (nothing of it is known here to be stored; --ask asks the server)"
        )
    return lines
