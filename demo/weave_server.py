"""W&B's own trace server on loopback: SqliteTraceServer behind the routes that Weave's client calls.

    python weave_server.py DB [--port 0] [--ready FILE] [--entity demo] [--api-key KEY] [--forbid ENTITY] …

Storage, validation and reference handling are W&B's code from the `weave[trace-server]` wheel; this file only maps URLs
to it and answers the few GraphQL questions about users and projects. It runs in an environment of its own
(`server_env.py`) and must not import verl_trace. Once it accepts connections it prints `http://127.0.0.1:PORT` and
writes that to FILE.

Beside storage it does what the hosted service does in front of it: 401 for a wrong key, 403 for an entity of somebody
else, 413 for a body that is too large, 422 for a body that does not have the route's shape, 400 for ids and references
that are no such.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import concurrent.futures
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from weave.trace_server import trace_server_interface as tsi
from weave.trace_server import validation
from weave.trace_server.errors import InvalidRequest, handle_server_exception
from weave.trace_server.external_to_internal_trace_server_adapter import ExternalTraceServer, IdConverter
from weave.trace_server.sqlite_trace_server import SqliteTraceServer, get_conn_cursor

# The hosted service refuses larger bodies; Weave's client keeps one MiB below.
MAX_BODY = 32 << 20

# Route -> (method of the trace server, request model). All are POST with a JSON body.
USER_ID = base64.b64encode(b"user").decode()
ROUTES: dict[str, tuple[str, type[Any]]] = {
    "/call/start": ("call_start", tsi.CallStartReq),
    "/call/end": ("call_end", tsi.CallEndReq),
    "/call/read": ("call_read", tsi.CallReadReq),
    "/call/update": ("call_update", tsi.CallUpdateReq),
    "/calls/delete": ("calls_delete", tsi.CallsDeleteReq),
    "/calls/query_stats": ("calls_query_stats", tsi.CallsQueryStatsReq),
    "/obj/create": ("obj_create", tsi.ObjCreateReq),
    "/obj/read": ("obj_read", tsi.ObjReadReq),
    "/objs/query": ("objs_query", tsi.ObjQueryReq),
    "/obj/query": ("objs_query", tsi.ObjQueryReq),
    "/refs/read_batch": ("refs_read_batch", tsi.RefsReadBatchReq),
    "/table/create": ("table_create", tsi.TableCreateReq),
    "/table/create_from_digests": ("table_create_from_digests", tsi.TableCreateFromDigestsReq),
    "/table/update": ("table_update", tsi.TableUpdateReq),
    "/table/query": ("table_query", tsi.TableQueryReq),
    "/table/query_stats": ("table_query_stats", tsi.TableQueryStatsReq),
    "/table/query_stats_batch": ("table_query_stats_batch", tsi.TableQueryStatsBatchReq),
    "/feedback/create": ("feedback_create", tsi.FeedbackCreateReq),
    "/feedback/batch/create": ("feedback_create_batch", tsi.FeedbackCreateBatchReq),
    "/feedback/query": ("feedback_query", tsi.FeedbackQueryReq),
    "/feedback/purge": ("feedback_purge", tsi.FeedbackPurgeReq),
    "/v2/{entity}/{project}/call/start": ("call_start", tsi.CallStartReq),
    "/v2/{entity}/{project}/call/end": ("call_end", tsi.CallEndReq),
    "/v2/{entity}/{project}/calls/complete": ("calls_complete", tsi.CallsUpsertCompleteReq),
}


class Ids(IdConverter):  # type: ignore[misc]
    """The hosted service has internal ids for projects, runs and users; base64 of the external one serves here."""

    def ext_to_int_project_id(self, project_id: str) -> str:
        """`entity/project` as an internal id, in letters that do not end a part of a reference."""
        return base64.urlsafe_b64encode(project_id.encode()).decode()

    def int_to_ext_project_id(self, project_id: str) -> str:
        """The `entity/project` of an internal id."""
        return base64.urlsafe_b64decode(project_id).decode()

    def ext_to_int_run_id(self, run_id: str) -> str:
        """`entity/project/run` as `<internal project>:run`."""
        project, _, run = run_id.rpartition("/")
        if project.count("/") != 1 or not run:
            raise InvalidRequest(f"a run id has the form entity/project/run, got {run_id!r}")
        return f"{self.ext_to_int_project_id(project)}:{run}"

    def int_to_ext_run_id(self, run_id: str) -> str:
        """The external form of a run id."""
        project, _, run = run_id.partition(":")
        return f"{self.int_to_ext_project_id(project)}/{run}"

    def ext_to_int_user_id(self, user_id: str) -> str:
        """User ids are base64 already."""
        return user_id

    def int_to_ext_user_id(self, user_id: str) -> str:
        """User ids are base64 already."""
        return user_id


class CheckingServer(SqliteTraceServer):  # type: ignore[misc]
    """SQLite storage behind the checks that W&B's ClickHouse storage makes before it writes."""

    def calls_complete(self, req: Any) -> Any:
        """Check every call, then store all or none."""
        for call in req.batch:
            check_call(call)
        return super().calls_complete(req)

    def call_start(self, req: Any) -> Any:
        """Check and store a start."""
        check_call(req.start)
        return super().call_start(req)


