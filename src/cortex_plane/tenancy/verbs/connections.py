"""Channel connections, and what links a person to them: codes, invitations, and addresses that they prove."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    TooMany,
    Unauthenticated,
)
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.channels import ConnectionIdentity
from cortex_plane.notify.model.notifications import GRACE, SECRET_BYTES, Invitation, Secrets, TryAgain, secret_of
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import IDLE_LIFE, WHOLE_LIFE, Actor, Permission, SecretKind, secret_digest
from cortex_plane.tenancy.model.identities import (
    VERIFY_LIFE,
    Claim,
    InvitationDraft,
    Mapping,
    Purpose,
    ServedChannel,
    own,
)
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.store import SealedConnection, queries
from cortex_plane.tenancy.verbs import access, frame
from cortex_plane.tenancy.verbs.frame import once_only, record, require_found, transaction_verb
from cortex_plane.tenancy.verbs.orgs import add_member, resolve_teams
from cortex_plane.tenancy.verbs.served_channels import NO_VENDORS, ServedChannels


def new_webhook_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


@frame.verb(Permission.CONNECTION_WRITE)
async def create_connection(
    db: Database,
    actor: Actor,
    draft: identities.ConnectionDraft,
    once: IdempotencyKey | None = None,
    *,
    channels: ServedChannels = NO_VENDORS,
) -> identities.NewConnection:
    """A webhook gets a secret, which is shown this once. A vendor is asked who the connection is, before it is stored."""
    kind, id = draft.channel_type, new_id()
    channels.require_served(kind)
    identities.check_address(kind, draft.url, channels.allowed)
    channels.check_fields(kind, draft.config, draft.secrets)
    channels.require_fields(kind, draft.config, draft.secrets)
    secret = new_webhook_secret() if kind == identities.CHANNEL else None
    secrets = dict(draft.secrets) if secret is None else Secrets(secret=secret).kept()
    config = dict(draft.config) if draft.url is None else {"url": draft.url}
    identity = None
    if kind in channels.vendors and await _is_new(db, actor, draft, once):
        identity = await channels.identify(kind, id, draft.name, config, secrets)
    if identity is not None:
        config, secrets = config | dict(identity.config), secrets | dict(identity.secrets)
    async with db.transaction(actor.org_id) as tx:
        agent_id = await find_agent(tx, draft.agent)

        async def make() -> UUID:
            shown = identity and await _with_twin(tx, kind, id, identity)
            sealed = await tenancy_store.seal_secret(tx, db, id, secrets) if secrets else None
            await tenancy_store.insert_connection(tx, id, kind, draft.name, config, sealed, agent_id, shown)
            await note_set_up(tx, actor, id)
            details = {"channel_type": kind, "name": draft.name, "url": draft.url}
            if identity is not None:
                details |= {"account": identity.account, "external_id": identity.external_id}
            await frame.record(tx, actor, "connection_created", connection=id, **details)
            return id

        id, is_replay = await frame.once_only(tx, actor, "connections.create", once, make)
        connection = channels.describe(frame.require_found(await tenancy_store.get_connection(tx, id), "connection"))
    if identity is not None and identity.is_unfinished and not is_replay:
        with contextlib.suppress(TryAgain, InvalidInput):  # it is stored; what is left to do says to check it again
            connection = await check_connection(db, actor, id, channels=channels)
    values = {field.name: getattr(connection, field.name) for field in fields(connection)}
    return identities.NewConnection(**values, secret=None if is_replay else secret)


async def _is_new(db: Database, actor: Actor, draft: identities.ConnectionDraft, once: IdempotencyKey | None) -> bool:
    """Whether a vendor is to be asked. Refuses what could not be stored before its vendor sends events to it."""
    async with db.transaction(actor.org_id) as tx:
        await find_agent(tx, draft.agent)
        key = (tx.org, actor.key_id, "connections.create", once.key) if once else None
        if key is not None and await tx.value(queries.peek_idempotency_key, *key):
            return False
        if await tx.value(queries.is_connection_name_taken, draft.channel_type, draft.name):
            raise AlreadyExists(
                f"There is a connection of {draft.channel_type} with this name already.",
                hint="Choose another name, or change that one: `cortex connection list`.",
            )
    return True


async def _with_twin(tx: Transaction, kind: str, id: UUID, identity: ConnectionIdentity) -> ConnectionIdentity:
    """Two connections to one account take each other's messages: whoever made the second is told so."""
    twin = await tx.value(queries.find_same_account, kind, identity.external_id, id)
    if twin is None:
        return identity
    warning = f"The connection {twin} is {identity.account} too: disable one of them, or both get the same messages."
    return replace(identity, to_do=(*identity.to_do, warning))


