"""Ops as Weave knows them: a published object per name, which every call refers to.

A call traced live by verl names its op by a string, for which Weave's client publishes an object with a fixed piece
of code. We publish the same content, so that replayed and live calls have the same op references and meet in one row of
Weave's op list.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ..schemas.errors import Rejected
from .client import Client

__all__ = ["OBJECT_DIGEST", "OP_CODE", "Ops", "expected_ref", "op_object_id"]

# What Weave's client stores for an op that has a name and no code. Content-addressed: equal bytes, equal reference.
OP_CODE = (
    b"import weave\n\n@weave.op\ndef op_fn(*args, **kwargs):  # type: ignore\n"
    b"    # Code-capture unavailable for this op\n    pass\n"
)
# What every server so far makes of it: calls are encoded with it before the server has answered.
OBJECT_DIGEST = "6jAV4T6F42RKlabeB2RO0BXkbFFPrKyU2yyQedpotB8"
# Longer object ids are cut by Weave's client and refused by its servers.
_MAX_ID = 128


def op_object_id(name: str) -> str:
    """The object id that Weave's client gives to an op of this name: `A._call` becomes `A-call`."""
    dashed = re.sub(r"[^\w.]+", "-", name)
    return re.sub(r"[._-]{2,}", "-", dashed).strip("-_")[:_MAX_ID] or "unnamed"


def expected_ref(project_id: str, name: str) -> str:
    """The reference that an op of this name has once it is published, as far as one can say without asking."""
    return f"weave:///{project_id}/op/{op_object_id(name)}:{OBJECT_DIGEST}"


class Ops:
    """The ops of one project. Each is published once per upload; the server ignores what it has already.

    May be used by several threads: the first that wants an op publishes it, the others wait for the answer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._refs: dict[str, Future[str]] = {}
        # the digest of the piece of code, once somebody has asked for it
        self._files: dict[str, Future[str]] = {}
        self._lock = threading.Lock()
        self.refused: dict[str, str] = {}

    def ref(self, name: str) -> str:
        """The op's reference; a plain name where the server refuses the object (`refused` tells why).

        Raises:
            Unreachable: the server could not be reached for as long as the client waits.
        """
        return self._once(self._refs, name, self._publish)

    def _once(self, answers: dict[str, Future[str]], name: str, ask: Callable[[str], str]) -> str:
        """The answer, or the error, that whoever came first got: nobody asks again where somebody has given up."""
        mine: Future[str] = Future()
        with self._lock:
            answer = answers.setdefault(name, mine)
        if answer is mine:
            try:
                answer.set_result(ask(name))
            except BaseException as error:  # noqa: BLE001
                # for those who wait; it is raised here, too
                answer.set_exception(error)
        return answer.result()

    def _publish(self, name: str) -> str:
        object_id = op_object_id(name)
        try:
            # stored before the first object that refers to it
            code = self._once(self._files, "obj.py", lambda file: self._client.create_file(file, OP_CODE))
            value = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": code}}
            digest = self._client.create_object(object_id, value)
        except Rejected as error:
            self.refused[name] = str(error)
            return object_id
        return f"weave:///{self._client.project_id}/op/{object_id}:{digest}"