def check_call(call: Any) -> None:
    """W&B's own rules for ids, names and steps.

    Raises:
        CHValidationError, ValueError: as the hosted service does, which answers 400.
    """
    if call.id is not None:
        validation.call_id_validator(call.id)
    if call.trace_id is not None:
        validation.trace_id_validator(call.trace_id)
    validation.parent_id_validator(call.parent_id)
    validation.op_name_validator(call.op_name)
    validation.display_name_validator(call.display_name)
    validation.wb_run_id_validator(call.wb_run_id)
    validation.wb_run_step_validator(call.wb_run_step)


class Backend:
    """The trace server on one thread, which is what its SQLite connection wants."""

    def __init__(self, db: str) -> None:
        self.db = db
        self.thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        inner = CheckingServer(db)
        self.thread.submit(inner.setup_tables).result()
        self.server = ExternalTraceServer(inner, Ids())

    async def run(self, work: Callable[[], Any]) -> Any:
        """`work` on the storage thread; a failed write leaves no open transaction behind."""

        def guarded() -> Any:
            try:
                return work()
            except BaseException:
                get_conn_cursor(self.db)[0].rollback()
                raise

        return await asyncio.get_running_loop().run_in_executor(self.thread, guarded)

    def upsert_batch(self, req: Any) -> Any:
        """Starts and ends in the order given."""
        results = [
            self.server.call_start(item.req) if item.mode == "start" else self.server.call_end(item.req)
            for item in req.batch
        ]
        return tsi.CallCreateBatchRes(res=results)


