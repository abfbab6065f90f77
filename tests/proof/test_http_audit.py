from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from tests.fixtures.exports import erase
from tests.fixtures.people import World


async def _trail(http: httpx.AsyncClient, world: World, **query: str) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit", params=query, headers=world.admin.headers)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def _faults(http: httpx.AsyncClient, world: World) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit/verification", headers=world.admin.headers)
    faults: list[dict[str, Any]] = answer.json()["faults"]
    return faults


@pytest.mark.proves("S4.2")
async def test_the_org_has_a_chain_and_every_session_has_one(http: httpx.AsyncClient, world: World) -> None:
    delivery = await world.say("Hello")
    await http.post(f"/v1/jobs/{delivery.job_id}/cancel", json={}, headers=world.admin.headers)
    own = await _trail(http, world)
    assert [entry["action"] for entry in own] == [
        "org_created", "agent_created", "connection_created", "key_created", "policy_applied",
    ]  # fmt: skip
    assert [entry["seq"] for entry in own] == [1, 2, 3, 4, 5]
    session = await _trail(http, world, session_id=str(delivery.session_id))
    assert [entry["action"] for entry in session] == [
        "account_created", "session_created", "message_received", "job_created", "job_cancelled",
    ]  # fmt: skip
    assert session[0]["body"]["actor"]["kind"] == "service"
    assert session[-1]["body"]["actor"]["account"] == str(world.admin.actor.user_account_id)
    assert "Hello" not in str(session), "the trail proves what was said without keeping it twice"
    verified = (await http.get("/v1/audit/verification", headers=world.admin.headers)).json()
    counted = {"chains": 2, "entries": 10, "faults": []}
    assert verified == counted | {
        "roots": 0,
        "root_faults": [],
        "fingerprints": [],
        "keys_checked": True,
        "blanked": 0,
        "blanked_entries": [],
        "newer_copies": 0,
        "row_faults": [],
    }


@pytest.mark.proves("S4.2")
async def test_every_change_leaves_an_entry_with_who_did_it(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    session = (await http.post("/v1/sessions", json={"agent": "deployer"}, headers=headers)).json()
    path = f"/v1/sessions/{session['id']}"
    await http.patch(path, json={"title": "New"}, headers=headers)
    await http.post("/v1/jobs", json={"agent": "deployer", "session_id": session["id"]}, headers=headers)
    await http.post(f"{path}/terminate", json={"reason": "enough"}, headers=headers)
    entries = await _trail(http, world, session_id=session["id"])
    assert [entry["action"] for entry in entries] == [
        "session_created", "session_changed", "session_activated", "job_created", "session_terminated",
    ]  # fmt: skip
    assert {entry["body"]["actor"]["name"] for entry in entries} == {"Ada"}
    assert entries[-1]["body"]["data"]["reason"] == "enough"
    assert len(entries[-1]["body"]["data"]["cancelled_jobs"]) == 1


async def test_reading_leaves_no_entry(http: httpx.AsyncClient, world: World, admin: asyncpg.Connection) -> None:
    await world.say()
    before = await admin.fetchval("select count(*) from audit_entry")
    for path in ("/v1/sessions", "/v1/jobs", "/v1/members", "/v1/audit", "/v1/audit/verification", "/v1/org"):
        assert (await http.get(path, headers=world.admin.headers)).status_code == 200
    assert await admin.fetchval("select count(*) from audit_entry") == before


@pytest.mark.proves("D.15")
async def test_tampering_shows_up_at_the_first_bad_entry(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Whoever can write rows behind the plane's back is found out, whatever they change."""
    session = (await world.say()).session_id
    tampering = {
        "update audit_entry set body = convert_to('{}', 'UTF8') where chain_id = $1 and seq = 2": (
            2, "its body was changed",
        ),
        "update audit_entry set created_at = created_at + interval '1 second'"
        " where chain_id = $1 and seq = 3": (3, "its hash does not follow from the one before"),
        "update audit_entry set action = 'nothing_happened' where chain_id = $1 and seq = 1": (
            1, "its action differs from its body",
        ),
        "delete from audit_entry where chain_id = $1 and seq = 2": (
            2, "entry 2 is missing; the next one is 3",
        ),
        "delete from audit_entry where chain_id = $1 and seq = 4": (
            4, "the chain ends at 3, its head says 4",
        ),
        "delete from audit_entry where chain_id = $1": (1, "the chain ends at 0, its head says 4"),
        "update session_head set audit_hash = sha256('x') where session_id = $1": (
            4, "the head holds another hash",
        ),
        "delete from session_head where session_id = $1": (0, "its head is gone"),
    }  # fmt: skip
    for statement, (seq, reason) in tampering.items():
        assert await _faults(http, world) == []
        await admin.execute("create table audit_copy as select * from audit_entry")
        await admin.execute("create table head_copy as select * from session_head")
        await admin.execute(statement, session)
        assert await _faults(http, world) == [{"chain_id": str(session), "seq": seq, "reason": reason}]
        await _restore(admin)
    assert await _faults(http, world) == []


async def _restore(admin: asyncpg.Connection) -> None:
    async with admin.transaction():
        await admin.execute("delete from audit_entry")
        columns = "org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at"
        await admin.execute(f"insert into audit_entry ({columns}) select {columns} from audit_copy")
        await admin.execute("delete from session_head")
        await admin.execute("insert into session_head select * from head_copy")
        await admin.execute("drop table audit_copy, head_copy")


async def test_a_body_can_be_erased_and_the_chain_still_holds(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    session = (await world.say()).session_id
    await admin.execute("update audit_entry set body = null where chain_id = $1 and seq = 3", session)
    assert await _faults(http, world) == [
        {"chain_id": str(session), "seq": 3, "reason": "its body is gone, and no erase entry names it"}
    ]
    await erase(world, session, {3: "message_received"})
    assert await _faults(http, world) == []
    entries = await _trail(http, world, session_id=str(session))
    assert entries[2]["body"] is None
    assert entries[2]["action"] == "message_received"
