"""Whether the plane can serve."""

from __future__ import annotations

from cortex_plane.db.database import Database
from cortex_plane.db.migrate import pending
from cortex_plane.kernel.errors import Unavailable


async def require_ready(db: Database) -> None:
    missing = await pending(db)
    if missing:
        raise Unavailable(
            f"The database lacks {', '.join(missing)}.",
            code="schema_outdated",
            hint="Run `cortex db migrate`.",
        )
