"""Simulations against calls that were really made: nothing is applied, nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Forbidden, InvalidInput
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.model.versions import Direction, RequestPolicy, Simulation, SimulationRequest
from cortex_plane.policies.store import queries
from cortex_plane.policies.verbs import policies, simulations
from cortex_plane.tenancy.model.identities import KNOWN_CHANNELS
from cortex_plane.tenancy.model.orgs import Role, TeamDraft
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.approvals import Shipping, ship
from tests.fixtures.atlases import publish
from tests.fixtures.gated import ATLAS, atlas
from tests.fixtures.people import World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import call, make_agent, submit, turn, until, working

ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
NOW = """\
policies:
  - {name: staging, target: ship, effect: allow, when: args.to == "staging"}
  - {name: production, target: ship, effect: requires_approval, template: dev_review}
"""
LATER = """\
policies:
  - {name: staging, target: ship, effect: requires_approval, template: dev_only, when: args.to == "staging"}
  - {name: production, target: ship, effect: requires_approval, template: dev_review, quorum: 2, timeout: 1h}
"""


@pytest_asyncio.fixture
async def world(db: Database) -> World:
    world = await World.create(db, "acme", policies=NOW)
    await world.person(Role.APPROVER, name="Bob")
    return world


async def make_calls(
    world: World, *calls: dict[str, Any], slug: str = "shipper", atlases: list[str] | None = None, **more: Any
) -> UUID:
    """A job that asks for these, and has had its answer or waits for it."""
    agent = await make_agent(world, [turn(*calls, text="I ship.")], slug=slug, atlases=atlases or [])
    id = await submit(world, agent, **more)
    async with working(world.db, Shipping().app):
        await until(world, id, JobStatus.COMPLETED, JobStatus.WAITING_FOR_APPROVAL)
    return id


async def simulate(world: World, text: str, **asked: Any) -> Simulation:
    return await simulations.simulate_policies(world.db, world.admin.actor, SimulationRequest(text=text, **asked))


def counted(simulation: Simulation) -> tuple[int, int, int, int, int]:
    totals = simulation.totals
    return totals.looked_at, totals.unchanged, totals.changed, totals.stricter, totals.looser


@pytest.mark.proves("D.115")
async def test_past_calls_are_judged_by_a_file_that_is_not_applied(world: World, admin: asyncpg.Connection) -> None:
    await make_calls(world, ship("1.0", to="staging"), ship("1.1", to="staging"), call("look"), call("lok"), slug="aa")
    await make_calls(world, ship("2.0", to="production"), slug="bb")
    before = await digests(admin)
    found = await simulate(world, LATER)
    assert counted(found) == (5, 1, 3, 3, 0)
    assert (found.totals.unknown, found.totals.drifted) == (1, 0)
    assert (found.version, found.rows, found.stopped) == ("1.1", 2, False)
    staging, production = found.groups
    assert (staging.tool, staging.agent, staging.calls) == ("ship", "aa", 2)
    assert (staging.before.verdict, staging.before.rule) == (ALLOW, "org:staging")
    assert (staging.after.verdict, staging.after.rule) == (ASK, "org:staging")
    assert [(each.verdict, each.rule, each.calls) for each in staging.recorded] == [(ALLOW, "org:staging", 2)]
    assert (production.agent, production.direction, production.calls) == ("bb", Direction.STRICTER, 1)
    assert production.terms == ["timeout_seconds", "reminder_seconds", "quorum"]
    made = await admin.fetch("select id from tool_call where tool_name = 'ship' order by created_at desc, id desc")
    assert [*production.examples, *staging.examples] == [row["id"] for row in made]
    assert (await simulate(world, NOW)).groups == []
    loose = await simulate(world, "policies: [{name: all, target: '*', effect: allow}]")
    assert counted(loose) == (5, 3, 1, 0, 1)
    assert loose.totals.other_rule == 3
    assert await digests(admin) == before, "nothing was written"
    assert (await policies.get_policies(world.db, world.admin.actor)).version == 1


@pytest.mark.proves("D.115")
async def test_a_simulation_says_that_gates_and_atlases_are_not_a_part_of_it(
    http: httpx.AsyncClient, world: World
) -> None:
    await make_calls(world, ship("1.0", to="staging"))
    plain = (await http.post("/v1/policies/simulate", json={"text": LATER}, headers=world.admin.headers)).json()
    assert (plain["totals"]["looked_at"], plain["totals"]["governed"], plain["left_out"]) == (1, 0, [])
    await publish(world, atlas())
    await make_calls(world, ship("1.1", to="staging"), ship("1.2", to="staging"), slug="governed", atlases=[ATLAS])
    answer = (await http.post("/v1/policies/simulate", json={"text": LATER}, headers=world.admin.headers)).json()
    assert (answer["totals"]["looked_at"], answer["totals"]["governed"]) == (3, 2)
    (left_out,) = answer["left_out"]
    assert left_out.startswith("gates and policies of atlases, which judge 2 of these calls too")


@pytest.mark.proves("D.115")
async def test_a_file_with_faults_is_refused_with_the_same_lines_as_when_it_is_applied(world: World) -> None:
    for text in ("policies:\n  - {name: a, target: b, efect: deny}\n", LATER.replace("quorum: 2", "quorum: 9")):
        with pytest.raises(InvalidInput) as simulated:
            await simulate(world, text)
        with pytest.raises(InvalidInput) as applied:
            await apply_policies(world.db, world.admin.actor, text)
        assert simulated.value.code == applied.value.code == "invalid_policy_file"
        assert simulated.value.message == applied.value.message
    warned = await simulate(world, LATER.replace("quorum: 2", "channels: [pager]"))
    assert warned.warnings == [f"line 3: there is no channel `pager` so far; known are {', '.join(KNOWN_CHANNELS)}."]


@pytest.mark.proves("D.115")
async def test_the_newest_calls_of_the_span_are_looked_at_and_it_says_when_it_stopped(
    world: World, admin: asyncpg.Connection
) -> None:
    await make_calls(world, *(ship(f"{n}", to="staging") for n in range(7)))
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    ids = [row["id"] for row in await admin.fetch("select id from tool_call order by position")]
    for n, id in enumerate(ids):
        await admin.execute("update tool_call set created_at = $2 where id = $1", id, noon - timedelta(hours=n))
    span = {"since": noon - timedelta(hours=4), "until": noon}
    inside = await simulate(world, LATER, **span)
    assert (inside.totals.looked_at, inside.groups[0].examples) == (4, ids[1:4]), "until is left out, since is not"
    assert (inside.since, inside.until, inside.stopped) == (span["since"], noon, False)
    assert inside.oldest == noon - timedelta(hours=4)
    cut = await simulate(world, LATER, until=noon + timedelta(hours=1), limit=2)
    assert (cut.totals.looked_at, cut.stopped, cut.groups[0].examples) == (2, True, ids[:2])
    assert cut.oldest == noon - timedelta(hours=1)
    exact = await simulate(world, LATER, limit=4, **span)
    assert (exact.totals.looked_at, exact.stopped) == (4, False)
    week = await simulate(world, LATER, within_seconds=3600, until=noon + timedelta(seconds=1))
    assert week.totals.looked_at == 1
    nothing = await simulate(world, LATER, until=noon - timedelta(days=30))
    assert (nothing.totals.looked_at, nothing.oldest, nothing.groups) == (0, None, [])
    with pytest.raises(InvalidInput, match="The time span is empty"):
        await simulate(world, LATER, since=datetime(2999, 1, 1, tzinfo=UTC))


COPIES = """
insert into tool_call (org_id, id, job_id, step_index, position, tool_name, tool_digest, arguments, input_hash, read_only,
  on_uncertain, verdict, rule, status, dispatch_before, settle_after, created_at, finished_at)
