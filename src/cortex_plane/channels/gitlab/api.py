"""Requests to GitLab's REST API, and what its errors mean."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from cortex_plane.channels.vendor_http import LONGEST_WAIT, VendorAnswer, VendorClient
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

API_URL = "https://gitlab.com/api/v4"
LIMIT_SECONDS = 60.0
"""How long to wait where GitLab does not say for how long."""
_LONGEST_WORDS = 200


class GitLabApi:
    def __init__(self, client: VendorClient) -> None:
        self._client = client

    async def call(self, target: Target, method: str, path: str, json: Any = None) -> VendorAnswer:
        """Any status but 401, 5xx and that of limits."""
        base = str(target.config.get("api_url") or API_URL).rstrip("/")
        headers = {"PRIVATE-TOKEN": target.secrets.get("token", ""), "User-Agent": "cortex-plane"}
        answer = await self._client.request(method, base + path, headers=headers, json=json)
        if answer.status == 401:
            raise Undeliverable("GitLab does not accept the token of this connection any more.", gone=True)
        if answer.status == 429:
            raise TryAgain("GitLab limits how much this connection may write.", after_seconds=_wait(answer))
        if answer.status >= 500:
            raise TryAgain(f"GitLab answered HTTP {answer.status}.", after_seconds=answer.retry_after)
        return answer


def success(answer: VendorAnswer) -> Any:
    """The body of a success. Raises ``Undeliverable`` with GitLab's words for anything else."""
    if 200 <= answer.status < 300:
        return answer.json()
    raise Undeliverable(f"GitLab refused it (HTTP {answer.status}){_words(answer)}")


def _wait(answer: VendorAnswer) -> float:
    """`Retry-After`, then `RateLimit-Reset` by GitLab's own clock."""
    if answer.retry_after is not None:
        return answer.retry_after
    try:
        seconds = float(answer.headers["ratelimit-reset"]) - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return LIMIT_SECONDS
    return min(max(seconds, 1.0), LONGEST_WAIT)


def _words(answer: VendorAnswer) -> str:
    try:
        body = orjson.loads(answer.body)
    except ValueError:
        return "."
    text = (
        str(body.get("message") or body.get("error_description") or body.get("error") or "")
        if isinstance(body, dict)
        else ""
    )
    line = "".join(character for character in text if character.isprintable())
    return f": {line[:_LONGEST_WORDS]}" if line else "."
