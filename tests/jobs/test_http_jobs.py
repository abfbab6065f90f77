from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from tests.fixtures.people import World
from tests.fixtures.rows import digests


async def _submit(http: httpx.AsyncClient, world: World, **draft: Any) -> dict[str, Any]:
    answer = await http.post("/v1/jobs", json={"agent": "deployer", **draft}, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.mark.proves("S2.10")
async def test_a_job_opens_a_session_or_joins_one(http: httpx.AsyncClient, world: World) -> None:
    job = await _submit(http, world, payload={"task": "deploy", "deep": {"a": [1, 2.5, None]}}, max_retries=1)
    assert (job["status"], job["kind"], job["max_retries"]) == ("PENDING", "task", 1)
    assert job["payload"] == {"task": "deploy", "deep": {"a": [1, 2.5, None]}}
    session = await http.get(f"/v1/sessions/{job['session_id']}", headers=world.admin.headers)
    assert (session.json()["kind"], session.json()["status"]) == ("programmatic", "ACTIVE")
    second = await _submit(http, world, session_id=job["session_id"])
    assert second["session_id"] == job["session_id"]
    own = (await http.post("/v1/sessions", json={"agent": "deployer"}, headers=world.admin.headers)).json()
    await _submit(http, world, session_id=own["id"])
    opened = await http.get(f"/v1/sessions/{own['id']}", headers=world.admin.headers)
    assert opened.json()["status"] == "ACTIVE"


async def test_a_job_fits_its_session(http: httpx.AsyncClient, world: World, admin: asyncpg.Connection) -> None:
    headers = world.admin.headers
    job = await _submit(http, world)
    agent = {"name": "Other", "slug": "other", "role": "R", "team": "main", "model_config": {"model": "m"}}
    await http.post("/v1/agents", json=agent, headers=headers)
    before = await digests(admin)
    wrong = await http.post("/v1/jobs", json={"agent": "other", "session_id": job["session_id"]}, headers=headers)
    assert (wrong.status_code, wrong.json()["code"]) == (409, "wrong_agent")
    assert await digests(admin) == before
    await http.post(f"/v1/sessions/{job['session_id']}/terminate", json={}, headers=headers)
    before = await digests(admin)
    ended = await http.post("/v1/jobs", json={"agent": "deployer", "session_id": job["session_id"]}, headers=headers)
    assert (ended.status_code, ended.json()["code"]) == (409, "session_not_active")
    assert await digests(admin) == before


@pytest.mark.proves("D.8")
async def test_a_repeated_request_is_one_job_and_another_body_is_told(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    headers = {**world.admin.headers, "Idempotency-Key": "k-1"}
    body = {"agent": "deployer", "payload": {"n": 1}}
    first = await http.post("/v1/jobs", json=body, headers=headers)
    before = await digests(admin)
    again = await http.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    reused = await http.post("/v1/jobs", json={"agent": "deployer", "payload": {"n": 2}}, headers=headers)
    assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
    assert await digests(admin) == before
    elsewhere = await http.post("/v1/sessions", json={"agent": "deployer"}, headers=headers)
    assert elsewhere.status_code == 201, "a key belongs to one route"
    service = {**world.service.headers, "Idempotency-Key": "k-1"}
    other = await http.post("/v1/jobs", json=body, headers=service)
    assert other.json()["id"] != first.json()["id"], "a key belongs to one caller"


async def test_a_request_that_failed_does_not_use_up_its_key(http: httpx.AsyncClient, world: World) -> None:
    headers = {**world.admin.headers, "Idempotency-Key": "k-1"}
    team = {"slug": "main", "name": "Main"}
    assert (await http.post("/v1/teams", json=team, headers=headers)).status_code == 409
    made = await http.post("/v1/teams", json={"slug": "ops", "name": "Ops"}, headers=headers)
    assert made.status_code == 201


async def test_jobs_are_listed_by_status_session_and_agent(http: httpx.AsyncClient, world: World) -> None:
    first, second = await _submit(http, world), await _submit(http, world)
    await http.post(f"/v1/jobs/{first['id']}/cancel", json={}, headers=world.admin.headers)

    async def listed(**query: str) -> list[str]:
        answer = await http.get("/v1/jobs", params=query, headers=world.admin.headers)
        return [job["id"] for job in answer.json()["items"]]

    assert await listed() == [second["id"], first["id"]]
    assert await listed(status="CANCELLED") == [first["id"]]
    assert await listed(status="RUNNING") == []
    assert await listed(session_id=second["session_id"], agent="deployer") == [second["id"]]
    assert await listed(agent=str(world.agent.id), status="PENDING") == [second["id"]]


@pytest.mark.proves("S0.3")
async def test_a_job_is_cancelled_once_and_its_history_tells(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    headers = world.admin.headers
    job = await _submit(http, world)
    path = f"/v1/jobs/{job['id']}"
    receipt = (await http.post(f"{path}/cancel", json={"reason": "wrong branch"}, headers=headers)).json()
    cancelled = receipt["job"]
    assert (cancelled["status"], cancelled["error_message"]) == ("CANCELLED", "wrong branch")
    assert cancelled["finished_at"] is not None
    assert (receipt["changed"], receipt["pending"]) == (True, False)
    again = await http.post(f"{path}/cancel", json={"reason": "other"}, headers=headers)
    assert (again.status_code, again.json()) == (200, receipt | {"changed": False})
    history = (await http.get(f"{path}/history", headers=headers)).json()
    steps = [(change["previous_status"], change["new_status"]) for change in history["items"]]
    assert steps == [(None, "PENDING"), ("PENDING", "CANCELLED")]
    assert history["next_cursor"] is None
    done = await _submit(http, world)
    for status in ("RUNNING", "COMPLETED"):
        await admin.execute("update job set status = $1, runnable_at = null where id = $2", status, done["id"])
    late = await http.post(f"/v1/jobs/{done['id']}/cancel", json={}, headers=headers)
    assert (late.status_code, late.json()["code"]) == (409, "job_finished")


@pytest.mark.proves("D.21")
async def test_a_job_that_ended_badly_is_submitted_again(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    headers = world.admin.headers
    job = await _submit(http, world, payload={"n": 1}, max_retries=7)
    path = f"/v1/jobs/{job['id']}"
    early = await http.post(f"{path}/resubmit", headers=headers)
    assert (early.status_code, early.json()["code"]) == (409, "not_resubmittable")
    await admin.execute(
        "update job set status = 'FAILED', error_message = 'x', runnable_at = null where id = $1", job["id"]
    )
    keyed = {**headers, "Idempotency-Key": "again"}
    new = await http.post(f"{path}/resubmit", headers=keyed)
    assert new.status_code == 201
    assert new.json()["resubmitted_from"] == job["id"]
    for name in ("payload", "max_retries", "session_id", "agent_id"):
        assert new.json()[name] == job[name]
    assert (await http.post(f"{path}/resubmit", headers=keyed)).json() == new.json()
    assert (await http.get(path, headers=headers)).json()["status"] == "FAILED"
    await http.post(f"/v1/sessions/{job['session_id']}/terminate", json={}, headers=headers)
    ended = await http.post(f"{path}/resubmit", headers=headers)
    assert (ended.status_code, ended.json()["code"]) == (409, "session_not_active")
