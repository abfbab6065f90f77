"""Listing what is allowed has an end, and so has what reading old versions keeps."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import httpx
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.calls.model import MAX_ACTIONS, MAX_ASKS
from cortex_plane.calls.rules import permissions as rules
from cortex_plane.calls.verbs import permissions as permission_verbs
from cortex_plane.gates.model.gates import Ruling
from cortex_plane.gates.rules import session as gate_session
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.verbs import atlas_queries
from cortex_plane.gates.verbs.atlas_cache import book
from cortex_plane.jobs.verbs import jobs
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.atlases import ATLAS, manifest, publish
from tests.fixtures.external_gates import desk, gate, governed, opened, permissions, question, sent
from tests.fixtures.people import World
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import submit

MANY = MAX_ACTIONS + 200


def crowded() -> str:
    """Very many actions, and gates that come round."""
    named = [f"ticket.a{number}" for number in range(MANY)]
    parts = [{"capability_id": f"k{at}", "name": "K", "actions": named[at : at + 100]} for at in range(0, MANY, 100)]
    asks = [
        gate(f"round{number}", {"type": "time_interval", "seconds": 300}, questions=[question("q", "boolean")])
        for number in range(3)
    ]
    return desk(gates=asks, capabilities=parts, policies=[], actions=[], context_blocks=[])


@pytest.mark.proves("D.387")
async def test_very_many_actions_are_listed_up_to_a_limit_and_the_rest_is_counted(
    http: httpx.AsyncClient, world: World
) -> None:
    await governed(world, crowded())
    session = await opened(http, world.service)
    found = await permissions(http, world.service, session)
    assert (len(found["actions"]), found["more_actions"] >= 200) == (MAX_ACTIONS, True)
    rounds = [each["name"] for each in found["limits"] if each["kind"] == "time_window"]
    assert sorted(rounds) == [f"com.acme.desk/round{number}" for number in range(3)], "each once"
    asked = await sent(http, world.service, f"/sessions/{session}/resolve", 201)
    assert len(asked["allowed_actions"]) + len(asked["denied_actions"]) == MAX_ACTIONS
    assert len([each for each in asked["constraints"] if "/round" in each["name"]]) == 3


@pytest.mark.proves("D.387")
async def test_very_many_capabilities_are_listed_up_to_a_limit_and_the_rest_is_counted(
    http: httpx.AsyncClient, world: World
) -> None:
    parts = [{"capability_id": f"k{at}", "name": "K", "actions": ["ticket.get"]} for at in range(MANY)]
    await governed(world, desk(gates=[], capabilities=parts, policies=[], actions=[], context_blocks=[]))
    session = await opened(http, world.service)
    found = await permissions(http, world.service, session)
    assert (len(found["capabilities"]), found["more_capabilities"]) == (MAX_ACTIONS, MANY - MAX_ACTIONS)
    visitor = await Visitor.log_in(http, world)
    (job,) = (await jobs.list_page(world.db, world.admin.actor, None, 10)).items
    assert f"and {MANY - 100} more" in shown(await visitor.get(f"/jobs/{job.id}"))


@pytest.mark.proves("D.387")
async def test_a_scope_and_a_reason_are_told_up_to_a_limit(http: httpx.AsyncClient, world: World) -> None:
    named = [f"ticket.a{number}" for number in range(rules.MAX_SCOPE + 7)]
    parts = [{"capability_id": "all", "name": "All", "actions": named}]
    policies = [{"policy_id": "no", "type": "deny", "actions": ["root.*"], "reason": "n" * 9000}]
    actions = [{"action_id": f"root.a{number}"} for number in range(3)]
    await governed(world, desk(gates=[], capabilities=parts, policies=policies, actions=actions))
    session = await opened(http, world.service)
    found = await permissions(http, world.service, session)
    made = await sent(http, world.service, f"/sessions/{session}/resolve", 201)
    for limits in (found["limits"], made["constraints"]):
        (scope,) = [each for each in limits if each["kind"] == "scope"]
        assert scope["detail"] == {"actions": named[: rules.MAX_SCOPE], "more_actions": 7}
    denied = [each for each in found["actions"] if each["action"].startswith("root.")]
    for each in (*denied, *made["denied_actions"]):
        assert (len(each["reason"]), each["reason"][-1]) == (rules.MAX_REASON, "…")


@pytest.mark.proves("D.387")
async def test_gates_that_ask_or_come_round_are_told_up_to_a_limit(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = [
        gate(f"g{n:02}", {"type": "action_pre", "patterns": ["ticket.get"]}, questions=[question("q", "boolean")])
        for n in range(MAX_ASKS + 5)
    ]
    rounds = [
        gate(f"r{n}", {"type": "time_interval", "seconds": 300}, questions=[question("q", "boolean")]) for n in range(3)
    ]
    parts = [{"capability_id": "k", "name": "K", "actions": ["ticket.get", "ticket.list"]}]
    made = desk(gates=[*asks, *rounds], capabilities=parts, policies=[], actions=[], context_blocks=[])
    await governed(world, made)
    session = await opened(http, world.service)
    found = await permissions(http, world.service, session)
    reading = {each["action"]: each for each in found["actions"]}["ticket.get"]
    assert reading["asks"] == [f"com.acme.desk/g{n:02}" for n in range(MAX_ASKS)]
    assert (len(found["asking"]), found["more_asking"], len(found["limits"])) == (MAX_ASKS, 0, 3 + 1)
    monkeypatch.setattr(rules, "MAX_ASKING", 100)
    monkeypatch.setattr(rules, "MAX_LIMITS", 2)
    found = await permissions(http, world.service, session)
    told = len(found["asking"])
    assert 0 < told < MAX_ASKS
    assert found["more_asking"] == MAX_ASKS - told
    assert sum(len(each["name"]) + len("".join(each["questions"])) for each in found["asking"]) <= 100
    assert len([each for each in found["limits"] if each["kind"] == "time_window"]) == 2


class Meanwhile:
    """How often somebody else had a turn, at each action that was judged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: ModuleType) -> None:
        self.turns, self.seen = 0, list[int]()
        monkeypatch.setattr(where, "judge", self._judge)

    def _judge(self, *given: Any, **named: Any) -> Ruling:
        self.seen.append(self.turns)
        return judge(*given, **named)

    async def count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


