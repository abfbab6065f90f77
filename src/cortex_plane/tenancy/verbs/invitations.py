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
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import IDLE_LIFE, WHOLE_LIFE, Actor, Permission, SecretKind, secret_digest
from cortex_plane.tenancy.model.identities import VERIFY_LIFE, Claim, InvitationDraft, Purpose, own
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.frame import once_only, record, require_found, transaction_verb
from cortex_plane.tenancy.verbs.orgs import add_member, resolve_teams

ONLY_MEMBERS = "Only a member has channels."


@transaction_verb(Permission.MEMBER_WRITE)
async def invite(
    tx: Transaction, actor: Actor, draft: InvitationDraft, once: IdempotencyKey | None = None, *, mailing: bool = False
) -> identities.Invited:
    """A member, their unproven address, and a mail with a link. ``mailing``: whether this plane can send mail."""
    again = False

    async def make() -> UUID:
        nonlocal again
        connection_id = await _email_connection(tx, actor, mailing)
        await tx.rows(queries.claim_one, connection_id, draft.email)
        claims = await tenancy_store.claims(tx, connection_id, draft.email)
        earlier = await _invited_before(tx, draft, claims)
        again = earlier is not None
        if earlier is None:
            member_id, mapping_id, purpose = await _join(tx, actor, draft), new_id(), Purpose.INVITATION
            await tenancy_store.insert_mapping(tx, mapping_id, connection_id, member_id, draft.email, purpose)
        else:
            member_id, mapping_id = earlier.user_account_id, earlier.id
        # An admin says that this address takes mail: a refusal from before does not count any more.
        await tx.rows(queries.allow_mail, mapping_id)
        await _send(tx, actor, connection_id, mapping_id, member_id, draft.email, Purpose.INVITATION, own=False)
        return mapping_id

    mapping_id, _ = await once_only(tx, actor, "members.invite", once, make)
    mapping = require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")
    member = require_found(await tenancy_store.get_member(tx, mapping.user_account_id), "member")
    return identities.Invited(member=member, mapping=mapping, again=again)


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
    if draft.differs(require_found(await tenancy_store.get_member(tx, earlier.user_account_id), "member"), teams):
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
    roles = draft.roles or [Role.MEMBER]
    return await add_member(tx, actor, draft.display_name, draft.clearance or 0, roles, draft.teams or [])


@transaction_verb(Permission.IDENTITY_LINK)
async def add_address(
    tx: Transaction, actor: Actor, draft: identities.AddressDraft, *, mailing: bool = False
) -> identities.Mapping:
    """An address of one's own: it counts once its owner has opened its link while logged in."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    connection_id = await _email_connection(tx, actor, mailing)
    await tx.rows(queries.claim_one, connection_id, draft.email)
    claims = await tenancy_store.claims(tx, connection_id, draft.email)
    identities.displaced(claims, member_id)
    mine = own(claims, member_id)
    if mine is not None and mine.verified_at is not None:
        raise Conflict(f"{draft.email} is yours already.", code="already_linked", hint="See `cortex user channels`.")
    refusal = await tx.value(queries.mapping_refusal, tx.org, connection_id, draft.email, member_id)
    if refusal is not None:
        raise Conflict(
            f"Nothing is sent to {draft.email} any more: {refusal}",
            code="address_refused",
            hint="Check its spelling. If it takes mail again, an operator sends the last one again: `cortex delivery resend`.",
        )
    mapping_id = mine.id if mine else new_id()
    purpose = Purpose.INVITATION if mine and mine.invited else Purpose.ADDRESS
    if mine is None:
        await require_room(tx, member_id)
        await tenancy_store.insert_mapping(tx, mapping_id, connection_id, member_id, draft.email, purpose)
    await _send(tx, actor, connection_id, mapping_id, member_id, draft.email, purpose, own=True)
    return require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


async def _email_connection(tx: Transaction, actor: Actor, mailing: bool) -> UUID:
    """Where the org's mail goes out; made where the plane can send mail and the org has none yet."""
    connection = await tx.row(queries.email_connection)
    if connection is None and mailing:
        if await tx.value(queries.ensure_email_connection, tx.org, id := new_id()) is not None:
            await record(tx, actor, "connection_created", connection=id, channel_type="email", name="email")
        connection = await tx.row(queries.email_connection)
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
    """``own``: they call the address theirs, and nobody else vouches for it. One mail is enough, however often it is
    asked for. The link is made when the mail is rendered, and kept nowhere."""
    if await tx.value(queries.is_mailed, tx.org, mapping_id, identities.MAIL_PAUSE):
        return
    # Mail goes to people who did not ask for it, so a sender may send so many an hour. Of two at once the second counts the first.
    await tx.rows(queries.claim_one, actor.identity, "mails")
    sender = {"sent_by": str(actor.identity), "own": own}
    most = identities.MAILS_AN_HOUR if own else identities.INVITATIONS_AN_HOUR
    if await tx.value(queries.count_mails, tx.org, sender) >= most:
        raise TooMany(
            f"You had {most} links mailed within the last hour, which is as many as one may.",
            code="too_many_mails",
            hint="Wait until the first of them is an hour old.",
        )
    data = {"purpose": purpose.value, "invited_by": actor.name, **sender}
    insert = notify_store.queries.insert_invitation
    if await tx.value(insert, tx.org, new_id(), connection_id, mapping_id, member_id, address, data) is None:
        raise NotFound("There is no such connection.", code="connection_not_found")
    action = "member_invited" if purpose is Purpose.INVITATION else "address_added"
    await record(tx, actor, action, member=member_id, mapping=mapping_id, address=address)


