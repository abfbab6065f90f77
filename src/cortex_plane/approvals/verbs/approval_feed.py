"""Changes of approvals anywhere in an org, from a cursor on: nothing is missed and nothing comes twice.

Transactions commit in another order than they begin, so no number and no time says what is new. A cursor is a snapshot of the database:
new is what it could not see. Within one look changes have an order, and a cursor between two of them names the place too.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import orjson

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.rules.decisions import shown_to
from cortex_plane.approvals.store import queries
from cortex_plane.db.database import Transaction
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import transaction_verb

PAGE = 100
LOOKED_AT = 5000
"""Entries of the audit trail that one look goes through."""
LONGEST_CURSOR = 16_384


@dataclass(frozen=True, slots=True)
class FeedCursor:
    seen: str
    """What this snapshot saw is not new."""
    until: str | None = None
    """A look that is not over: it goes as far as this snapshot sees."""
    after: tuple[str, str, int] = ("0", str(UUID(int=0)), 0)
    """Transaction, chain and number of the last entry of that look."""

    def __str__(self) -> str:
        parts = [self.seen] if self.until is None else [self.seen, self.until, *self.after]
        return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> FeedCursor:
        try:
            if len(text) > LONGEST_CURSOR:
                raise ValueError
            parts = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if len(parts) == 1:
                return cls(_snapshot(parts[0]))
            seen, until, xid, chain, seq = parts
            return cls(_snapshot(seen), _snapshot(until), (str(_natural(int(xid))), str(UUID(chain)), _natural(seq)))
        except (ValueError, TypeError, AttributeError, LookupError):
            raise InvalidInput(
                "This cursor is not one of this stream.",
                code="invalid_cursor",
                hint="Send `cursor` of the last message unchanged, or none to begin now.",
                field="after",
            ) from None


def _snapshot(text: str) -> str:
    """``xmin:xmax:xip``, all of them transaction ids."""
    low, high, between = text.split(":")
    numbers = [_natural(int(part)) for part in (low, high, *(between.split(",") if between else ()))]
    if not all(0 < numbers[0] <= number <= numbers[1] for number in numbers) or numbers[2:] != sorted(set(numbers[2:])):
        raise ValueError
    return text


def _natural(number: int) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError
    return number


@dataclass(frozen=True, slots=True)
class FeedEntry:
    cursor: FeedCursor
    type: str
    created_at: datetime
    approval: Approval


@dataclass(frozen=True, slots=True)
class ApprovalChanges:
    changes: list[FeedEntry]
    """Oldest first."""
    cursor: FeedCursor
    """To look again with."""

    @property
    def more(self) -> bool:
        """There may be more at once."""
        return self.cursor.until is not None


@transaction_verb(Permission.APPROVAL_READ)
async def changes_of_approvals(tx: Transaction, actor: Actor, cursor: FeedCursor | None) -> ApprovalChanges:
    """What is new since ``cursor``, of approvals that the actor sees. Without one it only says where to begin."""
    now = await tx.row(queries.current_snapshot, cursor.seen if cursor else None)
    if now is None:
        raise AssertionError("it always has a row")
    if cursor is None:
        return ApprovalChanges([], FeedCursor(now["snapshot"]))
    if now["is_foreign"]:
        raise Conflict(
            "This cursor belongs to another life of the database, before it was restored.",
            code="cursor_expired",
            hint="Begin without a cursor, then list the approvals.",
        )
    until = cursor.until or now["snapshot"]
    rows = await tx.rows(queries.approval_changes, cursor.seen, until, *cursor.after, LOOKED_AT, PAGE)
    ids = {row["approval_id"] for row in rows if row["approval_id"]}
    visible = {approval.id: approval for approval in await approvals_store.approvals_by_id(tx, list(ids), actor)}
    changes = []
    place = cursor
    for row in rows:
        place = FeedCursor(cursor.seen, until, (row["xid"], str(row["chain_id"]), row["seq"]))
        if (approval := visible.get(row["approval_id"])) is not None:
            change = FeedEntry(
                place, row["action"].removeprefix("approval_"), row["created_at"], shown_to(approval, actor)
            )
            changes.append(change)
    return ApprovalChanges(changes, place if rows else FeedCursor(until))
