"""Commands that people type in shared places, and the buttons for which they stand."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.kernel.errors import Forbidden, NotFound
from cortex_plane.notify.model.channels import Button, ButtonAction, TypedButton
from cortex_plane.notify.store import queries

MOST_RECENT = 500
"""Cards of a place among which an id is looked for, newest first."""
UNKNOWN = "No request in this place has this id. Copy the command from the request."
NOT_SHOWN = "This place does not show what you would approve. Open the request and approve it there."


async def find_button(tx: Transaction, connection_id: UUID, place: str, typed: TypedButton) -> Button:
    """The button that a command means, among the cards of this place over this connection. Raises ``NotFound`` for an unknown id, and
    ``Forbidden`` for an approval where the card shows no arguments, as in a public repository."""
    code, _, version = typed.short_id.partition("-")
    for row in await tx.rows(queries.list_place_cards, connection_id, place, MOST_RECENT):
        button = Button(action=typed.action, notification_id=row["id"], version=int(version or 1))
        if button.short_id.partition("-")[0] != code:
            continue
        if typed.action is ButtonAction.APPROVE and row["shown"].get("arguments") is False:
            raise Forbidden(NOT_SHOWN, code="not_shown_whole")
        return button
    raise NotFound(UNKNOWN, code="button_unknown")
