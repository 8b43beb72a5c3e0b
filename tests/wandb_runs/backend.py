"""A W&B back end that takes what `wandb sync` sends: GraphQL, the stream of a run's lines, files. It is permissive: it
shows the client's way, not that W&B accepts the data.

As W&B does it appends the rows of a run that it has already behind those that are there. `mode` makes it refuse: "ok",
"unauthorized", "forbidden", "graphql-error" (the run itself), "no-rows" (403 to its rows), "broken" (500, for ever, to
the run). `refused`: run ids for which that is so; all when empty. `key`: the only one that is accepted, "" for any.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Backend:
    """Runs in a thread; `runs` is what arrived: id -> project, display name, config, history, files, exit code."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.refused: set[str] = set()
        self.key = ""
        self.entity = "me"
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.keys: set[str] = set()
        handler = type("Handler", (_Handler,), {"backend": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def run(self, run_id: str) -> dict[str, Any]:
        """What arrived of a run."""
        new: dict[str, Any] = {
            "project": None,
            "display_name": None,
            "config": {},
            "history": {},
            "files": [],
            "exit": None,
        }
        return self.runs.setdefault(run_id, new)

    def answer(self, operation: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL answer."""
        if operation == "UpsertBucket":
            run = self.run(str(variables.get("name") or variables.get("id")))
            run["project"] = variables.get("project") or run["project"]
            run["display_name"] = variables.get("displayName") or run["display_name"]
            run["config"] |= json.loads(variables.get("config") or "{}")
            project = {"id": "p", "name": run["project"], "entity": {"id": "e", "name": self.entity}}
            bucket = {
                "id": _id(variables.get("name")), "name": variables.get("name"), "displayName": run["display_name"],
                "description": "", "config": json.dumps(run["config"]), "sweepName": "", "project": project,
                "historyLineCount": len(run["history"]),
            }  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "RunResumeStatus":
            return self._resume_status(str(variables.get("name")), variables.get("project"))
        if operation == "CreateRunFiles":
            names = variables.get("files") or []
            place = f"{self.url}/put/{variables.get('run')}"
            files = [{"name": name, "uploadUrl": f"{place}/{name}"} for name in names]
            return {"createRunFiles": {"runID": _id(variables.get("run")), "uploadHeaders": [], "files": files}}
        if "__type" in query:
            kind = {"name": "T", "kind": "OBJECT", "fields": [], "inputFields": [], "enumValues": []}
            return dict.fromkeys(re.findall(r"(\w+)\s*:\s*__type", query) or ["__type"], kind)
        viewer = {
            "id": "u", "username": self.entity, "entity": self.entity, "email": "", "admin": False, "flags": "{}",
            "defaultEntity": {"id": "e", "name": self.entity}, "teams": {"edges": []}, "apiKeys": {"edges": []},
        }  # fmt: skip
        versions = {"max_cli_version": "9.9.9", "min_cli_version": "0.0.1"}
        server: dict[str, Any] = {
            "cliVersionInfo": versions,
            "latestLocalVersionInfo": None,
            "features": [],
            "frontendHost": self.url,
        }
        name = variables.get("name") or variables.get("project")
        return {
            "viewer": viewer,
            "serverInfo": server,
            "project": {"id": "p", "name": name} if name else None,
            "entity": {"id": "e", "name": self.entity, "organization": None},
            "upsertModel": {"model": {"id": "p", "name": name, "description": ""}},
        }

    def _resume_status(self, name: str, project: Any) -> dict[str, Any]:
        bucket = None
        if name in self.runs:
            run = self.runs[name]
            last = json.dumps(run["history"][max(run["history"])]) if run["history"] else "{}"
            bucket = {
                "id": _id(name), "name": name, "displayName": run["display_name"], "config": json.dumps(run["config"]),
                "historyLineCount": len(run["history"]), "historyTail": json.dumps([last]), "summaryMetrics": last,
                "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]", "tags": [],
                "wandbConfig": json.dumps({"t": 1}),
            }  # fmt: skip
        return {"model": {"id": "p", "name": project, "entity": {"id": "e", "name": self.entity}, "bucket": bucket}}

    def refuses(self, mode: str, run_id: object) -> bool:
        """Whether this is what is refused now, to this run."""
        return self.mode == mode and (not self.refused or run_id in self.refused)

    def losses(self, run_id: str) -> list[float]:
        """The metric `loss` of a run's rows, in order; [] of a run that is not there."""
        history = self.runs[run_id]["history"] if run_id in self.runs else {}
        return [row["loss"] for _, row in sorted(history.items()) if "loss" in row]

    def stream(self, run_id: str, body: dict[str, Any]) -> None:
        """Lines of a run's files."""
        run = self.run(run_id)
        for name, file in (body.get("files") or {}).items():
            if "history" in name:
                for number, line in enumerate(file.get("content") or [], file.get("offset") or 0):
                    run["history"][number] = json.loads(line)
        if body.get("complete"):
            run["exit"] = body.get("exitcode")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """wandb resets its connections when it ends."""


class _Handler(BaseHTTPRequestHandler):
    backend: Backend
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Not on stderr."""

    def do_GET(self) -> None:
        self._answer(200, {})

    def do_PUT(self) -> None:
        self._body()
        _, _, run_id, *rest = self.path.split("/")
        self.backend.run(run_id)["files"].append("/".join(rest))
        self._answer(200, {})

    def do_POST(self) -> None:
        backend, body = self.backend, self._body()
        scheme, _, secret = self.headers.get("Authorization", "").partition(" ")
        key = base64.b64decode(secret).decode().rpartition(":")[2] if scheme == "Basic" else secret
        backend.keys.add(key)
        if backend.mode in ("unauthorized", "forbidden") or (backend.key and key != backend.key):
            status, words = (403, "forbidden") if backend.mode == "forbidden" else (401, "unauthorized")
            self._answer(status, {"errors": [{"message": words}]})
        elif self.path.startswith("/graphql"):
            query, variables = body.get("query") or "", body.get("variables") or {}
            found = re.search(r"(?:query|mutation)\s+(\w+)", query)
            operation = body.get("operationName") or (found[1] if found else "")
            backend.requests.append(operation)
            name = variables.get("name")
            if operation == "UpsertBucket" and backend.refuses("broken", name):
                self._answer(500, {})
            elif operation == "UpsertBucket" and backend.refuses("graphql-error", name):
                self._answer(200, {"data": None, "errors": [{"message": f"this project is read-only for {key}"}]})
            else:
                self._answer(200, {"data": backend.answer(operation, query, variables)})
        else:
            match = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
            if match and backend.refuses("no-rows", match[1]):
                self._answer(403, {"error": "no room"})
                return
            if match:
                backend.stream(match[1], body)
            self._answer(200, {"exitcode": None, "limits": {}})

    def _body(self) -> Any:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        try:
            return json.loads(data or b"{}")
        except ValueError:
            return {}

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _id(name: object) -> str:
    return base64.b64encode(str(name).encode()).decode()
