"""The login at a vendor (OAuth 2.0, authorization code with PKCE), as GitHub and GitLab have it, with what each of them checks."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.emulators.vendor_server import VendorFaults

CLIENT_ID, CLIENT_SECRET = "Iv23liEmulated", "0123456789abcdef0123456789abcdef01234567"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class OAuthCode:
    user: dict[str, Any]
    redirect_uri: str
    challenge: str


@dataclass
class OAuthServer:
    """One application. ``visitor`` is whoever is logged in at the vendor in the browser that comes."""

    page: str
    token_path: str
    error_status: int
    """GitHub reports errors of the token endpoint with 200, GitLab with 400 or 401."""
    scopes: tuple[str, ...] = ()
    """Those that a request must name one of; empty: the application has permissions instead."""
    redirect_uris: list[str] = field(default_factory=list)
    visitor: dict[str, Any] = field(default_factory=dict)
    agrees: bool = True
    codes: dict[str, OAuthCode] = field(default_factory=dict)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that are in use, and their users."""
    given_out: list[str] = field(default_factory=list)
    faults: VendorFaults = field(default_factory=VendorFaults)
    """Of the token endpoint."""

    def routes(self) -> list[Route]:
        return [Route(self.page, self._authorize), Route(self.token_path, self._exchange, methods=["POST"])]

    def or_else(self, others: Endpoint) -> Endpoint:
        """`/user` for the tokens given out here; ``others`` answers the rest."""

        async def respond(request: Request) -> Response:
            token = request.headers.get("authorization", "").partition(" ")[2]
            user = self.tokens.get(token)
            return await others(request) if user is None else JSONResponse(user)

        return respond

    async def _authorize(self, request: Request) -> Response:
        query = request.query_params
        if query.get("client_id") != CLIENT_ID:
            return PlainTextResponse("There is no such application.", 404)
        if query.get("redirect_uri") not in self.redirect_uris:
            return PlainTextResponse("The redirect_uri is not associated with this application.", 400)
        back, answer = query["redirect_uri"], {"state": query.get("state", "")}
        named = set(query.get("scope", "").split())
        if query.get("response_type", "code") != "code" or (self.scopes and not named <= set(self.scopes)):
            return RedirectResponse(f"{back}?{urlencode(answer | {'error': 'invalid_scope'})}", 302)
        if not self.agrees:
            denied = {"error": "access_denied", "error_description": "The user has denied your application access."}
            return RedirectResponse(f"{back}?{urlencode(denied | answer)}", 302)
        if query.get("code_challenge") and query.get("code_challenge_method") != "S256":
            return RedirectResponse(f"{back}?{urlencode(answer | {'error': 'invalid_request'})}", 302)
        code = secrets.token_hex(10)
        challenge = query.get("code_challenge", "")
        self.codes[code] = OAuthCode(user=self.visitor, redirect_uri=back, challenge=challenge)
        return RedirectResponse(f"{back}?{urlencode({'code': code} | answer)}", 302)

    async def _exchange(self, request: Request) -> Response:
        return await self.faults.around(lambda: self._give_token(request))

    async def _give_token(self, request: Request) -> Response:
        fields = await _fields(request)
        if (fields.get("client_id"), fields.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return self._error("incorrect_client_credentials" if self.error_status == 200 else "invalid_client", 401)
        code = self.codes.pop(fields.get("code", ""), None)
        challenge = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        is_right = code is not None and (
            not code.challenge or code.challenge == base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        )
        if code is None or not is_right or fields.get("redirect_uri", code.redirect_uri) != code.redirect_uri:
            return self._error("bad_verification_code" if self.error_status == 200 else "invalid_grant", 400)
        token = f"{'ghu_' if self.error_status == 200 else ''}{secrets.token_hex(18)}"
        self.tokens[token] = code.user
        self.given_out.append(token)
        return JSONResponse({"access_token": token, "token_type": "bearer", "scope": " ".join(self.scopes)})

    def _error(self, error: str, status: int) -> Response:
        body = {"error": error, "error_description": "The code passed is incorrect or expired."}
        return JSONResponse(body, status if self.error_status != 200 else 200)

    def revoke(self, token: str) -> None:
        self.tokens.pop(token, None)


async def _fields(request: Request) -> dict[str, str]:
    """Of a form, or of JSON as the SDK of GitHub sends it."""
    if request.headers.get("content-type", "").startswith("application/json"):
        return dict(await request.json())
    return dict(parse_qsl((await request.body()).decode()))


def github_login() -> OAuthServer:
    return OAuthServer("/login/oauth/authorize", "/login/oauth/access_token", error_status=200)


def github_revocation(server: OAuthServer) -> Route:
    async def revoke(request: Request) -> Response:
        wanted = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if request.headers.get("authorization") != wanted:
            return JSONResponse({"message": "Requires authentication"}, 401)
        token = (await request.json())["access_token"]
        if token not in server.tokens:
            return JSONResponse({"message": "Not Found"}, 404)
        server.revoke(token)
        return Response(status_code=204)

    return Route("/applications/{client_id}/token", revoke, methods=["DELETE"])


def gitlab_login() -> OAuthServer:
    return OAuthServer("/oauth/authorize", "/oauth/token", error_status=400, scopes=("read_user",))


def gitlab_revocation(server: OAuthServer) -> Route:
    async def revoke(request: Request) -> Response:
        fields = await _fields(request)
        if (fields.get("client_id"), fields.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return JSONResponse({"error": "unauthorized_client"}, 403)
        server.revoke(fields.get("token", ""))
        return JSONResponse({})

    return Route("/oauth/revoke", revoke, methods=["POST"])