class Service:
    """The routes. `options` are the command line's."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.backend = Backend(options.db)
        self.projects: dict[tuple[str, str], str] = {}

    def app(self) -> FastAPI:
        """The ASGI application."""
        app = FastAPI(title="Weave trace server on SQLite", openapi_url=None)
        app.middleware("http")(self.gate)
        for path, (method, model) in ROUTES.items():
            app.add_api_route(path, self.handler(getattr(self.backend.server, method), model), methods=["POST"])
        batch = self.handler(self.backend.upsert_batch, tsi.CallCreateBatchReq)
        app.add_api_route("/call/upsert_batch", batch, methods=["POST"])
        app.add_api_route("/calls/stream_query", self.stream_query, methods=["POST"])
        for path in ("/file/create", "/files/create"):
            app.add_api_route(path, self.file_create, methods=["POST"])
        for path in ("/file/content", "/files/content"):
            app.add_api_route(path, self.file_content, methods=["POST"])
        app.add_api_route("/graphql", self.graphql, methods=["POST"])
        app.add_api_route("/server_info", self.server_info, methods=["GET"])
        app.add_api_route("/health", self.health, methods=["GET"])
        return app

    async def gate(self, request: Request, call_next: Callable[..., Any]) -> Any:
        """Key and size, before any route sees the request."""
        if request.url.path in ("/health", "/server_info"):
            return await call_next(request)
        if int(request.headers.get("content-length") or 0) > self.options.max_body:
            return JSONResponse({"reason": "Request too large"}, 413)
        if self.options.api_key is not None and not self.has_key(request.headers.get("authorization", "")):
            return JSONResponse({"reason": "invalid API key"}, 401)
        return await call_next(request)

    def has_key(self, header: str) -> bool:
        """Whether an Authorization header carries the expected key, as Basic `api:KEY` or Bearer."""
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "bearer":
            return bool(value == self.options.api_key)
        try:
            return base64.b64decode(value).decode() == f"api:{self.options.api_key}"
        except ValueError:
            return False

    def handler(self, method: Callable[[Any], Any], model: type[Any]) -> Callable[..., Any]:
        """A route: JSON body -> request model -> trace server -> JSON."""

        async def handle(request: Request) -> Response:
            return await self.answer(request, model, lambda req: to_json(method(req)))

        return handle

    async def answer(self, request: Request, model: type[Any], work: Callable[[Any], Response]) -> Response:
        """Parse the body, run `work`, turn every error into the status that the hosted service gives it."""
        body = await request.body()
        try:
            parsed = parse(model, body)
        except ValidationError as error:
            return JSONResponse({"detail": json.loads(error.json(include_input=False, include_url=False))}, 422)
        if any(f'"{entity}/'.encode() in body for entity in self.options.forbid):
            return JSONResponse({"reason": "Forbidden"}, 403)
        # who gives feedback is known from the key, and never from the request
        for one in (parsed, *(getattr(parsed, "batch", None) or ())):
            if isinstance(one, tsi.FeedbackCreateReq):
                one.wb_user_id = USER_ID
        try:
            response: Response = await self.backend.run(lambda: work(parsed))
        except Exception as error:  # noqa: BLE001
            return failure(error)
        return response

    async def stream_query(self, request: Request) -> Response:
        """Calls as JSON lines."""

        def rows(req: Any) -> Response:
            lines = [call.model_dump_json() + "\n" for call in self.backend.server.calls_query_stream(req)]
            return Response("".join(lines), media_type="application/jsonl")

        return await self.answer(request, tsi.CallsQueryReq, rows)

    async def file_create(self, request: Request) -> Response:
        """Multipart upload of one file."""
        form = await request.form()
        file, project = form.get("file"), form.get("project_id")
        if not isinstance(project, str) or file is None or isinstance(file, str):
            return JSONResponse({"detail": "project_id and file are required"}, 422)
        if project.split("/")[0] in self.options.forbid:
            return JSONResponse({"reason": "Forbidden"}, 403)
        req = tsi.FileCreateReq(project_id=project, name=file.filename or "file", content=await file.read())
        try:
            return to_json(await self.backend.run(lambda: self.backend.server.file_create(req)))
        except Exception as error:  # noqa: BLE001
            return failure(error)

    async def file_content(self, request: Request) -> Response:
        """The bytes of a file."""

        def content(req: Any) -> Response:
            return Response(self.backend.server.file_content_read(req).content, media_type="application/octet-stream")

        return await self.answer(request, tsi.FileContentReadReq, content)

    async def graphql(self, request: Request) -> Response:
        """The questions that Weave's client asks the W&B API: who am I, is there this project, make it."""
        body = await request.json()
        query, variables = str(body.get("query", "")), body.get("variables") or {}
        entity = str(variables.get("entityName") or variables.get("entity") or self.options.entity)
        name = str(variables.get("name") or "")
        if entity in self.options.forbid:
            extensions = {"code": "PERMISSION_ERROR"}
            return JSONResponse({"data": None, "errors": [{"message": "permission denied", "extensions": extensions}]})
        if "upsertModel" in query:
            # the hosted service, too, answers with another name where it cannot keep the one asked for
            name = self.projects.setdefault((entity, name), re.sub(r"[/\\#?%:]", "-", name))
            self.projects[entity, name] = name
            project = {"name": name, "entity": {"name": entity}}
            return JSONResponse({"data": {"upsertModel": {"model": {**project, "id": "1"}, "project": project}}})
        if "project(" in query:
            known = self.projects.get((entity, name)) == name
            return JSONResponse({"data": {"project": {"name": name} if known else None}})
        me = {"id": "1", "username": self.options.entity, "entity": self.options.entity, "flags": "{}"}
        viewer = {**me, "defaultEntity": {"name": self.options.entity}, "teams": {"edges": []}}
        return JSONResponse({"data": {"viewer": viewer}})

    async def server_info(self) -> dict[str, str]:
        """Versions, as weave.init asks for them."""
        return {"min_required_weave_python_version": "0.50.0", "trace_server_version": "0.1.0"}

    async def health(self) -> dict[str, str]:
        """Ready to serve."""
        return {"status": "ok"}


