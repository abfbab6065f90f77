"""Messages in SQL: two hot verbs to append, one query to read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.idempotency import IdempotencyKey
from cortex_plane.kernel.values import parse
from cortex_plane.sessions.model.messages import IngestedMessage, Message
from cortex_plane.tenancy.rules.credential_keys import Kind
from cortex_plane.tenancy.store.identities import mapping_mac

queries = Queries(__file__)

Checked = tuple[UUID, UUID]
"""The id and the member of a mapping whose MAC is true."""


async def ingest_message(
    db: Database,
    org: UUID,
    *,
    connection_id: UUID,
    agent: tuple[UUID | None, str | None],
    external_user: str,
    display_name: str,
    metadata: dict[str, Any],
    text: str,
    title: str,
    ids: tuple[UUID, UUID, UUID, UUID],
    bodies: tuple[bytes, ...],
    checked: Checked | None,
    caller: UUID,
    once: IdempotencyKey | None,
) -> IngestedMessage:
    """Ids are for account, mapping, session and job, audit bodies for account, session, message, job and activation. Raises
    ``Conflict`` (`mapping_unchecked`) where the sender has another mapping than the one that was ``checked``."""
    account, mapping, session, job = ids
    mac = mapping_mac(db.credential_key, org, mapping, connection_id, account, external_user)
    (row,) = await db.call(
        "ingest_message", org, connection_id, *agent, external_user, display_name, metadata, text, title,
        account, mapping, session, job, *bodies, mac, *(checked or (None, None)), caller, *_parts(once),
    )  # fmt: skip
    return parse(IngestedMessage, row)


async def check_mapping(db: Database, org: UUID, connection_id: UUID, sender: str) -> Checked | None:
    """Whose this sender is. Raises ``Forged`` where the row that says so is not the plane's."""
    rows = await db.call("verified_mapping", org, connection_id, sender)
    if not rows:
        return None
    (row,) = rows
    db.credential_key.require(Kind.MAPPING, row, row["mac"])
    return row["id"], row["user_account_id"]


async def post_message(
    db: Database,
    org: UUID,
    *,
    session_id: UUID,
    sees: UUID | None,
    text: str,
    title: str,
    author: UUID | None,
    job: UUID,
    bodies: tuple[bytes, ...],
    caller: UUID,
    once: IdempotencyKey | None,
) -> IngestedMessage:
    (row,) = await db.call(
        "post_message", org, session_id, sees, text, title, author, job, *bodies, caller, *_parts(once)
    )
    return parse(IngestedMessage, row)


async def list_page(tx: Transaction, session_id: UUID, above: int, limit: int) -> list[Message]:
    return [parse(Message, row) for row in await tx.rows(queries.list_page, session_id, above, limit)]


def _parts(once: IdempotencyKey | None) -> tuple[str | None, bytes | None]:
    return (once.key, once.fingerprint) if once else (None, None)