@frame.transaction_verb(Permission.CONNECTION_READ)
async def get_connection(
    tx: Transaction, _: Actor, id: UUID, *, channels: ServedChannels = NO_VENDORS
) -> identities.Connection:
    return channels.describe(frame.require_found(await tenancy_store.get_connection(tx, id), "connection"))


@frame.transaction_verb(Permission.CONNECTION_READ)
async def list_connections(
    tx: Transaction, _: Actor, position: After, limit: int, *, channels: ServedChannels = NO_VENDORS
) -> Page[identities.Connection]:
    page = await tenancy_store.list_connections(tx, position, limit)
    return Page(items=[channels.describe(connection) for connection in page.items], next=page.next)


@frame.verb(Permission.CONNECTION_READ)
async def list_channels(_: Database, __: Actor, *, channels: ServedChannels = NO_VENDORS) -> list[ServedChannel]:
    """What this plane can connect to, and what it needs for that."""
    return channels.list_served()


@frame.verb(Permission.CONNECTION_WRITE)
async def update_connection(
    db: Database,
    actor: Actor,
    id: UUID,
    change: identities.ConnectionChange,
    revision: int | None,
    *,
    channels: ServedChannels = NO_VENDORS,
) -> identities.Connection:
    """Enabling one that the plane disabled lets it be tried anew. Its vendor is asked again where a value changes."""
    if change.config is None and change.secrets is None:
        return await _store_change(db, actor, id, change, revision, channels, None)
    async with db.transaction(actor.org_id) as tx:
        before = frame.require_found(await tenancy_store.get_connection(tx, id), "connection")
        frame.require_revision(before.revision, revision)
        channels.require_changeable(before.config, change)
        values = await _connection_values(db, tx, id)
    set_values = {name: value for name, value in (change.config or {}).items() if value is not None}
    channels.check_fields(before.channel_type, set_values, change.secrets or {})
    config = {**values.config, **set_values}
    for name in (change.config or {}).keys() - set_values.keys():
        config.pop(name, None)
    channels.require_secrets_again(
        before.channel_type, values.secrets, change.secrets or {},
        before=values.config.get("api_url"), after=config.get("api_url"),
    )  # fmt: skip
    secrets = {**values.secrets, **(change.secrets or {})}
    channels.require_fields(before.channel_type, config, secrets)
    identity = await channels.identify(before.channel_type, id, change.name or before.name, config, secrets)
    return await _store_change(db, actor, id, change, before.revision, channels, identity)


@frame.verb(Permission.CONNECTION_WRITE)
async def check_connection(
    db: Database, actor: Actor, id: UUID, *, channels: ServedChannels = NO_VENDORS
) -> identities.Connection:
    """Ask the vendor again who the connection is, and set up there what is missing. Changes no secret of the org's. A connection
    without a vendor (mail, a webhook, a program of the org) is only shown."""
    async with db.transaction(actor.org_id) as tx:
        before = frame.require_found(await tenancy_store.get_connection(tx, id), "connection")
        values = await _connection_values(db, tx, id)
    channels.require_served(before.channel_type)
    channels.require_fields(before.channel_type, values.config, values.secrets)
    identity = await channels.identify(before.channel_type, id, before.name, values.config, values.secrets)
    if identity is None:
        return channels.describe(before)
    return await _store_change(
        db, actor, id, identities.ConnectionChange(), before.revision, channels, identity, action="connection_checked"
    )


