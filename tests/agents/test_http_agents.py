from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from tests.fixtures.people import World
from tests.fixtures.rows import digests

DRAFT: dict[str, Any] = {
    "name": "Writer", "slug": "writer", "role": "Writes", "team": "main", "description": "Writes things",
    "model_config": {
        "model": "scripted", "temperature": 0.5, "max_tokens": 100, "system_prompt": "Be brief.", "script": None,
        "stand_in": None, "context_tokens": 50_000, "context_turns": 100,
    },
    "skill_config": {"checkpoint_granularity": "per_tool_call", "side_effect_tools": ["deploy"], "retries": 1},
    "resource_limits": {
        "max_concurrent_jobs": 2, "max_memory_mb": 64, "timeout_seconds": 60, "step_timeout_seconds": 50,
        "call_timeout_seconds": 40, "chunk_timeout_seconds": 30, "max_iterations": 20, "token_budget": 10_000,
        "cost_budget_usd": 2.5, "daily_token_budget": 1_000_000, "daily_cost_budget_usd": 10.0,
        "retry_base_seconds": 0.5, "retry_cap_seconds": 60.5, "idle_timeout_seconds": 600,
    },
    "channel_permissions": ["slack"],
}  # fmt: skip


async def _patch(http: httpx.AsyncClient, world: World, change: dict[str, Any], slug: str = "deployer") -> Any:
    answer = await http.patch(f"/v1/agents/{slug}", json=change, headers=world.admin.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.proves("S2.1", "S2.14")
async def test_an_agent_has_all_that_the_spec_gives_it(http: httpx.AsyncClient, world: World) -> None:
    made = await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    assert made.status_code == 201
    agent = made.json()
    for name in DRAFT.keys() - {"team"}:
        assert agent[name] == DRAFT[name], name
    assert (agent["status"], agent["config_version"], agent["revision"]) == ("ACTIVE", 1, 1)
    assert made.headers["ETag"] == '"1"'
    for path in ("/v1/agents/writer", f"/v1/agents/{agent['id']}", "/agents/writer", f"/agents/{agent['id']}"):
        assert (await http.get(path, headers=world.admin.headers)).json() == agent
    plain = {key: DRAFT[key] for key in ("role", "team")} | {"name": "Plain", "slug": "plain"}
    defaults = (
        await http.post("/v1/agents", json={**plain, "model_config": {"model": "m"}}, headers=world.admin.headers)
    ).json()
    assert defaults["resource_limits"] == {
        "max_concurrent_jobs": 5, "max_memory_mb": 512, "timeout_seconds": 3600, "step_timeout_seconds": 600,
        "call_timeout_seconds": 300, "chunk_timeout_seconds": 60, "max_iterations": 100, "token_budget": None,
        "cost_budget_usd": None, "daily_token_budget": None, "daily_cost_budget_usd": None,
        "retry_base_seconds": 1.0, "retry_cap_seconds": 300.0, "idle_timeout_seconds": 86_400,
    }  # fmt: skip
    assert (defaults["skill_config"], defaults["channel_permissions"]) == ({}, [])
    assert defaults["description"] is None


@pytest.mark.proves("S2.3")
async def test_names_and_slugs_are_unique_in_the_org(http: httpx.AsyncClient, world: World) -> None:
    await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    for other in ({"name": "Other"}, {"slug": "other"}):
        taken = await http.post("/v1/agents", json={**DRAFT, **other}, headers=world.admin.headers)
        assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")
    renamed = await http.patch("/v1/agents/deployer", json={"name": "Writer"}, headers=world.admin.headers)
    assert (renamed.status_code, renamed.json()["code"]) == (409, "already_exists")


@pytest.mark.proves("S2.15")
async def test_a_changed_configuration_is_a_new_version_and_old_ones_stay(
    http: httpx.AsyncClient, world: World
) -> None:
    await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    same = await _patch(http, world, {"name": "Author", "description": "", "role": "Author"}, "writer")
    assert (same["config_version"], same["revision"], same["description"]) == (1, 2, None)
    repeated = await _patch(http, world, {"model_config": DRAFT["model_config"]}, "writer")
    assert repeated["config_version"] == 1
    second = await _patch(http, world, {"model_config": {"model": "better"}}, "writer")
    assert second["config_version"] == 2
    assert second["skill_config"] == DRAFT["skill_config"]
    third = await _patch(http, world, {"resource_limits": {"timeout_seconds": 5}}, "writer")
    assert third["config_version"] == 3
    fourth = await _patch(http, world, {"skill_config": {}}, "writer")
    assert (fourth["config_version"], fourth["skill_config"]) == (4, {})
    listed = await http.get("/v1/agents/writer/versions", headers=world.admin.headers)
    versions = listed.json()["items"]
    assert [version["version"] for version in versions] == [4, 3, 2, 1]
    for name in ("model_config", "skill_config", "resource_limits"):
        assert versions[-1][name] == DRAFT[name]
    assert versions[2]["model_config"]["model"] == "better"
    assert {version["created_by"] for version in versions} == {"Ada"}


async def test_a_setting_that_changes_its_type_is_a_change(http: httpx.AsyncClient, world: World) -> None:
    await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    skills = {**DRAFT["skill_config"], "retries": True}
    changed = await _patch(http, world, {"skill_config": skills}, "writer")
    assert changed["skill_config"]["retries"] is True
    assert changed["config_version"] == 2


@pytest.mark.proves("S2.15")
async def test_a_job_keeps_the_version_it_started_with(http: httpx.AsyncClient, world: World) -> None:
    async def submitted() -> Any:
        answer = await http.post("/v1/jobs", json={"agent": "deployer"}, headers=world.admin.headers)
        return answer.json()

    first = await submitted()
    await _patch(http, world, {"model_config": {"model": "better"}})
    second = await submitted()
    kept = await http.get(f"/v1/jobs/{first['id']}", headers=world.admin.headers)
    assert (kept.json()["agent_version"], second["agent_version"]) == (1, 2)


@pytest.mark.proves("D.9")
async def test_of_two_edits_that_saw_the_same_etag_one_is_told(http: httpx.AsyncClient, world: World) -> None:
    seen = await http.get("/v1/agents/deployer", headers=world.admin.headers)
    headers = {**world.admin.headers, "If-Match": seen.headers["ETag"]}
    answers = await asyncio.gather(
        *(http.patch("/v1/agents/deployer", json={"role": f"Role {n}"}, headers=headers) for n in range(5))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412, 412]
    (won,) = [answer for answer in answers if answer.status_code == 200]
    now = await http.get("/v1/agents/deployer", headers=world.admin.headers)
    assert now.json()["role"] == won.json()["role"]
    assert now.headers["ETag"] == won.headers["ETag"]
    lost = next(answer.json() for answer in answers if answer.status_code == 412)
    assert lost["code"] == "stale"
    assert "If-Match" in lost["hint"]
    anyway = await http.patch(
        "/v1/agents/deployer", json={"role": "Last"}, headers={**world.admin.headers, "If-Match": "*"}
    )
    assert anyway.status_code == 200
    gone = await http.delete("/v1/agents/deployer", headers=headers)
    assert gone.status_code == 412


@pytest.mark.proves("S2.4")
async def test_a_disabled_agent_refuses_new_sessions_while_existing_ones_go_on(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    headers = world.admin.headers
    delivery = await world.say("Hello", "u-1")
    own = (await http.post("/v1/sessions", json={"agent": "deployer"}, headers=headers)).json()
    for status in ("DISABLED", "ARCHIVED"):
        await _patch(http, world, {"status": status})
        before = await digests(admin)
        inbound = {"external_user_id": "u-2", "agent": "deployer", "text": "Hi"}
        path = f"/v1/connections/{world.connection.id}/messages"
        refusals = [
            await http.post("/v1/sessions", json={"agent": "deployer"}, headers=headers),
            await http.post("/v1/jobs", json={"agent": "deployer"}, headers=headers),
            await http.post(path, json=inbound, headers=world.service.headers),
        ]
        for refused in refusals:
            assert (refused.status_code, refused.json()["code"]) == (409, "agent_not_active")
        assert await digests(admin) == before
        assert (await world.say("Again", "u-1")).session_id == delivery.session_id
        more = await http.post("/v1/jobs", json={"agent": "deployer", "session_id": own["id"]}, headers=headers)
        assert more.status_code == 201
    await _patch(http, world, {"status": "ACTIVE"})
    assert (await world.say("Hi", "u-2")).created == ["account", "session", "job"]


@pytest.mark.proves("S2.4")
async def test_an_archived_agent_is_listed_only_when_asked_for(http: httpx.AsyncClient, world: World) -> None:
    await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    await _patch(http, world, {"status": "ARCHIVED"})

    async def listed(**query: str) -> list[str]:
        answer = await http.get("/v1/agents", params=query, headers=world.admin.headers)
        return [agent["slug"] for agent in answer.json()["items"]]

    assert await listed() == ["writer"]
    assert await listed(status="ARCHIVED") == ["deployer"]
    assert await listed(status="DISABLED") == []
    assert (await http.get("/v1/agents/deployer", headers=world.admin.headers)).status_code == 200


@pytest.mark.proves("S2.5")
async def test_an_agent_in_use_is_kept_and_the_answer_says_what_uses_it(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    await http.post("/v1/agents", json=DRAFT, headers=world.admin.headers)
    await world.say()
    before = await digests(admin)
    refused = await http.delete("/v1/agents/deployer", headers=world.admin.headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert refused.json()["used_by"] == {"sessions": 1, "jobs": 1}
    assert "ARCHIVED" in refused.json()["hint"]
    assert await digests(admin) == before
    assert (await http.delete("/v1/agents/writer", headers=world.admin.headers)).status_code == 204
    assert (await http.get("/v1/agents/writer", headers=world.admin.headers)).status_code == 404


@pytest.mark.proves("S2.13")
async def test_an_agent_is_reached_only_over_its_channels(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    await _patch(http, world, {"channel_permissions": ["slack"]})
    before = await digests(admin)
    path = f"/v1/connections/{world.connection.id}/messages"
    inbound = {"external_user_id": "u-1", "agent": "deployer", "text": "Hi"}
    refused = await http.post(path, json=inbound, headers=world.service.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "channel_not_permitted")
    assert await digests(admin) == before
    await _patch(http, world, {"channel_permissions": ["slack", "web"]})
    assert (await http.post(path, json=inbound, headers=world.service.headers)).status_code == 201
    await _patch(http, world, {"channel_permissions": []})
    assert (await http.post(path, json=inbound, headers=world.service.headers)).status_code == 201
