"""What is in one version of an atlas, for whoever reads it."""

from __future__ import annotations

from cortex_plane.db.database import Database
from cortex_plane.gates.model.atlases import Atlas
from cortex_plane.gates.store import atlases
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.kernel.manifest_threads import loading
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.ATLAS_READ)
async def contents(db: Database, actor: Actor, atlas_id: str, version: str) -> Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        kept = require_found(await atlases.get_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, kept.atlas_id, kept.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    name = f"{kept.atlas_id} {kept.version}"
    return await loading.run(read_back, manifest, kept.digest, name)