select org_id, gen_random_uuid(), job_id, n, 0, tool_name, tool_digest, arguments, input_hash, read_only, on_uncertain,
  verdict, rule, status, dispatch_before, settle_after, created_at - n * interval '1 second', finished_at
from tool_call, generate_series(1, $1) n where tool_name = 'ship'
"""


@pytest.mark.proves("D.115")
async def test_many_calls_are_read_a_few_at_a_time_and_each_is_counted_once(
    world: World, admin: asyncpg.Connection
) -> None:
    await make_calls(world, ship("1.0", to="staging"))
    await admin.execute(COPIES, 250)
    for limit in (99, 100, 101, 200, 250, 251, 300):
        found = await simulate(world, LATER, limit=limit)
        assert (found.totals.looked_at, found.stopped) == (min(limit, 251), limit < 251)
        assert [(group.calls, len(group.examples)) for group in found.groups] == [(min(limit, 251), 3)]


@pytest.mark.proves("D.116")
async def test_teams_demands_of_the_job_and_what_was_recorded_count(world: World) -> None:
    demands = [RequestPolicy(name="mine", target="ship", effect=ASK, clearance=0, timeout_seconds=60)]
    await make_calls(world, ship("1.0", to="staging"), slug="aa", policies=demands)
    await make_calls(world, ship("2.0", to="staging"), slug="bb")
    draft = TeamDraft(slug="payments", name="Payments", parent="main")
    await orgs.create_team(world.db, world.admin.actor, draft)
    await agents.update_agent(world.db, world.admin.actor, "bb", AgentChange(team="payments"), None)
    teams_file = NOW + "teams: {main: [{name: parent, target: ship, effect: deny}]}\n"
    found = await simulate(world, teams_file)
    assert {(group.agent, group.after.rule) for group in found.groups} == {
        ("aa", "team:parent"), ("bb", "parent_team:parent"),
    }  # fmt: skip
    assert {(group.agent, group.before.rule) for group in found.groups} == {
        ("aa", "request:mine"), ("bb", "org:staging"),
    }  # fmt: skip
    # What the job demanded hides that the file asks by itself.
    asks = await simulate(world, "policies: [{name: ask, target: ship, effect: requires_approval, timeout: 60s}]")
    assert [(group.agent, group.terms) for group in asks.groups if group.agent == "aa"] == []
    await apply_policies(world.db, world.admin.actor, "policies: [{name: no, target: ship, effect: deny}]")
    drifted = await simulate(world, NOW)
    assert drifted.totals.drifted == 2
    assert drifted.totals.looser == 2


@pytest.mark.proves("D.116")
async def test_a_tool_is_what_was_published_for_the_call_and_what_its_agent_was_told_about_it(world: World) -> None:
    await apply_policies(world.db, world.admin.actor, "policies: [{name: all, target: '*', effect: allow}]")
    text = "policies: [{name: reads, target: '*', effect: allow, when: read_only}, {name: no, target: '*', effect: deny, when: risk == \"high\"}]"
    agent = await make_agent(world, [turn(call("look"))], slug="wary", side_effect_tools=["look"])
    id = await submit(world, agent)
    async with working(world.db, Shipping().app):
        await until(world, id, JobStatus.COMPLETED)
    await make_calls(world, call("look"), ship("1.0"), slug="plain")
    found = await simulate(world, text)
    told = {(group.agent, group.tool): group.after.rule for group in found.groups}
    assert told == {("wary", "look"): "default:owner", ("plain", "ship"): "org:no"}
    assert found.totals.unchanged == 1


@pytest.mark.proves("D.115")
async def test_only_who_may_apply_may_simulate_and_only_the_own_org_is_looked_at(world: World, db: Database) -> None:
    await make_calls(world, ship("1.0", to="staging"))
    steward = (await world.person(Role.STEWARD, name="Sue")).actor
    asked = SimulationRequest(text=LATER)
    assert (await simulations.simulate_policies(db, steward, asked)).totals.looked_at == 1
    for role in (Role.OPERATOR, Role.APPROVER, Role.MEMBER):
        with pytest.raises(Forbidden):
            await simulations.simulate_policies(db, (await world.person(role, name=role.title())).actor, asked)
    rival = await World.create(db, "rival", policies=None)
    assert (await simulate(rival, "policies: []")).totals.looked_at == 0


@pytest.mark.fresh_database
async def test_the_newest_calls_are_found_by_index(world: World, admin: asyncpg.Connection) -> None:
    """As the app asks: row-level security is what names the org."""
    await admin.execute("set enable_seqscan = off; set role cortex_app")
    await admin.execute("select set_config('app.org_id', $1, false)", str(world.org_id))
    bounds = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), 10)
    plan = "\n".join(row[0] for row in await admin.fetch(f"explain {queries.list_past_calls}", *bounds))
    assert "idx_tool_call_time" in plan, plan
