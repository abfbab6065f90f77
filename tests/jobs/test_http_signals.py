"""Signals through every door: REST, the client, the command line."""

from __future__ import annotations

import asyncpg
import httpx
import pytest

from cortex_plane.client import Client
from cortex_plane.jobs.model.journal import MAX_PAYLOAD_BYTES
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import Person, World
from tests.fixtures.signals import parked
from tests.http.test_http_bad_input import problem

PAID = {"name": "payment.received", "key": "order-1", "payload": {"amount": 120}}


def client(http: httpx.AsyncClient, person: Person) -> Client:
    return Client("http://plane", person.secret, transport=http._transport)


@pytest.mark.proves("D.257")
async def test_a_round_trip_over_http(admin: asyncpg.Connection, world: World, http: httpx.AsyncClient) -> None:
    job = await parked(admin, world)
    headers = world.service.headers
    answer = await http.post("/v1/signals", json=PAID, headers=headers)
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    assert (receipt["changed"], receipt["woken"], receipt["signal"]["payload"]) == (True, 1, {"amount": 120})
    again = await http.post("/v1/signals", json=PAID, headers=headers)
    assert again.json() == {**receipt, "changed": False, "woken": 0}
    refused = problem(await http.post("/v1/signals", json=PAID | {"payload": 1}, headers=headers), 409)
    assert refused["code"] == "signal_taken"
    assert "another key" in refused["hint"]
    (waited,) = (await http.get(f"/v1/jobs/{job}/waits", headers=world.admin.headers)).json()["items"]
    assert (waited["payload"], waited["signal_id"]) == ({"amount": 120}, receipt["signal"]["id"])
    events = (await http.get(f"/v1/jobs/{job}/events", headers=world.admin.headers)).json()["items"]
    (heard,) = [event["data"] for event in events if event["type"] == "signal_received"]
    assert heard == {
        "signal_id": receipt["signal"]["id"], "name": "payment.received", "key": "order-1", "entry": "paid#0",
    }  # fmt: skip


async def test_an_idempotency_key_is_used_once(world: World, http: httpx.AsyncClient) -> None:
    headers = world.admin.headers | {"Idempotency-Key": "k1"}
    first = await http.post("/v1/signals", json=PAID, headers=headers)
    again = await http.post("/v1/signals", json=PAID, headers=headers)
    assert (first.json()["changed"], again.json()["changed"]) == (True, False)
    assert first.json()["signal"] == again.json()["signal"]
    other = await http.post("/v1/signals", json=PAID | {"key": "order-2"}, headers=headers)
    assert problem(other, 409)["code"] == "idempotency_key_reused"


async def test_bad_input_is_refused_and_changes_nothing(
    admin: asyncpg.Connection, world: World, http: httpx.AsyncClient
) -> None:
    for bad in (
        {}, {"name": "n"}, {"key": "k"}, PAID | {"name": ""}, PAID | {"name": 3}, PAID | {"name": "n" * 201},
        PAID | {"key": ""}, PAID | {"key": "a\u0000"}, PAID | {"key": "k" * 256}, PAID | {"extra": 1},
        PAID | {"payload": "x" * MAX_PAYLOAD_BYTES}, PAID | {"payload": 2**70},
    ):  # fmt: skip
        problem(await http.post("/v1/signals", json=bad, headers=world.admin.headers), 422)
    assert await admin.fetchval("select count(*) from signal") == 0
    guest = await world.person(Role.GUEST)
    assert problem(await http.post("/v1/signals", json=PAID, headers=guest.headers), 403)["code"] == "forbidden"
    unknown = await http.get(f"/v1/jobs/{world.org_id}/waits", headers=world.admin.headers)
    assert problem(unknown, 404)["code"] == "job_not_found"


async def test_pages_lead_through_all_of_them(world: World, http: httpx.AsyncClient) -> None:
    for number in range(5):
        await http.post("/v1/signals", json=PAID | {"key": f"k{number}"}, headers=world.admin.headers)
    await http.post("/v1/signals", json=PAID | {"name": "other"}, headers=world.admin.headers)
    seen, cursor = [], None
    while True:
        query = {"limit": "2", "name": "payment.received"} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/v1/signals", params=query, headers=world.admin.headers)).json()
        seen += [item["key"] for item in page["items"]]
        cursor = page.get("next_cursor")
        if not cursor:
            break
    assert seen == ["k4", "k3", "k2", "k1", "k0"]


@pytest.mark.proves("D.257")
async def test_the_client_sends_and_lists(admin: asyncpg.Connection, world: World, http: httpx.AsyncClient) -> None:
    job = await parked(admin, world)
    async with client(http, world.admin) as plane:
        receipt = await plane.signals.send("payment.received", "order-1", [1, None])
        assert (receipt.changed, receipt.woken) == (True, 1)
        (waited,) = await plane.jobs.waits(job)
        assert (waited.payload, waited.signal_id) == ([1, None], receipt.signal.id)
        assert [each async for each in plane.signals.list(name="payment.received")] == [receipt.signal]
        assert [each async for each in plane.signals.list(key="other")] == []
        with pytest.raises(Conflict, match="Another payload"):
            await plane.signals.send("payment.received", "order-1", [2])
    async with client(http, await world.person(Role.APPROVER)) as plane:
        with pytest.raises(Forbidden):
            await plane.signals.send("payment.received", "order-2")
