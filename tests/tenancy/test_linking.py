"""A code that is read in one place and typed in another makes its sender the member's: once, soon, and not by guessing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, TooMany
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import (
    ALPHABET,
    MAX_WRONG,
    ConnectionChange,
    LinkDraft,
    Mapping,
    read_code,
    shown_code,
)
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import connections, links, orgs
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


async def redeem(world: World, code: str, sender: str = "u-1", by: Person | None = None) -> Mapping:
    draft = LinkDraft(code=code, external_user_id=sender)
    return await links.redeem_link_code(world.db, (by or world.service).actor, world.connection.id, draft)


async def refused(world: World, code: str, sender: str = "u-1") -> str:
    with pytest.raises(CortexError) as raised:
        await redeem(world, code, sender)
    assert raised.value.hint
    return raised.value.code


async def code_of(world: World, person: Person) -> str:
    return (await links.issue_link_code(world.db, person.actor)).code


async def actions(world: World) -> list[str]:
    return [entry.action for entry in await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)]


def member_of(person: Person) -> UUID:
    assert person.actor.user_account_id is not None
    return person.actor.user_account_id


@pytest.mark.proves("D.135")
async def test_a_code_makes_whoever_types_it_the_member(world: World, admin: asyncpg.Connection) -> None:
    person = await world.person(Role.APPROVER, name="Grace")
    issued = await links.issue_link_code(world.db, person.actor)
    kept = await admin.fetchval("select identity_code::text from identity_code")
    assert issued.code.replace("-", "") not in kept
    mapping = await redeem(world, issued.code, "grace-on-web")
    assert (mapping.user_account_id, mapping.channel_user_id) == (member_of(person), "grace-on-web")
    assert mapping.verified_at is not None
    assert (await actions(world))[-2:] == ["link_code_created", "identity_linked"]
    assert (await world.say("Hello", "grace-on-web")).user_account_id == member_of(person)
    (own,) = (await connections.list_own_mappings(world.db, person.actor, None, 10)).items
    assert (own.last_used_at is not None, replace(own, last_used_at=None)) == (True, mapping)
    before = await digests(admin)
    with pytest.raises(InvalidInput):
        await redeem(world, issued.code, "somebody-else")
    changed = {table for table, digest in (await digests(admin)).items() if before[table] != digest}
    assert changed == {"identity_guess"}, "nothing but the try itself is written down"


@pytest.mark.proves("D.135")
async def test_a_guests_sender_and_conversation_become_the_members_and_the_account_stays(
    world: World, admin: asyncpg.Connection
) -> None:
    as_guest = await world.say("Hello", "u-9")
    person = await world.person(Role.MEMBER, name="Mel")
    await redeem(world, await code_of(world, person), "u-9")
    as_member = await world.say("Hello again", "u-9")
    assert as_member.user_account_id == member_of(person)
    assert as_member.session_id == as_guest.session_id
    assert as_guest.user_account_id is not None
    guest = await orgs.get_member(world.db, world.admin.actor, as_guest.user_account_id)
    assert guest.roles == [Role.GUEST]
    assert (await orgs.list_member_mappings(world.db, world.admin.actor, guest.id, None, 10)).items == []
    assert await admin.fetchval("select count(*) from channel_mapping") == 2, "what the session came over is kept"


@pytest.mark.proves("D.135")
async def test_a_sender_of_another_member_is_not_taken_from_them(world: World, admin: asyncpg.Connection) -> None:
    first, second = await world.person(Role.MEMBER, name="One"), await world.person(Role.MEMBER, name="Two")
    await redeem(world, await code_of(world, first), "u-1")
    code = await code_of(world, second)
    before = await digests(admin)
    assert await refused(world, code, "u-1") == "identity_taken"
    assert await digests(admin) == before
    assert (await redeem(world, code, "u-2")).user_account_id == member_of(second), "the code was not used up"
    again = await redeem(world, await code_of(world, first), "u-1")
    assert again.user_account_id == member_of(first), "linking what is linked changes nothing"
    assert len((await connections.list_own_mappings(world.db, first.actor, None, 10)).items) == 1


@pytest.mark.proves("D.136")
async def test_codes_that_are_old_replaced_foreign_or_wrong_do_not_work(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    person = await world.person(Role.MEMBER)
    old = await code_of(world, person)
    new = await code_of(world, person)
    assert await refused(world, old, "a") == "link_code_invalid", "only the newest works"
    for number, wrong in enumerate(("", "x", new[:-1], new + "0", "U" * 10, "٣" * 10, "\u202e" + new[1:])):
        if not wrong:
            continue
        assert await refused(world, wrong, f"b{number}") == "link_code_invalid"
    foreign = await code_of(other, await other.person(Role.MEMBER))
    assert await refused(world, foreign, "c") == "link_code_invalid"
    await clock.advance(timedelta(minutes=10))
    assert await refused(world, new, "d") == "link_code_invalid"
    last = await code_of(world, person)
    await orgs.update_member(world.db, world.admin.actor, member_of(person), MemberChange(active=False), None)
    assert await refused(world, last, "e") == "link_code_invalid"


@pytest.mark.proves("D.136")
async def test_guessing_is_stopped_for_the_sender_who_guesses_and_for_nobody_else(
    world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    person = await world.person(Role.MEMBER)
    code = await code_of(world, person)
    for _ in range(MAX_WRONG):
        assert await refused(world, "0000000000", "guesser") == "link_code_invalid"
    with pytest.raises(TooMany) as raised:
        await redeem(world, code, "guesser")
    assert raised.value.code == "too_many_codes", "not even with the right one"
    assert (await redeem(world, code, "honest")).channel_user_id == "honest"
    await clock.advance(timedelta(minutes=10))
    assert (await redeem(world, await code_of(world, person), "guesser")).verified_at is not None
    await refused(world, "0000000000", "another")
    assert await admin.fetchval("select count(*) from identity_guess") == 1, "what is over is forgotten"


@pytest.mark.proves("D.136")
async def test_a_code_typed_in_two_places_at_once_works_in_one(world: World) -> None:
    person = await world.person(Role.MEMBER)
    code = await code_of(world, person)
    tries = await asyncio.gather(*(redeem(world, code, f"u-{n}") for n in range(6)), return_exceptions=True)
    assert sum(isinstance(each, Mapping) for each in tries) == 1
    assert sum(isinstance(each, InvalidInput) for each in tries) == 5
    assert len((await connections.list_own_mappings(world.db, person.actor, None, 10)).items) == 1


async def test_a_first_message_and_a_code_of_the_same_sender_take_turns(world: World) -> None:
    person = await world.person(Role.MEMBER)
    code = await code_of(world, person)
    said = [world.say("Hello", "u-7") for _ in range(3)]
    await asyncio.gather(redeem(world, code, "u-7"), *said)
    assert (await world.say("Hello", "u-7")).user_account_id == member_of(person)


async def test_only_members_have_codes_and_only_programs_redeem_them(world: World) -> None:
    for actor in (world.service.actor, (await world.person(Role.GUEST)).actor):
        with pytest.raises(Forbidden):
            await links.issue_link_code(world.db, actor)
    with pytest.raises(Forbidden):
        await redeem(world, "0000000000", by=world.admin)
    with pytest.raises(NotFound):
        await links.redeem_link_code(
            world.db, world.service.actor, new_id(), LinkDraft(code="0000000000", external_user_id="u")
        )
    code = await code_of(world, await world.person(Role.MEMBER))
    off = ConnectionChange(enabled=False)
    await connections.update_connection(world.db, world.admin.actor, world.connection.id, off, None)
    with pytest.raises(Conflict, match="disabled"):
        await redeem(world, code)


@pytest.mark.proves("D.137")
async def test_what_is_given_up_is_a_strangers_and_its_history_stays(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    person = await world.person(Role.MEMBER, name="Mel")
    mapping = await redeem(world, await code_of(world, person), "u-5")
    before = await world.say("Hello", "u-5")
    for foreign in (world.admin, other.admin):
        with pytest.raises(NotFound) as raised:
            await connections.unlink_own(world.db, foreign.actor, mapping.id)
        assert raised.value.code == "mapping_not_found"
    await connections.unlink_own(world.db, person.actor, mapping.id)
    with pytest.raises(NotFound):
        await connections.unlink_own(world.db, person.actor, mapping.id)
    assert (await connections.list_own_mappings(world.db, person.actor, None, 10)).items == []
    stranger = await world.say("Hello?", "u-5")
    assert stranger.user_account_id not in (before.user_account_id, member_of(person))
    origin = await admin.fetchval("select origin_channel_mapping_id from session where id = $1", before.session_id)
    assert origin == mapping.id
    again = await redeem(world, await code_of(world, person), "u-5")
    assert again.id != mapping.id
    assert (await actions(world)).count("identity_unlinked") == 1


async def test_admins_take_a_lost_channel_from_its_member(world: World) -> None:
    person = await world.person(Role.MEMBER)
    mapping = await redeem(world, await code_of(world, person))
    with pytest.raises(Forbidden):
        await connections.unlink_member(world.db, person.actor, member_of(person), mapping.id)
    with pytest.raises(NotFound):
        await connections.unlink_member(world.db, world.admin.actor, member_of(world.admin), mapping.id)
    await connections.unlink_member(world.db, world.admin.actor, member_of(person), mapping.id)
    assert (await connections.list_own_mappings(world.db, person.actor, None, 10)).items == []


def test_a_code_is_read_however_it_is_typed() -> None:
    code = "A1B2C3D4E0"
    for typed in (shown_code(code), "a1b2c 3d4e0", " A1B2C-3D4E0\n", "aib2c–3d4eo", "A1B2C3D4EO"):
        assert read_code(typed) == code
    for wrong in ("", "A1B2C3D4E", "A1B2C3D4E00", "U1B2C3D4E0", "A1B2C3D4Eé", "A1B2C3D4E\u0660"):
        assert read_code(wrong) is None
    assert len(ALPHABET) == 32
