"""Out of office: who may say so, for whom, and what is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.verbs import approvals
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Absence, AbsenceDraft, AbsenceStatus, MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def id_of(person: Person) -> UUID:
    assert person.actor.user_account_id is not None
    return person.actor.user_account_id


async def away(world: World, who: Person, to: Person, first: int = 0, last: int = 5, **more: Any) -> Absence:
    draft = AbsenceDraft(delegate_id=id_of(to), starts_at=NOW + first * DAY, ends_at=NOW + last * DAY, **more)
    return await orgs.create_absence(world.db, who.actor, draft)


@pytest.fixture
async def clock(admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, NOW)


async def seen_by(world: World, actor: Actor, **more: Any) -> list[Absence]:
    return (await orgs.list_absences(world.db, actor, None, 50, **more)).items


@pytest.mark.proves("D.180")
async def test_an_absence_is_planned_then_current_then_over(world: World, clock: Clock) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    made = await away(world, pat, world.admin, 1, 3, reason="the sea")
    assert (made.member, made.delegate, made.reason, made.created_by) == ("Pat", "Ada", "the sea", "Pat")
    assert made.status is AbsenceStatus.PLANNED
    for days, status in ((1, AbsenceStatus.CURRENT), (3, AbsenceStatus.OVER)):
        await clock.set(NOW + days * DAY)
        assert (await orgs.get_absence(world.db, pat.actor, made.id)).status is status
    assert await seen_by(world, pat.actor, only_open=True) == []
    with pytest.raises(Conflict) as over:
        await orgs.cancel_absence(world.db, pat.actor, made.id)
    assert over.value.code == "absence_over"


@pytest.mark.proves("D.180")
async def test_each_is_on_the_trail_and_cancelled_once(world: World, clock: Clock) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    made = await away(world, pat, world.admin)
    cancelled = await orgs.cancel_absence(world.db, pat.actor, made.id)
    assert (cancelled.status, cancelled.cancelled_at) == (AbsenceStatus.CANCELLED, NOW)
    assert await orgs.cancel_absence(world.db, pat.actor, made.id) == cancelled
    entries = await audit.list_entries(world.db, world.admin.actor, None, 0, 100)
    told = [(e.action, (e.body or {})["data"]) for e in entries if e.action.startswith("absence_")]
    assert [action for action, _ in told] == ["absence_added", "absence_cancelled"]
    assert (told[0][1]["name"], told[0][1]["delegate_name"]) == ("Pat", "Ada")
    again = await away(world, pat, world.admin)
    assert again.id != made.id, "the time is free again"


@pytest.mark.proves("D.180")
async def test_for_others_it_takes_an_admin(world: World, clock: Clock, admin: asyncpg.Connection) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    olga = await world.person(Role.OPERATOR, name="Olga")
    guest = await world.person(Role.GUEST, name="Gus")
    before = await digests(admin)
    for person in (pat, olga):
        with pytest.raises(Forbidden):
            await away(world, person, olga, member_id=id_of(world.admin))
    with pytest.raises(Forbidden):
        await away(world, guest, pat)
    with pytest.raises(InvalidInput, match="nobody who could be absent"):
        await away(world, world.service, pat)
    assert await digests(admin) == before
    made = await away(world, world.admin, olga, member_id=id_of(pat))
    assert (made.member, made.created_by) == ("Pat", "Ada")
    assert [a.id for a in await seen_by(world, pat.actor)] == [made.id]
    assert [a.id for a in await seen_by(world, olga.actor)] == [made.id], "staff see everybody's"
    with pytest.raises(Forbidden):
        await orgs.cancel_absence(world.db, olga.actor, made.id)
    other = await world.person(Role.MEMBER, name="Quinn")
    assert await seen_by(world, other.actor) == []
    assert await seen_by(world, other.actor, member_id=id_of(pat)) == []
    for act in (orgs.get_absence, orgs.cancel_absence):
        with pytest.raises(NotFound):
            await act(world.db, other.actor, made.id)
    assert (await orgs.cancel_absence(world.db, world.admin.actor, made.id)).cancelled_at == NOW


@pytest.mark.proves("D.180")
async def test_who_cannot_stand_in_is_refused_and_nothing_changes(
    world: World, clock: Clock, admin: asyncpg.Connection
) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    guest = await world.person(Role.GUEST, name="Gus")
    gone = await world.person(Role.APPROVER, name="Gone")
    await orgs.update_member(world.db, world.admin.actor, id_of(gone), MemberChange(active=False), None)
    before = await digests(admin)
    for who in (id_of(guest), id_of(gone), new_id()):
        with pytest.raises(NotFound) as unknown:
            await orgs.create_absence(world.db, pat.actor, AbsenceDraft(delegate_id=who, ends_at=NOW + DAY))
        assert unknown.value.code == "delegate_unknown"
    for whom in (id_of(guest), id_of(gone), new_id()):
        with pytest.raises(NotFound) as missing:
            await away(world, world.admin, pat, member_id=whom)
        assert missing.value.code == "member_not_found"
    with pytest.raises(InvalidInput) as oneself:
        await away(world, pat, pat)
    assert oneself.value.code == "delegate_is_self"
    assert await digests(admin) == before


@pytest.mark.proves("D.181")
async def test_absences_of_one_person_do_not_overlap(world: World, clock: Clock) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    await away(world, pat, world.admin, 2, 4)
    for first, last in ((0, 3), (3, 5), (2, 4), (0, 9), (3, 4)):
        with pytest.raises(Conflict) as refused:
            await away(world, pat, world.admin, first, last)
        assert refused.value.code == "absence_overlap"
    await away(world, pat, world.admin, 0, 2)
    await away(world, pat, world.admin, 4, 5)


@pytest.mark.proves("D.181")
async def test_a_circle_of_absences_is_refused(world: World, clock: Clock) -> None:
    pat, quinn = [await world.person(Role.MEMBER, name=name) for name in ("Pat", "Quinn")]
    await away(world, pat, quinn, 0, 5)
    await away(world, quinn, world.admin, 3, 8)
    with pytest.raises(Conflict) as refused:
        await away(world, world.admin, pat, 4, 6)
    assert refused.value.code == "absence_cycle"
    made = await away(world, world.admin, pat, 5, 6)
    await orgs.cancel_absence(world.db, world.admin.actor, made.id)
    theirs = (await seen_by(world, quinn.actor))[0]
    await orgs.cancel_absence(world.db, quinn.actor, theirs.id)
    await away(world, world.admin, pat, 0, 9)


@pytest.mark.proves("D.181")
async def test_people_who_leave_at_the_same_instant_never_close_a_circle(world: World, clock: Clock) -> None:
    people = [await world.person(Role.MEMBER, name=f"P{n}") for n in range(6)]
    ring = [(who, people[(n + 1) % 6]) for n, who in enumerate(people)]
    made = await asyncio.gather(*(away(world, who, to) for who, to in ring), return_exceptions=True)
    refused = [each for each in made if isinstance(each, BaseException)]
    assert [each.code for each in refused if isinstance(each, CortexError)] == ["absence_cycle"]
    assert len(refused) == 1
    twice = [away(world, world.admin, people[0], 10 + n, 15) for n in range(4)]
    results = await asyncio.gather(*twice, return_exceptions=True)
    assert sorted(getattr(each, "code", "made") for each in results) == ["absence_overlap"] * 3 + ["made"]


async def test_a_repeated_request_makes_one(world: World, clock: Clock) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    draft = AbsenceDraft(delegate_id=id_of(world.admin), ends_at=NOW + DAY)
    once = IdempotencyKey(key="k", fingerprint=bytes(32))
    made = [await orgs.create_absence(world.db, pat.actor, draft, once) for _ in range(2)]
    assert made[0] == made[1]


async def test_colleagues_are_found_by_their_whole_name(world: World) -> None:
    pat = await world.person(Role.MEMBER, name="Pat")
    twins = [await world.person(Role.MEMBER, name="Kim") for _ in range(2)]
    await world.person(Role.GUEST, name="Gus")
    everybody = await approvals.list_delegates(world.db, pat.actor)
    assert [each.display_name for each in everybody] == ["Ada", "Kim", "Kim"]
    found = await approvals.list_delegates(world.db, pat.actor, name="Kim")
    assert {each.id for each in found} == {id_of(twin) for twin in twins}
    assert await approvals.list_delegates(world.db, pat.actor, name="Ki") == []
    guest = await world.person(Role.GUEST, name="Guest")
    with pytest.raises(Forbidden):
        await approvals.list_delegates(world.db, guest.actor)