@pytest.mark.proves("D.387")
@pytest.mark.parametrize("door", ["permissions", "resolve"])
async def test_others_have_their_turn_while_very_many_actions_are_judged(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    await governed(world, crowded())
    session = await opened(http, world.service)
    other = Meanwhile(monkeypatch, rules if door == "permissions" else gate_session)
    counting = asyncio.create_task(other.count())
    try:
        if door == "permissions":
            await permissions(http, world.service, session)
        else:
            await sent(http, world.service, f"/sessions/{session}/resolve", 201)
    finally:
        counting.cancel()
    assert len(other.seen) == MAX_ACTIONS
    # From the first to the last nothing waits for the database: whoever had a turn was let.
    assert other.seen[-1] - other.seen[0] >= MAX_ACTIONS // permission_verbs.SLICE - 1


@pytest.mark.proves("D.399")
async def test_a_page_shows_the_first_hundred(http: httpx.AsyncClient, world: World) -> None:
    await governed(world, crowded())
    id = await submit(world, await agents.get_agent(world.db, world.admin.actor, "deployer"))
    visitor = await Visitor.log_in(http, world)
    page = shown(await visitor.get(f"/jobs/{id}"))
    assert "ticket.a99 " in page
    assert "ticket.a100 " not in page
    assert " more: cortex session permissions lists up to a thousand" in page


@pytest.mark.proves("D.332")
async def test_whoever_reads_a_version_does_not_push_out_what_sessions_need(world: World) -> None:
    made = (await publish(world, manifest("7"))).version
    read = await atlas_queries.atlas_contents(world.db, world.admin.actor, ATLAS, "7")
    assert read.digest == made.digest
    pin = {"atlas_id": ATLAS, "version": "7", "digest": made.digest}
    assert book.known(world.org_id, [pin]) is None
