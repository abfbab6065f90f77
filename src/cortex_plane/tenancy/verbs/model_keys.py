"""The keys with which an org asks model providers itself: set and removed by its admins, read by workers alone."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.model_keys import ModelKey, ModelKeyDraft, Provider
from cortex_plane.tenancy.store import model_keys
from cortex_plane.tenancy.verbs.verbs import require_found, verb


@verb(Permission.KEY_READ)
async def list_all(db: Database, actor: Actor) -> list[ModelKey]:
    async with db.transaction(actor.org_id) as tx:
        return await model_keys.list_all(tx)


@verb(Permission.KEY_READ)
async def get(db: Database, actor: Actor, provider: Provider) -> ModelKey:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await model_keys.get(tx, provider), "model_key")


@verb(Permission.KEY_WRITE)
async def put(db: Database, actor: Actor, provider: Provider, draft: ModelKeyDraft) -> ModelKey:
    """Set it, in the place of the one before. Workers use it within seconds."""
    async with db.transaction(actor.org_id) as tx:
        kept = await model_keys.put(tx, db.vault, provider, draft.key, actor.name)
        await audit.append_to_org(
            tx, Fact.of(actor, "model_key_set", provider=provider, last_characters=kept.last_characters)
        )
        return kept


@verb(Permission.KEY_WRITE)
async def remove(db: Database, actor: Actor, provider: Provider) -> None:
    """Workers stop using it within seconds."""
    async with db.transaction(actor.org_id) as tx:
        kept = require_found(await model_keys.get(tx, provider), "model_key")
        if await model_keys.remove(tx, provider):
            fact = Fact.of(
                actor, "model_key_removed", provider=provider, last_characters=kept.last_characters
            )
            await audit.append_to_org(tx, fact)


async def opened(db: Database, org_id: UUID, provider: Provider, vault: Vault) -> str | None:
    """The key itself, for the worker that asks the provider; None where the org has none."""
    async with db.transaction(org_id) as tx:
        return await model_keys.opened(tx, vault, provider)
