"""New secrets and their use, the actor that a member is, and ending a person's access."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.db.database import Database, Transaction, ids
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, NotFound
from cortex_plane.kernel.fields import split_ref
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, ActorKind, Forged, SecretKind
from cortex_plane.tenancy.model.orgs import Member, Role
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs.frame import report_forgery, require_found

T = TypeVar("T")


def require_member(actor: Actor, refusal: str) -> UUID:
    """The member that the actor is; ``refusal`` is the message for a program."""
    if actor.user_account_id is None:
        raise Forbidden(refusal, hint="Use the key of a member.")
    return actor.user_account_id


async def actor_for_member(tx: Transaction, user_account_id: UUID, credential_id: UUID) -> Actor | None:
    """Them, with the roles and the clearance of this moment; None where there is nobody, or they are deactivated."""
    member = await tenancy_store.get_member(tx, user_account_id)
    if member is None or member.deactivated_at is not None:
        return None
    standing = {"roles": member.roles, "clearance": member.clearance}
    return tenancy_store.session_person(tx.org, credential_id, member.id, member.display_name, standing)


async def require_active(tx: Transaction, member_id: UUID) -> Member:
    member = require_found(await tenancy_store.get_member(tx, member_id), "member")
    if member.deactivated_at is not None:
        raise Conflict(
            f"{member.display_name} is deactivated.",
            code="member_deactivated",
            hint="Reactivate them first: `cortex member update --activate`.",
        )
    return member


async def find_person(db: Database, actor: Actor, ref: str) -> UUID:
    """The member whom a service names: by their id, or as `connection:name` with a name there that is verified as theirs."""
    id, name = split_ref(ref)
    if name is None:
        return require_found(id, "member")
    channel, _, sender = name.partition(":")

    def unknown() -> NotFound:
        return NotFound(
            f"No member of the org is known as `{ref}`.",
            code="member_not_found",
            hint="Give the id of a member, or `connection:name` with a name that `cortex member mappings` shows as verified.",
        )

    async with forgery_refusal(db, unknown), db.transaction(actor.org_id) as tx:
        connection = await tenancy_store.get_connection_name(tx, channel) if sender else None
        mapping = await tenancy_store.verified_mapping(tx, connection.id, sender) if connection else None
        if mapping is None:
            raise unknown()
        return mapping.user_account_id


async def require_served_person(tx: Transaction, member_id: UUID) -> None:
    """A service works for members alone: a guest may turn out to be somebody else."""
    member = await require_active(tx, member_id)
    if set(member.roles) <= {Role.GUEST}:
        raise Forbidden(
            f"{member.display_name} is a guest, and no program works on behalf of one.",
            code="guest_not_served",
            hint="Make them a member of the org, or leave out `on_behalf_of`.",
        )


async def sponsors_by(tx: Transaction, actor: Actor) -> list[UUID]:
    """Who answers for what the actor does to people and their channels: they themselves, and for a program whoever made its key."""
    if actor.kind is not ActorKind.SERVICE:
        return [actor.identity]
    maker = await tx.value(queries.key_maker, actor.key_id)
    return [actor.identity, *([maker] if maker else [])]


NOTHING_ENDED: Mapping[str, object] = {"keys_ended": [], "browser_sessions_ended": 0, "credentials_ended": []}


async def end_access(tx: Transaction, member_id: UUID, codes: Sequence[UUID] = ()) -> Mapping[str, object]:
    """Ends every credential of a member for good, and what came from it. The caller holds their access. Returns what
    the audit trail says of it, with ``codes`` that the caller ended."""
    keys = ids(await tx.rows(queries.revoke_keys, member_id))
    sessions = ids(await tx.rows(queries.end_sessions, member_id, None))
    others = [
        *ids(await tx.rows(queries.end_enrolment_codes_of_keys, keys)),
        *ids(await tx.rows(queries.void_enrolment_codes, member_id)),
        *ids(await tx.rows(queries.end_links, member_id)),
        *ids(await tx.rows(queries.void_codes, member_id)),
        *ids(await tx.rows(approvals_store.queries.void_tokens, member_id)),
    ]
    credentials = [*sessions, *others, *codes]
    return {"keys_ended": keys, "browser_sessions_ended": len(sessions), "credentials_ended": credentials}


def new_secret(kind: SecretKind) -> str:
    return kind + secrets.token_urlsafe(32)


def new_mark() -> str:
    """Tells one rendering of a page from another."""
    return secrets.token_hex(8)


@contextlib.asynccontextmanager
async def forgery_refusal(db: Database, refusal: Callable[[], CortexError] | None = None) -> AsyncIterator[None]:
    """Reports a forged row that is met inside, and raises what is raised for one that does not exist. Without ``refusal``
    the code after it goes on.

    Open no transaction around it: the report is committed, and what was begun inside is not."""
    try:
        yield
    except Forged as forgery:
        await report_forgery(db, forgery)
        if refusal is not None:
            raise refusal() from None


async def show_secret(
    db: Database, kind: SecretKind, secret: str, show: Callable[[Transaction, UUID], Awaitable[T | None]]
) -> T | None:
    """What a link or code would do now; None: nothing. Reading does not use it up."""
    row_ids = await tenancy_store.resolve_secret(db, kind, secret)
    if row_ids is not None:
        async with forgery_refusal(db), db.transaction(row_ids[0]) as tx:
            return await show(tx, row_ids[1])
    return None


@contextlib.asynccontextmanager
async def redemption(
    db: Database, kind: SecretKind, secret: str, refusal: Callable[[], CortexError]
) -> AsyncIterator[tuple[Transaction, UUID]]:
    """A transaction in which a link or code is used, and its id. Unknown and forged ones are refused alike."""
    row_ids = await tenancy_store.resolve_secret(db, kind, secret)
    if row_ids is None:
        raise refusal()
    async with forgery_refusal(db, refusal), db.transaction(row_ids[0]) as tx:
        yield tx, row_ids[1]
