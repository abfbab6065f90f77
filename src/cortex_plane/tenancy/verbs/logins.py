"""Browser sessions, login links and enrolment codes."""

from __future__ import annotations

import contextlib
from uuid import UUID

from cortex_plane.db.database import Database, Transaction, ids
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.kernel.errors import Conflict, Forbidden, Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import access as access_model
from cortex_plane.tenancy.model.access import IDLE_LIFE, Actor, Permission, SecretKind, secret_digest
from cortex_plane.tenancy.store import queries
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.frame import record, require_found, transaction_verb
from cortex_plane.tenancy.verbs.keys import hold_origin

ONLY_MEMBERS = "Only a member can log in."
HOW_TO_GET_A_LINK = "Get a new link with `cortex member login-link`; without a key, ask an admin for an enrolment code."


@transaction_verb(Permission.LOGIN)
async def issue_own_login_link(tx: Transaction, actor: Actor) -> access_model.LoginLink:
    """A link for the caller, and for nobody else: its holder is that person."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    token, id = access.new_secret(SecretKind.LOGIN_LINK), new_id()
    key_id = await hold_origin(tx, actor)
    await tenancy_store.forget_ended_logins(tx, member_id, IDLE_LIFE)
    expires_at = await tenancy_store.insert_link(tx, id, member_id, token, access_model.LINK_LIFE, actor.name, key_id)
    await record(tx, actor, "login_link_created", link=id, member=member_id)
    return access_model.LoginLink(member_id=member_id, url_path=f"/login/{token}", expires_at=expires_at)


async def link_holder(db: Database, token: str) -> str | None:
    """Whom a link would log in now, by name."""
    return await access.show_secret(db, SecretKind.LOGIN_LINK, token, tenancy_store.link_holder)


async def log_in(db: Database, token: str) -> str:
    """Use a link up; returns the secret of a new session. Unknown, used and old links are answered alike."""
    secret, id = access.new_secret(SecretKind.SESSION), new_id()
    async with access.redemption(db, SecretKind.LOGIN_LINK, token, _link_refused) as (tx, link_id):
        member_id = await tenancy_store.link_member(tx, link_id)
        if member_id is None:
            raise _link_refused()
        await tx.rows(queries.hold_access, member_id)
        # None where it was used, is too old, its key was revoked or has expired, or its person is deactivated.
        row = await tx.row(queries.use_link, link_id)
        if row is None:
            raise _link_refused()
        person = tenancy_store.session_person(tx.org, id, row["id"], row["display_name"], row)
        await tenancy_store.forget_ended_logins(tx, member_id, IDLE_LIFE)
        await tenancy_store.insert_session(tx, id, member_id, secret, access_model.WHOLE_LIFE, row["key_id"])
        await record(tx, person, "logged_in", link=link_id, session=id, issued_by=row["issued_by"])
    return secret


def _link_refused() -> Unauthenticated:
    return Unauthenticated(
        "This link does not work: it was used already, is older than 15 minutes, or was never one.",
        code="login_link_invalid",
        hint=HOW_TO_GET_A_LINK,
    )


async def authenticate_session(db: Database, secret: str, *, touch: bool = True) -> Actor:
    """The person behind a cookie, with the roles and the clearance of this moment. ``touch``: it is a visit."""
    actor: Actor | None = None
    if SecretKind.SESSION.matches(secret):
        own_db = db.own(PoolPurpose.AUTHENTICATION)
        async with access.forgery_refusal(db):
            actor = await tenancy_store.authenticate_session(own_db, secret_digest(secret), IDLE_LIFE, touch)
    if actor is None:
        raise Unauthenticated(
            "You are not logged in, or your session has ended.", code="browser_session_ended", hint=HOW_TO_GET_A_LINK
        )
    return actor


async def log_out(db: Database, actor: Actor) -> None:
    """End the session that the actor came with. Doing it twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        if await tx.value(queries.delete_session, actor.key_id) is not None:
            await record(tx, actor, "logged_out", session=actor.key_id)


@transaction_verb(Permission.LOGIN)
async def list_own_sessions(
    tx: Transaction, actor: Actor, position: After, limit: int
) -> Page[access_model.BrowserSession]:
    """Where the caller is logged in."""
    return await tenancy_store.list_sessions(tx, access.require_member(actor, ONLY_MEMBERS), position, limit, IDLE_LIFE)


@transaction_verb(Permission.LOGIN)
async def end_own_session(tx: Transaction, actor: Actor, id: UUID) -> None:
    await _end_session(tx, actor, access.require_member(actor, ONLY_MEMBERS), id)


@transaction_verb(Permission.LOGIN)
async def end_own_sessions(tx: Transaction, actor: Actor) -> access_model.EndedSessions:
    """All of them, but the one that the actor is in."""
    return await _end_sessions(tx, actor, access.require_member(actor, ONLY_MEMBERS))


@transaction_verb(Permission.MEMBER_WRITE)
async def list_member_sessions(
    tx: Transaction, _: Actor, member_id: UUID, position: After, limit: int
) -> Page[access_model.BrowserSession]:
    require_found(await tenancy_store.get_member(tx, member_id), "member")
    return await tenancy_store.list_sessions(tx, member_id, position, limit, IDLE_LIFE)


@transaction_verb(Permission.MEMBER_WRITE)
async def end_member_session(tx: Transaction, actor: Actor, member_id: UUID, id: UUID) -> None:
    await _end_session(tx, actor, member_id, id)


@transaction_verb(Permission.MEMBER_WRITE)
async def end_member_sessions(tx: Transaction, actor: Actor, member_id: UUID) -> access_model.EndedSessions:
    require_found(await tenancy_store.get_member(tx, member_id), "member")
    return await _end_sessions(tx, actor, member_id)