def parse(model: type[Any], body: bytes) -> Any:
    """The request of a body. Options of queries that a newer client knows and this server does not are left out.

    Raises:
        ValidationError: the body does not have the model's shape.
    """
    if model is not tsi.CallsQueryReq:
        return model.model_validate_json(body)
    try:
        fields = json.loads(body)
    except ValueError:
        return model.model_validate_json(body)
    if isinstance(fields, dict):
        fields = {name: value for name, value in fields.items() if name in model.model_fields}
    return model.model_validate(fields)


def to_json(result: Any) -> Response:
    """A pydantic model (or plain data) as a JSON response."""
    if hasattr(result, "model_dump_json"):
        return Response(result.model_dump_json(), media_type="application/json")
    return JSONResponse(result)


def failure(error: Exception) -> Response:
    """W&B's own table of errors to statuses. What it does not know is 500, with the reason told."""
    known = handle_server_exception(error)
    if known.status_code < 500:
        return JSONResponse(known.message, known.status_code)
    return JSONResponse({"reason": f"{type(error).__name__}: {error}"[:2000]}, known.status_code)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="W&B's own trace server on SQLite, on loopback.")
    parser.add_argument("db", help="SQLite file; made when missing")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ready", type=Path, help="file to write the URL to once connections are accepted")
    parser.add_argument(
        "--exit-on-eof", action="store_true", help="end when standard input closes: with whoever started this"
    )
    parser.add_argument("--entity", default="demo", help="default entity and user name")
    parser.add_argument("--api-key", help="accept this key only; without it any key will do")
    parser.add_argument("--forbid", action="append", default=[], help="answer 403 for this entity; may be repeated")
    parser.add_argument("--max-body", type=int, default=MAX_BODY, help="bytes above which a request gets 413")
    return parser.parse_args(arguments)


def main() -> None:
    """Serve until terminated."""
    options = parse_options(sys.argv[1:])
    config = uvicorn.Config(Service(options).app(), log_level="warning", access_log=False)
    listener = socket.create_server(("127.0.0.1", options.port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if options.ready is not None:
        # the socket listens already: a connection made now waits in its queue
        temporary = options.ready.with_name(options.ready.name + ".tmp")
        temporary.write_text(url, encoding="utf-8")
        os.replace(temporary, options.ready)
    print(url, flush=True)  # noqa: T201
    server = uvicorn.Server(config)
    if options.exit_on_eof:
        threading.Thread(target=end_on_eof, args=(server,), daemon=True).start()
    server.run(sockets=[listener])


def end_on_eof(server: uvicorn.Server) -> None:
    """Ask `server` to stop once standard input is closed, which a parent's death does too."""
    while os.read(0, 4096):
        pass
    server.should_exit = True


if __name__ == "__main__":
    main()
