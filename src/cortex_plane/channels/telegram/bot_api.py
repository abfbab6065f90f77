"""Calls of Telegram's Bot API, and what its errors mean for a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortex_plane.channels.vendor_http import LONGEST_WAIT, VendorClient
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API_URL = "https://api.telegram.org"
NOT_MODIFIED = "message is not modified"
NO_MESSAGE_TO_EDIT = ("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID")
QUERY_TOO_OLD = ("query is too old", "query ID is invalid", "QUERY_ID_INVALID")
_NO_CHAT = ("chat not found", "PEER_ID_INVALID", "user not found", "group chat was upgraded", "group chat was deactivated",
            "not enough rights to send", "have no rights to send", "CHAT_WRITE_FORBIDDEN")  # fmt: skip


@dataclass(frozen=True, slots=True)
class BotAnswer:
    """What Telegram answered to one call."""

    ok: bool
    result: Any = None
    status: int = 200
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    is_of_group: bool = False
    """The call was about a group, which has a limit of its own."""

    def means(self, *descriptions: str) -> bool:
        return any(part.lower() in self.description.lower() for part in descriptions)

    def require(self) -> Any:
        """The result. Raises ``TryAgain`` or ``Undeliverable`` for an error."""
        if self.ok:
            return self.result
        text = f"Telegram answered: {self.description[:300]}"
        if self.status == 429:
            raise TryAgain(text, after_seconds=self._wait(), only_chat=self.is_of_group)
        if self.status >= 500 or self.status == 409:
            raise TryAgain(text)
        if self.status in (401, 404):
            raise Undeliverable(
                "Telegram does not know the token of this bot: it was revoked, or the bot was deleted.", gone=True
            )
        if self.status == 403 or self.means(*_NO_CHAT):
            raise Undeliverable(text, address=True)
        raise Undeliverable(text)

    def _wait(self) -> float | None:
        seconds = (self.parameters or {}).get("retry_after")
        return min(max(float(seconds), 0.0), LONGEST_WAIT) if isinstance(seconds, int | float) else None


class BotApi:
    def __init__(self, client: VendorClient) -> None:
        self._client = client

    async def call(self, target: Target, method: str, *, seconds: float | None = None, **parameters: Any) -> BotAnswer:
        """Parameters that are None are left out. Raises ``TryAgain`` where nobody answers."""
        token = target.secrets.get("bot_token", "")
        url = f"{str(target.config.get('api_url') or API_URL).rstrip('/')}/bot{token}/{method}"
        content = {name: value for name, value in parameters.items() if value is not None}
        try:
            answer = await self._client.request("POST", url, json=content, seconds=seconds)
            body = answer.json()
        # The token is a part of the address, and an error may name the address.
        except TryAgain as error:
            raise TryAgain(_without(token, error.message), after_seconds=error.after_seconds) from None
        except Undeliverable as error:
            raise Undeliverable(_without(token, error.message)) from None
        if not isinstance(body, dict) or not isinstance(body.get("ok"), bool):
            raise TryAgain(f"Telegram answered HTTP {answer.status} with JSON that is none of its Bot API.")
        if body["ok"]:
            return BotAnswer(True, body.get("result"))
        status = body.get("error_code")
        parameters_of_error = body.get("parameters")
        return BotAnswer(
            ok=False,
            status=status if isinstance(status, int) else answer.status,
            description=_without(token, str(body.get("description", ""))),
            parameters=parameters_of_error if isinstance(parameters_of_error, dict) else None,
            is_of_group=str(parameters.get("chat_id", "")).startswith("-"),
        )


def _without(token: str, text: str) -> str:
    return text.replace(token, "[token]") if token else text
