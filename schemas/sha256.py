"""SHA-256 that is there at once, and quick later.

`hashlib` loads OpenSSL, which takes as long as a quarter of the recorder's modules. Python's own implementation, which
stands in where OpenSSL is missing, does for names. Large contents are hashed five times as fast once anybody has loaded
hashlib: a thread of the recorder does soon (`prepare`).
"""

from __future__ import annotations

import contextlib
import sys

try:
    from _sha2 import sha256 as _own  # type: ignore[import-not-found]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256 as _own  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256 as _own

__all__ = ["prepare", "sha256_hex"]


def sha256_hex(content: bytes) -> str:
    """64 hex digits."""
    # another thread may be at loading it
    sha256 = getattr(sys.modules.get("hashlib"), "sha256", _own)
    digest: str = sha256(content).hexdigest()
    return digest


def prepare() -> None:
    """Load the quick one, for a thread that has time; where no descriptor is left for it, the own one goes on."""
    with contextlib.suppress(ImportError, OSError):
        import hashlib  # noqa: F401
