"""Invitations and addresses: a person proves an address with a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound, TooMany, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model import Invitation
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import IDLE_LIFE, WHOLE_LIFE, Actor, Permission, session_digest
from cortex_plane.tenancy.model.identities import (
    INVITATIONS_AN_HOUR,
    MAIL_PAUSE,
    MAILS_AN_HOUR,
    MAX_CHANNELS,
    VERIFY_LIFE,
    AddressDraft,
    AddressVerification,
    Claim,
    InvitationDraft,
    Invited,
    Mapping,
    Purpose,
    digest,
    displaced,
    is_verify_code,
    own,
    path_of,
)
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.access import forgery_refusal, new_session_secret, new_verify_code, report_forgery
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb
from cortex_plane.tenancy.verbs.orgs import resolve_teams


@verb(Permission.MEMBER_WRITE)
async def invite(
    db: Database, actor: Actor, draft: InvitationDraft, once: IdempotencyKey | None = None, *, mailing: bool = False
) -> Invited:
    """A member, their unproven address, and a mail with a link. ``mailing``: whether this plane can send mail."""
    again = False
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            nonlocal again
            connection_id = await _email_connection(tx, actor, mailing)
            await identities_store.claim_one(tx, connection_id, draft.email)
            claims = await identities_store.claims(tx, connection_id, draft.email)
            earlier = await _invited_before(tx, draft, claims)
            again = earlier is not None
            if earlier is None:
                member_id = await _join(tx, actor, draft)
                mapping_id = new_id()
                await identities_store.insert_mapping(
                    tx, mapping_id, connection_id, member_id, draft.email, Purpose.INVITATION
                )
            else:
                member_id, mapping_id = earlier.user_account_id, earlier.id
            # An admin says that this address takes mail: a refusal from before does not count any more.
            await identities_store.allow_mail(tx, mapping_id)
            await _send(tx, actor, connection_id, mapping_id, member_id, draft.email, Purpose.INVITATION, own=False)
            return mapping_id

        mapping_id, _ = await once_only(tx, actor, "members.invite", once, make)
        mapping = require_found(await identities_store.get_mapping(tx, mapping_id), "mapping")
        member = require_found(await orgs_store.get_member(tx, mapping.user_account_id), "member")
        return Invited(member=member, mapping=mapping, again=again)


async def _invited_before(tx: Transaction, draft: InvitationDraft, claims: Sequence[Claim]) -> Claim | None:
    """The invitation to this address that nobody has followed yet. Refuses an address that is somebody's already."""
    holder = next((claim for claim in claims if claim.verified_at is not None and not claim.is_guest), None)
    if holder is not None:
        raise Conflict(
            f"{draft.email} belongs to {holder.display_name} already.",
            code="identity_taken",
            hint="Invite them by another address, or let them give this one up: `cortex user unlink`.",
        )
    earlier = next((c for c in claims if c.invited and c.verified_at is None and c.deactivated_at is None), None)
    if earlier is None:
        return None
    teams = None if draft.teams is None else await resolve_teams(tx, draft.teams)
    if draft.differs(require_found(await orgs_store.get_member(tx, earlier.user_account_id), "member"), teams):
        raise Conflict(
            f"{earlier.display_name} was invited to {draft.email} already, as something else.",
            code="already_invited",
            hint="Give only the address to send the mail again; `cortex member update` changes the member.",
        )
    return earlier


async def _join(tx: Transaction, actor: Actor, draft: InvitationDraft) -> UUID:
    if draft.display_name is None:
        raise InvalidInput(
            f"Nobody is invited to {draft.email} yet, so a name is needed.",
            code="name_missing",
            hint="Give the person's name: `cortex member invite --email … --name …`.",
        )
    id, roles, clearance = new_id(), draft.roles or [Role.MEMBER], draft.clearance or 0
    sponsors = await access.sponsors_by(tx, actor)
    await orgs_store.insert_member(tx, id, draft.display_name, clearance, [*roles], sponsors)
    await orgs_store.set_teams(tx, id, await resolve_teams(tx, draft.teams or []))
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor, "member_added", member=str(id), name=draft.display_name, clearance=clearance,
            roles=[*roles], teams=draft.teams or [],
        ),
    )  # fmt: skip
    return id


