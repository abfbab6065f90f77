"""Sessions that are found by the id that the agent's own world gave them."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.jobs import store as jobs_store
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


@pytest.mark.proves("D.934")
async def test_what_models_took_elsewhere_is_counted_and_spends_no_budget(
    http: httpx.AsyncClient, world: World
) -> None:
    session = await opened(http, world.service)
    (job,) = (await http.get("/v1/jobs", params={"session_id": session["id"]}, headers=world.admin.headers)).json()[
        "items"
    ]
    body = {"model": "anthropic:claude-sonnet-4-5", "prompt_tokens": 1000, "completion_tokens": 20, "cost_micros": 7}
    path = f"/v1/sessions/{session['id']}/usage"
    for _ in range(2):
        headers = {**world.service.headers, "Idempotency-Key": "turn-1"}
        answer = await http.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["calls"], answer.json()["prompt_tokens"]) == (201, 1, 1000)
    await http.post(path, json=body | {"cost_micros": None}, headers=world.service.headers)
    for query in ({"by": "agent"}, {"by": "model"}, {"by": "job", "job_id": job["id"]}):
        (row,) = (await http.get("/v1/usage", params=query, headers=world.admin.headers)).json()["items"]
        assert (row["calls"], row["completion_tokens"], row["cost_micros"], row["unpriced_calls"]) == (2, 40, 7, 1)
    async with world.db.transaction(world.org_id) as tx:
        spent = await tx.row(jobs_store.queries.spent_today, world.agent.id)
    assert spent is not None
    assert spent["tokens"] == 0
    pat = await world.person(Role.MEMBER)
    assert (await http.post(path, json=body, headers=pat.headers)).status_code == 404
    assert (await http.post(path, json=body | {"prompt_tokens": -1}, headers=world.service.headers)).status_code == 422
    plain = await http.post("/v1/sessions", json={"agent": "deployer"}, headers=world.service.headers)
    refused = await http.post(f"/v1/sessions/{plain.json()['id']}/usage", json=body, headers=world.service.headers)
    assert refused.json()["code"] == "not_external"


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
