"""Sessions that are found by the id that the agent's own world gave them."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import Person, World, with_key
from tests.fixtures.waits import lock_waiters

THREAD = "thread:7f/Ärger"


async def opened(
    http: httpx.AsyncClient, person: Person, outside_id: str = THREAD, *, status: int = 201, **more: Any
) -> dict[str, Any]:
    body = {"agent": "deployer", "kind": "external", "outside_id": outside_id, **more}
    answer = await http.post("/v1/sessions", json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def listed(http: httpx.AsyncClient, person: Person, outside_id: str = THREAD) -> list[str]:
    answer = await http.get("/v1/sessions", params={"outside_id": outside_id}, headers=person.headers)
    return [session["id"] for session in answer.json()["items"]]


@pytest.mark.proves("D.930")
async def test_the_open_session_of_an_outside_id_is_found_until_it_ends(http: httpx.AsyncClient, world: World) -> None:
    service = world.service
    first = await opened(http, service)
    assert first["outside_id"] == THREAD
    assert (await opened(http, service))["id"] == first["id"]
    other = await opened(http, service, "another thread")
    assert other["id"] != first["id"]
    assert await listed(http, service) == [first["id"]]
    await http.post(f"/v1/sessions/{first['id']}/complete", json={}, headers=service.headers)
    second = await opened(http, service)
    assert second["id"] != first["id"]
    # An operator cancels its job, which leaves the session itself open.
    jobs = await http.get("/v1/jobs", params={"session_id": second["id"]}, headers=world.admin.headers)
    (job,) = jobs.json()["items"]
    assert (await http.post(f"/v1/jobs/{job['id']}/cancel", json={}, headers=world.admin.headers)).status_code == 200
    third = await opened(http, service)
    assert third["id"] not in (first["id"], second["id"])
    ended = await http.get(f"/v1/sessions/{second['id']}", headers=service.headers)
    assert ended.json()["status"] == "TERMINATED"
    assert await listed(http, service) == [third["id"], second["id"], first["id"]]


@pytest.mark.proves("D.930")
async def test_all_who_open_it_at_once_get_one_session(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    async with admin.transaction(), asyncio.timeout(30):
        # Whoever looks finds none; whoever inserts waits.
        await admin.execute("lock table session in share mode")
        openers = [asyncio.create_task(opened(http, world.service)) for _ in range(4)]
        while True:
            if await lock_waiters(admin, "insert into session ") == len(openers):
                break
            await asyncio.sleep(0)
    sessions = await asyncio.gather(*openers)
    assert len({session["id"] for session in sessions}) == 1
    jobs = await http.get("/v1/jobs", params={"session_id": sessions[0]["id"]}, headers=world.admin.headers)
    assert len(jobs.json()["items"]) == 1


@pytest.mark.proves("D.930")
async def test_another_identity_gets_a_session_of_its_own(http: httpx.AsyncClient, world: World) -> None:
    pat = await world.person(Role.MEMBER)
    mine, theirs = await opened(http, world.service), await opened(http, pat)
    staff = await opened(http, world.admin)
    assert len({mine["id"], theirs["id"], staff["id"]}) == 3
    # A person is the same with another key; a service is its key.
    again = await with_key(world.db, world.org_id, pat.member_id, "another key")
    assert (await opened(http, again))["id"] == theirs["id"]
    assert (await opened(http, await world.service_with(Role.MEMBER)))["id"] not in (mine["id"], theirs["id"])


@pytest.mark.parametrize(
    "body", [{"kind": "programmatic"}, {"outside_id": ""}, {"outside_id": "x" * 256}, {"outside_id": "a\nb"}]
)
@pytest.mark.proves("D.930")
async def test_outside_ids_are_for_external_sessions_and_bounded(
    http: httpx.AsyncClient, world: World, body: dict[str, Any]
) -> None:
    draft = {"agent": "deployer", "kind": "external", "outside_id": "t", **body}
    answer = await http.post("/v1/sessions", json=draft, headers=world.service.headers)
    assert answer.status_code == 422
    assert await listed(http, world.admin, "t") == []
