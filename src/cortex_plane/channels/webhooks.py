"""Webhooks out: every version of a card as signed JSON, as Standard Webhooks 1.0 has it."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from ssl import SSLContext
from typing import Any, Final
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.pinned_http import HttpAnswer, PinnedClient, Resolver, Unreachable
from cortex_plane.kernel.addresses import Allowed, check_url
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import adapter
from cortex_plane.notify.model import notifications as notify_model
from cortex_plane.tenancy.model.identities import CHANNEL

MAX_BYTES = 20_000
"""What a receiver must be ready to take, says the standard."""
LONGEST_WAIT = 3600.0
_SHOWN_ANSWER = 200
_SHORTEST = 64
"""Cut no further than that: times and states stay what they are."""
_MINUTE, _HOUR = 60.0, 3600.0

# These decide for anyone who holds them. A system that may decide signs its requests, and needs none of them.
_WITHHELD: Final = frozenset({"token", "approve_url", "deny_url", "respond_url", "buttons"})
# Fields that are useless when cut.
_WHOLE: Final = frozenset(
    {"approval_id", "notification_id", "input_hash", "url", "recipient", "session_id", "trigger", "atlas_id"}
)
PINGS_AT_ONCE = 4
QUESTIONS_AT_ONCE = 16
PING_PATIENCE = 5.0
"""Seconds that a ping waits for its turn."""


class WebhookChannel:
    channel_type = CHANNEL
    carries_credentials = False
    """Its messages are read by a program and kept in its logs, not by the person whom they are about."""
    retry_schedule: tuple[float, ...] = (
        5.0, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 14 * _HOUR, 20 * _HOUR, 24 * _HOUR,
    )  # fmt: skip
    """How long to wait after each failure; after the last one the message is given up."""

    def __init__(
        self,
        allow: Allowed | None = None,
        *,
        resolver: Resolver | None = None,
        timeout: float = 10,
        ssl_context: SSLContext | None = None,
    ) -> None:
        self.allowed = allow or Allowed()
        self._client = PinnedClient(self.allowed, resolver=resolver, timeout=timeout, ssl_context=ssl_context)
        # With threads of its own, so that pings do not delay messages.
        self._trying = PinnedClient(self.allowed, resolver=resolver, timeout=timeout, ssl_context=ssl_context)
        self._pings = asyncio.Semaphore(PINGS_AT_ONCE)
        # Somebody waits for these answers: they are asked with threads and turns of their own.
        self._asking = PinnedClient(self.allowed, resolver=resolver, timeout=timeout, ssl_context=ssl_context)
        self._questions = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    def concerns(self, card: notify_model.Card, shown: Mapping[str, Any]) -> bool:  # noqa: ARG002 -- the port's
        """Always: a program wants every version."""
        return True

    async def send(self, outgoing: notify_model.Outgoing) -> notify_model.Sent:
        id = f"msg_{outgoing.id}_{outgoing.version}"
        match outgoing.content:
            case notify_model.Card() as card:
                kind, at = _occasion(card, outgoing)
                body = _body(kind, at, _data(card, outgoing))
            case notify_model.Callback() as callback:
                data: dict[str, Any] = adapter(notify_model.Callback).dump_python(callback, mode="json")
                body = _body("call.decided", callback.decided_at, data)
            case notify_model.Notice() as notice:
                data = adapter(notify_model.Notice).dump_python(notice, mode="json")
                body = _body(f"atlas.{notice.trigger}", notice.happened_at, data)
            case notify_model.Alert() as alert:
                data = adapter(notify_model.Alert).dump_python(alert, mode="json")
                body = _body(f"alert.{alert.alert}", alert.happened_at, data)
            case _:
                raise notify_model.Undeliverable(
                    "A webhook carries requests for approval, decisions, notices and alerts, and nothing else."
                )
        await self._post(outgoing.target, id, outgoing.timestamp, body, self._client)
        return notify_model.Sent(message_ref=id)

    async def ping(self, target: notify_model.Target, id: UUID) -> str:
        """A `ping` with the clock of this machine; returns what was answered."""
        try:
            await asyncio.wait_for(self._pings.acquire(), PING_PATIENCE)
        except TimeoutError:
            raise notify_model.TryAgain("Too many connections are tried out at this moment; try again soon.") from None
        try:
            now = datetime.now(UTC)
            body = _body(notify_model.WebhookEventType.PING, now, {})
            return await self._post(target, f"msg_{id}", now, body, self._trying)
        finally:
            self._pings.release()

    async def ask(
        self, target: notify_model.Target, id: UUID, at: datetime, kind: str, data: Mapping[str, Any]
    ) -> bytes:
        """A question to the receiver, whole; returns the body of its answer."""
        body = orjson.dumps({"type": kind, "timestamp": at.isoformat(), "data": data})
        async with self._questions:
            return (await self._exchange(target, f"msg_{id}", at, body, self._asking)).body

    async def _post(self, target: notify_model.Target, id: str, at: datetime, body: bytes, client: PinnedClient) -> str:
        """The answer, if its status is a success."""
        return _said(await self._exchange(target, id, at, body, client))

    async def _exchange(
        self, target: notify_model.Target, id: str, at: datetime, body: bytes, client: PinnedClient
    ) -> HttpAnswer:
        """The answer, if its status is a success."""
        url = str(target.config.get("url", ""))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"cortex-plane/{version('cortex-plane')} (Standard-Webhooks/1.0)",
            **notify_model.signed(notify_model.Secrets.of(target.secrets).valid(at), id, at, body),
        }
        try:
            check_url(url, self.allowed)
            answer = await client.post(url, headers, body)
        except InvalidInput as error:
            raise notify_model.Undeliverable(error.message) from None
        except Unreachable as error:
            raise notify_model.TryAgain(error.message) from None
        if 200 <= answer.status < 300:
            return answer
        text = _said(answer)
        if answer.status == 410:
            raise notify_model.Undeliverable(f"The receiver wants nothing more: {text}", gone=True)
        if 300 <= answer.status < 400:
            raise notify_model.TryAgain(f"Redirects are not followed: {text}")
        after = answer.headers.get("retry-after") if answer.status in (429, 503) else None
        raise notify_model.TryAgain(f"The receiver answered {text}", after_seconds=_wait(after, at))


def _occasion(card: notify_model.Card, outgoing: notify_model.Outgoing) -> tuple[str, datetime]:
    """The type of the message, and when its event happened."""
    if card.status is not ApprovalStatus.PENDING:
        return "approval.resolved", card.resolved_at or outgoing.timestamp
    if outgoing.earlier is None:
        return "approval.requested", card.requested_at
    return "approval.updated", outgoing.timestamp


def _data(card: notify_model.Card, outgoing: notify_model.Outgoing) -> dict[str, Any]:
    content: dict[str, Any] = adapter(notify_model.Card).dump_python(card, mode="json")
    return {
        **{field.name: content[field.name] for field in fields(notify_model.Card) if field.name not in _WITHHELD},
        "notification_id": str(outgoing.id),
        "recipient": {"external_user": outgoing.target.address, "member": outgoing.target.member},
    }


def _body(kind: str, at: datetime, data: dict[str, Any]) -> bytes:
    """Bounded: long values are cut further and further, and `url` leads to the whole."""
    longest = 16_000
    while True:
        body = orjson.dumps({"type": kind, "timestamp": at.isoformat(), "data": data})
        if len(body) < MAX_BYTES or longest < _SHORTEST:
            return body
        longest //= 2
        data = {name: value if name in _WHOLE else _cut(value, longest) for name, value in data.items()}
        data["truncated"] = True
        if len(orjson.dumps(data.get("details"))) > longest:
            data["details"] = None


def _cut(value: Any, longest: int) -> Any:
    match value:
        case str():
            raw = value.encode()
            return value if len(raw) <= longest else raw[:longest].decode(errors="ignore") + "…"
        case dict():
            return {name: _cut(part, longest) for name, part in value.items()}
        case list():
            return [_cut(part, longest) for part in value[: max(longest // 100, 1)]]
    return value


def _said(answer: HttpAnswer) -> str:
    return f"HTTP {answer.status}{_excerpt(answer.body)}"


def _excerpt(body: bytes) -> str:
    """The receiver's text as one printable line."""
    text = "".join(c if c.isprintable() else " " for c in body[: 4 * _SHOWN_ANSWER].decode(errors="replace"))
    line = " ".join(text.split())
    return f": {line[:_SHOWN_ANSWER]}{'…' if len(line) > _SHOWN_ANSWER else ''}" if line else "."


def _wait(header: str | None, now: datetime) -> float | None:
    """A Retry-After header, in seconds or as a date; at most an hour, so that no receiver silences the plane for good."""
    if header is None:
        return None
    if header.strip().isdecimal() and len(header) < 10:
        return min(float(header), LONGEST_WAIT)
    try:
        until = email.utils.parsedate_to_datetime(header)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return min(max((until - now).total_seconds(), 0.0), LONGEST_WAIT)
    except (ValueError, OverflowError):
        return None
