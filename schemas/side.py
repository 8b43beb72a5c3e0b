"""Contents that a line refers to instead of holding them: where they go, and how the reference looks.

    "blob": {"digest": <64 hex digits of SHA-256>, "size": bytes}

A reference says what, not where: the content is found by its digest in the side files of the line's writer, so that it
is stored once, may be copied by a repair, and cannot be mixed up.
"""

from __future__ import annotations

from .sha256 import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["SideFile", "digest_of", "is_digest", "reference"]

_HEX = frozenset("0123456789abcdef")


class SideFile:
    """What takes contents in while a value is encoded.

    Attributes:
        accelerators: whether the content of tensors on an accelerator is wanted, at the price of a synchronisation.
    """

    accelerators: bool

    def keep(self, digest: str, content: bytes, *, in_background: bool) -> str:
        """Store a content; returns "" or why it could not be stored. Never raises.

        With `in_background` a large one may be written later.
        """
        raise NotImplementedError


def digest_of(content: bytes) -> str:
    """The name of a content."""
    return sha256_hex(content)


def is_digest(text: object) -> bool:
    """Whether it can be the name of a content."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)


def reference(side: SideFile | None, digests: list[str], content: bytes, *, in_background: bool) -> dict[str, Any]:
    """What goes on the line for a content: `blob`, or `_omitted` with the reason when it is not stored."""
    if side is None:
        return {"_omitted": "no side file here", "size": len(content)}
    digest = digest_of(content)
    reason = side.keep(digest, content, in_background=in_background)
    if reason:
        return {"_omitted": f"the side file did not take it: {reason}", "size": len(content)}
    if digest not in digests:
        digests.append(digest)
    return {"blob": {"digest": digest, "size": len(content)}}
