"""SHA-256 that is there at once, and quick later.

`hashlib` loads OpenSSL, which takes as long as a quarter of the recorder's modules. Python's own implementation, which
stands in where OpenSSL is missing, does for names. Large contents are hashed five times as fast once OpenSSL is there:
a thread of the recorder loads it soon (`prepare`), if nobody did.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from .interrupts import pass_on

try:
    from _sha2 import sha256 as _own  # type: ignore[import-not-found]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256 as _own  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256 as _own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["prepare", "sha256_hex"]

_quick: Callable[[bytes], Any] | None = None


def sha256_hex(content: bytes) -> str:
    """64 hex digits."""
    # another thread may be at loading hashlib
    sha256 = _quick or getattr(sys.modules.get("hashlib"), "sha256", _own)
    digest: str
    try:
        digest = sha256(content).hexdigest()
    except ValueError as error:
        # an OpenSSL that is not allowed to
        pass_on(error)
        digest = _own(content).hexdigest()
    return digest


def prepare() -> None:
    """Load the quick one, for a thread that has time; where no descriptor is left for it, the own one goes on.

    Not `hashlib`: when descriptors run out while it loads, it stays without its functions, for the whole program.
    """
    global _quick
    with contextlib.suppress(ImportError, OSError):
        from _hashlib import openssl_sha256

        _quick = openssl_sha256
