"""Whose account on GitHub: a person logs in at the GitHub App (or OAuth App) of the connection."""

from __future__ import annotations

import base64
import contextlib
from urllib.parse import quote, urlsplit

from cortex_plane.channels import oauth
from cortex_plane.channels.github.api import API_URL, API_VERSION
from cortex_plane.channels.oauth import OAuthApplication
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.notify.model.channels import AccountRequest, VendorAccount
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

FIELDS = oauth.login_fields(
    "So that people can link their accounts: the Client ID, on the App's page under General",
    "What Generate a new client secret gives, on the App's page",
)


def web_address(api_url: str) -> str:
    """Where people log in, of the address of an API: github.com, SUBDOMAIN.ghe.com, or an Enterprise Server."""
    base = api_url.rstrip("/")
    parts = urlsplit(base)
    host = parts.hostname or ""
    if host == "api.github.com" or (host.startswith("api.") and host.endswith(".ghe.com")):
        return f"{parts.scheme}://{parts.netloc.removeprefix('api.')}"
    return base.removesuffix("/api/v3")


def _application(target: Target) -> OAuthApplication:
    web = web_address(_api(target))
    return OAuthApplication(
        vendor="GitHub", page=f"{web}/login/oauth/authorize", token_url=f"{web}/login/oauth/access_token",
        client_id=str(target.config["client_id"]), client_secret=target.secrets["client_secret"],
    )  # fmt: skip


def _api(target: Target) -> str:
    return str(target.config.get("api_url") or API_URL).rstrip("/")


def account_page(target: Target, request: AccountRequest) -> str:
    return oauth.account_page(_application(target), request)


async def read_account(client: VendorClient, target: Target, request: AccountRequest, code: str) -> VendorAccount:
    application = _application(target)
    token = await oauth.exchange_code(client, application, request, code)
    try:
        answer = await client.request("GET", f"{_api(target)}/user", headers=_headers(f"Bearer {token}"))
    finally:
        await _revoke(client, target, token)
    user = oauth.account_of(application, answer)
    return VendorAccount(id=str(user["id"]), login=str(user.get("login", "")), is_bot=user.get("type") != "User")


async def _revoke(client: VendorClient, target: Target, token: str) -> None:
    """The token is not needed any more. Where GitHub does not answer, it ends by itself within hours."""
    client_id, secret = str(target.config["client_id"]), target.secrets["client_secret"]
    basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    with contextlib.suppress(TryAgain, Undeliverable):
        await client.request(
            "DELETE", f"{_api(target)}/applications/{quote(client_id, safe='')}/token", headers=_headers(f"Basic {basic}"),
            json={"access_token": token},
        )  # fmt: skip


def _headers(authorization: str) -> dict[str, str]:
    return {
        **oauth.HEADERS, "Accept": "application/vnd.github+json", "Authorization": authorization,
        "X-GitHub-Api-Version": API_VERSION,
    }  # fmt: skip