async def require_room(tx: Transaction, member_id: UUID) -> None:
    if await tx.value(queries.count_mappings, member_id) >= identities.MAX_CHANNELS:
        raise TooMany(
            f"You have {identities.MAX_CHANNELS} channels and addresses, which is as many as one person may have.",
            code="too_many_channels",
            hint="Give one up: `cortex user channels`, then `cortex user unlink`.",
        )


async def shown(db: Database, code: str) -> identities.AddressVerification | None:
    """What a link would do now."""
    return await access.show_secret(db, SecretKind.ADDRESS_CODE, code, tenancy_store.show_code)


async def verify(db: Database, code: str, visitor: Actor | None) -> str | None:
    """Use a link: its address is proven. Returns the secret of a new browser session where the link was an invitation.
    Unknown, used and old links are answered alike."""
    async with access.redemption(db, SecretKind.ADDRESS_CODE, code, _refused) as (tx, id):
        before = await tenancy_store.show_code(tx, id)
        if before is None:
            raise _refused()
        await tx.rows(queries.claim_one, before.connection_id, before.address)
        # Somebody may have been faster while this one waited.
        verification = await tenancy_store.show_code(tx, id)
        if verification is None:
            raise _refused()
        owner = (tx.org, verification.user_account_id)
        logged_in = visitor is not None and (visitor.org_id, visitor.user_account_id) == owner
        if verification.needs_login and not logged_in:
            raise Forbidden(
                f"Only {verification.member} can confirm this address, and you are not logged in as them.",
                code="login_needed",
                hint="Log in with `cortex member login-link`, then open the link in the mail again.",
            )
        return await _prove(tx, verification, logged_in=logged_in)


async def _prove(tx: Transaction, verification: identities.AddressVerification, *, logged_in: bool) -> str | None:
    """``logged_in``: they are logged in as the person whose address it is. Otherwise they start anew: what others made in their name
    meanwhile, with an enrolment code, ends."""
    secret, session_id = access.new_secret(SecretKind.SESSION), new_id()
    member_id, mapping_id = verification.user_account_id, verification.mapping_id
    connection_id, address = verification.connection_id, verification.address
    await tx.rows(queries.hold_access, member_id)
    person = await access.actor_for_member(tx, member_id, verification.id if verification.needs_login else session_id)
    if person is None:
        raise _refused()
    guest = identities.displaced(await tenancy_store.claims(tx, connection_id, address), member_id)
    await prove_mapping(tx, connection_id, member_id, address, mapping_id, guest)
    await tx.rows(queries.use_codes, mapping_id)
    await record(
        tx, person, "identity_verified", mapping=mapping_id, address=address, link=verification.id,
        instead_of=guest.id if guest else None,
    )  # fmt: skip
    if verification.needs_login:
        return None
    access_end = {} if logged_in else await access.end_access(tx, member_id)
    await tenancy_store.forget_ended_logins(tx, member_id, IDLE_LIFE)
    await tenancy_store.insert_session(tx, session_id, member_id, secret, WHOLE_LIFE)
    issuer = verification.issued_by
    await record(tx, person, "logged_in", link=verification.id, session=session_id, issued_by=issuer, **access_end)
    return secret


async def prove_mapping(
    tx: Transaction, connection_id: UUID, member_id: UUID, sender: str, mapping_id: UUID | None, guest: Claim | None
) -> UUID:
    """The sender is the member's from now on, and not a guest's. ``mapping_id``: that of their claim, if they had one."""
    if guest is not None:
        await tx.rows(queries.remove_mapping, guest.id)
    if mapping_id is None:
        mapping_id = new_id()
        await tenancy_store.insert_mapping(tx, mapping_id, connection_id, member_id, sender, Purpose.SENDER)
    else:
        claim = (mapping_id, connection_id, member_id, sender)
        await tx.rows(queries.verify_mapping, *claim, tenancy_store.mapping_mac(tx.credential_key, tx.org, *claim))
    # What waits for their decision already is told there.
    await tx.rows(notify_store.queries.add_connection_notice, tx.org, mapping_id)
    return mapping_id


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "This link does not work: it was used already, is older than 7 days, or was never one.",
        code="verify_link_invalid",
        hint="Ask for a new mail: an admin sends one with `cortex member invite --email`.",
    )


async def make_invitation_code(
    tx: Transaction, mapping_id: UUID, data: dict[str, Any], public_url: str
) -> Invitation | None:
    """What the mail to an address says, with a link of its own. None where it was proven or given up meanwhile, or its person
    is deactivated: then there is nothing to say."""
    mapping = await tenancy_store.get_mapping(tx, mapping_id)
    if mapping is None or mapping.verified_at is not None:
        return None
    member = await tenancy_store.get_member(tx, mapping.user_account_id)
    org = await tenancy_store.get_org(tx)
    if member is None or member.deactivated_at is not None or org is None:
        return None
    code, issuer = access.new_secret(SecretKind.ADDRESS_CODE), data["invited_by"]
    await tx.rows(queries.forget_codes, member.id)
    expires_at = await tenancy_store.insert_code(
        tx, new_id(), member.id, mapping.id, secret_digest(code), Purpose(data["purpose"]), issuer, VERIFY_LIFE
    )
    url = f"{public_url.rstrip('/')}/verify/{code}"
    return Invitation(org=org.name, invited_by=issuer, url=url, expires_at=expires_at)
