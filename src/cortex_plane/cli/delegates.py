"""People, as somebody types them: an id, or a whole name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from cortex_plane.kernel.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from cortex_plane.client import Client


async def member_id(plane: Client, text: str) -> UUID:
    """Of the one colleague who is meant."""
    try:
        return UUID(text)
    except ValueError:
        pass
    found = await plane.absences.delegates(name=text)
    if not found:
        raise NotFound(
            f"There is no active member called {text!r} besides you.",
            code="member_not_found",
            hint="`cortex absence delegates` lists them; write the whole name, or the id.",
        )
    if len(found) > 1:
        ids = ", ".join(str(each.id) for each in found)
        raise InvalidInput(f"Several members are called {text!r}: {ids}.", hint="Use the id of one.")
    return found[0].id
