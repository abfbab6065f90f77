"""Browser sessions, login links and enrolment codes."""

from __future__ import annotations

import contextlib
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.kernel.errors import Conflict, Forbidden, Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import (
    CODE_LIFE,
    IDLE_LIFE,
    LINK_LIFE,
    WHOLE_LIFE,
    Actor,
    BrowserSession,
    EndedSessions,
    Enrolment,
    EnrolmentCode,
    KeyKind,
    LoginLink,
    NewKey,
    Permission,
    Redemption,
    enrolment_digest,
    enrolment_path,
    is_code,
    is_link_token,
    is_session_secret,
    login_path,
    session_digest,
)
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.access import (
    forgery_refusal,
    new_enrolment_code,
    new_key_secret,
    new_link_token,
    new_session_secret,
    report_forgery,
)
from cortex_plane.tenancy.verbs.frame import require_found, verb
from cortex_plane.tenancy.verbs.keys import hold_origin

HOW_TO_GET_A_LINK = "Get a new link with `cortex member login-link`; without a key, ask an admin for an enrolment code."


@verb(Permission.LOGIN)
async def issue_own_login_link(db: Database, actor: Actor) -> LoginLink:
    """A link for whoever asks, and for nobody else: whoever holds it is that person."""
    member_id = _person(actor)
    token, id = new_link_token(), new_id()
    async with db.transaction(actor.org_id) as tx:
        key_id = await hold_origin(tx, actor)
        await credentials_store.forget_ended_logins(tx, member_id, IDLE_LIFE)
        expires_at = await credentials_store.insert_link(
            tx, id, member_id, session_digest(token), LINK_LIFE, actor.name, key_id
        )
        await proof_store.append_to_org(tx, Fact.of(actor, "login_link_created", link=str(id), member=str(member_id)))
    return LoginLink(member_id=member_id, url_path=login_path(token), expires_at=expires_at)


async def link_holder(db: Database, token: str) -> str | None:
    """Whom a link would log in now, by name; None: nobody. Asking does not use it up."""
    ids = await credentials_store.resolve_link(db, session_digest(token)) if is_link_token(token) else None
    if ids is None:
        return None
    org_id, id = ids
    try:
        async with db.transaction(org_id) as tx:
            return await credentials_store.link_holder(tx, id)
    except Forged as forgery:
        await report_forgery(db, forgery)
        return None


async def log_in(db: Database, token: str) -> str:
    """Use a link up; returns the secret of a new session. Unknown, used and old links are answered alike."""
    ids = await credentials_store.resolve_link(db, session_digest(token)) if is_link_token(token) else None
    if ids is None:
        raise _link_refused()
    org_id, link_id = ids
    secret, id = new_session_secret(), new_id()
    async with forgery_refusal(db, _link_refused), db.transaction(org_id) as tx:
        member_id = await credentials_store.link_member(tx, link_id)
        if member_id is None:
            raise _link_refused()
        await orgs_store.hold_access(tx, member_id)
        login = await credentials_store.use_link(tx, link_id, id)
        if login is None:
            raise _link_refused()
        await credentials_store.forget_ended_logins(tx, member_id, IDLE_LIFE)
        await credentials_store.insert_session(tx, id, member_id, session_digest(secret), WHOLE_LIFE, login.key_id)
        await proof_store.append_to_org(
            tx, Fact.of(login.actor, "logged_in", link=str(link_id), session=str(id), issued_by=login.issued_by)
        )
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
    if is_session_secret(secret):
        try:
            actor = await credentials_store.authenticate_session(
                db.own(PoolPurpose.AUTHENTICATION), session_digest(secret), IDLE_LIFE, touch
            )
        except Forged as forgery:
            await report_forgery(db, forgery)
    if actor is None:
        raise Unauthenticated(
            "You are not logged in, or your session has ended.", code="browser_session_ended", hint=HOW_TO_GET_A_LINK
        )
    return actor