@verb(Permission.IDENTITY_LINK)
async def add_address(db: Database, actor: Actor, draft: AddressDraft, *, mailing: bool = False) -> Mapping:
    """An address of one's own: it counts once its link was opened by whoever is logged in as its owner."""
    member_id = person_of(actor)
    async with db.transaction(actor.org_id) as tx:
        connection_id = await _email_connection(tx, actor, mailing)
        await identities_store.claim_one(tx, connection_id, draft.email)
        claims = await identities_store.claims(tx, connection_id, draft.email)
        displaced(claims, member_id)
        mine = own(claims, member_id)
        if mine is not None and mine.verified_at is not None:
            raise Conflict(
                f"{draft.email} is yours already.", code="already_linked", hint="See `cortex user channels`."
            )
        await _require_open(tx, connection_id, draft.email, member_id)
        if mine is None:
            await require_room(tx, member_id)
        mapping_id = mine.id if mine else new_id()
        purpose = Purpose.INVITATION if mine and mine.invited else Purpose.ADDRESS
        if mine is None:
            await identities_store.insert_mapping(tx, mapping_id, connection_id, member_id, draft.email, purpose)
        await _send(tx, actor, connection_id, mapping_id, member_id, draft.email, purpose, own=True)
        return require_found(await identities_store.get_mapping(tx, mapping_id), "mapping")


async def _email_connection(tx: Transaction, actor: Actor, mailing: bool) -> UUID:
    """Where the org's mail goes out; made where the plane can send mail and the org has none yet."""
    connection = await identities_store.email_connection(tx)
    if connection is None and mailing:
        if await identities_store.ensure_email_connection(tx, id := new_id()):
            fact = Fact.of(actor, "connection_created", connection=str(id), channel_type="email", name="email")
            await proof_store.append_to_org(tx, fact)
        connection = await identities_store.email_connection(tx)
    if connection is None:
        raise Conflict(
            "This plane sends no mail.",
            code="mail_not_configured",
            hint="Whoever runs it sets CORTEX_SMTP_URL and CORTEX_MAIL_FROM.",
        )
    if connection["disabled_at"] is not None:
        raise Conflict(
            "The org's mail is turned off.",
            code="connection_disabled",
            hint=f"Turn it on: `cortex connection enable {connection['id']}`.",
        )
    id_: UUID = connection["id"]
    return id_


async def _send(
    tx: Transaction,
    actor: Actor,
    connection_id: UUID,
    mapping_id: UUID,
    member_id: UUID,
    address: str,
    purpose: Purpose,
    *,
    own: bool,
) -> None:
    """``own``: they call the address theirs, and nobody else vouches for it. One mail is enough, however often it is asked for."""
    if await identities_store.is_mailed(tx, mapping_id, MAIL_PAUSE):
        return
    sender = {"sent_by": str(actor.user_account_id or actor.key_id), "own": own}
    await _require_patience(tx, actor, sender, MAILS_AN_HOUR if own else INVITATIONS_AN_HOUR)
    await _enqueue_invitation(
        tx,
        connection_id=connection_id,
        mapping_id=mapping_id,
        member_id=member_id,
        address=address,
        data={"purpose": purpose.value, "invited_by": actor.name, **sender},
    )
    action = "member_invited" if purpose is Purpose.INVITATION else "address_added"
    fact = Fact.of(actor, action, member=str(member_id), mapping=str(mapping_id), address=address)
    await proof_store.append_to_org(tx, fact)


async def _require_patience(tx: Transaction, actor: Actor, sender: dict[str, Any], most: int) -> None:
    """Mail goes to people who did not ask for it: whoever has it sent has so much of it and no more."""
    # Of two that come at once the second counts the first.
    await identities_store.claim_one(tx, actor.user_account_id or actor.key_id, "mails")
    if await identities_store.count_mails(tx, sender) >= most:
        raise TooMany(
            f"You had {most} links mailed within the last hour, which is as many as one may.",
            code="too_many_mails",
            hint="Wait until the first of them is an hour old.",
        )


async def _require_open(tx: Transaction, connection_id: UUID, address: str, member_id: UUID) -> None:
    reason = await identities_store.mapping_refusal(tx, connection_id, address, member_id)
    if reason is not None:
        raise Conflict(
            f"Nothing is sent to {address} any more: {reason}",
            code="address_refused",
            hint="Check its spelling. If it takes mail again, an operator sends the last one again: `cortex delivery resend`.",
        )


def person_of(actor: Actor) -> UUID:
    if actor.user_account_id is None:
        raise Forbidden("Only a member has channels.", hint="Use the key of a member.")
    return actor.user_account_id


async def require_room(tx: Transaction, member_id: UUID) -> None:
    if await identities_store.count_mappings(tx, member_id) >= MAX_CHANNELS:
        raise TooMany(
            f"You have {MAX_CHANNELS} channels and addresses, which is as many as one person may have.",
            code="too_many_channels",
            hint="Give one up: `cortex user channels`, then `cortex user unlink`.",
        )


# Links ----------------------------------------------------------------------------------------------------------------


async def shown(db: Database, code: str) -> AddressVerification | None:
    """What a link would do now; None: nothing. Asking does not use it up."""
    ids = await identities_store.resolve_code(db, digest(code)) if is_verify_code(code) else None
    if ids is None:
        return None
    org_id, id = ids
    try:
        async with db.transaction(org_id) as tx:
            return await identities_store.show_code(tx, id)
    except Forged as forgery:
        await report_forgery(db, forgery)
        return None


