"""Where an upload goes, and as whom: what W&B users have set up for the official client, without starting that client.

The only module that imports `weave`, and of it only what knows credentials, URLs and projects. `weave.init` is never
called: nothing is patched, no tracer provider is installed, nobody is called but the W&B API that was configured.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote

from ..schemas.errors import CannotStart, MissingExtra, NoAnswer
from .transport import Http, Patience, Transient, Unreachable

__all__ = ["Named", "Target", "authorization_of", "load_weave", "name_target", "resolve", "split_project"]

# What W&B replaces in the name of a project that is made.
_NOT_IN_NAMES = re.compile(r"[/\\#?%:]")
# Python's list of warnings that are shown is one for all threads: each puts back what it has found.
_ONE_AT_A_TIME = threading.Lock()
# Errors of a connection that was made. By name: the GraphQL client may stand on httpx or on its successor.
_LOST_ON_THE_WAY = frozenset({"ReadTimeout", "ReadError", "WriteError", "RemoteProtocolError"})


@dataclass(frozen=True)
class Target:
    """One Weave project.

    `authorization` gives the header of a request; it is never shown. `credential`: what it is made of, in words.
    `exists`: whether the W&B API knows the project.
    """

    entity: str
    project: str
    trace_url: str
    app_url: str
    authorization: Callable[[], str] = field(repr=False)
    credential: str = "this key"
    exists: bool = True

    @property
    def project_id(self) -> str:
        """`entity/project`, the server's name for it."""
        return f"{self.entity}/{self.project}"

    @cached_property
    def http(self) -> Http:
        """Connections to the trace server, which whoever asks it about this project shares."""
        return Http(self.trace_url, self.authorization)

    @property
    def page(self) -> str:
        """Where a browser shows it."""
        return f"{self.app_url}/{quote(self.project_id)}/weave"


class ProjectName(NamedTuple):
    """A project name taken apart; `entity` is "" when the name does not say."""

    entity: str
    project: str


def split_project(recorded: str | None, entity: str | None, project: str | None) -> ProjectName:
    """Entity and project as far as names and options tell; options win over the recorded name.

    Raises:
        CannotStart: there is no project name, or it has too many parts.
    """
    name = project or recorded or ""
    parts = name.split("/")
    if len(parts) > 2 or not all(parts):
        said = f"{name!r} is no project name" if name else "the run has no project name"
        raise CannotStart(f"{said}: it must be PROJECT or ENTITY/PROJECT", hint="name one with --project")
    owner = entity or (parts[0] if len(parts) == 2 else "") or os.environ.get("WANDB_ENTITY", "")
    return ProjectName(owner, parts[-1])


def resolve(
    recorded: str | None,
    *,
    entity: str | None = None,
    project: str | None = None,
    max_wait: float = 0.0,
    make: bool = True,
) -> Target:
    """The Weave project of a run; with `make`, made on the server when it does not exist.

    `recorded`: the project name in the run's files. The server may store a project under another name than asked for.
    `max_wait`: seconds of patience with a W&B API that is there and answers 429, 5xx or not at all.

    Raises:
        MissingExtra: `weave` is not installed.
        CannotStart: no key, a wrong one, no such entity, no permission, no connection.
    """
    named = name_target(recorded, entity=entity, project=project, max_wait=max_wait)
    return named.made() if make else named.found()


def name_target(
    recorded: str | None, *, entity: str | None = None, project: str | None = None, max_wait: float = 0.0
) -> Named:
    """The Weave project of a run by the name that was asked for; the server may have it under another, or not yet.

    Raises:
        MissingExtra, CannotStart: as `resolve`.
    """
    name = split_project(recorded, entity, project)
    weave = load_weave()
    authorization, credential = authorization_of(weave)
    api = weave.wandb.Api()
    base_url = weave.env.wandb_base_url()
    about = f"{name.entity or '(default entity)'}/{name.project} with {credential}"
    asking = _Asking(weave, base_url, about, max_wait)
    owner = name.entity or asking.answer(api.default_entity_name)
    if not owner:
        raise CannotStart(
            f"the account at {base_url} has no default entity", hint="name one with --entity or WANDB_ENTITY"
        )
    target = Target(
        entity=owner,
        project=name.project,
        trace_url=weave.env.weave_trace_server_url().rstrip("/"),
        app_url=weave.wandb.app_url(weave.env.wandb_frontend_base_url()).rstrip("/"),
        authorization=authorization,
        credential=credential,
    )
    return Named(target, api, asking)


class _Weave(NamedTuple):
    """The parts of `weave` that are used."""

    env: Any
    wandb: Any
    context: Any


def load_weave() -> _Weave:
    # read by weave at import: no automatic weave.init for an active wandb run, no error reports to its makers
    os.environ["WANDB_DISABLE_WEAVE"] = "1"
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        from weave.compat import wandb
        from weave.trace import env
        from weave.wandb_interface import context
    except ImportError as error:
        raise MissingExtra("upload", "upload", error.name or "weave") from None
    return _Weave(env, wandb, context)


def authorization_of(weave: _Weave) -> tuple[Callable[[], str], str]:
    """A function that gives the Authorization header (identity tokens are renewed by weave when it is called), and what
    it is made of, in words that may be shown."""
    credentials_of = getattr(weave.context, "get_wandb_auth_context", None)
    try:
        found = credentials_of() if credentials_of is not None else weave.env.weave_wandb_api_key()
    except weave.wandb.AuthenticationError as error:
        raise CannotStart(f"W&B credentials: {error}") from None
    if not found:
        raise CannotStart(
            f"no API key for {weave.env.wandb_base_url()}", hint="set WANDB_API_KEY, or run `wandb login` once"
        )
    if isinstance(found, str):
        header = "Basic " + base64.b64encode(f"api:{found}".encode()).decode()
        return lambda: header, _key_in_words(found)
    header_of: Callable[[], str] = found.authorization_header
    key = getattr(found, "api_key", None)
    return header_of, _key_in_words(key) if isinstance(key, str) else "the identity token of WANDB_IDENTITY_TOKEN_FILE"


