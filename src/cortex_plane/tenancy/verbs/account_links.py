"""Accounts that members link by logging in at the vendor (OAuth): GitHub and GitLab, where nobody can be written to in private.

What began in one browser session ends in no other, and links nothing before the member has confirmed the account by its name. So nobody
links an account to somebody whom they lured to the vendor's answer. The plane uses the vendor's token once, for the account's number.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.db.database import Database, Transaction, many
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.channels import AccountRequest, VendorAccount
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import AccountLink, Claim, Mapping
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.connections import ONLY_MEMBERS, prove_mapping, require_room
from cortex_plane.tenancy.verbs.frame import record, require_found, transaction_verb, verb
from cortex_plane.tenancy.verbs.links import LinkableConnection
from cortex_plane.tenancy.verbs.served_channels import AccountChannel, ServedChannels

MAX_CODE = 1000
"""Characters. Those of GitHub have 20, those of GitLab 64."""
START_AGAIN = "Nothing was linked. Open Your channels and start again."


@verb(Permission.IDENTITY_LINK)
async def list_linkable_accounts(db: Database, actor: Actor, *, channels: ServedChannels) -> list[LinkableConnection]:
    """The connections over which a member can link an account."""
    access.require_member(actor, ONLY_MEMBERS)
    async with db.transaction(actor.org_id) as tx:
        return many(LinkableConnection, await tx.rows(queries.list_linkable_accounts, list(channels.account_channels)))


@verb(Permission.IDENTITY_LINK)
async def begin_account_link(db: Database, actor: Actor, connection_id: UUID, *, channels: ServedChannels) -> str:
    """The page of the vendor where the member logs in. ``actor`` comes with a browser session, which alone can end what begins here."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    state, id = secrets.token_urlsafe(32), new_id()
    async with db.transaction(actor.org_id) as tx:
        connection = await _open_connection(db, tx, connection_id, channels)
        await require_room(tx, member_id)
        await tenancy_store.begin_account_link(tx, connection_id, member_id, actor.key_id, id, state)
        request = connection.request(tx, id, state)
    return connection.channel.account_page(connection.target, request)


@dataclass(frozen=True, slots=True)
class _OpenConnection:
    channel: AccountChannel
    target: Target
    callback_url: str

    def request(self, tx: Transaction, link_id: UUID, state: str) -> AccountRequest:
        digest = tx.credential_key.lookup(identities.verifier_digest(link_id, state))
        verifier = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return AccountRequest(state=state, verifier=verifier, callback_url=self.callback_url)


async def _open_connection(
    db: Database, tx: Transaction, connection_id: UUID, channels: ServedChannels
) -> _OpenConnection:
    row = require_found(await tenancy_store.sealed_connection(tx, connection_id), "connection")
    channel = channels.account_channels.get(row.channel_type)
    values = tenancy_store.open_secret(db.vault, tx.org, connection_id, row.sealed)
    has_application = bool(row.config.get("client_id") and values.get("client_secret"))
    if channel is None or row.disabled_at is not None or not has_application:
        raise Conflict(
            "Nobody can link an account by logging in over this connection.",
            code="account_link_unavailable",
            hint="An admin enables it, and gives it `client_id` and `client_secret`: `cortex connection update`.",
        )
    callback_url = channels.callback_url(row.channel_type, connection_id)
    if callback_url is None:
        raise Conflict(
            "This plane has no address to which a vendor could send you back.",
            code="account_link_unavailable",
            hint="Whoever runs it sets CORTEX_PUBLIC_URL.",
        )
    target = Target(
        connection_id=connection_id, connection=row.name, config=row.config, secrets=values, address="", member=""
    )
    return _OpenConnection(channel, target, callback_url)


