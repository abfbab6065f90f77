from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World


async def _session(http: httpx.AsyncClient, world: World, **draft: Any) -> dict[str, Any]:
    answer = await http.post("/v1/sessions", json={"agent": "deployer", **draft}, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_a_session_is_opened_by_a_program_and_changed(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    made = await _session(http, world, title="Release", context={"ticket": 7})
    assert (made["kind"], made["status"]) == ("programmatic", "CREATED")
    assert (made["title"], made["context"]) == ("Release", {"ticket": 7})
    assert made["user_account_id"] == str(world.admin.actor.user_account_id)
    path = f"/v1/sessions/{made['id']}"
    changed = await http.patch(
        path, json={"context": {"ticket": 8}}, headers={**headers, "If-Match": f'"{made["revision"]}"'}
    )
    assert (changed.json()["title"], changed.json()["context"]) == ("Release", {"ticket": 8})
    untitled = await http.patch(path, json={"title": ""}, headers=headers)
    assert (untitled.json()["title"], untitled.json()["context"]) == (None, {"ticket": 8})
    stale = await http.patch(path, json={"title": "No"}, headers={**headers, "If-Match": f'"{made["revision"]}"'})
    assert stale.status_code == 412


async def test_sessions_are_listed_by_status_agent_and_member(http: httpx.AsyncClient, world: World) -> None:
    made = await _session(http, world)
    delivery = await world.say()

    async def listed(**query: str) -> list[str]:
        answer = await http.get("/v1/sessions", params=query, headers=world.admin.headers)
        return [session["id"] for session in answer.json()["items"]]

    chat = str(delivery.session_id)
    assert await listed() == [chat, made["id"]]
    assert await listed(status="ACTIVE") == [chat]
    assert await listed(status="CREATED", agent="deployer") == [made["id"]]
    assert await listed(member_id=str(delivery.user_account_id)) == [chat]
    assert await listed(status="PAUSED") == []


@pytest.mark.proves("S2.11")
async def test_terminating_cancels_what_is_open_and_may_be_repeated(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    headers = world.admin.headers
    delivery = await world.say()
    path = f"/v1/sessions/{delivery.session_id}"
    task = await http.post(
        "/v1/jobs", json={"agent": "deployer", "session_id": str(delivery.session_id)}, headers=headers
    )
    finished = await http.post(
        "/v1/jobs", json={"agent": "deployer", "session_id": str(delivery.session_id)}, headers=headers
    )
    for status in ("RUNNING", "COMPLETED"):
        await admin.execute(
            "update job set status = $1, runnable_at = null where id = $2", status, finished.json()["id"]
        )
    ended = await http.post(f"{path}/terminate", json={"reason": "enough"}, headers=headers)
    assert ended.json()["status"] == "TERMINATED"
    for id in (delivery.job_id, task.json()["id"]):
        job = (await http.get(f"/v1/jobs/{id}", headers=headers)).json()
        assert (job["status"], job["error_message"]) == ("CANCELLED", "enough")
    done = await http.get(f"/v1/jobs/{finished.json()['id']}", headers=headers)
    assert done.json()["status"] == "COMPLETED"
    trail = await admin.fetchval("select count(*) from audit_entry")
    again = await http.post(f"{path}/terminate", json={"reason": "twice"}, headers=headers)
    assert (again.status_code, again.json()) == (200, ended.json())
    assert await admin.fetchval("select count(*) from audit_entry") == trail
    said = await http.post(f"{path}/messages", json={"text": "Anyone?"}, headers=headers)
    assert (said.status_code, said.json()["code"]) == (409, "session_terminated")
    fresh = await world.say("Anyone?")
    assert (fresh.created, fresh.session_id == delivery.session_id) == (["session", "job"], False)


@pytest.mark.proves("S2.10")
async def test_a_message_wakes_a_paused_session(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    delivery = await world.say()
    path = f"/v1/sessions/{delivery.session_id}"
    pause = "update session set status = 'PAUSED' where id = $1"
    await admin.execute(pause, delivery.session_id)
    submit = {"agent": "deployer", "session_id": str(delivery.session_id)}
    refused = await http.post("/v1/jobs", json=submit, headers=world.admin.headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "session_not_active")
    again = await world.say("I am back")
    assert (again.session_id, again.job_id, again.created) == (delivery.session_id, delivery.job_id, [])
    assert (await http.get(path, headers=world.admin.headers)).json()["status"] == "ACTIVE"
    await admin.execute(pause, delivery.session_id)
    await http.post(f"{path}/messages", json={"text": "Me too"}, headers=world.admin.headers)
    assert (await http.get(path, headers=world.admin.headers)).json()["status"] == "ACTIVE"


@pytest.mark.proves("S2.12")
async def test_messages_are_kept_in_order_and_the_first_gives_the_title(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    made = await _session(http, world)
    path = f"/v1/sessions/{made['id']}"
    said = ["\n  Deploy the shop, please  \nand tell me", *(f"Message {n}" for n in range(2, 8))]
    for number, text in enumerate(said, 1):
        answer = (await http.post(f"{path}/messages", json={"text": text}, headers=headers)).json()
        assert answer["message_seq"] == number
        assert answer["created"] == (["job"] if number == 1 else [])
    session = (await http.get(path, headers=headers)).json()
    assert (session["title"], session["status"]) == ("Deploy the shop, please", "ACTIVE")
    seen: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while cursor is not None:
        page = (await http.get(f"{path}/messages", params={"limit": 3, **cursor}, headers=headers)).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [message["text"] for message in seen] == said
    assert [message["seq"] for message in seen] == [*range(1, 8)]
    assert {message["role"] for message in seen} == {"user"}
    assert {message["author_id"] for message in seen} == {str(world.admin.actor.user_account_id)}


async def test_a_title_that_was_given_is_kept(http: httpx.AsyncClient, world: World) -> None:
    made = await _session(http, world, title="Release")
    path = f"/v1/sessions/{made['id']}"
    await http.post(f"{path}/messages", json={"text": "Hello"}, headers=world.admin.headers)
    assert (await http.get(path, headers=world.admin.headers)).json()["title"] == "Release"


async def test_a_repeated_message_is_taken_once(http: httpx.AsyncClient, world: World) -> None:
    path = f"/v1/connections/{world.connection.id}/messages"
    inbound = {"external_user_id": "u-1", "agent": "deployer", "text": "Hello"}
    headers = {**world.service.headers, "Idempotency-Key": "m-1"}
    first = (await http.post(path, json=inbound, headers=headers)).json()
    second = (await http.post(path, json=inbound, headers=headers)).json()
    assert (first["replayed"], second["replayed"], second["created"]) == (False, True, [])
    for name in ("session_id", "message_seq", "job_id", "user_account_id"):
        assert second[name] == first[name]
    other = await http.post(path, json={**inbound, "text": "Bye"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    own = f"/v1/sessions/{first['session_id']}/messages"
    posted = {**world.admin.headers, "Idempotency-Key": "m-1"}
    third = (await http.post(own, json={"text": "And?"}, headers=posted)).json()
    fourth = (await http.post(own, json={"text": "And?"}, headers=posted)).json()
    assert (third["message_seq"], fourth["message_seq"], fourth["replayed"]) == (2, 2, True)


async def test_a_member_talks_in_a_session_of_their_own_and_ends_it(http: httpx.AsyncClient, world: World) -> None:
    mel = await world.person(Role.MEMBER, name="Mel")
    made = await http.post("/v1/sessions", json={"agent": "deployer"}, headers=mel.headers)
    path = f"/v1/sessions/{made.json()['id']}"
    said = await http.post(f"{path}/messages", json={"text": "Hello"}, headers=mel.headers)
    assert said.json()["user_account_id"] == str(mel.actor.user_account_id)
    ended = await http.post(f"{path}/terminate", json={}, headers=mel.headers)
    assert ended.json()["status"] == "TERMINATED"
    job = await http.get(f"/v1/jobs/{said.json()['job_id']}", headers=mel.headers)
    assert (job.json()["status"], job.json()["error_message"]) == ("CANCELLED", "session terminated")
