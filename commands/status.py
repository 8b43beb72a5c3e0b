"""`verl-trace status`: what of a run is still to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from ..reader import Filters, closed_folders, find_runs
from ..reader.runs import UNKNOWN, Run
from ..schemas.errors import MissingExtra
from ..schemas.wording import counted, plural
from ..uploader.ledger import Place, state_folder
from ..uploader.status import Rows, RunStatus, run_status
from ..viewer.text import visible
from .filters import check_names, with_filters
from .printing import print_json
from .runs import RunArgument, run_path
from .upload_options import (
    EntityOption,
    PartialOption,
    ProjectOption,
    SettleOption,
    StateDirOption,
    seconds,
)

if TYPE_CHECKING:
    from ..uploader.client import Client

__all__ = ["status"]

_NOTHING_LEFT, _SOMETHING_LEFT = 0, 1
_FROM_MEMORY = " (not known here to be stored; what a stopped upload sent last may have arrived: --ask asks the server)"


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

    Without --ask no network is used: it says what uploads from here, by this user, have seen confirmed and asked back;
    of one that was stopped, what it sent last counts as pending and may have arrived. With filters, all of it is about
    the trajectories that they mean.

    Exit codes: 0 all is stored; 1 something is left to be sent, or must wait; 2 it could not start.

    Example: verl-trace status runs/exp1 --ask
    """
    folder = state_folder(state_dir)
    run = run_path(run)
    found, runs = [], find_runs(run)
    for one in runs:
        questions = [_question(one, entity, project)] if ask else []
        wanted = filters.of_run(one.attempts)
        found.append(run_status(one, folder, filters=wanted, settle=seconds(settle), partial=partial, ask=questions))
    check_names(filters, runs)
    closed = closed_folders(run)
    if as_json:
        print_json(orjson.dumps([one.as_json() for one in found], option=orjson.OPT_INDENT_2).decode())
    else:
        for one_status in found:
            for line in _lines(one_status, ask):
                typer.echo(visible(line))
    for name in [*closed, *(str(damage.path) for one in runs for damage in one.passed_over)]:
        typer.echo(f"verl-trace: cannot be read: {visible(name)}", err=True)
    whole = not closed and all(one_status.complete for one_status in found)
    raise typer.Exit(_NOTHING_LEFT if whole else _SOMETHING_LEFT)


def _question(run: Run, entity: str | None, project: str | None) -> tuple[Place, Rows]:
    """The run's project, and how to ask it; it is not made for that."""
    try:
        from ..uploader.client import Client
        from ..uploader.network import one_network
        from ..uploader.target import resolve
    except ImportError as error:
        raise MissingExtra("status --ask", "upload", error.name or "requests") from None
    with one_network():
        recorded = None if run.project_name == UNKNOWN else run.project_name
        target = resolve(recorded, entity=entity, project=project, make=False)
        client = Client(target)
        if target.exists:
            client.check()
    place = Place(client.url, target.project_id, run.project_name, run.experiment_name)
    # a project that an upload will make holds nothing yet
    return place, _asker(client) if target.exists else lambda _: []


def _asker(client: Client) -> Rows:
    def rows(ids: list[str]) -> list[dict[str, Any]]:
        from ..uploader.network import one_network

        with one_network():
            return client.rows(ids, ("id", "ended_at", "attributes"))

    return rows


def _lines(status: RunStatus, ask: bool) -> list[str]:
    lines = [f"{status.project_name} · {status.experiment_name} ({status.folder})"]
    calls, trajectories = plural(status.recorded, "call"), counted(status.trajectories, "trajectory")
    lines.append(f"  recorded {status.recorded:>9,} {calls} in {trajectories}")
    for reason, count in sorted(status.waiting.items()):
        lines.append(f"  waiting  {count:>9,} {reason}")
    for number, place in enumerate(status.places):
        # the place that was asked comes first
        guess = place.pending and not (ask and number == 0)
        lines.append(f"  stored   {place.stored:>9,} in {place.project_id} on {place.server}")
        if place.otherwise:
            lines.append(f"           {place.otherwise:>9,} of them otherwise: with another end or other attributes")
        lines.append(f"  pending  {place.pending:>9,}{_FROM_MEMORY if guess else ''}")
    if not status.places:
        lines.append(
            f"  pending  {status.settled:>9,} (nothing of it is known here to be stored; --ask asks the server)"
        )
    return lines
