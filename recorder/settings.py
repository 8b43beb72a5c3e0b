"""Every setting of the recorder: one table, read from the environment once, when a recording starts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

from ..schemas.redaction import split_patterns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["VARIABLES", "Settings", "StepRange", "default_folder", "disabled", "mistyped", "read_settings", "size_text"]

# Every VERL_TRACE_ variable that anything here reads; one that is not among them is mistyped.
_NAMES = (
    "DIR",
    "DISABLED",
    "DRIVER_DISABLED",
    "EXTRA",
    "TREE",
    "OPS",
    "OFFLINE",
    "STEPS",
    "DROP_FIELDS",
    "MAX_BYTES",
    "MIN_FREE",
    "REDACT",
    "MEDIA_SYNC",
    "GPU_TENSORS",
    "YIELD_BYTES",
    "SEGMENT_BYTES",
    "SEAL_AGE",
    "FSYNC",
    "ATTEMPT",
    "COLLECT",
    "CACHE",
    "SERVER_PYTHON",
)  # fmt: skip
VARIABLES = frozenset(f"VERL_TRACE_{name}" for name in _NAMES)
# Forms that a mistyped prefix has.
_PREFIXES = ("VERL_TRACE", "VERLTRACE")
# How much of a name must agree with a setting's, so that this one was meant.
_ALIKE = 0.75

# A segment this large compresses in a fraction of a second and keeps the number of files low.
DEFAULT_SEGMENT_BYTES = 64 << 20
# An age alone must not make files: below this size an old segment stays open (and is readable all the same).
MIN_SEAL_BYTES = 4 << 20
DEFAULT_SEAL_AGE = 60.0
# What a power loss of the node can cost at most, in seconds.
DEFAULT_FSYNC_INTERVAL = 5.0
# Checkpoints need the last of the disk more than traces do.
DEFAULT_MIN_FREE = 1 << 30
# Far above what a finite stream yields; an endless one must not fill the memory.
DEFAULT_YIELD_BYTES = 64 << 20
# A copy to the page cache of this size takes some milliseconds; a picture of two million pixels is 6 MB.
DEFAULT_MEDIA_SYNC = 4 << 20


class StepRange:
    """`first:last:stride`, both ends included; `last` None means open."""

    __slots__ = ("first", "last", "stride")

    def __init__(self, first: int, last: int | None, stride: int) -> None:
        self.first = first
        self.last = last
        self.stride = stride

    def __contains__(self, step: object) -> bool:
        if not isinstance(step, int):
            return True
        if step < self.first or (self.last is not None and step > self.last):
            return False
        return (step - self.first) % self.stride == 0


class Settings:
    """What a recording does; the comments name the variables."""

    def __init__(
        self,
        folder: str | Path,  # VERL_TRACE_DIR
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,  # VERL_TRACE_SEGMENT_BYTES
        seal_age: float = DEFAULT_SEAL_AGE,  # VERL_TRACE_SEAL_AGE, seconds
        fsync_interval: float = DEFAULT_FSYNC_INTERVAL,  # VERL_TRACE_FSYNC, seconds; 0 = never
        min_free: int = DEFAULT_MIN_FREE,  # VERL_TRACE_MIN_FREE, bytes
        max_bytes: int = 0,  # VERL_TRACE_MAX_BYTES, bytes of the run's folder at which recording pauses; 0 = no limit
        steps: StepRange | None = None,  # VERL_TRACE_STEPS
        drop_fields: frozenset[str] = frozenset(),  # VERL_TRACE_DROP_FIELDS
        tree: str = "run",  # VERL_TRACE_TREE: "run" as live tracing has it, or "trajectory", a root around scoring, too
        yield_bytes: int = DEFAULT_YIELD_BYTES,  # VERL_TRACE_YIELD_BYTES, of one generator's items; 0 = no limit
        media_sync: int = DEFAULT_MEDIA_SYNC,  # VERL_TRACE_MEDIA_SYNC, bytes of pixels written before a call returns
        redact: tuple[str, ...] = (),  # VERL_TRACE_REDACT, patterns of keys beside Weave's own
        collected: str = "",  # VERL_TRACE_COLLECT, where a collector brings the files: the node's may go with it
        accelerators: bool = False,  # VERL_TRACE_GPU_TENSORS, whether to read the content of tensors on an accelerator
        problems: tuple[str, ...] = (),  # variables that could not be read, for one warning
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.seal_age = seal_age
        self.fsync_interval = fsync_interval
        self.min_free = min_free
        self.max_bytes = max_bytes
        self.steps = steps
        self.drop_fields = drop_fields
        self.tree = tree
        self.yield_bytes = yield_bytes
        self.media_sync = media_sync
        self.redact = redact
        self.collected = collected
        self.accelerators = accelerators
        self.problems = problems


def disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether VERL_TRACE_DISABLED switches everything off."""
    return _is_on("VERL_TRACE_DISABLED", environ)


