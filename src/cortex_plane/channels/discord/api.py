"""Requests to Discord's REST API, with what its errors mean and the limits that it announces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final
from uuid import UUID

import orjson

from cortex_plane.channels.vendor_http import LONGEST_WAIT, VendorAnswer, VendorClient
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API = "https://discord.com/api/v10"
USER_AGENT = f"DiscordBot (https://pypi.org/project/cortex-plane, {version('cortex-plane')})"
"""Discord refuses requests of bots with any other form."""
_MOST_LIMITS = 10_000
_LONGEST_MESSAGE = 200

UNKNOWN_MESSAGE = 10008
UNKNOWN_INTERACTION = 10062
INVALID_FORM = 50035
_UNKNOWN_INTERACTION: Final = frozenset({10008, 10015, 10062, 50027})
"""Errors that say that an interaction is over: its token lives for 15 minutes."""
_PERSON: Final = frozenset({10013, 50007, 50033, 50278})
"""They take no direct messages, share no server with the bot, or do not exist."""
_PLACE: Final = frozenset({10003, 50001, 50013})
"""The channel does not exist, or the bot may not write there."""


class DiscordApi:
    def __init__(self, client: VendorClient, ticks: Callable[[], float] = time.monotonic) -> None:
        self._client, self._ticks = client, ticks
        # A request that Discord refuses for its limits counts towards a ban, so those that it would refuse are not sent.
        self._not_before: dict[tuple[UUID, str], float] = {}

    async def call(self, target: Target, method: str, path: str, json: Any = None) -> Any:
        """Raises ``TryAgain`` or ``Undeliverable``."""
        keys = ((target.connection_id, ""), (target.connection_id, f"{method} {_route(path)}"))
        self._check_limits(keys)
        headers = {"User-Agent": USER_AGENT}
        if not path.startswith(("/webhooks/", "/interactions/")):  # the token in the path says who it is
            headers["Authorization"] = f"Bot {target.secrets.get('bot_token', '')}"
        answer = await self._client.request(method, api_url(target) + path, headers=headers, json=json)
        self._note_limits(keys, answer)
        if 200 <= answer.status < 300:
            return orjson.loads(answer.body) if answer.body else None
        raise _error(answer, only_chat=path.startswith("/channels/") and not _is_global(answer))

    async def answer(self, target: Target, method: str, path: str, json: Any) -> None:
        """As ``call``, for an interaction, which may be over by now."""
        try:
            await self.call(target, method, path, json)
        except Undeliverable as error:
            if error.vendor_code not in _UNKNOWN_INTERACTION:
                raise

    def _check_limits(self, keys: tuple[tuple[UUID, str], ...]) -> None:
        everything, route = (self._not_before.get(key, 0.0) - self._ticks() for key in keys)
        if max(everything, route) > 0:
            is_of_chat = everything <= 0 and " /channels/" in keys[1][1]
            raise TryAgain(
                "Discord's rate limit is used up.", after_seconds=max(everything, route), only_chat=is_of_chat
            )

    def _note_limits(self, keys: tuple[tuple[UUID, str], ...], answer: VendorAnswer) -> None:
        everything, route = keys
        if answer.status == 429:
            key, wait = (everything if _is_global(answer) else route), _retry_after(answer)
        elif answer.headers.get("x-ratelimit-remaining") == "0":
            key, wait = route, _seconds(answer.headers.get("x-ratelimit-reset-after"))
        else:
            return
        if len(self._not_before) >= _MOST_LIMITS:
            now = self._ticks()
            self._not_before = {key: until for key, until in self._not_before.items() if until > now}
        self._not_before[key] = self._ticks() + wait


def _route(path: str) -> str:
    """What shares a limit: everything of one kind in one channel, and never the same in two."""
    return "/".join(path.split("/")[:4])


def _is_global(answer: VendorAnswer) -> bool:
    """What is in front of Discord says nothing of it, and refuses everything."""
    names_all = answer.headers.get("x-ratelimit-scope") == "global" or "x-ratelimit-global" in answer.headers
    return names_all or _body(answer).get("global") is not False


def api_url(target: Target) -> str:
    return str(target.config.get("api_url") or API).rstrip("/")


def _seconds(text: Any) -> float:
    try:
        return min(max(float(text), 0.0), LONGEST_WAIT)
    except (TypeError, ValueError):
        return 1.0


def _body(answer: VendorAnswer) -> dict[str, Any]:
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _retry_after(answer: VendorAnswer) -> float:
    """The body has fractions of a second, the header has not."""
    return _seconds(_body(answer).get("retry_after", answer.headers.get("retry-after")))


def _error(answer: VendorAnswer, *, only_chat: bool) -> TryAgain | Undeliverable:
    body = _body(answer)
    code = body.get("code")
    code = code if isinstance(code, int) else 0
    message = re.sub(r"[^\x20-\x7e]+", " ", str(body.get("message", "")))[:_LONGEST_MESSAGE]
    words = f"Discord answered HTTP {answer.status}" + (f", {code}: {message}." if message else ".")
    if answer.status == 429:
        return TryAgain("Discord's rate limit is used up.", after_seconds=_retry_after(answer), only_chat=only_chat)
    if answer.status >= 500 or answer.status == 408:
        return TryAgain(words, after_seconds=answer.retry_after)
    if answer.status == 401 and code != 50027:
        return Undeliverable("Discord does not accept the token of the bot any more.", vendor_code=code, gone=True)
    return Undeliverable(words, vendor_code=code, address=code in _PERSON | _PLACE)
