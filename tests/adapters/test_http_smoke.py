from __future__ import annotations

import httpx

from tests.people import World


async def test_a_message_goes_from_http_to_the_rows_and_back(http: httpx.AsyncClient, world: World) -> None:
    sent = await http.post(
        f"/v1/connections/{world.connection.id}/messages",
        json={"external_user_id": "u-1", "agent": "deployer", "text": "Hello"},
        headers=world.service.headers,
    )
    assert sent.status_code == 201, sent.text
    delivery = sent.json()
    assert delivery["created"] == ["account", "session", "job"]
    job = await http.get(f"/v1/jobs/{delivery['job_id']}", headers=world.admin.headers)
    assert job.json()["status"] == "PENDING"
    assert (await http.get("/v1/audit/verification", headers=world.admin.headers)).json()["faults"] == []
    assert (await http.get("/openapi.json")).json()["openapi"] == "3.1.0"
    assert b"messages_ingested_total" in (await http.get("/metrics")).content
