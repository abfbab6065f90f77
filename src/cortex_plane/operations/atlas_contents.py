"""What is in one version of an atlas, for whoever reads it."""

from __future__ import annotations

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.atlases import Atlas
from cortex_plane.operations.atlas_book import manifest_of, read_back
from cortex_plane.operations.manifest_threads import loading
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import atlases
from cortex_plane.storage.database import Database


@verb(Permission.ATLAS_READ)
async def contents(db: Database, actor: Actor, atlas_id: str, version: str) -> Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        kept = found(await atlases.get_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, kept.atlas_id, kept.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    name = f"{kept.atlas_id} {kept.version}"
    return await loading.run(read_back, manifest, kept.digest, name)
