"""Channel connections: the bots, workspaces and mailboxes of an org."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.connections import Connection, ConnectionChange, ConnectionDraft
from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.pages import Page, Position
from cortex_plane.operations.verbs import found, new_id, once_only, require_revision, verb
from cortex_plane.storage import audit, connections
from cortex_plane.storage.database import Database


@verb(Permission.CONNECTION_WRITE)
async def create(db: Database, actor: Actor, draft: ConnectionDraft, once: Once | None = None) -> Connection:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            made = await connections.insert(tx, new_id(), draft.channel_type, draft.name)
            await audit.append_to_org(
                tx,
                Fact.of(
                    actor, "connection_created", connection=str(made.id), channel_type=draft.channel_type,
                    name=draft.name,
                ),
            )  # fmt: skip
            return made.id

        id, _ = await once_only(tx, actor, "connections.create", once, make)
        return found(await connections.get(tx, id), "connection")


@verb(Permission.CONNECTION_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Connection:
    async with db.transaction(actor.org_id) as tx:
        return found(await connections.get(tx, id), "connection")


@verb(Permission.CONNECTION_READ)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Connection]:
    async with db.transaction(actor.org_id) as tx:
        return await connections.list_page(tx, position, limit)


@verb(Permission.CONNECTION_WRITE)
async def update(
    db: Database, actor: Actor, id: UUID, change: ConnectionChange, revision: int | None
) -> Connection:
    async with db.transaction(actor.org_id) as tx:
        changed = await connections.update(tx, id, change.name, change.enabled, revision)
        if changed is None:
            require_revision(found(await connections.get(tx, id), "connection").revision, revision)
        await audit.append_to_org(
            tx,
            Fact.of(
                actor, "connection_changed", connection=str(id), name=change.name, enabled=change.enabled
            ),
        )
        return found(changed, "connection")
