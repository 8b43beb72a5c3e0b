"""Where span files go when verl and Ray decide in which folder a process runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..recorder.settings import default_folder

__all__ = ["FOLDER_VARIABLE", "pin_folder", "span_folder"]

FOLDER_VARIABLE = "VERL_TRACE_DIR"
# Ray's own name for what it deletes: <temp dir>/session_2026-11-29_16-11-00_123456_4711/…
_RAY_SESSION = re.compile(r"session_(\d{4}-\d\d-\d\d_|latest$)")


def span_folder(environ: Mapping[str, str] | None = None) -> Path:
    """VERL_TRACE_DIR, else `runs` in the current folder, always absolute.

    A default inside a Ray session folder, where a job with a `working_dir` runs, would be deleted with the session: it
    becomes `runs` in the home folder. A folder that the user named is taken as it is.
    """
    environ = os.environ if environ is None else environ
    folder = Path(default_folder(environ))
    if not environ.get(FOLDER_VARIABLE) and any(_RAY_SESSION.match(part) for part in folder.parts):
        return Path.home() / "runs"
    return folder


def pin_folder() -> None:
    """Make the folder of this process explicit, so that a later change of the current folder moves nothing."""
    os.environ[FOLDER_VARIABLE] = str(span_folder())
