"""Whose account on GitLab: a person logs in at an application of the group or server, with the scope `read_user`."""

from __future__ import annotations

import contextlib

from cortex_plane.channels import oauth
from cortex_plane.channels.gitlab import webhook_events
from cortex_plane.channels.gitlab.api import API_URL
from cortex_plane.channels.oauth import OAuthApplication
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.notify.model.channels import AccountRequest, VendorAccount
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

FIELDS = oauth.login_fields(
    "So that people can link their accounts: the Application ID of an application with the scope read_user",
    "The Secret of that application",
)


def web_address(api_url: str) -> str:
    """Where people log in, of the address of an API. A server may stand under a path."""
    return api_url.rstrip("/").removesuffix("/api/v4")


def _application(target: Target) -> OAuthApplication:
    web = web_address(_api(target))
    return OAuthApplication(
        vendor="GitLab", page=f"{web}/oauth/authorize", token_url=f"{web}/oauth/token", scope="read_user",
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
        headers = {**oauth.HEADERS, "Authorization": f"Bearer {token}"}
        answer = await client.request("GET", f"{_api(target)}/user", headers=headers)
    finally:
        await _revoke(client, target, token)
    user = oauth.account_of(application, answer)
    login = str(user.get("username", ""))
    return VendorAccount(id=str(user["id"]), login=login, is_bot=bool(user.get("bot")) or webhook_events.is_bot(login))


async def _revoke(client: VendorClient, target: Target, token: str) -> None:
    """The token is not needed any more, and its refresh token ends with it. Where GitLab does not answer, it ends after two hours."""
    form = {
        "client_id": str(target.config["client_id"]), "client_secret": target.secrets["client_secret"], "token": token,
    }  # fmt: skip
    with contextlib.suppress(TryAgain, Undeliverable):
        await client.request("POST", f"{web_address(_api(target))}/oauth/revoke", headers=oauth.HEADERS, form=form)