@verb(Permission.IDENTITY_LINK)
async def answer_account_link(
    db: Database, actor: Actor, connection_id: UUID, state: str, code: str, error: str, *, channels: ServedChannels
) -> None:
    """The vendor's answer, which the browser brings: a code for the account, or an error. Whatever comes of it, it is taken once.
    The account then waits for its member to confirm it."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    async with access.forgery_refusal(db, _foreign_answer), db.transaction(actor.org_id) as tx:
        link = await tenancy_store.open_account_link(tx, connection_id, actor.key_id, member_id)
        state_hash = tx.credential_key.lookup(identities.state_digest(state))
        if link is None or not hmac.compare_digest(link.state_hash, state_hash):
            raise _foreign_answer()
        if await tx.value(queries.answer_account_link, link.id) is None:
            raise _foreign_answer()
        connection = await _open_connection(db, tx, connection_id, channels)
        request = connection.request(tx, link.id, state)
    if error or not 0 < len(code) <= MAX_CODE:
        raise _refused_by_vendor(error)
    try:
        account = await connection.channel.read_account(connection.target, request, code)
    except (TryAgain, Undeliverable) as failure:
        failure.hint = START_AGAIN
        raise
    _require_person(account)
    async with access.forgery_refusal(db, _foreign_answer), db.transaction(actor.org_id) as tx:
        _require_free(await tenancy_store.claims(tx, connection_id, account.id), member_id)
        if not await tenancy_store.name_account(tx, link, account.id, account.login):
            raise _foreign_answer()


def _foreign_answer() -> CortexError:
    return Forbidden(
        "You did not begin this in this browser session, or it was used already, or it is older than ten minutes.",
        code="account_link_invalid",
        hint=START_AGAIN,
    )


def _refused_by_vendor(error: str) -> CortexError:
    if error == "access_denied":
        return Conflict("You did not agree at the vendor.", code="account_link_refused", hint=START_AGAIN)
    words = "".join(character for character in error if character.isascii() and character.isprintable())[:100]
    return Conflict(
        f"The vendor did not let you log in: {words}." if words else "The vendor sent no code.",
        code="account_link_refused",
        hint="Nothing was linked. Tell an admin: the callback URL or the client id at the vendor may be wrong.",
    )


def _require_person(account: VendorAccount) -> None:
    if account.is_bot:
        raise Conflict(
            f"{account.login} is the account of a program. What programs write decides nothing.",
            code="account_is_bot",
            hint="Nothing was linked. Log in at the vendor with your own account and start again.",
        )


def _require_free(claims: Sequence[Claim], member_id: UUID) -> Claim | None:
    """The guest whose place the member takes."""
    try:
        return identities.displaced(claims, member_id)
    except Conflict as error:
        raise Conflict(
            "This account is linked to another member of the org.",
            code=error.code,
            hint="Nothing was linked. They can give it up on Your channels, or an admin takes it away: `cortex member unlink`.",
        ) from None


@verb(Permission.IDENTITY_LINK)
async def show_account_link(db: Database, actor: Actor, connection_id: UUID) -> AccountLink:
    """The account that waits in this browser session for its member to confirm it."""
    async with access.forgery_refusal(db, _no_account), db.transaction(actor.org_id) as tx:
        return await _named(tx, actor, connection_id)


async def _named(tx: Transaction, actor: Actor, connection_id: UUID) -> AccountLink:
    member_id = access.require_member(actor, ONLY_MEMBERS)
    link = await tenancy_store.open_account_link(tx, connection_id, actor.key_id, member_id)
    if link is None or link.account_id is None:
        raise _no_account()
    return link


def _no_account() -> CortexError:
    return NotFound("No account waits for you to confirm it.", code="account_link_not_found", hint=START_AGAIN)


@verb(Permission.IDENTITY_LINK)
async def confirm_account_link(db: Database, actor: Actor, connection_id: UUID, link_id: UUID) -> Mapping:
    """The account is the caller's from now on, by their own proof. An admin's word for it does not count any more. ``link_id``: of what
    the page showed."""
    async with access.forgery_refusal(db, _no_account), db.transaction(actor.org_id) as tx:
        link = await _named(tx, actor, connection_id)
        if link.id != link_id or link.account_id is None:
            raise _no_account()
        member_id, sender = link.user_account_id, link.account_id
        await tx.rows(queries.claim_one, connection_id, sender)
        claims = await tenancy_store.claims(tx, connection_id, sender)
        guest, mine = _require_free(claims, member_id), identities.own(claims, member_id)
        if mine is None:
            await require_room(tx, member_id)
        if mine is None or mine.verified_at is None:
            mapping_id = await prove_mapping(tx, connection_id, member_id, sender, mine.id if mine else None, guest)
        else:
            mapping_id = mine.id
        await tx.rows(queries.note_account, mapping_id, {"name": link.login})
        await tx.rows(queries.end_account_link, link.id)
        await record(
            tx, actor, "identity_linked", member=member_id, mapping=mapping_id, connection=connection_id, address=sender,
            name=link.login, logged_in_at=link.channel_type, instead_of=guest.id if guest else None,
        )  # fmt: skip
        return require_found(await tenancy_store.get_mapping(tx, mapping_id), "mapping")


@transaction_verb(Permission.IDENTITY_LINK)
async def refuse_account_link(tx: Transaction, actor: Actor, connection_id: UUID, link_id: UUID) -> None:
    """It is not the caller's account. Nothing is linked."""
    link = await _named(tx, actor, connection_id)
    if link.id != link_id:
        raise _no_account()
    await tx.rows(queries.end_account_link, link.id)
    await record(
        tx, actor, "identity_refused", member=link.user_account_id, connection=connection_id, address=link.account_id,
        name=link.login,
    )  # fmt: skip