@dataclass(frozen=True, slots=True)
class _ConnectionValues:
    config: dict[str, str]
    secrets: dict[str, str]


async def _connection_values(db: Database, tx: Transaction, id: UUID) -> _ConnectionValues:
    row = frame.require_found(await tenancy_store.sealed_connection(tx, id), "connection")
    return _ConnectionValues(row.config, tenancy_store.open_secret(db.vault, tx.org, id, row.sealed))


async def _store_change(
    db: Database, actor: Actor, id: UUID, change: identities.ConnectionChange, revision: int | None,
    channels: ServedChannels, identity: ConnectionIdentity | None, *, action: str = "connection_changed",
) -> identities.Connection:  # fmt: skip
    async with db.transaction(actor.org_id) as tx:
        before = frame.require_found(await tenancy_store.lock_connection(tx, id), "connection")
        channels.require_changeable(before.config, change)
        if change.url is not None:
            identities.check_address(before.channel_type, change.url, channels.allowed)
        config: dict[str, str | None] = {**(change.config or {}), **({} if change.url is None else {"url": change.url})}
        secrets = dict(change.secrets or {})
        if identity is not None:
            identity = await _with_twin(tx, before.channel_type, id, identity)
            config, secrets = config | dict(identity.config), secrets | dict(identity.secrets)
        sealed = None
        if secrets:
            stored = tenancy_store.open_secret(db.vault, tx.org, id, before.sealed)
            sealed = await tenancy_store.seal_secret(tx, db, id, stored | secrets)
        if change.secrets or change.config:
            await note_set_up(tx, actor, id)
        agent_id = await find_agent(tx, change.agent)
        found = (
            (None, None, None) if identity is None else (identity.account, identity.external_id, list(identity.to_do))
        )
        row = await tx.row(
            queries.update_connection, id, change.name, change.enabled, revision, config, sealed, agent_id, *found
        )
        if row is None:
            frame.require_revision(
                frame.require_found(await tenancy_store.get_connection(tx, id), "connection").revision, revision
            )
        if change.enabled or identity is not None:
            await tx.rows(notify_store.queries.hasten_delivery, tx.org, id)
        connection = channels.describe(frame.require_found(await tenancy_store.get_connection(tx, id), "connection"))
        details: dict[str, Any] = {"name": change.name, "enabled": change.enabled, "url": change.url}
        if change.config is not None or change.secrets is not None:
            # Values of secrets are on no trail, and neither is how long they are.
            details |= {"config": change.config, "secrets": sorted(change.secrets or {})}
        if agent_id is not None:
            details["agent"] = agent_id
        if identity is not None:
            details["account"] = identity.account
        await frame.record(tx, actor, action, connection=id, **details)
    return connection


async def find_agent(tx: Transaction, ref: str | None) -> UUID | None:
    """The agent that messages over a connection reach."""
    if ref is None:
        return None
    agent_id: UUID | None = await tx.value(queries.find_agent, *split_ref(ref))
    return frame.require_found(agent_id, "agent")


@frame.verb(Permission.CONNECTION_WRITE)
async def rotate_secret(db: Database, actor: Actor, id: UUID) -> identities.NewSecret:
    """A new secret, shown this once. The one before it counts for a day: messages are signed with both."""
    secret = new_webhook_secret()
    async with db.transaction(actor.org_id) as tx:
        connection = require_webhook(await tenancy_store.lock_connection(tx, id))
        before = Secrets.of(tenancy_store.open_secret(db.vault, tx.org, id, connection.sealed))
        sealed = await tenancy_store.seal_secret(tx, db, id, before.rotated(secret, connection.now).kept())
        await tx.rows(queries.reseal_connection, id, sealed)
        await note_set_up(tx, actor, id)
        await frame.record(tx, actor, "connection_secret_rotated", connection=id)
    return identities.NewSecret(connection_id=id, secret=secret, previous_valid_until=connection.now + GRACE)