async def _end_session(tx: Transaction, actor: Actor, member_id: UUID, id: UUID) -> None:
    require_found(await tx.value(queries.end_session, id, member_id), "browser_session")
    await record(tx, actor, "browser_session_ended", session=id, member=member_id)


async def _end_sessions(tx: Transaction, actor: Actor, member_id: UUID) -> access_model.EndedSessions:
    """With the links that would open new ones."""
    await tx.rows(queries.hold_access, member_id)
    sessions = ids(await tx.rows(queries.end_sessions, member_id, actor.key_id))
    ended_ids = [*sessions, *ids(await tx.rows(queries.end_links, member_id))]
    await record(
        tx, actor, "browser_sessions_ended", member=member_id, ended=len(sessions), credentials_ended=ended_ids
    )
    return access_model.EndedSessions(ended=len(sessions))


async def end_sessions(db: Database, secret: str) -> None:
    """End the session of a cookie that another takes the place of; one that is over stays over."""
    with contextlib.suppress(Unauthenticated):
        await log_out(db, await authenticate_session(db, secret, touch=False))


@transaction_verb(Permission.MEMBER_ENROL)
async def issue_enrolment_code(tx: Transaction, actor: Actor, member_id: UUID) -> access_model.EnrolmentCode:
    """A code for a member who has no channel of their own yet. An earlier one that nobody redeemed stops working."""
    if member_id == actor.user_account_id:
        raise Forbidden(
            "You are enrolled already.",
            code="enrols_self",
            hint="Use `cortex member login-link` for a session, and `cortex key create` for a key.",
        )
    member = await access.require_active(tx, member_id)
    await tx.rows(queries.hold_access, member_id)
    if await tx.value(queries.has_proven_channel, tx.org, member_id):
        raise Conflict(
            f"{member.display_name} has proven a channel of their own, so nobody else makes a way in for them.",
            code="channel_proven",
            hint="If they lost every way in, take their channels away first: `cortex member channels`, `cortex member unlink`.",
        )
    return await make_enrolment_code(tx, actor, member_id)


async def make_enrolment_code(tx: Transaction, actor: Actor, member_id: UUID) -> access_model.EnrolmentCode:
    code, id = access.new_secret(SecretKind.ENROLMENT_CODE), new_id()
    voided_ids = ids(await tx.rows(queries.void_enrolment_codes, member_id))
    expires_at = await tenancy_store.insert_enrolment_code(tx, id, member_id, code, actor, access_model.CODE_LIFE)
    await record(tx, actor, "enrolment_code_created", code=id, member=member_id, credentials_ended=voided_ids)
    return access_model.EnrolmentCode(member_id=member_id, code=code, url_path=f"/enrol/{code}", expires_at=expires_at)


async def show_enrolment_code(db: Database, code: str) -> access_model.Enrolment | None:
    """What a code would do now."""
    return await access.show_secret(db, SecretKind.ENROLMENT_CODE, code, tenancy_store.show_enrolment_code)


async def redeem_for_session(db: Database, code: str) -> str:
    """Returns the secret of a new browser session. Unknown, used and old codes are answered alike."""
    secret, session_id = access.new_secret(SecretKind.SESSION), new_id()
    async with access.redemption(db, SecretKind.ENROLMENT_CODE, code, _enrolment_refused) as (tx, code_id):
        person, member_id = await _redeem(tx, code_id, session_id)
        await tenancy_store.insert_session(tx, session_id, member_id, secret, access_model.WHOLE_LIFE)
        await record(tx, person, "logged_in", enrolment=code_id, session=session_id)
    return secret


async def redeem_for_key(db: Database, draft: access_model.Redemption) -> access_model.NewKey:
    """The same for the command line: a key instead of a session."""
    secret, key_id, kind = access.new_secret(SecretKind.KEY), new_id(), access_model.KeyKind.PERSON
    async with access.redemption(db, SecretKind.ENROLMENT_CODE, draft.code, _enrolment_refused) as (tx, code_id):
        person, member_id = await _redeem(tx, code_id, key_id)
        key = await tenancy_store.insert_key(tx, key_id, draft.key_name, kind, member_id, [], secret, None)
        await record(
            tx, person, "key_created", key_id=key_id, name=draft.key_name, kind=kind, enrolment=code_id, member=member_id
        )  # fmt: skip
    return access_model.NewKey(key=key, secret=secret)


async def _redeem(tx: Transaction, code_id: UUID, credential_id: UUID) -> tuple[Actor, UUID]:
    """Uses the code up, and ends every other way in: an enrolment starts anew, and nobody is impersonated unnoticed."""
    before = await tenancy_store.show_enrolment_code(tx, code_id)
    if before is None:
        raise _enrolment_refused()
    await tx.rows(queries.hold_access, before.member_id)
    # First of all: a channel that is proven at this moment was proven before, or not at all.
    codes = ids(await tx.rows(queries.void_codes, before.member_id))
    if await tx.value(queries.has_proven_channel, tx.org, before.member_id):
        raise _enrolment_refused()
    issuer_id = await tx.value(queries.use_enrolment_code, code_id)
    person = await access.actor_for_member(tx, before.member_id, credential_id)
    if issuer_id is None or person is None:
        raise _enrolment_refused()
    details = await access.end_access(tx, before.member_id, codes)
    await tx.rows(queries.add_sponsor, before.member_id, issuer_id)
    await record(tx, person, "enrolled", code=code_id, issuer=issuer_id, issued_by=before.issued_by, **details)
    return person, before.member_id


def _enrolment_refused() -> Unauthenticated:
    return Unauthenticated(
        "This code does not work: it was used already, is older than 24 hours, or was never one.",
        code="enrolment_code_invalid",
        hint="Ask an admin of your org for a new one: `cortex member enrol`.",
    )
