"""Inviting people by mail: an address counts once its link was used, and a link works once, for the right person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, TooMany, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.notify.model.notifications import Invitation
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.identities import (
    INVITATIONS_AN_HOUR,
    MAILS_AN_HOUR,
    MAX_CHANNELS,
    AddressDraft,
    ConnectionChange,
    InvitationDraft,
    Invited,
    Mapping,
)
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import connections, links, logins, orgs
from tests.conftest import Urls
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, with_key
from tests.fixtures.rows import digests
from tests.fixtures.waits import lock_waiters

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
PLANE = "https://plane.example"
BEA = "bea@example.com"


async def invite(world: World, email: str = BEA, name: str | None = "Bea", **more: object) -> Invited:
    draft = InvitationDraft(email=email, display_name=name, **more)  # type: ignore[arg-type]
    return await connections.invite(world.db, world.admin.actor, draft, mailing=True)


async def rendered(world: World, mapping_id: UUID, purpose: str = "invitation") -> Invitation | None:
    """What the outbox does when it sends the mail."""
    async with world.db.transaction(world.org_id) as tx:
        return await connections.make_invitation_code(tx, mapping_id, {"purpose": purpose, "invited_by": "Ada"}, PLANE)


async def code_for(world: World, mapping_id: UUID, purpose: str = "invitation") -> str:
    mail = await rendered(world, mapping_id, purpose)
    assert mail is not None
    return mail.url.removeprefix(f"{PLANE}/verify/")


async def joined(world: World, email: str = BEA, name: str = "Bea", **more: object) -> Invited:
    """Somebody who followed their invitation."""
    invited = await invite(world, email, name, **more)
    await connections.verify_address(world.db, await code_for(world, invited.mapping.id), None)
    return invited


async def mapping_of(world: World, member_id: UUID) -> Mapping:
    (found,) = (await orgs.list_member_mappings(world.db, world.admin.actor, member_id, None, 10)).items
    return found


async def acting(world: World, invited: Invited) -> Actor:
    person = await with_key(world.db, world.org_id, invited.member.id)
    link = await logins.issue_own_login_link(world.db, person.actor)
    secret = await logins.log_in(world.db, link.url_path.removeprefix("/login/"))
    return await logins.authenticate_session(world.db, secret)


async def actions(world: World) -> list[str]:
    return [entry.action for entry in await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)]


async def refused(db: Database, code: str, visitor: Actor | None = None) -> str:
    with pytest.raises(CortexError) as raised:
        await connections.verify_address(db, code, visitor)
    assert raised.value.hint
    return raised.value.code


@pytest.mark.proves("D.130")
async def test_an_invitation_is_a_member_an_unproven_address_and_a_mail(
    world: World, admin: asyncpg.Connection
) -> None:
    invited = await invite(world, " Bea@Example.COM", roles=[Role.APPROVER], clearance=3, teams=["main"])
    assert (invited.member.display_name, invited.member.clearance) == ("Bea", 3)
    assert invited.member.roles == [Role.APPROVER]
    assert len(invited.member.team_ids) == 1
    assert (invited.mapping.channel_user_id, invited.mapping.channel_type) == (BEA, "email")
    assert invited.mapping.verified_at is None
    assert not invited.again
    (mail,) = await admin.fetch("select kind, address, status, data from notification")
    assert (mail["kind"], mail["address"], mail["status"]) == ("invitation", BEA, "pending")
    assert "cortex_verify" not in mail["data"], "its link is made when it is rendered"
    assert await admin.fetchval("select count(*) from identity_code") == 0
    assert (await actions(world))[-3:] == ["connection_created", "member_added", "member_invited"]
    made = await admin.fetchrow("select name, channel_type from channel_connection where channel_type = 'email'")
    assert tuple(made) == ("email", "email")
    second = await invite(world, "cleo@example.com", "Cleo")
    assert second.mapping.connection_id == invited.mapping.connection_id


@pytest.mark.proves("D.130")
async def test_a_link_proves_the_address_and_logs_its_person_in_once(world: World, admin: asyncpg.Connection) -> None:
    invited = await invite(world, roles=[Role.APPROVER], clearance=3)
    code = await code_for(world, invited.mapping.id)
    kept = await admin.fetchrow(
        "select code_hash, length(code_hash) as size, identity_code::text as row from identity_code"
    )
    assert kept["size"] == 32
    assert code not in kept["row"]
    before = await digests(admin)
    shown = await connections.read_verification(world.db, code)
    assert shown is not None
    assert (shown.org, shown.member, shown.address, shown.issued_by) == ("Acme", "Bea", BEA, "Ada")
    assert await digests(admin) == before, "looking at a link changes nothing"
    secret = await connections.verify_address(world.db, code, None)
    assert secret is not None
    actor = await logins.authenticate_session(world.db, secret)
    assert (actor.name, actor.clearance, [*actor.roles]) == ("Bea", 3, [Role.APPROVER])
    assert (await mapping_of(world, invited.member.id)).verified_at is not None
    assert (await actions(world))[-2:] == ["identity_verified", "logged_in"]
    before = await digests(admin)
    assert await connections.read_verification(world.db, code) is None
    assert await refused(world.db, code) == "verify_link_invalid"
    assert await digests(admin) == before


@pytest.mark.proves("D.131")
@pytest.mark.parametrize(
    "wrong", ["", "x", "cortex_verify_", "cortex_verify_" + "a" * 43, "cortex_login_" + "a" * 43, "\x00", "é" * 57]
)
async def test_a_link_that_never_was_one_changes_nothing(world: World, admin: asyncpg.Connection, wrong: str) -> None:
    await invite(world)
    before = await digests(admin)
    assert await connections.read_verification(world.db, wrong) is None
    assert await refused(world.db, wrong) == "verify_link_invalid"
    assert await digests(admin) == before


@pytest.mark.proves("D.131")
async def test_truncated_old_and_unwanted_links_are_refused_alike(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    invited = await invite(world)
    code = await code_for(world, invited.mapping.id)
    for wrong in (code[:-1], code + "A", code.upper(), code[:-1] + ("A" if code[-1] != "A" else "B")):
        assert await refused(world.db, wrong) == "verify_link_invalid"
    await clock.advance(timedelta(days=7) - timedelta(seconds=1))
    assert await connections.read_verification(world.db, code) is not None
    await clock.advance(timedelta(seconds=1))
    before = await digests(admin)
    assert await connections.read_verification(world.db, code) is None
    assert await refused(world.db, code) == "verify_link_invalid"
    assert await digests(admin) == before
    fresh = await code_for(world, invited.mapping.id)
    off = MemberChange(active=False)
    await orgs.update_member(world.db, world.admin.actor, invited.member.id, off, None)
    assert await refused(world.db, fresh) == "verify_link_invalid"
    assert await rendered(world, invited.mapping.id) is None, "nothing is mailed to a deactivated member"
    await orgs.update_member(world.db, world.admin.actor, invited.member.id, MemberChange(active=True), None)
    await connections.unlink_member(world.db, world.admin.actor, invited.member.id, invited.mapping.id)
    assert await refused(world.db, fresh) == "verify_link_invalid"
    assert await rendered(world, invited.mapping.id) is None


@pytest.mark.proves("D.131")
async def test_a_mail_that_came_twice_works_once(world: World, admin: asyncpg.Connection) -> None:
    invited = await invite(world)
    first, second = [await code_for(world, invited.mapping.id) for _ in range(2)]
    assert first != second
    tries = await asyncio.gather(
        *(connections.verify_address(world.db, code, None) for code in (first, second, first, second)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, str) for each in tries) == 1
    assert sum(isinstance(each, Unauthenticated) for each in tries) == 3
    assert await admin.fetchval("select count(*) from browser_session") == 1
    assert (await actions(world)).count("identity_verified") == 1
    assert await admin.fetchval("select count(*) from identity_code where used_at is null") == 0


SENT = """update notification set status = 'delivered', rendered_version = desired_version, next_attempt_at = null,
  tried_at = plane_now(), sent_at = plane_now() where status = 'pending'"""


@pytest.mark.proves("D.132")
async def test_the_same_address_again_sends_the_mail_again(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    first = await invite(world, roles=[Role.APPROVER])
    for draft in (
        InvitationDraft(email="BEA@example.com"),
        InvitationDraft(email=BEA, display_name="Bea", roles=[Role.APPROVER], clearance=0),
    ):
        await admin.execute(SENT)
        await clock.advance(timedelta(minutes=1))
        again = await connections.invite(world.db, world.admin.actor, draft, mailing=True)
        assert again.again
        assert (again.member.id, again.mapping.id) == (first.member.id, first.mapping.id)
    assert await admin.fetchval("select count(*) from notification") == 3
    assert await admin.fetchval("select count(*) from user_account where display_name = 'Bea'") == 1
    before = await digests(admin)
    for other in ({"name": "Bob"}, {"roles": [Role.ADMIN]}, {"clearance": 9}, {"teams": ["main"]}):
        with pytest.raises(Conflict) as raised:
            await invite(world, **{"name": "Bea", **other})  # type: ignore[arg-type]
        assert raised.value.code == "already_invited"
    assert await digests(admin) == before


@pytest.mark.proves("D.132")
async def test_a_proven_address_is_not_given_to_somebody_else(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    await joined(world)
    before = await digests(admin)
    for email in (BEA, "BEA@EXAMPLE.com"):
        with pytest.raises(Conflict, match="belongs to Bea") as raised:
            await invite(world, email, "Bob")
        assert raised.value.code == "identity_taken"
    with pytest.raises(Conflict) as raised:
        await connections.add_address(world.db, world.admin.actor, AddressDraft(email=BEA), mailing=True)
    assert raised.value.code == "identity_taken"
    assert await digests(admin) == before
    elsewhere = await joined(other)
    assert elsewhere.mapping.channel_user_id == BEA, "another org has people of its own"


@pytest.mark.proves("D.132")
async def test_naming_an_address_first_does_not_keep_it_from_its_owner(world: World) -> None:
    squatter = await world.person(Role.MEMBER, name="Sly")
    claimed = await connections.add_address(world.db, squatter.actor, AddressDraft(email=BEA), mailing=True)
    invited = await joined(world)
    assert (await mapping_of(world, invited.member.id)).verified_at is not None
    code = await code_for(world, claimed.id, "address")
    assert await refused(world.db, code, squatter.actor) == "identity_taken"


async def test_an_idempotency_key_invites_once(world: World, admin: asyncpg.Connection) -> None:
    draft, once = (InvitationDraft(email=BEA, display_name="Bea"), IdempotencyKey(key="k", fingerprint=bytes(32)))
    made = [await connections.invite(world.db, world.admin.actor, draft, once, mailing=True) for _ in range(2)]
    assert made[0].member == made[1].member
    assert await admin.fetchval("select count(*) from notification") == 1


async def test_two_admins_who_invite_the_same_person_at_once_make_one_member(
    world: World, admin: asyncpg.Connection
) -> None:
    made = await asyncio.gather(*(invite(world) for _ in range(4)))
    assert len({each.member.id for each in made}) == 1
    assert [each.again for each in made].count(False) == 1
    assert await admin.fetchval("select count(*) from channel_connection where channel_type = 'email'") == 1


async def test_what_cannot_be_mailed_is_refused_and_changes_nothing(world: World, admin: asyncpg.Connection) -> None:
    before = await digests(admin)
    draft = InvitationDraft(email=BEA, display_name="Bea")
    with pytest.raises(Conflict, match="sends no mail") as raised:
        await connections.invite(world.db, world.admin.actor, draft)
    assert raised.value.code == "mail_not_configured"
    assert "CORTEX_SMTP_URL" in raised.value.hint
    with pytest.raises(InvalidInput) as unnamed:
        await invite(world, name=None)
    assert unnamed.value.code == "name_missing"
    with pytest.raises(CortexError) as no_team:
        await invite(world, teams=["nowhere"])
    assert no_team.value.code == "team_not_found"
    assert await digests(admin) == before
    with pytest.raises(Forbidden):
        await connections.invite(world.db, (await world.person(Role.OPERATOR)).actor, draft, mailing=True)
    invited = await invite(world, "cleo@example.com", "Cleo")
    connection = invited.mapping.connection_id
    off = ConnectionChange(enabled=False)
    await connections.update_connection(world.db, world.admin.actor, connection, off, None)
    with pytest.raises(Conflict) as disabled:
        await invite(world)
    assert disabled.value.code == "connection_disabled"
    assert await admin.fetchval("select count(*) from user_account where display_name = 'Bea'") == 0


async def test_an_address_that_refused_mail_is_tried_again_when_somebody_says_so(
    world: World, admin: asyncpg.Connection
) -> None:
    invited = await invite(world)
    await admin.execute("update channel_mapping set suppressed_at = now(), suppressed_reason = '550 no such user'")
    await invite(world)
    assert await admin.fetchval("select suppressed_at from channel_mapping where id = $1", invited.mapping.id) is None


@pytest.mark.proves("D.132")
async def test_one_mail_is_enough_while_it_is_on_its_way_and_for_a_minute(
    world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    person = await world.person(Role.MEMBER)
    asking: list[Callable[[], Awaitable[object]]] = [
        lambda: invite(world),
        lambda: connections.add_address(world.db, person.actor, AddressDraft(email="me@x.example"), mailing=True),
    ]
    for ask in asking:
        await ask()
    for wait, sent in ((0, False), (3600, False), (0, True), (59, False)):
        await clock.advance(timedelta(seconds=wait))
        if sent:
            await admin.execute(SENT)
        for ask in asking:
            await ask()
        assert await admin.fetchval("select count(*) from notification") == 2
    await clock.advance(timedelta(seconds=1))
    for ask in asking:
        await ask()
    assert await admin.fetchval("select count(*) from notification") == 4
    assert (await actions(world)).count("member_invited") == 2


@pytest.mark.proves("D.133")
async def test_nobody_has_mail_sent_to_strangers_without_end(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    person = await world.person(Role.ADMIN, name="Sly")

    async def claim(number: int) -> None:
        draft = AddressDraft(email=f"victim+{number}@example.com")
        claimed = await connections.add_address(world.db, person.actor, draft, mailing=True)
        await connections.unlink_own(world.db, person.actor, claimed.id)

    for number in range(MAILS_AN_HOUR):
        await claim(number)
    before = await digests(admin)
    with pytest.raises(TooMany) as raised:
        await claim(99)
    assert raised.value.code == "too_many_mails"
    assert await digests(admin) == before
    draft = InvitationDraft(email=BEA, display_name="Bea")
    await connections.invite(world.db, person.actor, draft, mailing=True)
    await admin.execute(
        """insert into notification (org_id, id, kind, connection_id, channel_type, user_account_id, address, data,
          next_attempt_at, created_at)
        select org_id, gen_random_uuid(), kind, connection_id, channel_type, user_account_id, address, data, next_attempt_at,
          created_at from notification, generate_series(2, $1) where address = $2""",
        INVITATIONS_AN_HOUR, BEA,
    )  # fmt: skip
    before = await digests(admin)
    draft = InvitationDraft(email="cleo@example.com", display_name="Cleo")
    with pytest.raises(TooMany):
        await connections.invite(world.db, person.actor, draft, mailing=True)
    assert await digests(admin) == before
    await connections.invite(world.db, world.admin.actor, draft, mailing=True)
    await clock.advance(timedelta(hours=1))
    await claim(100)


async def test_an_hours_mails_are_counted_when_they_are_asked_for_at_once(
    world: World, urls: Urls, admin: asyncpg.Connection
) -> None:
    person = await world.person(Role.MEMBER)

    async def claim(name: str) -> Mapping:
        draft = AddressDraft(email=f"{name}@example.com")
        return await connections.add_address(world.db, person.actor, draft, mailing=True)

    for number in range(MAILS_AN_HOUR - 1):
        claimed = await claim(str(number))
        await connections.unlink_own(world.db, person.actor, claimed.id)
    holder = await asyncpg.connect(urls.admin)
    async with holder.transaction():
        # All of them have counted, or wait to, before the first one can end.
        await holder.fetch("select from org_head where org_id = $1 for update", world.org_id)
        asking = asyncio.gather(*(claim(f"x{n}") for n in range(4)), return_exceptions=True)
        async with asyncio.timeout(20):
            while await lock_waiters(admin) < 4:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
    await holder.close()
    assert sum(isinstance(each, TooMany) for each in await asking) == 3


@pytest.mark.proves("D.133")
async def test_adding_an_address_again_does_not_make_it_take_mail(world: World, admin: asyncpg.Connection) -> None:
    person = await world.person(Role.MEMBER)
    draft = AddressDraft(email="gone@example.com")
    claimed = await connections.add_address(world.db, person.actor, draft, mailing=True)
    await admin.execute(SENT)
    await admin.execute("update channel_mapping set suppressed_at = now(), suppressed_reason = '550 no such user'")
    for unlinked in (False, True):
        if unlinked:
            await connections.unlink_own(world.db, person.actor, claimed.id)
        before = await digests(admin)
        with pytest.raises(Conflict, match="550 no such user") as raised:
            await connections.add_address(world.db, person.actor, draft, mailing=True)
        assert raised.value.code == "address_refused"
        assert await digests(admin) == before


# One's own addresses --------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.133")
async def test_an_address_of_ones_own_needs_its_mail_and_the_login_of_its_person(
    world: World, admin: asyncpg.Connection
) -> None:
    person = await world.person(Role.APPROVER, name="Grace")
    claimed = await connections.add_address(
        world.db, person.actor, AddressDraft(email="Grace@Home.example"), mailing=True
    )
    assert (claimed.channel_user_id, claimed.verified_at) == ("grace@home.example", None)
    code = await code_for(world, claimed.id, "address")
    before = await digests(admin)
    for stranger in (None, world.admin.actor):
        assert await refused(world.db, code, stranger) == "login_needed"
    assert await digests(admin) == before
    assert await connections.verify_address(world.db, code, person.actor) is None, "nobody is logged in by it"
    assert (await mapping_of(world, claimed.user_account_id)).verified_at is not None
    with pytest.raises(Conflict, match="yours already"):
        await connections.add_address(world.db, person.actor, AddressDraft(email="grace@home.example"), mailing=True)


async def test_a_person_has_so_many_channels_and_no_more(world: World) -> None:
    person = await world.person(Role.MEMBER)
    for number in range(MAX_CHANNELS):
        draft = AddressDraft(email=f"me+{number}@example.com")
        await connections.add_address(world.db, person.actor, draft, mailing=True)
    again = AddressDraft(email="me+0@example.com")
    await connections.add_address(world.db, person.actor, again, mailing=True)
    with pytest.raises(TooMany) as raised:
        await connections.add_address(world.db, person.actor, AddressDraft(email="one@example.com"), mailing=True)
    assert raised.value.code == "too_many_channels"
    with pytest.raises(TooMany):
        await links.issue_link_code(world.db, person.actor)


@pytest.mark.proves("D.134")
async def test_what_is_only_claimed_is_nobodys_way_in(world: World) -> None:
    """A message from an address that somebody only claims makes a guest; whoever then proves it takes its place."""
    invited = await invite(world)
    inbound = InboundMessage(external_user_id=BEA, agent="deployer", text="Hello")
    first = await sessions.ingest_message(world.db, world.service.actor, invited.mapping.connection_id, inbound)
    assert first.user_account_id != invited.member.id
    await connections.verify_address(world.db, await code_for(world, invited.mapping.id), None)
    second = await sessions.ingest_message(world.db, world.service.actor, invited.mapping.connection_id, inbound)
    assert second.user_account_id == invited.member.id
    assert second.session_id != first.session_id
