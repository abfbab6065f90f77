"""Absences: out of office, for oneself, or by an admin for somebody else."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.idempotency import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.absences import Absence, AbsenceDraft, AbsenceStatus, Span, span_of, way_back
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.members import Role
from cortex_plane.tenancy.store import absences
from cortex_plane.tenancy.verbs.verbs import once_only, require_found, verb


@verb(Permission.ABSENCE_WRITE)
async def create(
    db: Database, actor: Actor, draft: AbsenceDraft, once: IdempotencyKey | None = None
) -> Absence:
    member_id = _whose(actor, draft.member_id)
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            return await _make(tx, actor, member_id, draft)

        id, _ = await once_only(tx, actor, "absences.create", once, make)
        return require_found(await absences.get(tx, id), "absence")


def _whose(actor: Actor, asked: UUID | None) -> UUID:
    """Whose absence it is; other people's are for admins."""
    if asked is None or asked == actor.user_account_id:
        if actor.user_account_id is None:
            raise InvalidInput(
                "This key belongs to nobody who could be absent.",
                hint="Name the member in `member_id`.",
                field="member_id",
            )
        return actor.user_account_id
    if not actor.may(Permission.MEMBER_WRITE):
        raise Forbidden(
            "Only an admin may say that somebody else is absent.",
            code="not_your_absence",
            hint="Leave `member_id` out for yourself, or ask an admin.",
        )
    return asked


async def _make(tx: Transaction, actor: Actor, member_id: UUID, draft: AbsenceDraft) -> UUID:
    if draft.delegate_id == member_id:
        raise InvalidInput(
            "Whoever is absent cannot stand in for themselves.",
            code="delegate_is_self",
            hint="Name somebody else.",
            field="delegate_id",
        )
    people = {row["id"]: row for row in await absences.hold_people(tx, [member_id, draft.delegate_id])}
    absent = people.get(member_id)
    if absent is None or not _works_here(absent):
        raise NotFound("There is no such active member.", code="member_not_found")
    delegate = people.get(draft.delegate_id)
    if delegate is None or not _works_here(delegate):
        raise NotFound(
            "There is no active member with this id who could stand in; guests decide nothing.",
            code="delegate_unknown",
            hint="Choose one of `cortex absence delegates`.",
        )
    span = span_of(member_id, draft, absent["now"])
    await absences.one_at_a_time(tx)
    await _refuse_what_clashes(tx, span)
    id = new_id()
    await absences.insert(tx, id, span, draft.reason, actor.name)
    fact = Fact.of(
        actor, "absence_added", absence=str(id), member=str(member_id), name=absent["display_name"],
        delegate=str(span.delegate_id), delegate_name=delegate["display_name"],
        starts_at=span.starts_at.isoformat(), ends_at=span.ends_at.isoformat(), reason=draft.reason,
    )  # fmt: skip
    await audit.append_to_org(tx, fact)
    return id


def _works_here(person: Row) -> bool:
    return person["deactivated_at"] is None and set(person["roles"]) != {Role.GUEST}


async def _refuse_what_clashes(tx: Transaction, span: Span) -> None:
    if await absences.overlapping(tx, span):
        raise Conflict(
            "There is an absence in that time already.",
            code="absence_overlap",
            hint="Cancel the other one first, or choose a time beside it.",
        )
    if way_back(span, await absences.reached(tx, span)) is not None:
        raise Conflict(
            "In that time the delegate is absent too, and it would all lead back to whoever is absent.",
            code="absence_cycle",
            hint="Choose somebody else, or a time in which the delegate is there.",
        )


@verb(Permission.ABSENCE_WRITE)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    member_id: UUID | None = None,
    only_open: bool = False,
) -> Page[Absence]:
    """Newest first. Whoever is not staff sees their own."""
    if actor.sees is not None and member_id not in (None, actor.sees):
        return Page(items=[], next=None)
    async with db.transaction(actor.org_id) as tx:
        return await absences.list_page(tx, position, limit, actor.sees or member_id, only_open)


@verb(Permission.ABSENCE_WRITE)
async def get(db: Database, actor: Actor, id: UUID) -> Absence:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await absences.get(tx, id, actor.sees), "absence")


@verb(Permission.ABSENCE_WRITE)
async def cancel(db: Database, actor: Actor, id: UUID) -> Absence:
    """What is asked from now on reaches them again; what their delegate has already stays there."""
    async with db.transaction(actor.org_id) as tx:
        absence = require_found(await absences.get(tx, id, actor.sees), "absence")
        if absence.member_id != actor.user_account_id and not actor.may(Permission.MEMBER_WRITE):
            raise Forbidden(
                "Only they themselves, or an admin, may cancel this absence.",
                code="not_your_absence",
                hint="Ask one of them.",
            )
        if absence.status is AbsenceStatus.CANCELLED:
            return absence
        if not await absences.cancel(tx, id):
            raise Conflict(
                "This absence is over.", code="absence_over", hint="There is nothing left to cancel."
            )
        fact = Fact.of(actor, "absence_cancelled", absence=str(id), member=str(absence.member_id))
        await audit.append_to_org(tx, fact)
        return require_found(await absences.get(tx, id), "absence")
