"""Enrolment: an admin hands over a code, the person redeems it and gets a session or a key that nobody else ever held."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, Forbidden, Unauthenticated
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.browser_sessions import WHOLE_LIFE
from cortex_plane.tenancy.model.browser_sessions import digest as session_digest
from cortex_plane.tenancy.model.enrolments import (
    CODE_LIFE,
    Enrolment,
    EnrolmentCode,
    Redemption,
    digest,
    is_code,
    path_of,
)
from cortex_plane.tenancy.model.keys import KeyKind, NewKey
from cortex_plane.tenancy.rules.credential_keys import Forged
from cortex_plane.tenancy.store import browser_sessions, enrolments, identities, keys, members
from cortex_plane.tenancy.verbs import people
from cortex_plane.tenancy.verbs.forgeries import refused_as, report
from cortex_plane.tenancy.verbs.secrets import new_enrolment_code, new_key_secret, new_session_secret
from cortex_plane.tenancy.verbs.verbs import require_found, verb


@verb(Permission.MEMBER_ENROL)
async def issue(db: Database, actor: Actor, member_id: UUID) -> EnrolmentCode:
    """A code for a member who has no channel of their own yet. An earlier one that nobody redeemed stops working."""
    if member_id == actor.user_account_id:
        raise Forbidden(
            "You are enrolled already.",
            code="enrols_self",
            hint="Use `cortex member login-link` for a session, and `cortex key create` for a key.",
        )
    async with db.transaction(actor.org_id) as tx:
        member = require_found(await members.get(tx, member_id), "member")
        if member.deactivated_at is not None:
            raise Conflict(
                f"{member.display_name} is deactivated.",
                code="member_deactivated",
                hint="Reactivate them first: `cortex member update --activate`.",
            )
        await members.hold_access(tx, member_id)
        if await members.has_proven_channel(tx, member_id):
            raise Conflict(
                f"{member.display_name} has proven a channel of their own, so nobody else makes a way in for them.",
                code="channel_proven",
                hint="If they lost every way in, take their channels away first: `cortex member channels`, `cortex member unlink`.",
            )
        return await make_code(tx, actor, member_id)


async def make_code(tx: Transaction, actor: Actor, member_id: UUID) -> EnrolmentCode:
    code, id = new_enrolment_code(), new_id()
    voided = await enrolments.void(tx, member_id)
    expires_at = await enrolments.insert(tx, id, member_id, digest(code), actor, CODE_LIFE)
    await audit.append_to_org(
        tx,
        Fact.of(
            actor,
            "enrolment_code_created",
            code=str(id),
            member=str(member_id),
            credentials_ended=[str(id) for id in voided],
        ),
    )
    return EnrolmentCode(member_id=member_id, code=code, url_path=path_of(code), expires_at=expires_at)


# Redeeming ------------------------------------------------------------------------------------------------------------


async def shown(db: Database, code: str) -> Enrolment | None:
    """What a code would do now; None: nothing. Asking does not use it up."""
    resolved = await enrolments.resolve(db, digest(code)) if is_code(code) else None
    if resolved is None:
        return None
    org_id, id = resolved
    try:
        async with db.transaction(org_id) as tx:
            return await enrolments.show(tx, id)
    except Forged as forged:
        await report(db, forged)
        return None


async def redeem_for_session(db: Database, code: str) -> str:
    """Returns the secret of a new browser session. Unknown, used and old codes are answered alike."""
    secret, session_id = new_session_secret(), new_id()
    org_id, code_id = await _resolved(db, code)
    async with refused_as(db, _refused), db.transaction(org_id) as tx:
        person = await _redeem(tx, code_id, session_id)
        await browser_sessions.insert(tx, session_id, _id(person), session_digest(secret), WHOLE_LIFE)
        fact = Fact.of(person, "logged_in", enrolment=str(code_id), session=str(session_id))
        await audit.append_to_org(tx, fact)
    return secret


async def redeem_for_key(db: Database, redemption: Redemption) -> NewKey:
    """The same for the command line: a key instead of a session."""
    secret, key_id = new_key_secret(), new_id()
    org_id, code_id = await _resolved(db, redemption.code)
    async with refused_as(db, _refused), db.transaction(org_id) as tx:
        person = await _redeem(tx, code_id, key_id)
        key = await keys.insert(
            tx, key_id, redemption.key_name, KeyKind.PERSON, _id(person), [], secret, None
        )
        fact = Fact.of(
            person, "key_created", key_id=str(key_id), name=redemption.key_name, kind=KeyKind.PERSON,
            enrolment=str(code_id), member=str(_id(person)),
        )  # fmt: skip
        await audit.append_to_org(tx, fact)
    return NewKey(key=key, secret=secret)


async def _resolved(db: Database, code: str) -> tuple[UUID, UUID]:
    resolved = await enrolments.resolve(db, digest(code)) if is_code(code) else None
    if resolved is None:
        raise _refused()
    return resolved


async def _redeem(tx: Transaction, code_id: UUID, credential_id: UUID) -> Actor:
    """Uses the code up, and ends every other way in: an enrolment starts anew, and nobody is impersonated unnoticed."""
    before = await enrolments.show(tx, code_id)
    if before is None:
        raise _refused()
    await members.hold_access(tx, before.member_id)
    # First of all: whoever proves a channel at this moment has done so before, or not at all.
    codes = await identities.void_codes(tx, before.member_id)
    if await members.has_proven_channel(tx, before.member_id):
        raise _refused()
    issuer_id = await enrolments.use(tx, code_id)
    person = await people.actor_for_member(tx, before.member_id, credential_id)
    if issuer_id is None or person is None:
        raise _refused()
    ended = await people.end_access(tx, before.member_id)
    await members.add_sponsor(tx, before.member_id, issuer_id)
    await audit.append_to_org(
        tx,
        Fact.of(
            person, "enrolled", code=str(code_id), issuer=str(issuer_id), issued_by=before.issued_by,
            **ended.as_audit(*codes),
        ),
    )  # fmt: skip
    return person


def _id(person: Actor) -> UUID:
    if person.user_account_id is None:
        raise AssertionError("whoever enrols is a member")
    return person.user_account_id


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "This code does not work: it was used already, is older than 24 hours, or was never one.",
        code="enrolment_code_invalid",
        hint="Ask an admin of your org for a new one: `cortex member enrol`.",
    )
