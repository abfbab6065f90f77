"""What models took, and the org's own keys for them, through every door: REST, the client, the command line, the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.client import Client
from cortex_plane.jobs.model.usage import Grouping
from cortex_plane.kernel.errors import Forbidden, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.access import Provider
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import Person, World
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import ended, make_agent, submit, turn, working
from tests.http.test_http_bad_input import problem

OWN = "sk-ant-of-the-org-itself-4711"


def client(http: httpx.AsyncClient, person: Person) -> Client:
    return Client("http://plane", person.secret, transport=http._transport)


async def _spent(
    admin: asyncpg.Connection, world: World, job: UUID, model: str, cost: int | None, at: datetime, tokens: int = 1000
) -> None:
    await admin.execute(
        """
        insert into model_call (org_id, id, job_id, agent_id, session_id, step_index, purpose, model, prompt_tokens,
          completion_tokens, cache_read_tokens, cache_write_tokens, cost_micros, estimated, seconds, created_at)
        select org_id, $2, id, agent_id, session_id, 0, 'step', $3, $4, 10, 300, 0, $5, false, 1.5, $6 from job where id = $1
        """,
        job, new_id(), model, tokens, cost, at,
    )  # fmt: skip


async def _ran(world: World) -> UUID:
    """A job that is over, with one answer of its own, which cost nothing."""
    agent = await make_agent(world, [turn(text="Hello.")], app="plane")
    job = await submit(world, agent)
    async with working(world.db):
        await ended(world, job)
    return job


@pytest.mark.proves("D.223")
async def test_a_key_is_set_seen_by_its_end_and_removed(http: httpx.AsyncClient, world: World) -> None:
    path, headers = "/v1/model-keys/anthropic", world.admin.headers
    missing = problem(await http.get(path, headers=headers), 404)
    assert missing["code"] == "model_key_not_found"
    made = await http.put(path, json={"key": OWN}, headers=headers)
    assert made.status_code == 200
    assert made.json()["last_characters"] == "4711"
    assert OWN not in made.text
    listed = await http.get("/v1/model-keys", headers=headers)
    assert listed.json()["items"] == [made.json()]
    assert (await http.delete(path, headers=headers)).status_code == 204
    assert problem(await http.delete(path, headers=headers), 404)["code"] == "model_key_not_found"
    assert problem(await http.put("/v1/model-keys/acme", json={"key": OWN}, headers=headers), 422)


@pytest.mark.proves("D.223")
@pytest.mark.parametrize(
    "key", ["short", "with a space in the middle", "x" * 501, "ключ-который-не-ascii", "line\nbreak-in-the-key"]
)
async def test_what_is_no_key_is_refused_and_not_repeated(http: httpx.AsyncClient, world: World, key: str) -> None:
    answer = await http.put("/v1/model-keys/openai", json={"key": key}, headers=world.admin.headers)
    assert answer.status_code == 422
    assert key not in answer.text
    assert (await http.get("/v1/model-keys", headers=world.admin.headers)).json()["items"] == []


@pytest.mark.proves("D.221", "D.223")
async def test_only_admins_have_to_do_with_keys_and_only_with_their_orgs(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    async with client(http, world.admin) as plane:
        made = await plane.model_keys.set(Provider.OPENAI, OWN)
        assert await plane.model_keys.get(Provider.OPENAI) == made
        assert list(await plane.model_keys.list()) == [made]
    async with client(http, other.admin) as plane:
        assert list(await plane.model_keys.list()) == []
        with pytest.raises(NotFound):
            await plane.model_keys.remove(Provider.OPENAI)
    async with client(http, await world.person(Role.OPERATOR)) as plane:
        with pytest.raises(Forbidden):
            await plane.model_keys.list()
        with pytest.raises(Forbidden):
            await plane.model_keys.set(Provider.OPENAI, OWN)


@pytest.mark.proves("D.223")
async def test_usage_over_http_and_the_client(
    http: httpx.AsyncClient, world: World, other: World, admin: asyncpg.Connection
) -> None:
    job = await _ran(world)
    days = [datetime(2031, 5, day, 23, 59, tzinfo=UTC) for day in (1, 2, 2, 3)]
    for number, at in enumerate(days):
        await _spent(admin, world, job, "anthropic:a" if number else "openai:b", None if number == 3 else 500, at)
    query = {"by": "day", "since": "2031-05-01T00:00:00Z", "until": "2031-05-04T00:00:00Z", "limit": "2"}
    page = (await http.get("/v1/usage", params=query, headers=world.admin.headers)).json()
    assert [(row["day"], row["calls"], row["cost_micros"], row["unpriced_calls"]) for row in page["items"]] == [
        ("2031-05-03", 1, None, 1),
        ("2031-05-02", 2, 1000, 0),
    ]
    rest = await http.get("/v1/usage", params=query | {"cursor": page["next_cursor"]}, headers=world.admin.headers)
    assert [row["key"] for row in rest.json()["items"]] == ["2031-05-01"]
    assert rest.json()["next_cursor"] is None
    elsewhere = await http.get(
        "/v1/usage", params=query | {"by": "job", "cursor": page["next_cursor"]}, headers=world.admin.headers
    )
    assert problem(elsewhere, 422)["code"] == "invalid_cursor"
    async with client(http, world.admin) as plane:
        since = days[0] - timedelta(days=1)
        models = [row async for row in plane.usage.list(Grouping.MODEL, since=since)]
        assert [(row.model, row.calls, row.prompt_tokens) for row in models] == [
            ("openai:b", 1, 1000),
            ("anthropic:a", 3, 3000),
        ]
        (by_agent,) = [row async for row in plane.usage.list(Grouping.AGENT, agent="scripted")]
        assert (by_agent.agent, by_agent.calls, by_agent.unpriced_calls) == ("scripted", 5, 1)
        used = await plane.usage.of_job(job)
        assert (used.calls, used.cache_read_tokens, used.cost_micros) == (5, 1200, 1500)
    assert (await http.get("/v1/usage", headers=other.admin.headers)).json()["items"] == []
    assert (await http.get(f"/v1/jobs/{job}/usage", headers=other.admin.headers)).status_code == 404


@pytest.mark.proves("D.223")
async def test_a_member_sees_what_their_own_jobs_used(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    job = await _ran(world)
    await _spent(admin, world, job, "anthropic:a", 500, datetime(2031, 5, 1, tzinfo=UTC))
    member = await world.person(Role.MEMBER)
    assert (await http.get("/v1/usage", headers=member.headers)).json()["items"] == []
    assert (await http.get(f"/v1/jobs/{job}/usage", headers=member.headers)).status_code == 404
    operator = await world.person(Role.OPERATOR)
    seen = (await http.get("/v1/usage", params={"by": "job"}, headers=operator.headers)).json()["items"]
    assert [(row["job_id"], row["calls"]) for row in seen] == [(str(job), 2)]


@pytest.mark.proves("D.223")
async def test_the_page_of_a_job_shows_tokens_and_cost(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    job = await _ran(world)
    await _spent(admin, world, job, "anthropic:a", 1_234_500, datetime(2031, 5, 1, tzinfo=UTC), tokens=41_000)
    visitor = await Visitor.log_in(http, world)
    page = (await visitor.get(f"/jobs/{job}")).text
    assert "(300 from the cache)" in page
    assert "cost $1.2345" in page
    assert "2 answers of the model" in page
    await _spent(admin, world, job, "openai:mine", None, datetime(2031, 5, 1, tzinfo=UTC))
    assert "cost $1.2345 and 1 of unknown price" in (await visitor.get(f"/jobs/{job}")).text
