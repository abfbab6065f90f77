"""Login links and browser sessions: used once, by one person, and over when they should be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Forbidden, Unauthenticated
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import ActorKind, form_token, is_form_token, secret_digest
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import logins, orgs
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, with_key
from tests.fixtures.servers import CREDENTIAL_KEY

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


async def token_for(world: World, person: Person) -> str:
    link = await logins.issue_own_login_link(world.db, person.actor)
    return link.url_path.removeprefix("/login/")


async def refused(db: Database, secret: str) -> str:
    with pytest.raises(Unauthenticated) as raised:
        await logins.authenticate_session(db, secret)
    assert "cortex member login-link" in raised.value.hint
    return raised.value.code


async def org_actions(world: World) -> list[str]:
    return [entry.action for entry in await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)]


@pytest.mark.proves("D.70")
async def test_a_link_logs_its_member_in_once(world: World, admin: asyncpg.Connection) -> None:
    person = await world.person(Role.APPROVER, name="Grace", clearance=7)
    token = await token_for(world, person)
    assert await logins.link_holder(world.db, token) == "Grace"
    assert await logins.link_holder(world.db, token), "looking at a link does not use it up"
    secret = await logins.log_in(world.db, token)
    actor = await logins.authenticate_session(world.db, secret)
    assert (actor.kind, actor.name, actor.clearance) == (ActorKind.PERSON, "Grace", 7)
    assert (actor.org_id, actor.user_account_id) == (world.org_id, person.actor.user_account_id)
    assert actor.roles == {Role.APPROVER}
    assert not actor.platform
    assert await logins.link_holder(world.db, token) is None
    with pytest.raises(Unauthenticated, match="was used already") as raised:
        await logins.log_in(world.db, token)
    assert raised.value.code == "login_link_invalid"
    kept = await admin.fetchrow("select l.secret_hash, s.secret_hash from login_link l, browser_session s")
    assert [*kept] == [CREDENTIAL_KEY.lookup(secret_digest(each)) for each in (token, secret)]
    assert (await org_actions(world))[-2:] == ["login_link_created", "logged_in"]


@pytest.mark.proves("D.70")
async def test_two_who_use_one_link_at_once_get_one_session(world: World, admin: asyncpg.Connection) -> None:
    for _ in range(10):
        token = await token_for(world, world.admin)
        results = await asyncio.gather(*(logins.log_in(world.db, token) for _ in range(4)), return_exceptions=True)
        assert len([secret for secret in results if isinstance(secret, str)]) == 1
        assert len([error for error in results if isinstance(error, Unauthenticated)]) == 3
    assert await admin.fetchval("select count(*) from browser_session") == 10


@pytest.mark.proves("D.70")
async def test_what_is_no_link_is_answered_as_a_used_one(world: World) -> None:
    used = await token_for(world, world.admin)
    await logins.log_in(world.db, used)
    said = set()
    for wrong in (used, used[:-1] + ("A" if used[-1] != "A" else "B"), "", "x", "cortex_login_" + "\x00" * 43):
        with pytest.raises(Unauthenticated) as raised:
            await logins.log_in(world.db, wrong)
        said.add((raised.value.code, raised.value.message, raised.value.hint))
    assert len(said) == 1


@pytest.mark.proves("D.70")
async def test_links_and_sessions_end_in_time(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    late = await token_for(world, world.admin)
    token = await token_for(world, world.admin)
    await clock.advance(timedelta(minutes=14, seconds=59))
    secret = await logins.log_in(world.db, token)
    await clock.advance(timedelta(seconds=1))
    with pytest.raises(Unauthenticated):
        await logins.log_in(world.db, late)
    for _ in range(14):  # somebody who visits every eleven hours
        await clock.advance(timedelta(hours=11))
        await logins.authenticate_session(world.db, secret)
    await clock.set(START + timedelta(minutes=14, seconds=59, days=7))
    assert await refused(world.db, secret) == "browser_session_ended"

    other = await logins.log_in(world.db, await token_for(world, world.admin))
    await clock.advance(timedelta(hours=12))
    assert await refused(world.db, other) == "browser_session_ended"
    await logins.log_in(world.db, await token_for(world, world.admin))
    assert await admin.fetchval("select count(*) from browser_session") == 1, "what is over is forgotten"


async def test_what_a_page_asks_for_by_itself_is_no_visit(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    secret = await logins.log_in(world.db, await token_for(world, world.admin))
    for _ in range(11):  # a tab that somebody left open
        await clock.advance(timedelta(hours=1))
        await logins.authenticate_session(world.db, secret, touch=False)
    await clock.advance(timedelta(hours=1))
    assert await refused(world.db, secret) == "browser_session_ended"


async def test_a_session_that_another_takes_the_place_of_is_over(world: World) -> None:
    first = await logins.log_in(world.db, await token_for(world, world.admin))
    second = await logins.log_in(world.db, await token_for(world, world.admin))
    for _ in range(2):
        await logins.end_sessions(world.db, first)
    await logins.end_sessions(world.db, "")
    assert await refused(world.db, first) == "browser_session_ended"
    await logins.authenticate_session(world.db, second)
    assert (await org_actions(world)).count("logged_out") == 1


async def test_a_visit_is_written_down_at_most_once_a_minute(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    secret = await logins.log_in(world.db, await token_for(world, world.admin))
    seen = "select xmin::text, last_seen_at from browser_session"
    first = await admin.fetchrow(seen)
    await clock.advance(timedelta(seconds=59))
    await logins.authenticate_session(world.db, secret)
    assert await admin.fetchrow(seen) == first
    await clock.advance(timedelta(seconds=2))
    await logins.authenticate_session(world.db, secret)
    assert (await admin.fetchrow(seen))["last_seen_at"] == START + timedelta(seconds=61)


@pytest.mark.proves("D.71")
async def test_roles_and_clearance_are_those_of_the_moment(world: World) -> None:
    person = await world.person(Role.ADMIN, clearance=9)
    secret = await logins.log_in(world.db, await token_for(world, person))
    id = person.actor.user_account_id
    assert id is not None
    await orgs.update_member(world.db, world.admin.actor, id, MemberChange(roles=[Role.GUEST], clearance=1), None)
    actor = await logins.authenticate_session(world.db, secret)
    assert actor.roles == {Role.GUEST}
    assert actor.clearance == 1


@pytest.mark.proves("D.71")
async def test_a_deactivated_member_is_logged_out_for_good(world: World, admin: asyncpg.Connection) -> None:
    person = await world.person(Role.MEMBER)
    id = person.actor.user_account_id
    assert id is not None
    secret = await logins.log_in(world.db, await token_for(world, person))
    unused = await token_for(world, person)
    await orgs.update_member(world.db, world.admin.actor, id, MemberChange(active=False), None)
    assert await refused(world.db, secret) == "browser_session_ended"
    with pytest.raises(Unauthenticated):
        await logins.log_in(world.db, unused)
    await orgs.update_member(world.db, world.admin.actor, id, MemberChange(active=True), None)
    assert await refused(world.db, secret) == "browser_session_ended", "a session does not come back"
    # Also where somebody was deactivated behind the plane's back.
    returned = await with_key(world.db, world.org_id, id)
    again = await logins.log_in(world.db, await token_for(world, returned))
    await admin.execute("update user_account set deactivated_at = now() where id = $1", id)
    assert await refused(world.db, again) == "browser_session_ended"


@pytest.mark.proves("D.71")
async def test_logging_out_ends_this_session_and_no_other(world: World) -> None:
    first = await logins.log_in(world.db, await token_for(world, world.admin))
    second = await logins.log_in(world.db, await token_for(world, world.admin))
    actor = await logins.authenticate_session(world.db, first)
    await logins.log_out(world.db, actor)
    await logins.log_out(world.db, actor)
    assert await refused(world.db, first) == "browser_session_ended"
    await logins.authenticate_session(world.db, second)
    assert (await org_actions(world)).count("logged_out") == 1


async def test_people_make_links_for_themselves_and_programs_for_nobody(world: World) -> None:
    person = await world.person(Role.MEMBER, name="Mel")
    secret = await logins.log_in(world.db, await token_for(world, person))
    assert (await logins.authenticate_session(world.db, secret)).name == "Mel"
    entered = (await audit.list_entries(world.db, world.admin.actor, None, 0, 1000))[-1]
    assert entered.action == "logged_in"
    assert entered.body is not None
    assert entered.body["data"]["issued_by"] == "Mel"
    program = replace(world.service.actor, roles=frozenset({Role.ADMIN}))
    for actor in (program, world.service.actor):
        with pytest.raises(Forbidden, match="Only a person"):
            await logins.issue_own_login_link(world.db, actor)


@pytest.mark.parametrize("wrong", ["", "x", "cortex_session_", "cortex_session_" + "a" * 43, "\x00", "é" * 58])
async def test_a_cookie_of_nobody_is_nobody(world: World, wrong: str) -> None:
    assert await refused(world.db, wrong) == "browser_session_ended"


def test_a_form_token_belongs_to_its_session() -> None:
    mine, yours = "cortex_session_" + "a" * 43, "cortex_session_" + "b" * 43
    assert is_form_token(mine, form_token(mine))
    assert not is_form_token(mine, form_token(yours))
    assert not is_form_token(mine, "")
    assert not is_form_token(mine, "é")
    assert mine not in form_token(mine)
