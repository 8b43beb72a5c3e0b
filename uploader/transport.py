"""One request, and how long to wait before the next: the mechanics below `client.py`."""

from __future__ import annotations

import email.utils
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

import orjson
import requests
import urllib3
from urllib3.exceptions import NewConnectionError

from ..schemas.errors import VerlTraceError
from .network import verification
from .outcome import Outcome

__all__ = ["Http", "Patience", "Refusal", "Transient", "Unreachable", "reason_of"]

# Seconds to connect, and without a byte of an answer: a batch of 8 MiB takes a loaded server several seconds to insert.
TIMEOUT = (10.0, 120.0)
# First and longest wait between attempts, in seconds.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# Connections that stay open for the next request: as many as requests may be under way at once.
OPEN_CONNECTIONS = 64
# More of an error page tells nobody anything.
WORDS_LIMIT = 500


class Transient(Exception):
    """No answer, or one that may be another the next time. `reached`: somebody was there at least."""

    def __init__(
        self, words: str, *, status: int | None = None, retry_after: float | None = None, reached: bool = True
    ) -> None:
        super().__init__(words)
        self.status = status
        self.retry_after = retry_after
        self.reached = reached


class Refusal(Exception):
    """The server understood and said no. `field`: what it objects to, `code`: its name for the error; "" if unknown."""

    def __init__(self, words: str, *, status: int, field: str = "", code: str = "") -> None:
        super().__init__(words)
        self.status = status
        self.field = field
        self.code = code


class Unreachable(VerlTraceError):
    """Nothing more can be sent: no success for too long, or access was withdrawn. A later upload carries on."""

    outcome: Outcome | None = None


class Http:
    """POST to one server, over connections that stay open and that all threads share. `authorization` gives the header
    with the user's credentials."""

    def __init__(self, url: str, authorization: Callable[[], str]) -> None:
        self.url = url
        self._authorization = authorization
        # a session is for one thread, what keeps the connections for all
        self._local = threading.local()
        self._connections = requests.adapters.HTTPAdapter(pool_maxsize=OPEN_CONNECTIONS)
        self._verify = verification()
        if self._verify is False:
            # the user has said so; a warning for every request tells nothing new
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def post_json(self, path: str, body: Any) -> Any:
        """The answer's JSON.

        Raises:
            Transient, Refusal
        """
        return _parse(self.post(path, orjson.dumps(body)).content)

    def post_batch(self, path: str, items: Iterable[Sequence[bytes]]) -> None:
        """Send items that are JSON already, each in pieces. An answer of 200 that is not JSON is none of the server's:
        somebody between here and there made it up.

        Raises:
            Transient, Refusal
        """
        pieces = [b'{"batch":[']
        for item in items:
            pieces += item
            pieces.append(b",")
        # in place of the last comma
        pieces[-1] = b"]}"
        content = self.post(path, b"".join(pieces)).content
        if content:
            _parse(content)

    def post_for_lines(self, path: str, body: Any) -> list[Any]:
        """The answer's JSON lines.

        Raises:
            Transient, Refusal
        """
        return [_parse(line) for line in self.post(path, orjson.dumps(body)).content.splitlines() if line.strip()]

    def post_file(self, project_id: str, name: str, content: bytes) -> Any:
        """Upload a file as the form that `/file/create` takes.

        Raises:
            Transient, Refusal
        """
        form = {"data": {"project_id": project_id}, "files": {"file": (name, content)}}
        return _parse(self._send("/file/create", **form).content)

    def post(self, path: str, body: bytes) -> requests.Response:
        """Send JSON bytes.

        Raises:
            Transient, Refusal
        """
        return self._send(path, data=body, headers={"Content-Type": "application/json"})

    def _send(self, path: str, **content: Any) -> requests.Response:
        try:
            # a redirected POST would arrive as a GET; `verify` is named since requests prefers its own variables to a
            # session's
            answer = self._session().post(
                self.url + path, timeout=TIMEOUT, allow_redirects=False, verify=self._verify, **content
            )
        except requests.RequestException as error:
            raise Transient(reason_of(error), reached=_reached(error)) from None
        if answer.status_code < 300:
            return answer
        words = f"HTTP {answer.status_code}: {_words(answer)}"
        if answer.status_code in (408, 425, 429) or answer.status_code >= 500:
            raise Transient(words, status=answer.status_code, retry_after=_retry_after(answer))
        if answer.is_redirect:
            words += f" (redirected to {answer.headers['Location'][:WORDS_LIMIT]})"
        raise Refusal(words, status=answer.status_code, field=_field(answer), code=_code(answer))

    def close(self) -> None:
        """Close the connections; the next request opens another."""
        self._connections.close()

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, self._connections)
            session.auth = self._authorize
            session.headers["User-Agent"] = f"verl-trace/{metadata.version('verl-trace')}"
        return session

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._authorization()
        return request


