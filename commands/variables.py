"""Variables of the environment that look like settings and are none: what they were meant to say is not heard."""

from __future__ import annotations

import os

__all__ = ["warnings"]


def warnings() -> list[str]:
    """What to tell whoever runs any command: a sentence for each name with a mistake in it. `doctor` has the rest."""
    # the recorder's table is not loaded where there is nothing to look up
    if not any(name.upper().startswith(("VERL_TRACE", "VERL-TRACE", "VERLTRACE")) for name in os.environ):
        return []
    from ..recorder.settings import mistyped

    return [f"{name} is no setting: did you mean {meant}?" for name, meant in mistyped(os.environ).items() if meant]