@frame.transaction_verb(Permission.CONNECTION_WRITE)
async def map_member(tx: Transaction, actor: Actor, id: UUID, draft: identities.MappingDraft) -> Mapping:
    """An admin vouches that this name in the other system is this member's. Only where the system signs what it says and
    belongs to the org; elsewhere people prove it themselves. Doing it twice changes nothing."""
    require_vouching(await tenancy_store.lock_connection(tx, id), draft.external_user)
    member = await access.require_active(tx, draft.member_id)
    await tx.rows(queries.claim_one, id, draft.external_user)
    claims = await tenancy_store.claims(tx, id, draft.external_user)
    guest, mine = identities.displaced(claims, member.id), identities.own(claims, member.id)
    if mine is not None and mine.verified_at is not None:
        mapping_id = mine.id
    else:
        mapping_id = await prove_mapping(tx, id, member.id, draft.external_user, mine.id if mine else None, guest)
        for sponsor in await access.sponsors_by(tx, actor):
            # They could act as this member: until the member proves it, their vote and one over this mapping count as one human's.
            await tx.rows(queries.note_voucher, mapping_id, sponsor)
        await frame.record(
            tx, actor, "mapping_vouched", connection=id, mapping=mapping_id, member=member.id,
            address=draft.external_user, instead_of=guest.id if guest else None,
        )  # fmt: skip
    return frame.require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


async def note_set_up(tx: Transaction, actor: Actor, id: UUID) -> None:
    """They know the secret or chose the server that vouches for senders, and could act as anybody: their vote and one through this
    connection count as one human's."""
    for sponsor in await access.sponsors_by(tx, actor):
        await tx.rows(queries.add_set_up, id, sponsor)


def require_vouching(row: SealedConnection | None, external_user: str) -> None:
    connection = frame.require_found(row, "connection")
    if connection.channel_type not in identities.VOUCHED_CHANNELS:
        require_webhook(row)
    if connection.channel_type != identities.CHANNEL and not identities.is_numeric_id(external_user):
        raise InvalidInput(
            f"People are known by their numeric id on {connection.channel_type}: a login can be given up, and taken by somebody else.",
            hint="GitHub shows it at https://api.github.com/users/LOGIN, GitLab on the person's profile.",
            field="external_user",
        )


def require_webhook(row: SealedConnection | None) -> SealedConnection:
    connection = frame.require_found(row, "connection")
    if connection.channel_type != identities.CHANNEL or connection.sealed is None:
        raise Conflict(
            "This connection is not a webhook.",
            code="not_a_webhook",
            hint="Create one: `cortex connection create NAME --channel webhook --url https://…`.",
        )
    return connection


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def list_own_mappings(tx: Transaction, actor: Actor, position: After, limit: int) -> Page[Mapping]:
    """Where the caller can be reached."""
    return await tenancy_store.list_mappings(tx, access.require_member(actor, ONLY_MEMBERS), position, limit)


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def unlink_own(tx: Transaction, actor: Actor, mapping_id: UUID) -> None:
    """Give up a channel or an address of one's own. Messages from it are a stranger's afterwards."""
    await _unlink(tx, actor, mapping_id, access.require_member(actor, ONLY_MEMBERS))


@frame.transaction_verb(Permission.MEMBER_WRITE)
async def unlink_member(tx: Transaction, actor: Actor, member_id: UUID, mapping_id: UUID) -> None:
    """The same for any member: a lost phone, or an invitation to the wrong address."""
    await _unlink(tx, actor, mapping_id, member_id)


async def _unlink(tx: Transaction, actor: Actor, mapping_id: UUID, member_id: UUID) -> None:
    mapping = await tenancy_store.get_mapping(tx, mapping_id)
    mine = frame.require_found(mapping if mapping and mapping.user_account_id == member_id else None, "mapping")
    await tx.rows(queries.claim_one, mine.connection_id, mine.channel_user_id)
    frame.require_found(await tx.value(queries.remove_mapping, mine.id), "mapping")
    await tx.rows(queries.use_codes, mine.id)
    channel_type, address = mine.channel_type, mine.channel_user_id
    await frame.record(
        tx, actor, "identity_unlinked", member=member_id, mapping=mine.id, channel_type=channel_type, address=address
    )


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
            member_id, mapping_id, purpose = await _add_invited_member(tx, actor, draft), new_id(), Purpose.INVITATION
            await tenancy_store.insert_mapping(tx, mapping_id, connection_id, member_id, draft.email, purpose)
        else:
            member_id, mapping_id = earlier.user_account_id, earlier.id
        # An admin says that this address takes mail: a refusal from before does not count any more.
        await tx.rows(queries.allow_mail, mapping_id)
        await _mail_link(tx, actor, connection_id, mapping_id, member_id, draft.email, Purpose.INVITATION, own=False)
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