async def verify(db: Database, code: str, visitor: Actor | None) -> str | None:
    """Use a link: its address is proven. Returns the secret of a new browser session where the link was an invitation.

    Unknown, used and old links are answered alike.
    """
    ids = await identities_store.resolve_code(db, digest(code)) if is_verify_code(code) else None
    if ids is None:
        raise _refused()
    org_id, id = ids
    async with forgery_refusal(db, _refused), db.transaction(org_id) as tx:
        before = await identities_store.show_code(tx, id)
        if before is None:
            raise _refused()
        await identities_store.claim_one(tx, before.connection_id, before.address)
        # Somebody may have been faster while this one waited.
        verification = await identities_store.show_code(tx, id)
        if verification is None:
            raise _refused()
        if verification.needs_login and not _is(visitor, org_id, verification.user_account_id):
            raise Forbidden(
                f"Only {verification.member} can confirm this address, and you are not logged in as them.",
                code="login_needed",
                hint="Log in with `cortex member login-link`, then open the link in the mail again.",
            )
        return await _prove(tx, verification, logged_in=_is(visitor, org_id, verification.user_account_id))


def _is(visitor: Actor | None, org_id: UUID, member_id: UUID) -> bool:
    return visitor is not None and (visitor.org_id, visitor.user_account_id) == (org_id, member_id)


async def _prove(tx: Transaction, verification: AddressVerification, *, logged_in: bool) -> str | None:
    """``logged_in``: they are logged in as the person whose address it is. Whoever is not starts anew: what others made in their name
    meanwhile, with an enrolment code, ends."""
    secret, session_id = new_session_secret(), new_id()
    await orgs_store.hold_access(tx, verification.user_account_id)
    person = await access.actor_for_member(
        tx, verification.user_account_id, verification.id if verification.needs_login else session_id
    )
    if person is None:
        raise _refused()
    guest = displaced(
        await identities_store.claims(tx, verification.connection_id, verification.address),
        verification.user_account_id,
    )
    if guest is not None:
        await identities_store.remove_mapping(tx, guest.id)
    await identities_store.verify_mapping(
        tx, verification.mapping_id, verification.connection_id, verification.user_account_id, verification.address
    )
    await identities_store.use_codes(tx, verification.mapping_id)
    await notify_store.add_connection_notice(tx, verification.mapping_id)
    details = {"mapping": str(verification.mapping_id), "address": verification.address, "link": str(verification.id)}
    instead_of = str(guest.id) if guest else None
    await proof_store.append_to_org(tx, Fact.of(person, "identity_verified", **details, instead_of=instead_of))
    if verification.needs_login:
        return None
    access_end = {} if logged_in else (await access.end_access(tx, verification.user_account_id)).as_audit()
    await credentials_store.forget_ended_logins(tx, verification.user_account_id, IDLE_LIFE)
    await credentials_store.insert_session(
        tx, session_id, verification.user_account_id, session_digest(secret), WHOLE_LIFE
    )
    await proof_store.append_to_org(
        tx,
        Fact.of(
            person,
            "logged_in",
            link=str(verification.id),
            session=str(session_id),
            issued_by=verification.issued_by,
            **access_end,
        ),
    )
    return secret


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "This link does not work: it was used already, is older than 7 days, or was never one.",
        code="verify_link_invalid",
        hint="Ask for a new mail: an admin sends one with `cortex member invite --email`.",
    )


async def _enqueue_invitation(
    tx: Transaction, *, connection_id: UUID, mapping_id: UUID, member_id: UUID, address: str, data: dict[str, Any]
) -> UUID:
    """A part of the transaction that invites somebody. Its link is made when the mail is rendered, and kept nowhere."""
    id = new_id()
    if not await notify_store.insert_invitation(tx, id, connection_id, mapping_id, member_id, address, data):
        raise NotFound("There is no such connection.", code="connection_not_found")
    return id


async def make_invitation_code(
    tx: Transaction, mapping_id: UUID, data: dict[str, Any], public_url: str
) -> Invitation | None:
    """What the mail to an address says, with a link of its own. None where it was proven or given up meanwhile, or its person
    is deactivated: then there is nothing to say."""
    mapping = await identities_store.get_mapping(tx, mapping_id)
    if mapping is None or mapping.verified_at is not None:
        return None
    member = await orgs_store.get_member(tx, mapping.user_account_id)
    org = await orgs_store.get_org(tx)
    if member is None or member.deactivated_at is not None or org is None:
        return None
    code = new_verify_code()
    await identities_store.forget_codes(tx, member.id)
    expires_at = await identities_store.insert_code(
        tx, new_id(), member.id, mapping.id, digest(code), Purpose(data["purpose"]), data["invited_by"], VERIFY_LIFE
    )  # fmt: skip
    return Invitation(
        org=org.name, invited_by=data["invited_by"], url=public_url.rstrip("/") + path_of(code), expires_at=expires_at
    )
