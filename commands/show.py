"""`verl-trace show`: one trajectory, or one call of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..reader import Call
from ..reader.conversation import conversation
from ..reader.facts import trajectory_facts
from ..reader.filters import Filters
from ..reader.kinds import kinds_of
from ..reader.media import as_file, content_of, describe, is_content
from ..reader.payloads import MISSING, field, json_text, parsed
from ..reader.pick import Picked, pick, raw_lines
from ..schemas.errors import BadTarget, NotFound
from ..viewer.as_json import call_json, turn_json
from ..viewer.call_tree import tree_lines
from ..viewer.listing import as_of_facts, as_of_note
from ..viewer.showing import call_lines, conversation_lines, fact_lines
from ..viewer.terminal import columns_of, is_unicode, line, print_lines
from ..viewer.text import visible, visible_lines
from ..viewer.tokenizer import load_tokenizer
from .filters import with_filters
from .printing import print_json, record_writer
from .runs import RunArgument, report_damage, runs_named

__all__ = ["show"]

SelectorArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SELECTOR",
        help="Beginning of a trace id or of a call's id, or STEP:SAMPLE:ROLLOUT such as 3:7:0.",
        show_default=False,
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="Folder of a tokenizer: decode token ids that have no text.",
        show_default=False,
    ),
]


@with_filters
def show(
    run: RunArgument,
    selector: SelectorArgument = None,
    filters: Filters = Filters(),  # noqa: B008
    tokenizer: TokenizerOption = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print its records as they are in the files, in order.")] = False,
    field: Annotated[
        str | None,
        typer.Option(
            "--field", help="Print one field alone: output.response_text, inputs.raw_prompt.0.content.", metavar="PATH"
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="With --field: write the picture, array or media there to FILE.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show one trajectory as a conversation and as a tree of calls, or one call with inputs and output.

    Long values are shortened with a remark; --full shows all of them, --field one of them. Pictures, arrays and
    other media are described in a line; --field with --save writes one as PNG, NPY or the like.

    Example: verl-trace show runs/exp1 3:7:0
    """
    decode = load_tokenizer(tokenizer, "show") if tokenizer is not None else None
    picked = pick(runs_named(run), selector, filters)
    if raw:
        write = record_writer()
        for record in raw_lines(picked):
            write(record)
    elif save is not None:
        _save(picked, field or "", save)
    elif field is not None:
        _print_field(picked, field)
    elif as_json:
        print_json(json_text(_as_json(picked, decode), indent=True))
    else:
        _print(picked, decode, full)
    if picked.warning:
        typer.echo(f"verl-trace: {visible(picked.warning)}", err=True)
    report_damage([picked.reading])


def _print(picked: Picked, decode: Any, full: bool) -> None:
    trajectory, columns = picked.trajectory, columns_of()
    if picked.call is not None and picked.call is not trajectory.root:
        print_lines(call_lines(picked.call, columns, _parts(picked.call), full=full))
        return
    print_lines(fact_lines(trajectory_facts(trajectory), columns))
    if note := as_of_note(as_of_facts(picked.run)):
        print_lines([line("  ", (note, "dim"))])
    print_lines(conversation_lines(conversation(trajectory, decode), columns, full=full))
    print_lines([line(), line(("calls", "bold"))])
    print_lines(tree_lines(trajectory, columns, full=full, boxes=is_unicode()))


def _as_json(picked: Picked, decode: Any) -> dict[str, Any]:
    kinds = kinds_of(picked.trajectory.calls)
    if picked.call is not None and picked.call is not picked.trajectory.root:
        return {**call_json(picked.call, kinds[picked.call.id]), **_parts(picked.call)}
    return {
        **as_of_facts(picked.run),
        "trajectory": trajectory_facts(picked.trajectory),
        "turns": [turn_json(turn) for turn in conversation(picked.trajectory, decode)],
        "calls": [call_json(call, kinds[call.id]) for call in picked.trajectory.calls],
    }


def _parts(call: Call) -> dict[str, Any]:
    parts = {"inputs": parsed(call.inputs)}
    return parts if call.unfinished else {**parts, "output": parsed(call.output())}


def _field(picked: Picked, path: str) -> tuple[Call, Any]:
    call = picked.call or picked.trajectory.root
    if call is None:
        raise NotFound("the record of the trajectory's own call is lost", hint="name one of its calls")
    value = field({**call.head, **_parts(call)}, path)
    if value is MISSING:
        names = ", ".join(map(str, _names(call, path)))
        raise NotFound(f"{call.op} has no field {path!r}", hint=f"there are {names}" if names else "")
    return call, value


def _save(picked: Picked, path: str, target: Path) -> None:
    """A content of a side file as a file that other programs open."""
    call, form = _field(picked, path)
    if not is_content(form):
        raise NotFound(f"{path or '--field'} is no picture, array or other content", hint="--field alone prints it")
    data = content_of(call, form)
    if data is None:
        raise NotFound(f"the content of {path} is not in the side files, or not whole", hint="verl-trace verify")
    encoded, suffix = as_file(form, data)
    if target.exists():
        raise BadTarget(f"{target} is there already", hint="give another name")
    try:
        target.write_bytes(encoded)
    except OSError as error:
        raise BadTarget(f"{target}: {error.strerror}") from error
    note = "" if target.suffix == suffix else f" (it is a {suffix} file)"
    typer.echo(f"{visible(target)}: {visible(describe(form))}{note}")


def _print_field(picked: Picked, path: str) -> None:
    """The bare value: text is written as it is into a pipe, and made harmless on a terminal."""
    _, value = _field(picked, path)
    text = value if isinstance(value, str) else json_text(value, indent=True)
    if sys.stdout.isatty():
        typer.echo("\n".join(visible_lines(text)))
    else:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass") + b"\n")


def _names(call: Call, path: str) -> list[str]:
    """What there is at the last part of `path` that exists."""
    value: Any = {**call.head, **_parts(call)}
    known = ""
    for part in path.split("."):
        below = field(value, part)
        if below is MISSING:
            break
        value, known = below, f"{known}{part}."
    if isinstance(value, dict):
        return [visible(f"{known}{name}") for name in value][:30]
    return [f"{known}0 to {known}{len(value) - 1}"] if isinstance(value, list) and value else []