async def _add_invited_member(tx: Transaction, actor: Actor, draft: InvitationDraft) -> UUID:
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
    await _mail_link(tx, actor, connection_id, mapping_id, member_id, draft.email, purpose, own=True)
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


async def _mail_link(
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
    if await tx.value(queries.count_mappings, member_id, identities.CLAIM_LIFE) >= identities.MAX_CHANNELS:
        raise TooMany(
            f"You have {identities.MAX_CHANNELS} channels and addresses, which is as many as one person may have.",
            code="too_many_channels",
            hint="Give one up: `cortex user channels`, then `cortex user unlink`.",
        )


async def read_verification(db: Database, code: str) -> identities.AddressVerification | None:
    """What opening a link would verify; None where it does not work."""
    return await access.show_secret(db, SecretKind.ADDRESS_CODE, code, tenancy_store.show_code)


async def verify_address(db: Database, code: str, visitor: Actor | None) -> str | None:
    """Use a link: its address is proven. Returns the secret of a new browser session where the link was an invitation.
    Unknown, used and old links are answered alike."""
    async with access.redemption(db, SecretKind.ADDRESS_CODE, code, _invalid_link) as (tx, id):
        before = await tenancy_store.show_code(tx, id)
        if before is None:
            raise _invalid_link()
        await tx.rows(queries.claim_one, before.connection_id, before.address)
        # Somebody may have been faster while this one waited.
        verification = await tenancy_store.show_code(tx, id)
        if verification is None:
            raise _invalid_link()
        owner = (tx.org, verification.user_account_id)
        logged_in = visitor is not None and (visitor.org_id, visitor.user_account_id) == owner
        if verification.needs_login and not logged_in:
            raise Forbidden(
                f"Only {verification.member} can confirm this address, and you are not logged in as them.",
                code="login_needed",
                hint="Log in with `cortex member login-link`, then open the link in the mail again.",
            )
        return await _prove_address(tx, verification, logged_in=logged_in)


async def _prove_address(
    tx: Transaction, verification: identities.AddressVerification, *, logged_in: bool
) -> str | None:
    """``logged_in``: they are logged in as the person whose address it is. Otherwise they start anew: what others made in their name
    meanwhile, with an enrolment code, ends."""
    secret, session_id = access.new_secret(SecretKind.SESSION), new_id()
    member_id, mapping_id = verification.user_account_id, verification.mapping_id
    connection_id, address = verification.connection_id, verification.address
    await tx.rows(queries.hold_access, member_id)
    person = await access.actor_for_member(tx, member_id, verification.id if verification.needs_login else session_id)
    if person is None:
        raise _invalid_link()
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
    """The sender is the member's from now on, and not a guest's; so is what they wrote before. ``mapping_id``: that of their claim, if they had one."""
    if guest is not None:
        await tx.rows(queries.remove_mapping, guest.id)
        await tx.rows(queries.adopt_guest, tx.org, connection_id, guest.user_account_id, member_id)
    if mapping_id is None:
        mapping_id = new_id()
        await tenancy_store.insert_mapping(tx, mapping_id, connection_id, member_id, sender, Purpose.SENDER)
    else:
        claim = (mapping_id, connection_id, member_id, sender)
        await tx.rows(queries.verify_mapping, *claim, tenancy_store.mapping_mac(tx.credential_key, tx.org, *claim))
    # What waits for their decision already is told there.
    await tx.rows(notify_store.queries.add_connection_notice, tx.org, mapping_id)
    return mapping_id


def _invalid_link() -> Unauthenticated:
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
