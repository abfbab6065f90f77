"""People whom a form names: chosen from a list, or written as an id or a whole name."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard.visits import Visit
from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import InvalidInput, NotFound


async def chosen(visit: Visit, text: str) -> UUID:
    """The one colleague who is meant."""
    text = text.strip()
    try:
        return UUID(text)
    except ValueError:
        pass
    named = check_text(text, "name")
    found = await approvals.list_delegates(visit.db, visit.actor, name=named) if named else []
    if not found:
        raise NotFound(
            "There is no active member of that name besides you.",
            code="delegate_unknown",
            hint="Choose somebody, or write the whole name.",
        )
    if len(found) > 1:
        raise InvalidInput(
            "Several members have that name.", hint="Write the id of the one you mean.", field="to"
        )
    return found[0].id