class Patience:
    """The attempts of one operation: how long to wait before the next, and when to stop.

    `max_wait`: seconds from the first failure to giving up. `stop`: ends a wait at once.
    """

    def __init__(self, max_wait: float, stop: threading.Event) -> None:
        self.failures = 0
        self._max_wait = max_wait
        self._stop = stop
        self._failing_since = 0.0

    def wait(self, trouble: Transient) -> None:
        """Sleep after a failure.

        Raises:
            Unreachable: the operation has failed for too long, or the upload is being stopped.
        """
        now = time.monotonic()
        if not self.failures:
            self._failing_since = now
        self.failures += 1
        left = self._max_wait - (now - self._failing_since)
        if left <= 0:
            raise Unreachable(f"the server did not recover within {self._max_wait:.0f} s: {trouble}")
        if (trouble.retry_after or 0.0) > left and not self._stop.is_set():
            raise Unreachable(f"the server asks to wait {trouble.retry_after:.0f} s, and --max-wait is less: {trouble}")
        # jitter, so that threads that failed together do not come back together
        pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.failures - 1, 10)) * random.uniform(0.5, 1.0)
        if self._stop.wait(min(left, max(pause, trouble.retry_after or 0.0))):
            raise Unreachable("stopped")


def _parse(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        raise Transient(f"the answer is not JSON: {content[:80]!r}") from None


def reason_of(error: requests.RequestException) -> str:
    """What went wrong with a connection, without the addresses of objects that requests puts there."""
    if isinstance(error, requests.Timeout):
        return "timed out"
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS: {error}"[:WORDS_LIMIT]
    inner = error.args[0] if error.args else error
    reason = getattr(inner, "reason", inner)
    return str(reason).rpartition(">: ")[2][:WORDS_LIMIT] or type(error).__name__


def _reached(error: requests.RequestException) -> bool:
    """Whether a connection was made at all."""
    inner = error.args[0] if error.args else None
    nobody = (requests.ConnectTimeout, requests.exceptions.ProxyError, requests.exceptions.SSLError)
    return not isinstance(error, nobody) and not isinstance(getattr(inner, "reason", None), NewConnectionError)


def _words(answer: requests.Response) -> str:
    """What the server says about an error."""
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return " ".join(answer.text.split())[:WORDS_LIMIT] or answer.reason
    if isinstance(body, dict):
        body = next((body[key] for key in ("reason", "message", "error", "detail") if body.get(key)), body)
    if isinstance(body, list):
        body = "; ".join(_detail(item) for item in body)
    return (body if isinstance(body, str) else orjson.dumps(body).decode())[:WORDS_LIMIT]


def _field(answer: requests.Response) -> str:
    """The field that a 422 points at, without the way to it through body and batch."""
    body = _body(answer)
    detail = body.get("detail")
    if not isinstance(detail, list) or not detail or not isinstance(detail[0], dict):
        return ""
    places = [str(part) for part in detail[0].get("loc") or ()]
    return ".".join(part for part in places if part not in ("body", "batch") and not part.isdigit())


def _code(answer: requests.Response) -> str:
    return str(_body(answer).get("error_code") or "")


def _body(answer: requests.Response) -> dict[str, Any]:
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _detail(item: Any) -> str:
    if isinstance(item, dict) and "msg" in item:
        return f"{'.'.join(str(part) for part in item.get('loc', ()))}: {item['msg']}"
    return str(item)


def _retry_after(answer: requests.Response) -> float | None:
    """Seconds that the server asks us to wait, from either form of the header."""
    value = answer.headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