async def log_out(db: Database, actor: Actor) -> None:
    """End the session that the actor came with. Doing it twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        if await credentials_store.delete_session(tx, actor.key_id):
            await proof_store.append_to_org(tx, Fact.of(actor, "logged_out", session=str(actor.key_id)))


# Seeing and ending them -----------------------------------------------------------------------------------------------


@verb(Permission.LOGIN)
async def list_own_sessions(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[BrowserSession]:
    """Where whoever asks is logged in."""
    async with db.transaction(actor.org_id) as tx:
        return await credentials_store.list_sessions(tx, _person(actor), position, limit, IDLE_LIFE)


@verb(Permission.LOGIN)
async def end_own_session(db: Database, actor: Actor, id: UUID) -> None:
    await _end_session(db, actor, _person(actor), id)


@verb(Permission.LOGIN)
async def end_own_sessions(db: Database, actor: Actor) -> EndedSessions:
    """All of them, but the one that the actor is in."""
    return await _end_sessions(db, actor, _person(actor))


@verb(Permission.MEMBER_WRITE)
async def list_member_sessions(
    db: Database, actor: Actor, member_id: UUID, position: Position | None, limit: int
) -> Page[BrowserSession]:
    async with db.transaction(actor.org_id) as tx:
        require_found(await orgs_store.get_member(tx, member_id), "member")
        return await credentials_store.list_sessions(tx, member_id, position, limit, IDLE_LIFE)


@verb(Permission.MEMBER_WRITE)
async def end_member_session(db: Database, actor: Actor, member_id: UUID, id: UUID) -> None:
    await _end_session(db, actor, member_id, id)


@verb(Permission.MEMBER_WRITE)
async def end_member_sessions(db: Database, actor: Actor, member_id: UUID) -> EndedSessions:
    async with db.transaction(actor.org_id) as tx:
        require_found(await orgs_store.get_member(tx, member_id), "member")
    return await _end_sessions(db, actor, member_id)


def _person(actor: Actor) -> UUID:
    if actor.user_account_id is None:
        raise Forbidden("Only a member can log in.", hint="Use the key of a member.")
    return actor.user_account_id


async def _end_session(db: Database, actor: Actor, member_id: UUID, id: UUID) -> None:
    async with db.transaction(actor.org_id) as tx:
        if not await credentials_store.end_session(tx, id, member_id):
            require_found(None, "browser_session")
        fact = Fact.of(actor, "browser_session_ended", session=str(id), member=str(member_id))
        await proof_store.append_to_org(tx, fact)


async def _end_sessions(db: Database, actor: Actor, member_id: UUID) -> EndedSessions:
    """With the links that would open new ones."""
    async with db.transaction(actor.org_id) as tx:
        await orgs_store.hold_access(tx, member_id)
        session_ids = await credentials_store.end_sessions(tx, member_id, but=actor.key_id)
        links = await credentials_store.end_links(tx, member_id)
        fact = Fact.of(
            actor, "browser_sessions_ended", member=str(member_id), ended=len(session_ids),
            credentials_ended=[str(id) for id in (*session_ids, *links)],
        )  # fmt: skip
        await proof_store.append_to_org(tx, fact)
    return EndedSessions(ended=len(session_ids))


async def end_sessions(db: Database, secret: str) -> None:
    """End the session of a cookie that another takes the place of; one that is over stays over."""
    with contextlib.suppress(Unauthenticated):
        await log_out(db, await authenticate_session(db, secret, touch=False))


@verb(Permission.MEMBER_ENROL)
async def issue_enrolment_code(db: Database, actor: Actor, member_id: UUID) -> EnrolmentCode:
    """A code for a member who has no channel of their own yet. An earlier one that nobody redeemed stops working."""
    if member_id == actor.user_account_id:
        raise Forbidden(
            "You are enrolled already.",
            code="enrols_self",
            hint="Use `cortex member login-link` for a session, and `cortex key create` for a key.",
        )
    async with db.transaction(actor.org_id) as tx:
        member = require_found(await orgs_store.get_member(tx, member_id), "member")
        if member.deactivated_at is not None:
            raise Conflict(
                f"{member.display_name} is deactivated.",
                code="member_deactivated",
                hint="Reactivate them first: `cortex member update --activate`.",
            )
        await orgs_store.hold_access(tx, member_id)
        if await orgs_store.has_proven_channel(tx, member_id):
            raise Conflict(
                f"{member.display_name} has proven a channel of their own, so nobody else makes a way in for them.",
                code="channel_proven",
                hint="If they lost every way in, take their channels away first: `cortex member channels`, `cortex member unlink`.",
            )
        return await make_enrolment_code(tx, actor, member_id)


async def make_enrolment_code(tx: Transaction, actor: Actor, member_id: UUID) -> EnrolmentCode:
    code, id = new_enrolment_code(), new_id()
    codes = await credentials_store.void_enrolment_codes(tx, member_id)
    expires_at = await credentials_store.insert_enrolment_code(
        tx, id, member_id, enrolment_digest(code), actor, CODE_LIFE
    )
    await proof_store.append_to_org(
        tx,
        Fact.of(
            actor,
            "enrolment_code_created",
            code=str(id),
            member=str(member_id),
            credentials_ended=[str(id) for id in codes],
        ),
    )
    return EnrolmentCode(member_id=member_id, code=code, url_path=enrolment_path(code), expires_at=expires_at)


# Redeeming ------------------------------------------------------------------------------------------------------------


async def show_enrolment_code(db: Database, code: str) -> Enrolment | None:
    """What a code would do now; None: nothing. Asking does not use it up."""
    ids = await credentials_store.resolve_enrolment_code(db, enrolment_digest(code)) if is_code(code) else None
    if ids is None:
        return None
    org_id, id = ids
    try:
        async with db.transaction(org_id) as tx:
            return await credentials_store.show_enrolment_code(tx, id)
    except Forged as forgery:
        await report_forgery(db, forgery)
        return None


async def redeem_for_session(db: Database, code: str) -> str:
    """Returns the secret of a new browser session. Unknown, used and old codes are answered alike."""
    secret, session_id = new_session_secret(), new_id()
    org_id, code_id = await _resolve_code(db, code)
    async with forgery_refusal(db, _enrolment_refused), db.transaction(org_id) as tx:
        person = await _redeem(tx, code_id, session_id)
        await credentials_store.insert_session(tx, session_id, _id(person), session_digest(secret), WHOLE_LIFE)
        fact = Fact.of(person, "logged_in", enrolment=str(code_id), session=str(session_id))
        await proof_store.append_to_org(tx, fact)
    return secret


async def redeem_for_key(db: Database, redemption: Redemption) -> NewKey:
    """The same for the command line: a key instead of a session."""
    secret, key_id = new_key_secret(), new_id()
    org_id, code_id = await _resolve_code(db, redemption.code)
    async with forgery_refusal(db, _enrolment_refused), db.transaction(org_id) as tx:
        person = await _redeem(tx, code_id, key_id)
        key = await credentials_store.insert_key(
            tx, key_id, redemption.key_name, KeyKind.PERSON, _id(person), [], secret, None
        )
        fact = Fact.of(
            person, "key_created", key_id=str(key_id), name=redemption.key_name, kind=KeyKind.PERSON,
            enrolment=str(code_id), member=str(_id(person)),
        )  # fmt: skip
        await proof_store.append_to_org(tx, fact)
    return NewKey(key=key, secret=secret)


async def _resolve_code(db: Database, code: str) -> tuple[UUID, UUID]:
    ids = await credentials_store.resolve_enrolment_code(db, enrolment_digest(code)) if is_code(code) else None
    if ids is None:
        raise _enrolment_refused()
    return ids


async def _redeem(tx: Transaction, code_id: UUID, credential_id: UUID) -> Actor:
    """Uses the code up, and ends every other way in: an enrolment starts anew, and nobody is impersonated unnoticed."""
    before = await credentials_store.show_enrolment_code(tx, code_id)
    if before is None:
        raise _enrolment_refused()
    await orgs_store.hold_access(tx, before.member_id)
    # First of all: whoever proves a channel at this moment has done so before, or not at all.
    codes = await identities_store.void_codes(tx, before.member_id)
    if await orgs_store.has_proven_channel(tx, before.member_id):
        raise _enrolment_refused()
    issuer_id = await credentials_store.use_enrolment_code(tx, code_id)
    person = await access.actor_for_member(tx, before.member_id, credential_id)
    if issuer_id is None or person is None:
        raise _enrolment_refused()
    access_end = await access.end_access(tx, before.member_id)
    await orgs_store.add_sponsor(tx, before.member_id, issuer_id)
    await proof_store.append_to_org(
        tx,
        Fact.of(
            person, "enrolled", code=str(code_id), issuer=str(issuer_id), issued_by=before.issued_by,
            **access_end.as_audit(*codes),
        ),
    )  # fmt: skip
    return person


def _id(person: Actor) -> UUID:
    if person.user_account_id is None:
        raise AssertionError("whoever enrols is a member")
    return person.user_account_id


def _enrolment_refused() -> Unauthenticated:
    return Unauthenticated(
        "This code does not work: it was used already, is older than 24 hours, or was never one.",
        code="enrolment_code_invalid",
        hint="Ask an admin of your org for a new one: `cortex member enrol`.",
    )
