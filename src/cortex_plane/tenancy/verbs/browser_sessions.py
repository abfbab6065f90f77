"""Logging in to the dashboard: a link for one person and one use, and the session that it opens."""

from __future__ import annotations

import contextlib
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.db.pool import Purpose
from cortex_plane.kernel.errors import Forbidden, Unauthenticated
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.browser_sessions import (
    IDLE_LIFE,
    LINK_LIFE,
    WHOLE_LIFE,
    BrowserSession,
    EndedSessions,
    LoginLink,
    digest,
    is_link_token,
    is_session_secret,
    path_of,
)
from cortex_plane.tenancy.rules.credential_keys import Forged
from cortex_plane.tenancy.store import browser_sessions, members
from cortex_plane.tenancy.verbs.forgeries import refused_as, report
from cortex_plane.tenancy.verbs.keys import hold_origin
from cortex_plane.tenancy.verbs.secrets import new_link_token, new_session_secret
from cortex_plane.tenancy.verbs.verbs import require_found, verb

HOW_TO_GET_A_LINK = (
    "Get a new link with `cortex member login-link`; without a key, ask an admin for an enrolment code."
)


@verb(Permission.LOGIN)
async def issue_own_login_link(db: Database, actor: Actor) -> LoginLink:
    """A link for whoever asks, and for nobody else: whoever holds it is that person."""
    member_id = _person(actor)
    token, id = new_link_token(), new_id()
    async with db.transaction(actor.org_id) as tx:
        key_id = await hold_origin(tx, actor)
        await browser_sessions.forget(tx, member_id, IDLE_LIFE)
        expires_at = await browser_sessions.insert_link(
            tx, id, member_id, digest(token), LINK_LIFE, actor.name, key_id
        )
        await audit.append_to_org(
            tx, Fact.of(actor, "login_link_created", link=str(id), member=str(member_id))
        )
    return LoginLink(member_id=member_id, url_path=path_of(token), expires_at=expires_at)


async def link_holder(db: Database, token: str) -> str | None:
    """Whom a link would log in now, by name; None: nobody. Asking does not use it up."""
    resolved = await browser_sessions.resolve_link(db, digest(token)) if is_link_token(token) else None
    if resolved is None:
        return None
    org_id, id = resolved
    try:
        async with db.transaction(org_id) as tx:
            return await browser_sessions.link_holder(tx, id)
    except Forged as forged:
        await report(db, forged)
        return None


async def log_in(db: Database, token: str) -> str:
    """Use a link up; returns the secret of a new session. Unknown, used and old links are answered alike."""
    resolved = await browser_sessions.resolve_link(db, digest(token)) if is_link_token(token) else None
    if resolved is None:
        raise _link_refused()
    org_id, link_id = resolved
    secret, id = new_session_secret(), new_id()
    async with refused_as(db, _link_refused), db.transaction(org_id) as tx:
        member_id = await browser_sessions.link_member(tx, link_id)
        if member_id is None:
            raise _link_refused()
        await members.hold_access(tx, member_id)
        used = await browser_sessions.use_link(tx, link_id, id)
        if used is None:
            raise _link_refused()
        await browser_sessions.forget(tx, member_id, IDLE_LIFE)
        await browser_sessions.insert(tx, id, member_id, digest(secret), WHOLE_LIFE, used.key_id)
        await audit.append_to_org(
            tx, Fact.of(used.actor, "logged_in", link=str(link_id), session=str(id), issued_by=used.issued_by)
        )
    return secret


def _link_refused() -> Unauthenticated:
    return Unauthenticated(
        "This link does not work: it was used already, is older than 15 minutes, or was never one.",
        code="login_link_invalid",
        hint=HOW_TO_GET_A_LINK,
    )


async def authenticate(db: Database, secret: str, *, touch: bool = True) -> Actor:
    """The person behind a cookie, with the roles and the clearance of this moment. ``touch``: it is a visit."""
    actor: Actor | None = None
    if is_session_secret(secret):
        try:
            actor = await browser_sessions.authenticate(
                db.own(Purpose.AUTHENTICATION), digest(secret), IDLE_LIFE, touch
            )
        except Forged as forged:
            await report(db, forged)
    if actor is None:
        raise Unauthenticated(
            "You are not logged in, or your session has ended.",
            code="browser_session_ended",
            hint=HOW_TO_GET_A_LINK,
        )
    return actor


async def log_out(db: Database, actor: Actor) -> None:
    """End the session that the actor came with. Doing it twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        if await browser_sessions.delete(tx, actor.key_id):
            await audit.append_to_org(tx, Fact.of(actor, "logged_out", session=str(actor.key_id)))


# Seeing and ending them -----------------------------------------------------------------------------------------------


@verb(Permission.LOGIN)
async def list_own(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[BrowserSession]:
    """Where whoever asks is logged in."""
    async with db.transaction(actor.org_id) as tx:
        return await browser_sessions.list_page(tx, _person(actor), position, limit, IDLE_LIFE)


@verb(Permission.LOGIN)
async def end_own(db: Database, actor: Actor, id: UUID) -> None:
    await _end_one(db, actor, _person(actor), id)


@verb(Permission.LOGIN)
async def end_all_own(db: Database, actor: Actor) -> EndedSessions:
    """All of them, but the one that the actor is in."""
    return await _end_all(db, actor, _person(actor))


@verb(Permission.MEMBER_WRITE)
async def list_of_member(
    db: Database, actor: Actor, member_id: UUID, position: Position | None, limit: int
) -> Page[BrowserSession]:
    async with db.transaction(actor.org_id) as tx:
        require_found(await members.get(tx, member_id), "member")
        return await browser_sessions.list_page(tx, member_id, position, limit, IDLE_LIFE)


@verb(Permission.MEMBER_WRITE)
async def end_of_member(db: Database, actor: Actor, member_id: UUID, id: UUID) -> None:
    await _end_one(db, actor, member_id, id)


@verb(Permission.MEMBER_WRITE)
async def end_all_of_member(db: Database, actor: Actor, member_id: UUID) -> EndedSessions:
    async with db.transaction(actor.org_id) as tx:
        require_found(await members.get(tx, member_id), "member")
    return await _end_all(db, actor, member_id)


def _person(actor: Actor) -> UUID:
    if actor.user_account_id is None:
        raise Forbidden("Only a member can log in.", hint="Use the key of a member.")
    return actor.user_account_id


async def _end_one(db: Database, actor: Actor, member_id: UUID, id: UUID) -> None:
    async with db.transaction(actor.org_id) as tx:
        if not await browser_sessions.end_one(tx, id, member_id):
            require_found(None, "browser_session")
        fact = Fact.of(actor, "browser_session_ended", session=str(id), member=str(member_id))
        await audit.append_to_org(tx, fact)


async def _end_all(db: Database, actor: Actor, member_id: UUID) -> EndedSessions:
    """With the links that would open new ones."""
    async with db.transaction(actor.org_id) as tx:
        await members.hold_access(tx, member_id)
        ended = await browser_sessions.end_sessions(tx, member_id, but=actor.key_id)
        links = await browser_sessions.end_links(tx, member_id)
        fact = Fact.of(
            actor, "browser_sessions_ended", member=str(member_id), ended=len(ended),
            credentials_ended=[str(id) for id in (*ended, *links)],
        )  # fmt: skip
        await audit.append_to_org(tx, fact)
    return EndedSessions(ended=len(ended))


async def end(db: Database, secret: str) -> None:
    """End the session of a cookie that another takes the place of; one that is over stays over."""
    with contextlib.suppress(Unauthenticated):
        await log_out(db, await authenticate(db, secret, touch=False))
