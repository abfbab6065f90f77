"""What a version of an atlas holds, and what it says about one action or capability."""

from __future__ import annotations

from cortex_plane.db.database import Database
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.rules.manifest_queries import rules_of
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.kernel.shares import loading
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.ATLAS_READ)
async def query_atlas(
    db: Database, actor: Actor, atlas_id: str, version: str, *, action: str | None = None, capability: str | None = None
) -> atlas_model.AtlasRules:
    """Which gates, capabilities and policies of a version concern an action, or a capability."""
    atlas = await atlas_contents(db, actor, atlas_id, version)
    return await loading.run(rules_of, atlas, action, capability)


@verb(Permission.ATLAS_READ)
async def atlas_contents(db: Database, actor: Actor, atlas_id: str, version: str) -> atlas_model.Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, row.atlas_id, row.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    return await loading.run(read_back, manifest, row.digest, f"{row.atlas_id} {row.version}")
