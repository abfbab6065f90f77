"""What a steward's webhook connection says about an answer to a gate: a signed request, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import orjson

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model import Target, TryAgain
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.verbs.connections import require_webhook

MAX_FAULT = 500
"""Characters of what is wrong with an answer."""


class Inquiries(Protocol):
    """The channel that asks, and reads what is answered."""

    async def ask(self, target: Target, id: UUID, at: datetime, kind: str, data: Mapping[str, Any]) -> bytes:
        """Raises ``TryAgain`` or ``Undeliverable``."""
        ...


class AnswerCallbacks:
    def __init__(self, db: Database, channel: Inquiries) -> None:
        self._db, self._channel = db, channel

    async def check_answer(self, org_id: UUID, connection: str, data: Mapping[str, Any]) -> str | None:
        """What is wrong with an answer; None where nothing is. Raises ``CortexError`` where that is not known."""
        db = self._db
        async with db.transaction(org_id) as tx:
            row = require_webhook(await tenancy_store.get_connection_name(tx, connection))
        if row.disabled_at is not None:
            raise Conflict(
                "The connection of this validator is disabled.",
                code="connection_disabled",
                hint="Enable it with `cortex connection enable`.",
            )
        target = Target(
            connection_id=row.id,
            connection=row.name,
            config=row.config,
            secrets=tenancy_store.open_secret(db.vault, org_id, row.id, row.sealed),
            address="",
            member="",
        )
        return _fault(await self._channel.ask(target, new_id(), row.now, "gate.answer", data))


def _fault(body: bytes) -> str | None:
    """Of `{"valid": true}` or `{"valid": false, "reason": "…"}`. Everything else is no answer."""
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = None
    valid = reply.get("valid") if isinstance(reply, dict) else None
    if valid is True:
        return None
    reason = reply.get("reason", "") if valid is False else None
    if not isinstance(reason, str):
        raise TryAgain("The validator answered neither that it is valid nor why it is not.")
    return reason.replace("\x00", "")[:MAX_FAULT] or "it is not accepted"