def _is_on(name: str, environ: Mapping[str, str]) -> bool:
    return environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def mistyped(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that look like settings and are none; with each the setting that was meant, "" where none is like it.

    What they were to say is not heard. Loads `difflib` where there is such a variable.
    """
    found = {}
    for name in sorted(set(environ) - VARIABLES):
        plain = name.upper().replace("-", "_")
        for prefix in _PREFIXES:
            if plain.startswith(prefix):
                from difflib import get_close_matches

                near = get_close_matches(plain[len(prefix) :].strip("_"), _NAMES, 1, _ALIKE)
                found[name] = f"VERL_TRACE_{near[0]}" if near else ""
    return found


def default_folder(environ: Mapping[str, str] = os.environ) -> str:
    """VERL_TRACE_DIR, or `runs` in the current folder; always absolute."""
    return os.path.abspath(os.path.expanduser(environ.get("VERL_TRACE_DIR") or "runs"))


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment. A value that cannot be read keeps its default and is named in `problems`."""
    problems: list[str] = []

    def size(name: str, default: int) -> int:
        return int(number(name, default, _size, "a size such as 64M", size_text(default) if default else "no limit"))

    def seconds(name: str, default: float) -> float:
        return number(name, default, _seconds, "a time such as 90s or 5m", f"{default:g}s")

    def number(name: str, default: float, read: Callable[[str], float], form: str, instead: str) -> float:
        text = environ.get(name, "").strip()
        if not text:
            return default
        try:
            value = read(text)
            if value < 0 or not math.isfinite(value):
                raise ValueError
        except ValueError:
            problems.append(f"{name}={text!r} is not {form}; using {instead}")
            return default
        return value

    return Settings(
        folder=default_folder(environ),
        segment_bytes=max(1 << 12, size("VERL_TRACE_SEGMENT_BYTES", DEFAULT_SEGMENT_BYTES)),
        seal_age=seconds("VERL_TRACE_SEAL_AGE", DEFAULT_SEAL_AGE),
        fsync_interval=seconds("VERL_TRACE_FSYNC", DEFAULT_FSYNC_INTERVAL),
        min_free=size("VERL_TRACE_MIN_FREE", DEFAULT_MIN_FREE),
        max_bytes=size("VERL_TRACE_MAX_BYTES", 0),
        steps=_steps(environ.get("VERL_TRACE_STEPS", ""), problems),
        tree=_tree(environ.get("VERL_TRACE_TREE", ""), problems),
        drop_fields=frozenset(f.strip() for f in environ.get("VERL_TRACE_DROP_FIELDS", "").split(",") if f.strip()),
        yield_bytes=size("VERL_TRACE_YIELD_BYTES", DEFAULT_YIELD_BYTES),
        media_sync=size("VERL_TRACE_MEDIA_SYNC", DEFAULT_MEDIA_SYNC),
        redact=split_patterns(environ.get("VERL_TRACE_REDACT", "")),
        accelerators=_is_on("VERL_TRACE_GPU_TENSORS", environ),
        collected=environ.get("VERL_TRACE_COLLECT", "").strip(),
        problems=tuple(problems),
    )


def _size(text: str) -> float:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    bare = text.lower().removesuffix("b").removesuffix("i")
    if bare and bare[-1] in units:
        return float(bare[:-1]) * units[bare[-1]]
    return float(text)


def size_text(size: int) -> str:
    """A size as the settings take it: `64M`, `1G`; bytes where it is no round number of one of the units."""
    for unit, letter in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def _seconds(text: str) -> float:
    """Plain seconds, or with one of the units that the commands take."""
    bare = text.lower()
    for letters, unit in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)):
        if bare.endswith(letters):
            return float(bare.removesuffix(letters)) * unit
    return float(bare)


def _tree(text: str, problems: list[str]) -> str:
    text = text.strip().lower() or "run"
    if text not in ("run", "trajectory"):
        problems.append(f"VERL_TRACE_TREE={text!r} is neither run nor trajectory; using run")
        return "run"
    return text


def _steps(text: str, problems: list[str]) -> StepRange | None:
    text = text.strip()
    if not text:
        return None
    parts = text.split(":")
    try:
        first = int(parts[0] or 0)
        last = int(parts[1]) if len(parts) > 1 and parts[1] else (first if len(parts) == 1 else None)
        stride = int(parts[2]) if len(parts) > 2 else 1
        if len(parts) > 3 or stride < 1 or (last is not None and last < first):
            raise ValueError
    except ValueError:
        problems.append(f"VERL_TRACE_STEPS={text!r} is not FIRST:LAST:STRIDE, such as 0:100:10; recording every step")
        return None
    return StepRange(first, last, stride)