def _key_in_words(key: str) -> str:
    # of a short one, four characters would be a good part
    return f"the API key ending in {key[-4:]}" if len(key) >= 20 else "the API key"


@dataclass(frozen=True)
class Named:
    """A project that the W&B API was not asked about yet: `target` is what it is if it exists under this very name."""

    target: Target
    api: Any
    asking: _Asking

    def made(self) -> Target:
        """The project on the server, which is made where it is not there; `target` itself where that was right.

        Raises:
            CannotStart
        """
        target, asking = self.target, self.asking
        if stored := self._name_on_server(target.project):
            return target if stored == target.project else replace(target, project=stored)
        made = asking.answer(lambda: self.api.upsert_project(project=target.project, entity=target.entity)) or {}
        model = (made.get("upsertModel") or {}).get("model")
        if not model:
            raise CannotStart(f"{asking.base_url} did not create the project {target.project_id}")
        return replace(target, project=str(model["name"]))

    def found(self) -> Target:
        """The project if it is there, under another name where the server had to change it; else `exists` is False.

        Raises:
            CannotStart
        """
        target = self.target
        names = dict.fromkeys((target.project, _NOT_IN_NAMES.sub("-", target.project)))
        stored = next(filter(None, map(self._name_on_server, names)), "")
        return replace(target, project=stored or target.project, exists=bool(stored))

    def _name_on_server(self, project: str) -> str:
        """The name under which the server has the project; "" where it has none of this very name."""
        answer = self.asking.answer(lambda: self.api.project(self.target.entity, project)) or {}
        return str(answer["project"]["name"]) if answer.get("project") else ""


@dataclass(frozen=True)
class _Asking:
    """Questions to the W&B API at `base_url`; `about` names project and key in errors."""

    weave: _Weave
    base_url: str
    about: str
    max_wait: float

    def answer(self, question: Callable[[], Any]) -> Any:
        """Ask, and again while there is hope.

        Raises:
            CannotStart: it was not answered; the message has the server's words and nothing of the key.
        """
        patience = Patience(self.max_wait, threading.Event())
        while True:
            try:
                return self._ask(question)
            except Transient as trouble:
                try:
                    patience.wait(trouble)
                except Unreachable:
                    raise NoAnswer(
                        f"{self.base_url} {trouble}", hint="try again later, and check WANDB_BASE_URL"
                    ) from None

    def _ask(self, question: Callable[[], Any]) -> Any:
        with _ONE_AT_A_TIME, warnings.catch_warnings(), _collected():
            # weave calls its GraphQL client with deprecated arguments and leaves connections to the collector
            warnings.simplefilter("ignore")
            answer, trouble = self._tried(question)
        if trouble is not None:
            raise trouble
        return answer

    def _tried(self, question: Callable[[], Any]) -> tuple[Any, CannotStart | Transient | None]:
        """The answer, or what to raise: later, since the error that it stands for holds on to a connection."""
        from gql.transport import exceptions as gql_errors
        from gql.transport import httpx as gql_http

        # the one of two packages that the GraphQL client has chosen
        httpx: Any = gql_http.httpx

        try:
            return question(), None
        except self.weave.wandb.AuthenticationError as error:
            return None, CannotStart(f"W&B credentials: {error}")
        except gql_errors.TransportQueryError as error:
            words = "; ".join(str(item.get("message", item)) for item in error.errors or []) or str(error)
            return None, CannotStart(
                f"{self.base_url} refuses the project {self.about}: {words}",
                hint="does the entity exist, and may this key write to it? (--entity, --project)",
            )
        except gql_errors.TransportServerError as error:
            return None, self._server_error(error.code)
        except (httpx.HTTPError, gql_errors.TransportError, OSError) as error:
            code = getattr(getattr(error, "response", None), "status_code", None)
            if code is not None:
                return None, self._server_error(code)
            if any(type(reason).__name__ in _LOST_ON_THE_WAY for reason in _reasons(error)):
                return None, Transient(f"does not answer: {error or type(error).__name__}")
            return None, NoAnswer(
                f"cannot reach {self.base_url}: {error or type(error).__name__}",
                hint="is the host up, and is WANDB_BASE_URL right?",
            )

    def _server_error(self, code: int | None) -> CannotStart | Transient:
        if code == 401:
            return CannotStart(
                f"{self.base_url} does not accept the API key (HTTP 401): {self.about}",
                hint="check WANDB_API_KEY, or run `wandb login --relogin`",
            )
        if code == 403:
            return CannotStart(
                f"{self.base_url} forbids access (HTTP 403): {self.about}",
                hint="may this key write to the entity? (--entity)",
            )
        if code is not None and (code == 429 or code >= 500):
            return Transient(f"answers HTTP {code}", status=code)
        return CannotStart(f"{self.base_url} answers HTTP {code}", hint="check WANDB_BASE_URL")


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """What is left of the block is collected at its end, and not looked for in all that was there before: that takes
    0.06 s of an ordinary process."""
    # who has frozen its objects wants them to stay so
    freeze = not gc.get_freeze_count()
    if freeze:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if freeze:
            gc.unfreeze()


def _reasons(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was made of: the GraphQL client wraps what HTTP says, once or twice."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
