"""Deliveries over HTTP, through the client and on the command line."""

from __future__ import annotations

import asyncpg
import httpx
import pytest

from cortex_plane.client import Client
from cortex_plane.kernel.errors import Conflict
from cortex_plane.tenancy.model.identities import DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from tests.channels.behaviour import ASK
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.notifications import dead_letter
from tests.fixtures.people import World, apply_policies
from tests.http.test_http_bad_input import problem


@pytest.mark.proves("D.125")
async def test_dead_letters_are_listed_shown_and_sent_again(
    strict: World, http: httpx.AsyncClient, admin: asyncpg.Connection
) -> None:
    await strict.person(Role.APPROVER, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, ASK)
    _, (asked,) = await waiting(strict, Shipping())
    id = await dead_letter(strict, asked.id)
    headers = strict.admin.headers
    found = await http.get("/v1/deliveries", params={"status": "dead"}, headers=headers)
    (item,) = found.json()["items"]
    assert (item["id"], item["status"], item["last_error"]) == (str(id), "dead", "550 nobody lives here")
    assert (item["approval_id"], item["channel_type"], item["attempts"]) == (str(asked.id), "email", 12)
    for query, count in (({"status": "delivered"}, 0), ({"approval_id": str(asked.id)}, 1), ({}, 1)):
        listed = await http.get("/v1/deliveries", params=query, headers=headers)
        assert len(listed.json()["items"]) == count
    async with Client("http://plane", strict.admin.secret, transport=http._transport) as plane:
        assert [each.id async for each in plane.deliveries.list(status=DeliveryStatus.DEAD)] == [id]
        again = await plane.deliveries.resend(id)
        assert (again.status, again.attempts) == (DeliveryStatus.PENDING, 0)
        assert again.next_attempt_at is not None
        assert await plane.deliveries.get(id) == again
        with pytest.raises(Conflict):
            await plane.deliveries.resend(id)
    refused = await http.post(f"/v1/deliveries/{id}/resend", headers=headers)
    assert problem(refused, 409)["code"] == "delivery_not_dead"
    trail = await admin.fetch("select action from audit_entry where session_id = $1 order by seq", asked.session_id)
    assert [row["action"] for row in trail].count("delivery_resent") == 1


@pytest.mark.parametrize("query", [{"status": "lost"}, {"approval_id": "x"}, {"nonsense": "1"}])
async def test_a_bad_filter_is_refused(world: World, http: httpx.AsyncClient, query: dict[str, str]) -> None:
    answer = await http.get("/v1/deliveries", params=query, headers=world.admin.headers)
    assert answer.status_code == 422
