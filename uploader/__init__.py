"""Call trees -> a Weave project, over Weave's own HTTP protocol.

    pipeline   a path: find runs, resolve targets, replay one after the other
    follow     look again and again while a run is written
    replay     one run: read, sort, send, check
    settle     when a trajectory can no longer change; `gaps`: segments that are missing
    plan       which calls go into which request
    payload    one trajectory -> the bytes of its calls
    sender     the threads that ask, send and check
    storing    one batch: stored, or refused call by call; `outcome`: what became of it
    heavy      what is too large for a row: files with a preview in place; `media`: what side files hold
    contents   files as Weave's own Content objects; `encodings`: PNG, WAV, NPY
    client     the routes, and what to do about every kind of answer
    transport  one request; how long to wait before the next
    check      does the server hold what the files say?
    ledger     what an upload remembers, as a cache
    status     what is still to be sent, without asking anybody
    target     where to and as whom, as W&B users have set it up; `network`: by which proxy, trusting whom
    access     that question, and whether the trace server lets us in, at once
    prune      what may be deleted here because the server holds it; `prune_files`: deleting it
    wandb_links  which W&B run the calls belong to; `wandb_syncing`: that it is there before them; `wandb_options`
    ops        the objects that calls refer to by their op name
    estimate   what it will come to: calls, bytes, a share of the quota, time at a measured rate; `forecast`: as values
    folders    what lies beside the runs of a folder
    result     numbers that add up

Invariants
1. Ids and times are the recorded ones: uploading again is recognised, not stored twice.
2. The server is asked before calls are sent, and again after every answer that was lost on the way.
3. Every recorded call is counted exactly once: as sent, skipped (why) or failed (in whose words).
4. A call is sent when it can no longer change: Weave changes no stored call.
5. The ledger saves questions and decides nothing that the server has not confirmed.

Importing this package imports neither weave nor requests; `upload` does when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..reader.filters import Filters
    from .choose import Choosing
    from .forecast import Estimate
    from .pipeline import upload
    from .result import RunReport, UploadResult
    from .wandb_options import WandbOptions

__all__ = ["Choosing", "Estimate", "Filters", "RunReport", "UploadResult", "WandbOptions", "upload"]

# Where they are, to be imported when they are asked for.
_MODULES = {
    "Choosing": ".choose",
    "Estimate": ".forecast",
    "Filters": "..reader.filters",
    "RunReport": ".result",
    "UploadResult": ".result",
    "WandbOptions": ".wandb_options",
    "upload": ".pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        try:
            return getattr(import_module(_MODULES[name], __name__), name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing.startswith(__name__.partition(".")[0]):
                raise
            raise ModuleNotFoundError(
                f"{__name__}.{name} needs the package {missing}, which is not installed here"
                " (pip install 'verl-trace[upload]')",
                name=missing,
            ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
