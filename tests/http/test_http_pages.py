"""Pages of long lists: nothing twice and nothing missing, also while the list grows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, ModelConfig
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.sessions.model.sessions import MessageDraft
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import TeamDraft
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.people import World


async def _walk(
    http: httpx.AsyncClient, world: World, path: str, between: Callable[[int], Awaitable[Any]], **query: Any
) -> list[dict[str, Any]]:
    """Every item of a list page by page; ``between`` two pages something happens."""
    seen: list[dict[str, Any]] = []
    asked = {"limit": 25, **query}
    while True:
        answer = await http.get(path, params=asked, headers=world.admin.headers)
        page = answer.json()
        assert len(page["items"]) <= asked["limit"]
        seen += page["items"]
        if page["next_cursor"] is None:
            return seen
        assert len(page["items"]) == asked["limit"]
        asked["cursor"] = page["next_cursor"]
        await between(len(seen))


@pytest.mark.proves("D.25")
async def test_a_list_by_time_is_whole_while_new_ones_come_in(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Ten of each share a time, so that ids must break the tie."""
    await admin.execute(
        "insert into team (org_id, id, slug, name, created_at)"
        " select $1, gen_random_uuid(), 'bulk-' || n, 'Bulk',"
        "   plane_now() - interval '1 hour' + (n / 10) * interval '1 second' from generate_series(1, 125) n",
        world.org_id,
    )
    known = await admin.fetch("select id from team order by created_at desc, id desc")

    async def more(count: int) -> None:
        await orgs.create_team(world.db, world.admin.actor, TeamDraft(slug=f"new-{count}", name="New"))

    seen = await _walk(http, world, "/v1/teams", more)
    assert [team["id"] for team in seen] == [str(row["id"]) for row in known]
    after = await _walk(http, world, "/v1/teams", lambda _: _nothing(), limit=200)
    assert len(after) == len(known) + 5


async def _nothing() -> None:
    return None


async def test_a_filter_holds_over_all_pages(http: httpx.AsyncClient, world: World) -> None:
    first = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer"))
    mine = JobDraft(agent="deployer", session_id=first.session_id)
    for _ in range(11):
        await jobs.submit(world.db, world.admin.actor, mine)

    async def more(_: int) -> None:
        await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer"))

    seen = await _walk(http, world, "/v1/jobs", more, limit=5, session_id=str(first.session_id))
    assert len({job["id"] for job in seen}) == len(seen) == 12
    assert {job["session_id"] for job in seen} == {str(first.session_id)}


async def test_a_list_by_number_goes_on_with_what_was_added(http: httpx.AsyncClient, world: World) -> None:
    delivery = await world.say("Message 1")
    for n in range(2, 121):
        await sessions.post_message(world.db, world.admin.actor, delivery.session_id, MessageDraft(text=f"Message {n}"))

    async def more(_: int) -> None:
        await sessions.post_message(world.db, world.admin.actor, delivery.session_id, MessageDraft(text="More"))

    path = f"/v1/sessions/{delivery.session_id}/messages"
    seen = await _walk(http, world, path, more)
    assert [message["seq"] for message in seen] == [*range(1, 125)]
    chain = await _walk(http, world, "/v1/audit", more, session_id=str(delivery.session_id))
    assert [entry["seq"] for entry in chain] == [*range(1, len(chain) + 1)]
    assert len(chain) > 120


async def test_versions_are_listed_newest_first_over_several_pages(http: httpx.AsyncClient, world: World) -> None:
    async def more(n: int) -> None:
        change = AgentChange(model_config=ModelConfig(model=f"model-{n}"))
        await agents.update_agent(world.db, world.admin.actor, "deployer", change, None)

    for n in range(100, 106):
        await more(n)
    seen = await _walk(http, world, "/v1/agents/deployer/versions", more, limit=2)
    assert [version["version"] for version in seen] == [7, 6, 5, 4, 3, 2, 1]


async def test_a_page_of_just_the_right_length_is_the_last(http: httpx.AsyncClient, world: World) -> None:
    for n in range(3):
        await orgs.create_team(world.db, world.admin.actor, TeamDraft(slug=f"team-{n}", name="Team"))
    for limit, pages in ((4, 1), (3, 2), (2, 2), (1, 4)):
        count = 1

        async def turned(_: int) -> None:
            nonlocal count
            count += 1

        assert len(await _walk(http, world, "/v1/teams", turned, limit=limit)) == 4
        assert count == pages


async def test_a_page_ends_before_it_is_too_large(http: httpx.AsyncClient, world: World) -> None:
    payload = {"blob": "x" * 250_000}
    made = set()
    for _ in range(12):
        draft = {"agent": "deployer", "payload": payload}
        made.add((await http.post("/v1/jobs", json=draft, headers=world.admin.headers)).json()["id"])
    found: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        query = {"limit": "200"} | ({"cursor": cursor} if cursor else {})
        answer = await http.get("/v1/jobs", params=query, headers=world.admin.headers)
        sizes.append(len(answer.content))
        found += [item["id"] for item in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            break
    assert sorted(found) == sorted(made)
    assert len(sizes) > 1
    assert max(sizes) < 3 * 1024 * 1024
