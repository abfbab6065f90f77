"""Whether the plane can serve."""

from __future__ import annotations

from cortex_plane.domain.credential_keys import Forged
from cortex_plane.domain.errors import Unavailable
from cortex_plane.storage import orgs, policies
from cortex_plane.storage.database import Database
from cortex_plane.storage.migrate import pending


async def forged_policies(db: Database) -> list[str]:
    """The slugs of the orgs whose policies were not put in force by the plane: nothing is allowed there."""
    slugs, position = [], None
    while True:
        page = await orgs.list_all(db, position, 100)
        for org in page.items:
            try:
                async with db.transaction(org.id) as tx:
                    version = await policies.in_force(tx)
                    if version:
                        await policies.true_rows(tx, version)
            except Forged:
                slugs.append(org.slug)
        if page.next is None:
            return slugs
        position = page.next


async def require_ready(db: Database) -> None:
    missing = await pending(db)
    if missing:
        raise Unavailable(
            f"The database lacks {', '.join(missing)}.",
            code="schema_outdated",
            hint="Run `cortex db migrate`.",
        )
