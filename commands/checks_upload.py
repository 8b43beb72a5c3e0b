"""What `verl-trace doctor` finds out about uploading: is it installed, can the host be reached with this key."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from importlib import metadata

from ..schemas.errors import VerlTraceError
from .checks_disk import CLOCK_TOLERANCE
from .findings import Finding, State

__all__ = ["UPLOAD_MODULES", "check_extra", "upload_findings"]

UPLOAD_MODULES = ("weave", "wandb", "requests", "rich")
# For each of two requests; a node without a network often answers with silence.
SECONDS = 5.0
_OFFLINE = ("offline", "dryrun", "disabled")


def upload_findings(asked: bool | None) -> Iterator[Finding]:
    """The extra, the host, its clock. `asked` None: the host is asked where the extra is and W&B is not offline."""
    extra = check_extra(asked)
    yield extra
    if extra.state != "ok":
        return
    mode = os.environ.get("WANDB_MODE", "").strip().lower()
    if asked is False or (asked is None and mode in _OFFLINE):
        why = f"WANDB_MODE={mode}; " if asked is None else ""
        yield Finding("host", "skip", f"{why}`verl-trace doctor --upload` asks the upload host with your key")
        return
    yield from _host("fail" if asked else "warn")


def check_extra(asked: bool | None = None) -> Finding:
    """Whether `verl-trace upload` has the packages it needs; GPU nodes do without."""
    missing = [name for name in UPLOAD_MODULES if not _installed(name)]
    if missing:
        return Finding(
            "upload",
            "fail" if asked else "warn",
            f"not installed: {', '.join(missing)}; recording and `ls` work without",
            "where you upload from: pip install 'verl-trace[upload]'",
        )
    return Finding("upload", "ok", f"weave {metadata.version('weave')}, wandb {metadata.version('wandb')}")


def _installed(name: str) -> bool:
    # W&B's own `wandb` folder, where the command is run beside it, is a package without a file
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def _host(trouble: State) -> Iterator[Finding]:
    from ..uploader.reach import reach

    try:
        found = reach(SECONDS)
    except VerlTraceError as error:
        # nothing that the recording needs: the files wait
        remedy = error.hint or "upload from a node that has a network"
        yield Finding("host", trouble, f"{error}; only `upload` needs it", remedy)
        return
    # a library's own words about a broken set-up; none of them may end the other checks
    except Exception as error:  # noqa: BLE001
        yield Finding(
            "host", trouble, f"{type(error).__name__}: {error}", "check WANDB_BASE_URL and the proxy's variables"
        )
        return
    who = f"{found.user or 'unnamed'}, default entity {found.entity or 'none'}"
    yield Finding("host", "ok", f"{found.base_url} takes {found.credential} ({who}); {found.trace_url} answers")
    if found.ahead is not None and abs(found.ahead) > CLOCK_TOLERANCE:
        direction = "ahead of" if found.ahead > 0 else "behind"
        text = f"this node is {abs(found.ahead):.0f} s {direction} {found.base_url}"
        yield Finding("host-clock", "warn", text, "have chronyd or ntpd set the clock; Weave sorts by recorded times")
