from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.access import SecretKind
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.servers import CREDENTIAL_KEY


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def _create(http: httpx.AsyncClient, world: World, **draft: Any) -> dict[str, Any]:
    answer = await http.post("/v1/keys", json={"name": "laptop", **draft}, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_a_persons_key_acts_as_the_person_and_a_services_key_with_its_own_roles(
    http: httpx.AsyncClient, world: World
) -> None:
    owner = await world.person(Role.OPERATOR, name="Mel", clearance=5)
    mel = owner.member_id
    made = await http.post("/v1/me/keys", json={"name": "laptop"}, headers=owner.headers)
    assert made.status_code == 201, made.text
    person = made.json()
    assert (person["key"]["kind"], person["key"]["roles"]) == ("person", [])
    me = (await http.get("/v1/me", headers=_bearer(person["secret"]))).json()
    assert (me["kind"], me["name"], me["member_id"]) == ("person", "Mel", str(mel))
    assert (me["roles"], me["clearance"]) == (["operator"], 5)
    await http.patch(f"/v1/members/{mel}", json={"roles": ["guest"]}, headers=world.admin.headers)
    assert (await http.get("/v1/me", headers=_bearer(person["secret"]))).json()["roles"] == ["guest"]

    service = await _create(http, world, roles=["steward", "member"])
    me = (await http.get("/v1/me", headers=_bearer(service["secret"]))).json()
    assert (me["kind"], me["name"], me["member_id"]) == ("service", "laptop", None)
    assert me["roles"] == ["member", "steward"]


@pytest.mark.proves("D.1077")
async def test_a_worker_key_names_its_apps_and_only_an_admin_makes_one(http: httpx.AsyncClient, world: World) -> None:
    made = await _create(http, world, apps=["acme", "acme", "billing"])
    assert (made["key"]["kind"], made["key"]["permissions"]) == ("worker", ["app:acme", "app:billing"])
    member = await world.person(Role.OPERATOR)
    for headers, draft in ((member.headers, {"apps": ["acme"]}), (_bearer(made["secret"]), {"apps": ["acme"]})):
        refused = await http.post("/v1/keys", json={"name": "laptop", **draft}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    for apps in ([], ["Not A Slug"]):
        refused = await http.post("/v1/keys", json={"name": "laptop", "apps": apps}, headers=world.admin.headers)
        assert refused.status_code == 422


async def test_a_key_belongs_to_a_person_or_to_a_service(http: httpx.AsyncClient, world: World) -> None:
    member = str(world.admin.actor.user_account_id)
    for draft in ({}, {"member_id": member, "roles": ["member"]}, {"roles": ["member"], "apps": ["acme"]}):
        refused = await http.post("/v1/keys", json={"name": "laptop", **draft}, headers=world.admin.headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "Give one of" in refused.json()["hint"]


@pytest.mark.proves("D.6")
async def test_a_secret_is_shown_once_and_only_its_digest_is_kept(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    made = await _create(http, world, roles=["member"])
    secret = made["secret"]
    assert SecretKind.KEY.matches(secret)
    assert made["key"]["last_characters"] == secret[-4:]
    row = await admin.fetchrow("select * from api_key where id = $1", made["key"]["id"])
    assert row["secret_hash"] == CREDENTIAL_KEY.lookup(hashlib.sha256(secret.encode()).digest())
    for table in ("api_key", "audit_entry", "idempotency"):
        for line in await admin.fetch(f"select to_jsonb(t)::text as line from {table} t"):
            assert secret not in line["line"]
    shown = await http.get(f"/v1/keys/{made['key']['id']}", headers=world.admin.headers)
    listed = await http.get("/v1/keys", headers=world.admin.headers)
    for answer in (shown, listed):
        assert secret not in answer.text
        assert row["secret_hash"].hex() not in answer.text


async def test_a_repeated_request_does_not_make_a_second_key_nor_show_the_secret_again(
    http: httpx.AsyncClient, world: World
) -> None:
    headers = {**world.admin.headers, "Idempotency-Key": "k-1"}
    draft = {"name": "bot", "roles": ["member"]}
    first = (await http.post("/v1/keys", json=draft, headers=headers)).json()
    second = (await http.post("/v1/keys", json=draft, headers=headers)).json()
    assert second["key"]["id"] == first["key"]["id"]
    assert first["secret"] is not None
    assert second["secret"] is None


@pytest.mark.proves("D.6")
async def test_when_a_key_was_last_used_is_shown(http: httpx.AsyncClient, world: World) -> None:
    made = await _create(http, world, roles=["member"])
    path = f"/v1/keys/{made['key']['id']}"
    assert (await http.get(path, headers=world.admin.headers)).json()["last_used_at"] is None
    await http.get("/v1/me", headers=_bearer(made["secret"]))
    assert (await http.get(path, headers=world.admin.headers)).json()["last_used_at"] is not None


@pytest.mark.proves("D.6")
async def test_a_revoked_key_stops_at_once_and_for_good(http: httpx.AsyncClient, world: World) -> None:
    made = await _create(http, world, roles=["member"])
    path = f"/v1/keys/{made['key']['id']}/revoke"
    revoked = await http.post(path, headers=world.admin.headers)
    assert revoked.json()["revoked_at"] is not None
    refused = await http.get("/v1/me", headers=_bearer(made["secret"]))
    assert (refused.status_code, refused.json()["code"]) == (401, "key_revoked")
    again = await http.post(path, headers=world.admin.headers)
    assert again.json()["revoked_at"] == revoked.json()["revoked_at"]


async def test_an_expiring_key_ends_when_its_time_has_come(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2030, 1, 1, tzinfo=UTC))
    made = await _create(http, world, roles=["member"], expires_in_days=2)
    headers = _bearer(made["secret"])
    assert datetime.fromisoformat(made["key"]["expires_at"]) == datetime(2030, 1, 3, tzinfo=UTC)
    await clock.advance(timedelta(days=2, microseconds=-1))
    assert (await http.get("/v1/me", headers=headers)).status_code == 200
    await clock.advance(timedelta(microseconds=1))
    refused = await http.get("/v1/me", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "key_expired")
