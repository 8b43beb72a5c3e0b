"""Whether W&B can be reached with the user's key, and what time it is there: one question, nothing is changed."""

from __future__ import annotations

import email.utils
import time
from typing import Any, NamedTuple

import requests

from ..schemas.errors import CannotStart
from .network import one_network, verification
from .target import authorization_of, load_weave
from .transport import reason_of

__all__ = ["Reached", "reach"]

_VIEWER = "query Viewer { viewer { username defaultEntity { name } } }"


class Reached(NamedTuple):
    """Who answered, and as whom it knows us. `ahead`: seconds by which this host's clock is ahead, None if not told."""

    base_url: str
    trace_url: str
    user: str
    entity: str
    credential: str
    ahead: float | None


def reach(seconds: float) -> Reached:
    """Ask the W&B API who we are, and the trace server whether it is there, for at most so many seconds each.

    Raises:
        MissingExtra: `weave` is not installed.
        CannotStart: no key, a wrong one, no answer; the message has nothing of the key.
    """
    weave = load_weave()
    header, credential = authorization_of(weave)
    base_url, trace_url = weave.env.wandb_base_url().rstrip("/"), weave.env.weave_trace_server_url().rstrip("/")

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        # made here, or `requests` would put what netrc says in its place
        request.headers["Authorization"] = header()
        return request

    with one_network():
        answer = _ask("POST", f"{base_url}/graphql", seconds, json={"query": _VIEWER}, auth=authorize)
        now = time.time()
        if answer.status_code in (401, 403):
            raise CannotStart(
                f"{base_url} does not accept {credential} (HTTP {answer.status_code})",
                hint="check WANDB_API_KEY, or run `wandb login --relogin`",
            )
        viewer = _viewer(answer, base_url, credential)
        health = _ask("GET", f"{trace_url}/health", seconds)
    if health.status_code >= 400:
        raise CannotStart(
            f"the trace server {trace_url} answers HTTP {health.status_code}", hint="check WF_TRACE_SERVER_URL"
        )
    entity = (viewer.get("defaultEntity") or {}).get("name") or ""
    return Reached(base_url, trace_url, str(viewer.get("username") or ""), str(entity), credential, _ahead(answer, now))


def _ask(method: str, url: str, seconds: float, **content: Any) -> requests.Response:
    try:
        return requests.request(method, url, timeout=seconds, allow_redirects=False, verify=verification(), **content)
    except requests.RequestException as error:
        raise CannotStart(
            f"cannot reach {url.rpartition('/')[0]}: {reason_of(error)}",
            hint="from a node with a network; is WANDB_BASE_URL right, is there a proxy (HTTPS_PROXY)?",
        ) from None


def _viewer(answer: requests.Response, base_url: str, credential: str) -> dict[str, Any]:
    try:
        viewer = answer.json()["data"]["viewer"]
    except (ValueError, KeyError, TypeError):
        raise CannotStart(
            f"{base_url} answers HTTP {answer.status_code}, and not as W&B does", hint="check WANDB_BASE_URL"
        ) from None
    if not isinstance(viewer, dict):
        # what W&B says to a key that it does not know
        raise CannotStart(f"{base_url} does not know {credential}", hint="check WANDB_API_KEY")
    return viewer


def _ahead(answer: requests.Response, now: float) -> float | None:
    try:
        there = email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None
    # the header has whole seconds, cut off, and was written at some time while we waited
    latest, earliest = now - there, now - answer.elapsed.total_seconds() - there - 1.0
    return earliest if earliest > 0 else latest if latest < 0 else 0.0
