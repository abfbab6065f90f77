"""The state of a run elsewhere, which the plane keeps for whichever process goes on with it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.sessions.model.sessions import MAX_STATE_BYTES
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import Role
from tests.calls.test_outside_sessions import opened
from tests.fixtures.people import Person, World, with_key


async def save(
    http: httpx.AsyncClient, person: Person, session: str, text: str | None, replaces: int
) -> httpx.Response:
    body = {"text": text, "replaces": replaces}
    return await http.put(f"/v1/sessions/{session}/state", json=body, headers=person.headers)


async def read(http: httpx.AsyncClient, person: Person, session: str) -> httpx.Response:
    return await http.get(f"/v1/sessions/{session}/state", headers=person.headers)


def shown(answer: httpx.Response) -> tuple[int, str | None]:
    assert answer.status_code == 200, answer.text
    state: dict[str, Any] = answer.json()
    return state["version"], state["text"]


@pytest.mark.proves("D.1003")
async def test_each_write_replaces_the_version_that_was_read(http: httpx.AsyncClient, world: World) -> None:
    service = world.service
    session = (await opened(http, service))["id"]
    assert shown(await read(http, service, session)) == (0, None)
    early = await save(http, service, session, "from nowhere", 1)
    assert (early.status_code, early.json()["code"]) == (409, "state_changed")
    # Two processes that begin at once: one of them was first.
    answers = await asyncio.gather(*(save(http, service, session, f"run {n}", 0) for n in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    (first,) = [answer for answer in answers if answer.status_code == 200]
    assert shown(first) == (1, first.json()["text"])
    assert shown(await read(http, service, session)) == shown(first)
    # Where no run waits any more its number stays, so an old process overwrites no new run.
    assert shown(await save(http, service, session, None, 1)) == (2, None)
    assert shown(await save(http, service, session, "another run", 2)) == (3, "another run")
    assert (await save(http, service, session, "the old run", 1)).status_code == 409
    assert shown(await read(http, service, session)) == (3, "another run")


@pytest.mark.proves("D.1004")
async def test_only_the_opener_saves_and_whoever_sees_the_session_reads(http: httpx.AsyncClient, world: World) -> None:
    opener, stranger = await world.person(Role.MEMBER), await world.person(Role.MEMBER)
    session = (await opened(http, opener))["id"]
    again = await with_key(world.db, world.org_id, opener.member_id, "another key")
    assert shown(await save(http, again, session, "mine", 0)) == (1, "mine")
    for person, status in ((stranger, 404), (world.service, 404), (world.admin, 403)):
        assert (await save(http, person, session, "theirs", 1)).status_code == status
    assert shown(await read(http, world.admin, session)) == (1, "mine")
    assert (await read(http, stranger, session)).status_code == 404
    conversation = await world.say()
    answer = await save(http, world.service, str(conversation.session_id), "x", 0)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_external")


@pytest.mark.proves("D.1003")
async def test_a_mebibyte_fits_and_the_text_comes_back_as_it_was(http: httpx.AsyncClient, world: World) -> None:
    session = (await opened(http, world.service))["id"]
    # Each quote and backslash takes two bytes on the way.
    text = '"\\' * (MAX_STATE_BYTES // 2)
    assert shown(await save(http, world.service, session, text, 0)) == (1, text)
    for refused in (text + "x", "ä" * (MAX_STATE_BYTES // 2 + 1), "", "\x00"):
        assert (await save(http, world.service, session, refused, 1)).status_code in (413, 422)
    assert shown(await read(http, world.service, session)) == (1, text)


@pytest.mark.proves("D.1004")
async def test_it_ends_with_its_session_and_a_changed_one_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    service = world.service
    session = (await opened(http, service))["id"]
    await save(http, service, session, "a run", 0)
    await admin.execute("update session_state set text = 'approved by nobody'")
    forged = await read(http, service, session)
    assert (forged.status_code, forged.json()["code"]) == (409, "state_forged")
    await admin.execute("update session_state set text = 'a run'")
    assert shown(await read(http, service, session)) == (1, "a run")
    url = f"/v1/sessions/{session}/terminate"
    assert (await http.post(url, json={}, headers=world.admin.headers)).status_code == 200
    assert await admin.fetchval("select count(*) from session_state") == 0
    assert shown(await read(http, service, session)) == (0, None)
    late = await save(http, service, session, "late", 0)
    assert (late.status_code, late.json()["code"]) == (409, "session_terminated")


@pytest.mark.proves("D.1107")
@pytest.mark.parametrize("more", [{}, {"outside_id": "thread 1"}])
async def test_the_person_for_whom_a_service_works_reads_and_does_not_save(
    http: httpx.AsyncClient, world: World, more: dict[str, str]
) -> None:
    service = await world.service_with(Role.MEMBER, permissions=[Grantable.SESSION_ON_BEHALF])
    pat = await world.person(Role.MEMBER)
    body = {"agent": "deployer", "kind": "external", "on_behalf_of": str(pat.member_id), **more}
    session = (await http.post("/v1/sessions", json=body, headers=service.headers)).json()["id"]
    assert (await save(http, pat, session, "theirs", 0)).status_code == 403
    assert shown(await save(http, service, session, "a run", 0)) == (1, "a run")
    assert (await save(http, pat, session, "theirs", 1)).status_code == 403
    assert shown(await read(http, pat, session)) == (1, "a run")
