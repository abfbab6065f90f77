"""The login of a person at a vendor (OAuth 2.0, authorization code with PKCE), to learn which account is theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

import orjson

from cortex_plane.channels.vendor_http import VendorAnswer, VendorClient
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.channels import AccountRequest, ConnectionField
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

HEADERS = {"User-Agent": "cortex-plane"}
_WRONG_CLIENT = {"invalid_client", "incorrect_client_credentials", "unauthorized_client", "redirect_uri_mismatch"}
_MOST_WORDS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class OAuthApplication:
    """An application at a vendor, at which people log in."""

    vendor: str
    """As people call it."""
    page: str
    """Where they agree."""
    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""


def login_fields(client_id: str, client_secret: str) -> tuple[ConnectionField, ConnectionField]:
    """The values of a connection with which people link their accounts. Takes their descriptions."""
    return (
        ConnectionField(name="client_id", description=client_id, required=False, pattern=r"[\x21-\x7e]{1,200}"),
        ConnectionField(name="client_secret", description=client_secret, secret=True, required=False),
    )


def require_both(target: Target) -> None:
    """An application is its id and its secret. Raises ``InvalidInput``."""
    has_id, has_secret = bool(target.config.get("client_id")), bool(target.secrets.get("client_secret"))
    if has_id != has_secret:
        missing = "client_secret" if has_id else "client_id"
        raise InvalidInput(
            f"People link their accounts with `client_id` and `client_secret`; `{missing}` is missing.",
            hint="Send both, or neither.", field=f"{'secrets' if has_id else 'config'}.{missing}",
        )  # fmt: skip


def account_page(application: OAuthApplication, request: AccountRequest) -> str:
    parameters = {
        "client_id": application.client_id, "redirect_uri": request.callback_url, "response_type": "code", "state": request.state,
        "code_challenge": request.challenge, "code_challenge_method": "S256",
        **({"scope": application.scope} if application.scope else {}),
    }  # fmt: skip
    return f"{application.page}?{urlencode(parameters)}"


async def exchange_code(client: VendorClient, application: OAuthApplication, request: AccountRequest, code: str) -> str:
    """The token of the user. Raises ``InvalidInput`` for a code that the vendor refuses, ``Undeliverable`` where it refuses the
    application."""
    form = {
        "client_id": application.client_id, "client_secret": application.client_secret, "code": code,
        "redirect_uri": request.callback_url, "code_verifier": request.verifier, "grant_type": "authorization_code",
    }  # fmt: skip
    answer = await client.request("POST", application.token_url, headers=HEADERS, form=form)
    _require_service(application, answer)
    body = _object(answer)
    # GitHub reports errors with the status 200.
    problem = str(body.get("error") or "")
    if problem in _WRONG_CLIENT or answer.status == 404:
        raise Undeliverable(f"{application.vendor} refuses this connection: {_words(body) or f'HTTP {answer.status}'}.")
    token = body.get("access_token")
    if problem or answer.status >= 400 or not isinstance(token, str) or not token:
        raise InvalidInput(
            f"{application.vendor} does not accept the code of this login: {_words(body) or f'HTTP {answer.status}'}.",
            code="account_code_refused", hint="Nothing was linked. Open Your channels and start again.",
        )  # fmt: skip
    return token


def account_of(application: OAuthApplication, answer: VendorAnswer) -> Mapping[str, object]:
    """The user whom the vendor names, with a numeric `id`. Raises ``Undeliverable``."""
    _require_service(application, answer)
    user = _object(answer)
    id = user.get("id")
    if answer.status != 200 or not isinstance(id, int) or isinstance(id, bool) or id <= 0:
        raise Undeliverable(f"{application.vendor} does not say whose login this is (HTTP {answer.status}).")
    return user


def _require_service(application: OAuthApplication, answer: VendorAnswer) -> None:
    if answer.status >= 500 or answer.status == 429:
        raise TryAgain(f"{application.vendor} answered HTTP {answer.status}.", after_seconds=answer.retry_after)


def _object(answer: VendorAnswer) -> Mapping[str, object]:
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _words(body: Mapping[str, object]) -> str:
    text = str(body.get("error_description") or body.get("error") or "")
    return "".join(character for character in text if character.isprintable())[:_MOST_WORDS].rstrip(".")
