"""Calls of Slack's Web API, and what its errors mean for a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API_URL = "https://slack.com/api"
NO_MESSAGE_TO_EDIT = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
TOO_LATE = frozenset({"expired_trigger_id", "invalid_trigger_id", "exchanged_trigger_id", "trigger_expired"})
_GONE = {
    "account_inactive": "The app was removed from its workspace.",
    "token_revoked": "The token of the app was revoked.",
    "token_expired": "The token of the app has expired: turn token rotation off, and install the app again.",
    "org_login_required": "The workspace moved to another organization.",
    "team_access_not_granted": "The app was taken from this workspace.",
}
_BAD_TOKEN = frozenset({"invalid_auth", "not_authed", "not_allowed_token_type"})
_NO_ADDRESS = frozenset({
    "channel_not_found", "user_not_found", "users_not_found", "user_disabled", "user_not_visible", "not_in_channel",
    "is_archived", "cannot_dm_bot", "user_is_bot", "messages_tab_disabled", "restricted_action", "user_not_in_channel",
})  # fmt: skip
_LATER = frozenset({"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable",
                    "request_timeout", "team_added_to_org", "accesslimited"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlackAnswer:
    """What Slack answered to one call."""

    ok: bool
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    after_seconds: float | None = None

    @property
    def error(self) -> str:
        return "" if self.ok else str(self.body.get("error") or "unknown_error")[:100]

    def require(self) -> Mapping[str, Any]:
        """The body. Raises ``TryAgain`` or ``Undeliverable`` for an error."""
        if self.ok:
            return self.body
        text = f"Slack answered `{self.error}`{self._explanation()}."
        if self.error in _LATER:
            raise TryAgain(text, after_seconds=self.after_seconds)
        if self.error in _GONE:
            raise Undeliverable(f"{_GONE[self.error]} {text}", gone=True)
        if self.error in _BAD_TOKEN:
            raise Undeliverable(f"Slack does not accept the token of this connection. {text}")
        raise Undeliverable(text, address=self.error in _NO_ADDRESS)

    def _explanation(self) -> str:
        if self.error == "missing_scope":
            return f": the app needs the scope {str(self.body.get('needed', ''))[:200]}"
        metadata = self.body.get("response_metadata")
        messages = metadata.get("messages") if isinstance(metadata, dict) else None
        return f": {'; '.join(map(str, messages))[:300]}" if isinstance(messages, list) and messages else ""


class SlackApi:
    def __init__(self, client: VendorClient) -> None:
        self._client = client

    async def call(self, target: Target, method: str, **parameters: Any) -> SlackAnswer:
        """Parameters that are None are left out. Raises ``TryAgain`` where nobody answers."""
        return await self._call(target, "bot_token", method, parameters)

    async def read(self, target: Target, method: str, parameters: Mapping[str, str]) -> SlackAnswer:
        """As a form: methods that only read take no JSON."""
        form = {name: value for name, value in parameters.items() if value}
        return await self._call(target, "bot_token", method, form, is_form=True)

    async def open_socket(self, target: Target) -> SlackAnswer:
        """The address of a connection for Socket Mode, which the app opens with a token of its own."""
        return await self._call(target, "app_token", "apps.connections.open", {})

    async def _call(
        self, target: Target, token: str, method: str, parameters: Mapping[str, Any], *, is_form: bool = False
    ) -> SlackAnswer:
        base = str(target.config.get("api_url") or API_URL).rstrip("/")
        headers = {"Authorization": f"Bearer {target.secrets.get(token, '')}"}
        content = {name: value for name, value in parameters.items() if value is not None}
        body_of: dict[str, Any] = {"form": content} if is_form else {"json": content}
        answer = await self._client.request("POST", f"{base}/{method}", headers=headers, **body_of)
        if answer.status == 429:
            return SlackAnswer(ok=False, body={"error": "ratelimited"}, after_seconds=answer.retry_after)
        if answer.status >= 500:
            raise TryAgain(f"Slack answered HTTP {answer.status}.", after_seconds=answer.retry_after)
        body = answer.json()
        if not isinstance(body, dict) or not isinstance(body.get("ok"), bool):
            raise TryAgain(f"Slack answered HTTP {answer.status} with JSON that is none of its Web API.")
        return SlackAnswer(ok=body["ok"], body=body, headers=answer.headers)

    async def respond(self, url: str, content: Mapping[str, Any]) -> bool:
        """A message to the address that came with a press or a command; False where Slack does not take it any more."""
        answer = await self._client.request("POST", url, json=content)
        if answer.status == 429 or answer.status >= 500:
            raise TryAgain(f"Slack answered HTTP {answer.status}.", after_seconds=answer.retry_after)
        return answer.status < 300
