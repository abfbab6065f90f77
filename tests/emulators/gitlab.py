"""GitLab: its REST API for notes, deployments and jobs, and its webhooks, as far as a channel uses them, with its checks and limits.

GitLab publishes no schema of its webhooks. Their fields are those of its manual, and python-gitlab drives the API.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.emulators.oauth import gitlab_login, gitlab_revocation
from tests.emulators.vendor_server import VendorFaults, served_on_loopback

TOKEN = "glpat-emulated"
BOT = {"id": 900, "username": "project_42_bot_0123456789abcdef", "name": "Cortex", "bot": True}
MAX_NOTE = 1_000_000
_SHA = "279484c09fbe69ededfced8c1bb6e6d24616b468"
_KINDS = {"issues": ("Issue", "#", "issue"), "merge_requests": ("MergeRequest", "!", "merge_request")}
_LEVELS = {"private": 0, "internal": 10, "public": 20}


class GitLabError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(kw_only=True)
class Write:
    """A note that was made or changed."""

    id: int
    place: str
    body: str
    is_edit: bool


@dataclass(kw_only=True)
class Hook:
    body: bytes
    event: str = "Note Hook"
    guid: str = field(default_factory=lambda: str(uuid.uuid4()))

    def headers(self, secret: str) -> dict[str, str]:
        return {
            "content-type": "application/json", "user-agent": "GitLab/18.4.0", "x-gitlab-event": self.event,
            "x-gitlab-event-uuid": self.guid, "x-gitlab-webhook-uuid": str(uuid.UUID(int=1)), "idempotency-key": self.guid,
            "x-gitlab-instance": "https://gitlab.example", "x-gitlab-token": secret,
        }  # fmt: skip


@dataclass(kw_only=True)
class HeldJob:
    """A deployment to a protected environment, and its job."""

    id: int
    project: str
    environment: str
    job_id: int
    user: dict[str, Any]
    required: int
    """Approvals."""
    status: str = "blocked"
    job_status: str = "manual"
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    approvals: list[dict[str, Any]] = field(default_factory=list)
    reviews: int = 0
    """How often the bot approved or rejected it."""
    plays: int = 0
    """How often its job was started."""

    @property
    def pending(self) -> int:
        return max(0, self.required - [approval["status"] for approval in self.approvals].count("approved"))

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """What the plane said."""
        return [(entry["status"], entry["comment"]) for entry in self.approvals if entry["user"]["id"] == BOT["id"]]


class GitLabEmulator:
    """A server with a few projects, and the bot of an access token."""

    def __init__(self) -> None:
        self.url = ""
        self.projects = {"acme/shop": (42, "private"), "acme/web/open": (43, "public"), "acme/inner": (44, "internal")}
        """With the id and the visibility of each."""
        self.places = {"acme/shop#5", "acme/shop!7", "acme/web/open#3", "acme/inner#1"}
        self.scopes = ["api"]
        self.notes: dict[int, dict[str, Any]] = {}
        self.emoji: list[tuple[int, str]] = []
        self.writes: list[Write] = []
        self.faults, self.note_faults = VendorFaults(), VendorFaults()
        """Of any request, and of those that write notes."""
        self.is_token_valid = True
        self.held: dict[int, HeldJob] = {}
        self.is_approver, self.may_deploy = True, True
        """Whether the approval rule and `Allowed to deploy` name the bot."""
        self.has_rules = True
        """Without approval rules, but with a number of required approvals, the last approval starts the job."""
        self.approval_faults, self.play_faults = VendorFaults(), VendorFaults()
        self.login = gitlab_login()
        """Where people log in at an application."""
        self._ids = itertools.count(301)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[GitLabEmulator]:
        notes = "/api/v4/projects/{project:path}/{kind:str}/{iid:int}/notes"
        project, deployment = "/api/v4/projects/{project:path}", "/api/v4/projects/{project:path}/deployments/{id:int}"
        routes = [
            *self.login.routes(),
            gitlab_revocation(self.login),
            Route(f"{deployment}/approval", self._guarded(self._review, self.approval_faults), methods=["POST"]),
            Route(deployment, self._guarded(self._deployment)),
            Route(f"{project}/deployments", self._guarded(self._deployments)),
            Route(f"{project}/jobs/{{job:int}}/play", self._guarded(self._play, self.play_faults), methods=["POST"]),
            Route(f"{project}/jobs/{{job:int}}", self._guarded(self._job)),
            Route("/api/v4/user", self.login.or_else(self._guarded(self._user))),
            Route("/api/v4/personal_access_tokens/self", self._guarded(self._token)),
            Route(f"{notes}/{{id:int}}/award_emoji", self._guarded(self._award), methods=["POST"]),
            Route(f"{notes}/{{id:int}}", self._guarded(self._change, self.note_faults), methods=["PUT"]),
            Route(f"{notes}/{{id:int}}", self._guarded(self._note)),
            Route(notes, self._guarded(self._create, self.note_faults), methods=["POST"]),
            Route("/api/v4/projects/{project:path}/{kind:str}/{iid:int}", self._guarded(self._item)),
            Route("/api/v4/projects/{project:path}", self._guarded(self._project)),
        ]
        async with served_on_loopback(Starlette(routes=routes)) as address:
            self.url = f"{address}/api/v4"
            yield self

    # What people do --------------------------------------------------------------------------------------------------

    def say(self, place: str, text: str, author: dict[str, Any], *, action: str = "create", user: Any = None) -> Hook:
        """Somebody writes a note; its webhook."""
        path, kind, iid = _split(place)
        id, visibility = self.projects[path]
        noteable, _, key = _KINDS[kind]
        note_id = next(self._ids)
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self.notes[note_id] = _note(note_id, kind, iid, author, text)
        payload = {
            "object_kind": "note", "event_type": "note", "user": user or author, "project_id": id,
            "project": {
                "id": id, "name": path.rpartition("/")[2], "description": None, "web_url": f"https://gitlab.example/{path}",
                "avatar_url": None, "namespace": "Acme", "visibility_level": _LEVELS[visibility], "path_with_namespace": path,
                "default_branch": "main", "ci_config_path": None,
            },
            "object_attributes": {
                "id": note_id, "note": text, "noteable_type": noteable, "author_id": author["id"], "created_at": at,
                "updated_at": at, "project_id": id, "attachment": None, "line_code": None, "commit_id": "", "noteable_id": 1000 + iid,
                "system": False, "st_diff": None, "action": action, "type": None, "internal": False,
                "url": f"https://gitlab.example/{path}/-/{kind}/{iid}#note_{note_id}",
            },
            "repository": {"name": "shop", "url": "git@gitlab.example", "description": None, "homepage": "https://gitlab.example"},
            key: {"id": 1000 + iid, "iid": iid, "title": "Release", "project_id": id, "author_id": author["id"]},
        }  # fmt: skip
        return Hook(body=orjson.dumps(payload))

    def hold(
        self, path: str, environment: str, user: dict[str, Any], *, required: int = 1, status: str = "blocked"
    ) -> tuple[HeldJob, Hook]:
        """A job waits that deploys to an environment with an approval rule (``required`` is 0: without one)."""
        held = HeldJob(
            id=next(self._ids),
            project=path,
            environment=environment,
            job_id=next(self._ids),
            user=user,
            required=required,
        )
        self.held[held.id] = held
        return held, self.deployment_hook(held, status)

    def deployment_hook(self, held: HeldJob, status: str) -> Hook:
        id, visibility = self.projects[held.project]
        web = f"https://gitlab.example/{held.project}"
        payload = {
            "object_kind": "deployment", "status": status,
            "status_changed_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S +0000"), "deployment_id": held.id,
            "deployable_id": held.job_id, "deployable_url": f"{web}/-/jobs/{held.job_id}", "environment": held.environment,
            "environment_tier": "production", "environment_slug": held.environment, "environment_external_url": None,
            "project": {
                "id": id, "name": held.project.rpartition("/")[2], "description": "", "web_url": web, "avatar_url": None,
                "namespace": "Acme", "visibility_level": _LEVELS[visibility], "path_with_namespace": held.project,
                "default_branch": "main", "ci_config_path": None,
            },
            "short_sha": _SHA[:8], "user": {**held.user, "avatar_url": None, "email": "[REDACTED]"},
            "user_url": f"https://gitlab.example/{held.user['username']}", "commit_url": f"{web}/-/commit/{_SHA}",
            "commit_title": "Add a button", "ref": "main",
        }  # fmt: skip
        return Hook(body=orjson.dumps(payload), event="Deployment Hook")

    # The API ---------------------------------------------------------------------------------------------------------

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]], faults: VendorFaults | None = None
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                token = request.headers.get("private-token") or request.headers.get("authorization", "").removeprefix(
                    "Bearer "
                )
                if token != TOKEN or not self.is_token_valid:
                    raise GitLabError(401, "401 Unauthorized")
                return await (faults or self.faults).around(lambda: handler(request))
            except GitLabError as error:
                return JSONResponse(
                    {"message": error.message}, error.status, {"date": format_datetime(datetime.now(UTC), usegmt=True)}
                )

        return respond

    async def _user(self, request: Request) -> Response:
        return JSONResponse({**BOT, "state": "active", "web_url": "https://gitlab.example/cortex"})

    async def _token(self, request: Request) -> Response:
        return JSONResponse(
            {"id": 1, "name": "cortex", "revoked": False, "scopes": self.scopes, "user_id": 900, "active": True}
        )

    def _project_of(self, request: Request) -> str:
        """By its path, in one part of the address, or by its id."""
        raw = request.scope["raw_path"].decode().partition("?")[0].split("/")[4]
        path = unquote(raw)
        for name, (id, _) in self.projects.items():
            if path.lower() == name.lower() or raw == str(id):
                return name
        raise GitLabError(404, "404 Project Not Found")

    async def _project(self, request: Request) -> Response:
        path = self._project_of(request)
        id, visibility = self.projects[path]
        return JSONResponse({"id": id, "path_with_namespace": path, "visibility": visibility, "default_branch": "main"})

    def _place(self, request: Request) -> tuple[str, str, int]:
        path, kind, iid = self._project_of(request), request.path_params["kind"], request.path_params["iid"]
        if kind not in _KINDS or f"{path}{_KINDS[kind][1]}{iid}" not in self.places:
            raise GitLabError(404, "404 Not found")
        return path, kind, iid

    async def _item(self, request: Request) -> Response:
        path, _, iid = self._place(request)
        return JSONResponse({"id": 1000 + iid, "iid": iid, "project_id": self.projects[path][0], "title": "Release"})

    async def _create(self, request: Request) -> Response:
        path, kind, iid = self._place(request)
        note = _note(next(self._ids), kind, iid, BOT, await _body(request))
        self.notes[note["id"]] = note
        self.writes.append(
            Write(id=note["id"], place=f"{path}{_KINDS[kind][1]}{iid}", body=note["body"], is_edit=False)
        )
        return JSONResponse(note, 201)

    async def _change(self, request: Request) -> Response:
        path, kind, iid = self._place(request)
        note = self._existing(request)
        if note["author"]["id"] != BOT["id"]:
            raise GitLabError(403, "403 Forbidden")
        note["body"] = await _body(request)
        self.writes.append(Write(id=note["id"], place=f"{path}{_KINDS[kind][1]}{iid}", body=note["body"], is_edit=True))
        return JSONResponse(note)

    def _held(self, request: Request) -> HeldJob:
        project, params = self._project_of(request), request.path_params
        for held in self.held.values():
            if (
                held.project == project
                and params.get("id", held.id) == held.id
                and params.get("job", held.job_id) == held.job_id
            ):
                return held
        raise GitLabError(404, "404 Not found")

    async def _deployment(self, request: Request) -> Response:
        return JSONResponse(_deployment_object(self._held(request)))

    async def _deployments(self, request: Request) -> Response:
        path, query = self._project_of(request), request.query_params
        if query.get("order_by", "id") not in ("id", "iid", "created_at", "updated_at", "finished_at", "ref"):
            raise GitLabError(400, "order_by does not have a valid value")
        rows = [
            held for held in self.held.values() if held.project == path and query.get("status") in (None, held.status)
        ]
        rows.sort(key=lambda held: held.id, reverse=query.get("sort") == "desc")
        return JSONResponse([_deployment_object(held) for held in rows[: int(query.get("per_page", 20))]])

    async def _review(self, request: Request) -> Response:
        held, body = self._held(request), await request.json()
        status, comment = body.get("status"), body.get("comment")
        if status not in ("approved", "rejected"):
            raise GitLabError(400, "status does not have a valid value")
        if held.user["id"] == BOT["id"] and status == "approved":
            raise GitLabError(400, "You cannot approve your own deployment.")
        if not held.required:
            raise GitLabError(400, "Deployment approvals is not configured for this environment.")
        if not held.pending:
            raise GitLabError(400, "This deployment is not waiting for approvals.")
        if not self.is_approver:
            raise GitLabError(400, "You don't have permission to approve this deployment.")
        if len(comment or "") > 255:
            raise GitLabError(400, "Comment is too long (maximum is 255 characters)")
        approval = {"user": BOT, "status": status, "comment": comment, "created_at": datetime.now(UTC).isoformat()}
        for earlier in held.approvals:
            if earlier["user"]["id"] == BOT["id"] and earlier["status"] == status:
                return JSONResponse(earlier, 201)
        held.reviews += 1
        held.approvals = [entry for entry in held.approvals if entry["user"]["id"] != BOT["id"]] + [approval]
        if status == "rejected":
            if held.job_status == "failed":
                raise GitLabError(500, "500 Internal Server Error")
            held.status = held.job_status = "failed"
        elif not self.has_rules and not held.pending:
            self._start(held)
        return JSONResponse(approval, 201)

    async def _job(self, request: Request) -> Response:
        return JSONResponse(_job_object(self._held(request)))

    async def _play(self, request: Request) -> Response:
        held = self._held(request)
        if not self.may_deploy:
            raise GitLabError(403, "403 Forbidden")
        # A manual job that is over runs again.
        if held.pending or held.job_status not in ("manual", "success", "failed", "canceled"):
            raise GitLabError(400, "400 Bad request - Unplayable Job")
        self._start(held)
        return JSONResponse(_job_object(held))

    @staticmethod
    def _start(held: HeldJob) -> None:
        held.plays += 1
        held.status, held.job_status = "created", "pending"

    async def _note(self, request: Request) -> Response:
        self._place(request)
        return JSONResponse(self._existing(request))

    async def _award(self, request: Request) -> Response:
        self._place(request)
        note, name = self._existing(request), (await request.json()).get("name")
        if (note["id"], name) in self.emoji:
            raise GitLabError(404, "404 Award Emoji Name has already been taken Not Found")
        self.emoji.append((note["id"], name))
        return JSONResponse({"id": next(self._ids), "name": name, "user": BOT, "awardable_id": note["id"]}, 201)

    def _existing(self, request: Request) -> dict[str, Any]:
        if request.path_params["id"] not in self.notes:
            raise GitLabError(404, "404 Note Not Found")
        return self.notes[request.path_params["id"]]


def gitlab_user(username: str, id: int) -> dict[str, Any]:
    """As GitLab shows somebody to themselves, as far as a login needs it."""
    return {
        "id": id, "username": username, "name": username.title(), "state": "active", "bot": False, "locked": False,
        "web_url": f"https://gitlab.example/{username}", "email": f"{username}@example.com", "external": False,
    }  # fmt: skip


def _split(place: str) -> tuple[str, str, int]:
    kind = "merge_requests" if "!" in place else "issues"
    path, _, iid = place.partition(_KINDS[kind][1])
    return path, kind, int(iid)


def _note(id: int, kind: str, iid: int, author: dict[str, Any], body: str) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "id": id, "type": None, "body": body, "author": author, "created_at": at, "updated_at": at, "system": False,
        "noteable_id": 1000 + iid, "noteable_type": _KINDS[kind][0], "noteable_iid": iid, "resolvable": False,
        "confidential": False, "internal": False,
    }  # fmt: skip


def _job_object(held: HeldJob) -> dict[str, Any]:
    return {
        "id": held.job_id, "name": "deploy", "stage": "deploy", "status": held.job_status, "ref": "main", "tag": False,
        "user": held.user, "pipeline": {"id": 9000 + held.id, "ref": "main", "sha": _SHA, "status": "manual", "source": "push"},
    }  # fmt: skip


def _deployment_object(held: HeldJob) -> dict[str, Any]:
    at = held.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    rule = {"user_id": BOT["id"], "group_id": None, "access_level": None, "required_approvals": held.required}
    return {
        "id": held.id, "iid": held.id - 300, "ref": "main", "sha": _SHA, "created_at": at, "updated_at": at, "status": held.status,
        "user": held.user, "environment": {"id": 9, "name": held.environment, "slug": held.environment, "external_url": None},
        "deployable": _job_object(held), "pending_approval_count": held.pending, "approvals": held.approvals,
        "approval_summary": {"rules": [rule] if held.required else []},
    }  # fmt: skip


async def _body(request: Request) -> str:
    content = await request.json()
    body = content.get("body")
    if not isinstance(body, str) or not body.strip():
        raise GitLabError(400, "body is missing")
    if len(body) > MAX_NOTE:
        raise GitLabError(400, "Note is too long (maximum is 1000000 characters)")
    # A line that starts with one outside of code is run and not shown; the emulator refuses what would do so.
    if any(line.startswith(("/close", "/approve", "/assign", "/merge")) for line in body.split("\n")):
        raise GitLabError(400, "this note would run a quick action")
    return body
