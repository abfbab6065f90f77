"""GitHub: its REST API for Apps and tokens and the webhooks of an App, as far as a channel uses them, with its checks and limits."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import jwt
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.emulators import github_objects as objects
from tests.emulators.oauth import github_login, github_revocation
from tests.emulators.vendor_server import VendorFaults, served_on_loopback

APP_ID, INSTALLATION_ID, SLUG = 4711, 9001, "cortex"
TOKEN = "github_pat_emulated"
MAX_BODY = 65_536
_REACTIONS = {"+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"}
_SCHEMAS = Path(__file__).with_name("github_webhooks.schema.json")

Post = Callable[[str, dict[str, str], bytes], Awaitable[int]]
"""Sends a webhook to an address, with headers and a body; returns the status of the answer."""


class GitHubError(Exception):
    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


@cache
def webhook_validator(definition: str) -> jsonschema_rs.Draft7Validator:
    """Of a type of webhook, as GitHub publishes it."""
    schema = orjson.loads(_SCHEMAS.read_bytes())
    return jsonschema_rs.Draft7Validator({**schema, "$ref": f"#/definitions/{definition}"})


@cache
def app_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def app_key_pem() -> str:
    key = app_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return key.decode()


@dataclass(kw_only=True)
class Write:
    """A comment that was made or changed."""

    id: int
    place: str
    body: str
    is_edit: bool


@dataclass(kw_only=True)
class Webhook:
    """A webhook, and each try to deliver it."""

    event: str
    action: str | None
    body: bytes
    guid: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(kw_only=True)
class Attempt:
    id: int
    webhook: Webhook
    status: int
    redelivery: bool
    delivered_at: datetime


@dataclass(kw_only=True)
class HeldRun:
    """A deployment of a run that waits for the App, and what the App said."""

    repository: str
    environment: str
    run_id: int
    verdicts: list[tuple[str, str]] = field(default_factory=list)
    """State and comment."""


class GitHubEmulator:
    """One App with one installation, and one person with a token."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, bool] = {"acme/shop": True, "acme/open": False}
        """Whether each is private."""
        self.issues = {("acme/shop", 12), ("acme/open", 3)}
        self.permissions, self.events = {"issues": "write", "metadata": "read"}, ["issue_comment"]
        self.comments: dict[int, dict[str, Any]] = {}
        self.reactions: list[tuple[int, str]] = []
        self.writes: list[Write] = []
        self.requests: list[tuple[str, str]] = []
        self.faults, self.comment_faults = VendorFaults(), VendorFaults()
        """Of any request, and of those that write comments."""
        self.held: list[HeldRun] = []
        self.deployment_faults = VendorFaults()
        self.is_installed = True
        self.token_life = timedelta(hours=1)
        self.hook: dict[str, str] = {}
        self.attempts: list[Attempt] = []
        self.internal: set[str] = set()
        """Repositories that everybody in the enterprise may read. For GitHub they are private, too."""
        self.login = github_login()
        """Where people log in at the App."""
        self.post: Post | None = None
        """How webhooks reach the plane."""
        self._tokens: dict[str, datetime] = {}
        self._ids = itertools.count(5001)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[GitHubEmulator]:
        routes = [
            Route("/app", self._guarded(self._app)),
            Route("/app/hook/config", self._guarded(self._hook_config), methods=["PATCH"]),
            Route("/app/hook/deliveries", self._guarded(self._deliveries)),
            Route("/app/hook/deliveries/{id:int}/attempts", self._guarded(self._redeliver), methods=["POST"]),
            Route("/app/installations/{id:int}/access_tokens", self._guarded(self._access_token), methods=["POST"]),
            *self.login.routes(),
            github_revocation(self.login),
            Route("/user", self.login.or_else(self._guarded(self._user))),
            Route("/repos/{owner}/{name}", self._guarded(self._repository)),
            Route(
                "/repos/{owner}/{name}/actions/runs/{run_id:int}/deployment_protection_rule",
                self._guarded(self._review, self.deployment_faults),
                methods=["POST"],
            ),
            Route(
                "/repos/{owner}/{name}/issues/{number:int}/comments",
                self._guarded(self._comment, self.comment_faults),
                methods=["POST"],
            ),
            Route(
                "/repos/{owner}/{name}/issues/comments/{id:int}",
                self._guarded(self._edit, self.comment_faults),
                methods=["PATCH"],
            ),
            Route(
                "/repos/{owner}/{name}/issues/comments/{id:int}/reactions", self._guarded(self._react), methods=["POST"]
            ),
        ]
        async with served_on_loopback(Starlette(routes=routes)) as self.url:
            yield self

    # What people do --------------------------------------------------------------------------------------------------

    async def say(
        self,
        place: str,
        text: str,
        author: dict[str, Any],
        *,
        action: str = "created",
        sender: dict[str, Any] | None = None,
    ) -> Webhook:
        """Somebody comments, and the App's webhook is sent."""
        full_name, _, number = place.partition("#")
        made = self._new_comment(full_name, int(number), author, text)
        return await self._send(self.comment_webhook(full_name, int(number), made, sender or author, action))

    def comment_webhook(
        self, full_name: str, number: int, comment: dict[str, Any], sender: dict[str, Any], action: str = "created"
    ) -> Webhook:
        payload = {
            "action": action, "issue": objects.issue(full_name, number, sender), "comment": comment,
            "repository": self._webhook_repository(full_name), "sender": sender,
            "installation": {"id": INSTALLATION_ID, "node_id": "I_9001"},
        }  # fmt: skip
        if action == "edited":
            payload["changes"] = {"body": {"from": "something else"}}
        return _webhook("issue_comment", action, payload)

    async def hold(
        self, full_name: str, environment: str, creator: dict[str, Any], *, url: str | None = None
    ) -> tuple[HeldRun, Webhook]:
        """A job that deploys to an environment with a protection rule of the App waits, and the App is asked."""
        run = HeldRun(repository=full_name, environment=environment, run_id=next(self._ids))
        self.held.append(run)
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        base = self.url or objects.BASE
        payload = {
            "action": "requested", "environment": environment, "event": "push", "pull_requests": [],
            "deployment_callback_url": url
            or f"{base}/repos/{full_name}/actions/runs/{run.run_id}/deployment_protection_rule",
            "deployment": objects.deployment(full_name, next(self._ids), environment, creator, at),
            "repository": self._webhook_repository(full_name), "sender": creator,
            "installation": {"id": INSTALLATION_ID, "node_id": "I_9001"},
        }  # fmt: skip
        return run, await self._send(_webhook("deployment_protection_rule", "requested", payload))

    async def uninstall(self, action: str = "deleted") -> Webhook:
        self.is_installed = False
        installation = objects.installation(INSTALLATION_ID, APP_ID)
        if action == "suspend":
            installation |= {"suspended_at": objects.WHEN, "suspended_by": objects.user("boss", 1)}
        payload = {
            "action": action, "installation": installation, "sender": objects.user("boss", 1), "repositories": [],
        }  # fmt: skip
        return await self._send(_webhook("installation", action, payload))

    async def ping(self) -> Webhook:
        payload = {"zen": "Keep it logically awesome.", "hook_id": 1, "hook": objects.hook(1, self.hook["url"])}
        return await self._send(_webhook("ping", None, payload))

    async def send_again(self, webhook: Webhook) -> int:
        """As somebody does by hand: the same body under the same id."""
        return await self._deliver(webhook, redelivery=True)

    def headers_of(self, webhook: Webhook, secret: str | None = None) -> dict[str, str]:
        key = (self.hook["secret"] if secret is None else secret).encode()
        return {
            "content-type": "application/json", "user-agent": "GitHub-Hookshot/044aadd", "x-github-event": webhook.event,
            "x-github-delivery": webhook.guid, "x-github-hook-id": "1",
            "x-hub-signature-256": f"sha256={hmac.digest(key, webhook.body, hashlib.sha256).hex()}",
        }  # fmt: skip

    async def _send(self, webhook: Webhook) -> Webhook:
        if self.hook:
            await self._deliver(webhook, redelivery=False)
        return webhook

    def _repository_object(self, full_name: str) -> dict[str, Any]:
        repository = objects.repository(full_name, is_private=self.repositories[full_name])
        return {**repository, "visibility": "internal"} if full_name in self.internal else repository

    async def _deliver(self, webhook: Webhook, *, redelivery: bool) -> int:
        status = 0
        if self.post is not None:
            status = await self.post(self.hook["url"], self.headers_of(webhook), webhook.body)
        attempt = Attempt(
            id=next(self._ids), webhook=webhook, status=status, redelivery=redelivery, delivered_at=datetime.now(UTC)
        )
        self.attempts.append(attempt)
        return status

    def _webhook_repository(self, full_name: str) -> dict[str, Any]:
        repository = self._repository_object(full_name)
        return {name: value for name, value in repository.items() if name not in objects.NOT_IN_WEBHOOKS}

    # The API ---------------------------------------------------------------------------------------------------------

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]], faults: VendorFaults | None = None
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            try:
                return await (faults or self.faults).around(lambda: handler(request))
            except GitHubError as error:
                body = {
                    "message": error.message,
                    "documentation_url": "https://docs.github.example",
                    "status": str(error.status),
                }
                headers = {"date": format_datetime(datetime.now(UTC), usegmt=True), **error.headers}
                return JSONResponse(body, error.status, headers)

        return respond

    def _token(self, request: Request) -> str:
        if not request.headers.get("user-agent"):
            raise GitHubError(
                403, "Request forbidden by administrative rules. Please make sure your request has a User-Agent header"
            )
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() not in ("bearer", "token") or not token:
            raise GitHubError(401, "Requires authentication")
        return token

    def _require_app(self, request: Request) -> None:
        try:
            claims = jwt.decode(
                self._token(request), app_key().public_key(), ["RS256"], options={"require": ["iat", "exp", "iss"]}
            )
        except jwt.PyJWTError:
            raise GitHubError(401, "A JSON web token could not be decoded") from None
        if claims["exp"] - datetime.now(UTC).timestamp() > 600:
            raise GitHubError(401, "'Expiration time' claim ('exp') is too far in the future")
        if str(claims["iss"]) != str(APP_ID):
            raise GitHubError(404, "Integration not found")

    def _author(self, request: Request) -> dict[str, Any]:
        token = self._token(request)
        if token == TOKEN:
            return objects.user("robot-of-acme", 77)
        if not self.is_installed or self._tokens.get(token, datetime.min.replace(tzinfo=UTC)) <= datetime.now(UTC):
            raise GitHubError(401, "Bad credentials")
        return objects.user(f"{SLUG}[bot]", 41898282, "Bot")

    async def _app(self, request: Request) -> Response:
        self._require_app(request)
        return JSONResponse(objects.app(APP_ID, SLUG, self.permissions, self.events))

    async def _hook_config(self, request: Request) -> Response:
        self._require_app(request)
        self.hook |= await request.json()
        return JSONResponse({**self.hook, "secret": "********"})

    async def _access_token(self, request: Request) -> Response:
        self._require_app(request)
        if request.path_params["id"] != INSTALLATION_ID or not self.is_installed:
            raise GitHubError(404, "Not Found")
        token, until = f"ghs_{uuid.uuid4().hex}", datetime.now(UTC) + self.token_life
        self._tokens[token] = until
        expires_at = until.isoformat(timespec="seconds").replace("+00:00", "Z")
        return JSONResponse({"token": token, "expires_at": expires_at, "permissions": self.permissions}, 201)

    def revoke_tokens(self) -> None:
        self._tokens.clear()

    async def _user(self, request: Request) -> Response:
        author = self._author(request)
        if author["type"] == "Bot":
            raise GitHubError(403, "Resource not accessible by integration")
        return JSONResponse(author)

    def _full_name(self, request: Request) -> str:
        names = {name.lower(): name for name in self.repositories}
        full_name = names.get(f"{request.path_params['owner']}/{request.path_params['name']}".lower())
        if full_name is None:
            raise GitHubError(404, "Not Found")
        return full_name

    async def _repository(self, request: Request) -> Response:
        self._author(request)
        full_name = self._full_name(request)
        return JSONResponse(self._repository_object(full_name))

    async def _review(self, request: Request) -> Response:
        author, full_name = self._author(request), self._full_name(request)
        if author["type"] != "Bot" or self.permissions.get("deployments") != "write":
            raise GitHubError(403, "Resource not accessible by integration")
        review = await request.json()
        state, comment = review.get("state"), review.get("comment")
        if state not in ("approved", "rejected") or not isinstance(comment, str):
            raise GitHubError(422, "Validation Failed")
        for run in self.held:
            where = (run.repository, run.run_id, run.environment)
            if where == (full_name, request.path_params["run_id"], review.get("environment_name")):
                if run.verdicts and run.verdicts[0][0] != state:
                    raise GitHubError(422, "This deployment is over")
                run.verdicts.append((state, comment))
                return Response(status_code=204)
        raise GitHubError(404, "Not Found")

    async def _comment(self, request: Request) -> Response:
        author, full_name = self._author(request), self._full_name(request)
        number = request.path_params["number"]
        if (full_name, number) not in self.issues:
            raise GitHubError(404, "Not Found")
        made = self._new_comment(full_name, number, author, _body(await request.json()))
        self.writes.append(Write(id=made["id"], place=f"{full_name}#{number}", body=made["body"], is_edit=False))
        return JSONResponse(made, 201)

    async def _edit(self, request: Request) -> Response:
        author = self._author(request)
        comment = self._existing(request)
        if comment["user"]["id"] != author["id"]:
            raise GitHubError(403, "Resource not accessible by integration")
        comment["body"] = _body(await request.json())
        place = comment["issue_url"].removeprefix(f"{objects.BASE}/repos/").replace("/issues/", "#")
        self.writes.append(Write(id=comment["id"], place=place, body=comment["body"], is_edit=True))
        return JSONResponse(comment)

    async def _react(self, request: Request) -> Response:
        author, comment = self._author(request), self._existing(request)
        content = (await request.json()).get("content")
        if content not in _REACTIONS:
            raise GitHubError(422, "Validation Failed")
        self.reactions.append((comment["id"], content))
        return JSONResponse(
            {"id": next(self._ids), "node_id": "REA_1", "user": author, "content": content, "created_at": objects.WHEN},
            201,
        )

    def _existing(self, request: Request) -> dict[str, Any]:
        self._full_name(request)
        if request.path_params["id"] not in self.comments:
            raise GitHubError(404, "Not Found")
        return self.comments[request.path_params["id"]]

    def _new_comment(self, full_name: str, number: int, author: dict[str, Any], body: str) -> dict[str, Any]:
        id, at = next(self._ids), datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.comments[id] = objects.comment(full_name, number, id, author, body, at)
        return self.comments[id]

    async def _deliveries(self, request: Request) -> Response:
        """Newest first, in pages."""
        self._require_app(request)
        size, before = int(request.query_params.get("per_page", 30)), request.query_params.get("cursor")
        newest = [
            attempt
            for attempt in reversed(self.attempts)
            if before is None or attempt.id < int(before.removeprefix("v1_"))
        ]
        page = newest[: min(size, 100)]
        headers = {}
        if len(newest) > len(page):
            headers["link"] = f'<{self.url}/app/hook/deliveries?per_page={size}&cursor=v1_{page[-1].id}>; rel="next"'
        return JSONResponse([_delivery(attempt) for attempt in page], headers=headers)

    async def _redeliver(self, request: Request) -> Response:
        self._require_app(request)
        attempt = next((attempt for attempt in self.attempts if attempt.id == request.path_params["id"]), None)
        if attempt is None:
            raise GitHubError(404, "Not Found")
        await self._deliver(attempt.webhook, redelivery=True)
        return JSONResponse({}, 202)


def _webhook(event: str, action: str | None, payload: dict[str, Any]) -> Webhook:
    """As GitHub publishes it, or the emulator is wrong."""
    webhook_validator(f"{event}${action or 'event'}").validate(payload)
    return Webhook(event=event, action=action, body=orjson.dumps(payload))


def _body(content: Any) -> str:
    body = content.get("body") if isinstance(content, dict) else None
    if not isinstance(body, str) or not body.strip():
        raise GitHubError(422, "Validation Failed")
    if len(body) > MAX_BODY:
        raise GitHubError(422, f"Validation Failed: body is too long (maximum is {MAX_BODY} characters)")
    return body


def _delivery(attempt: Attempt) -> dict[str, Any]:
    is_ok = 200 <= attempt.status < 300
    return {
        "id": attempt.id, "guid": attempt.webhook.guid, "delivered_at": attempt.delivered_at.isoformat(),
        "redelivery": attempt.redelivery, "duration": 0.03, "status": "OK" if is_ok else "failed to connect to host",
        "status_code": attempt.status, "event": attempt.webhook.event, "action": attempt.webhook.action,
        "installation_id": INSTALLATION_ID, "repository_id": 1296269, "throttled_at": None,
    }  # fmt: skip
