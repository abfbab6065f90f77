"""MACs of rows that a test wrote by hand and means to be the plane's."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.tenancy.store.credentials import convert_mappings


async def sign_mappings(db: Database, org_id: UUID) -> None:
    """As if the plane had written every mapping that has no MAC."""
    async with db.transaction(org_id) as tx:
        while await convert_mappings(tx):
            pass
