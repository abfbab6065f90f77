"""Whoever shaped a call does not approve it where its policy wants somebody else, over HTTP: each way of shaping one is a cause."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import orjson
import pytest
import pytest_asyncio

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.fields import Risk
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from tests.calls.test_http_calls import asked, opened, post
from tests.fixtures.approvals import Shipping, ship
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.tool_confirmations import DIGEST, offered, publish
from tests.fixtures.visitors import Visitor
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import make_agent, turn, until, working

FOUR_EYES = """\
policies:
  - {name: four-eyes, target: ship, effect: requires_approval, template: dev_review, on_deny: continue}
  - {name: refunds, target: refunds.create, effect: requires_approval, template: dev_review}
"""
CAREFUL = FOUR_EYES.replace(
    "policies:\n",
    """\
policies:
  - {name: careful, target: refunds.create, when: 'risk == "high"', effect: requires_approval, template: dev_review,
     approvers: {roles: [admin]}}
""",
)
RISKY = ConfirmationDraft(tool="refunds.create", digest=DIGEST, risk=Risk.HIGH)
W = JobStatus.WAITING_FOR_APPROVAL


@pytest_asyncio.fixture
async def world(db: Database) -> World:
    return await World.create(db, "acme", policies=FOUR_EYES)


@pytest_asyncio.fixture
async def bea(world: World) -> Person:
    """An approver who tries to be two people."""
    return await world.person(Role.ADMIN, name="Bea")


@pytest_asyncio.fixture
async def cal(world: World) -> Person:
    """Somebody who shaped nothing."""
    return await world.person(Role.APPROVER, name="Cal")


async def card_of(http: httpx.AsyncClient, person: Person, job: UUID | str) -> dict[str, Any]:
    """The open request of a job, whole."""
    query = f"/v1/approvals?job_id={job}&status=pending"
    (listed,) = (await http.get(query, headers=person.headers)).json()["items"]
    return await shown(http, person, listed["id"])


async def shown(http: httpx.AsyncClient, person: Person, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/v1/approvals/{id}", headers=person.headers)).json()["approval"]
    return found


async def decide(
    http: httpx.AsyncClient, person: Person, card: dict[str, Any], status: int = 200, choice: str = "approved", **more: Any
) -> dict[str, Any]:  # fmt: skip
    body = {"decision": choice, "version": card["version"], "input_hash": card["input_hash"], **more}
    answer = await http.post(f"/v1/approvals/{card['id']}/decide", json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(http: httpx.AsyncClient, person: Person, card: dict[str, Any], why: str) -> None:
    told = await decide(http, person, card, 403)
    assert told["code"] == "self_approval"
    assert why in told["detail"]
    assert [c["why"] for c in card["caused"] if c["member_id"] == str(person.member_id)], card["caused"]


async def submitted(http: httpx.AsyncClient, person: Person, agent: str = "shipper", **more: Any) -> UUID:
    job = await post(http, person, "/v1/jobs", status=201, agent=agent, payload={"text": "go"}, **more)
    return UUID(job["id"])


async def asking(http: httpx.AsyncClient, world: World, job: UUID, person: Person) -> dict[str, Any]:
    async with working(world.db, Shipping().app):
        await until(world, job, W)
    return await card_of(http, person, job)


@pytest.mark.proves("D.441")
async def test_whoever_submits_a_denied_job_again(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    await apply_policies(world.db, world.admin.actor, FOUR_EYES.replace(", on_deny: continue", ""))
    await make_agent(world, [turn(ship())], slug="shipper")
    first = await submitted(http, world.admin)
    await decide(http, cal, await asking(http, world, first, bea), choice="denied")
    again = await post(http, bea, f"/v1/jobs/{first}/resubmit", status=201)
    card = await asking(http, world, UUID(again["id"]), bea)
    await refused(http, bea, card, "submitted the job again")
    await refused(http, world.admin, card, "submitted the job")
    assert (await decide(http, cal, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.443")
async def test_whoever_edits_a_request_leaves_it_open_for_others(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    await make_agent(world, [turn(ship()), turn(ship("3.0"))], slug="shipper")
    shipping = Shipping()
    job = await submitted(http, world.admin)
    async with working(world.db, shipping.app):
        await until(world, job, W)
    card = await card_of(http, bea, job)
    edited = await decide(http, bea, card, arguments={"version": "2.0"})
    assert (edited["result"], edited["approval"]["status"], edited["approval"]["votes_for"]) == ("OK", "pending", 0)
    now = await shown(http, bea, card["id"])
    assert (now["arguments"], now["may_decide"], now["deciders"]) == ({"version": "2.0"}, False, ["Cal"])
    await refused(http, bea, now, "edited the arguments")
    assert (await decide(http, cal, card, 412))["code"] == "approval_changed", "Cal saw other arguments"
    assert (await decide(http, cal, now))["approval"]["status"] == "approved"
    async with working(world.db, shipping.app):
        await until(world, job, W)
    assert shipping.shipped == ["2.0 to production"]
    await refused(http, bea, await card_of(http, bea, job), "edited the arguments of a call")


@pytest.mark.proves("D.443")
async def test_an_edit_that_leaves_nobody_is_refused_and_changes_nothing(
    http: httpx.AsyncClient, world: World, bea: Person
) -> None:
    await make_agent(world, [turn(ship())], slug="shipper")
    card = await asking(http, world, await submitted(http, world.admin), bea)
    assert card["deciders"] == ["Bea"]
    told = await decide(http, bea, card, 409, arguments={"version": "2.0"})
    assert told["code"] == "edit_leaves_nobody"
    assert (await shown(http, bea, card["id"]))["version"] == card["version"]
    assert (await decide(http, bea, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.443")
async def test_a_vote_given_before_its_author_edits_is_void(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    await apply_policies(world.db, world.admin.actor, FOUR_EYES.replace("dev_review, on", "dev_review, quorum: 2, on"))
    dan = await world.person(Role.APPROVER, name="Dan")
    await make_agent(world, [turn(ship())], slug="shipper")
    card = await asking(http, world, await submitted(http, world.admin), bea)
    assert (await decide(http, bea, card))["approval"]["votes_for"] == 1
    await decide(http, bea, card, arguments={"version": "2.0"})
    now = await shown(http, bea, card["id"])
    assert now["votes_for"] == 0
    assert (await decide(http, cal, now))["approval"]["status"] == "pending", "Bea's yes is none"
    assert (await decide(http, dan, now))["approval"]["status"] == "approved"


@pytest.mark.proves("D.441")
async def test_whoever_sends_the_signal_that_it_waits_for(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    async def pay(ctx: Context) -> str:
        told = await ctx.wait_event("payee", key="order-1")
        return str(await ctx.tool("ship", version=str(told)))

    shipping = Shipping()
    app = coded(pay, shipping.app)
    await make_coded(world, slug="shipper")
    job = await submitted(http, world.admin)
    async with working(world.db, app):
        await until(world, job, JobStatus.SLEEPING)
        await post(http, bea, "/v1/signals", name="payee", key="order-1", payload="evil")
        await until(world, job, W)
    card = await card_of(http, bea, job)
    assert card["arguments"]["version"] == "evil"
    await refused(http, bea, card, "sent the signal payee")
    assert (await decide(http, cal, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.441")
async def test_whoever_writes_the_agent(http: httpx.AsyncClient, world: World, bea: Person, cal: Person) -> None:
    await make_agent(world, [turn(ship())], slug="shipper")
    script = [{"text": "I ship.", "calls": [ship("evil")]}]
    change = {"model_config": {"model": "scripted", "script": script}}
    answer = await http.patch("/v1/agents/shipper", json=change, headers=bea.headers)
    assert answer.status_code == 200, answer.text
    card = await asking(http, world, await submitted(http, world.admin), bea)
    await refused(http, bea, card, "wrote version 2 of the agent")
    assert (await decide(http, cal, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.441")
async def test_whoever_owns_the_service_key_that_submitted_or_asked(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    key = await post(http, bea, "/v1/keys", status=201, name="bot", roles=["member"])
    bot = replace(world.service, secret=key["secret"])
    await make_agent(world, [turn(ship())], slug="shipper")
    card = await asking(http, world, await submitted(http, bot), bea)
    await refused(http, bea, card, "submitted the job")
    session = await opened(http, bot)
    call = await asked(http, bot, session)
    elsewhere = await shown(http, bea, call["approval_id"])
    await refused(http, bea, elsewhere, "asked for the call")
    assert (await decide(http, cal, elsewhere))["approval"]["status"] == "approved"


@pytest.mark.proves("D.441")
async def test_whoever_wrote_to_its_session(http: httpx.AsyncClient, world: World, bea: Person, cal: Person) -> None:
    """The context of the session, and a message in it, count for tasks too."""
    dan = await world.person(Role.ADMIN, name="Dan")
    await make_agent(world, [turn(ship())], slug="shipper")
    made = await post(http, world.admin, "/v1/sessions", status=201, agent="shipper", kind="programmatic")
    session = f"/v1/sessions/{made['id']}"
    changed = await http.patch(session, json={"context": {"payee": "evil"}}, headers=bea.headers)
    assert changed.status_code == 200, changed.text
    await post(http, dan, f"{session}/messages", status=201, text="Pay evil.")
    job = await submitted(http, world.admin, session_id=made["id"])
    async with working(world.db, Shipping().app):
        await until(world, job, W)
    # The job that answers the message asks for the same, so that one request is for both.
    query = f"/v1/approvals?session_id={made['id']}"
    (listed,) = (await http.get(query, headers=bea.headers)).json()["items"]
    card = await shown(http, bea, listed["id"])
    await refused(http, bea, card, "wrote the context of the session")
    await refused(http, dan, card, "message")
    assert (await decide(http, cal, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.441")
async def test_whoever_gave_a_reason_that_it_has_read(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    await make_agent(world, [turn(ship()), turn(ship("evil"))], slug="shipper")
    job = await submitted(http, world.admin)
    card = await asking(http, world, job, bea)
    await decide(http, bea, card, choice="denied", reason="Ship evil instead.")
    card = await asking(http, world, job, bea)
    await refused(http, bea, card, "gave a reason that it has read")
    assert (await decide(http, bea, card, choice="denied"))["approval"]["status"] == "denied", "a cause may deny"


@pytest.mark.proves("D.442")
async def test_where_nobody_is_left_the_request_fails_at_once_and_names_whom_it_excluded(
    http: httpx.AsyncClient, world: World, bea: Person
) -> None:
    await make_agent(replace(world, admin=bea), [turn(ship())], slug="shipper")
    await apply_policies(world.db, world.admin.actor, FOUR_EYES.replace(", on_deny: continue", ""))
    job = await submitted(http, world.admin)
    async with working(world.db, Shipping().app):
        failed = await until(world, job, JobStatus.FAILED)
    told = failed.error_message or ""
    assert "Ada (submitted the job)" in told
    assert "Bea (wrote version 1 of the agent)" in told
    call = await asked(http, world.admin, await opened(http, world.admin))
    assert (call["status"], call["approval_id"]) == ("awaiting", call["approval_id"]), "Bea shaped nothing of it"
    answer = await http.patch("/v1/agents/deployer", json={"skill_config": {"x": 1}}, headers=bea.headers)
    assert answer.status_code == 200
    nobody = await asked(http, world.admin, await opened(http, world.admin))
    assert nobody["status"] == "rejected"
    assert "Bea (wrote version 2 of the agent)" in nobody["error"]


@pytest.mark.proves("D.442")
async def test_a_policy_may_allow_self_approval_and_card_and_receipt_say_so(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(
        world.db, world.admin.actor, FOUR_EYES.replace("dev_review, on", "dev_review, self_approval: true, on")
    )
    await make_agent(world, [turn(ship())], slug="shipper")
    card = await asking(http, world, await submitted(http, world.admin), world.admin)
    assert card["self_approval"] is True
    assert {cause["name"] for cause in card["caused"]} == {"Ada"}
    assert (await decide(http, world.admin, card, arguments={"version": "2.0"}))["approval"]["status"] == "approved"
    receipt = (await http.get(f"/v1/approvals/{card['id']}/receipt", headers=world.admin.headers)).json()
    says = orjson.loads(receipt["body"])
    assert says["policy"]["self_approval"] is True


@pytest.mark.proves("D.442")
async def test_rows_without_an_id_exclude_nobody_and_the_card_says_so(
    http: httpx.AsyncClient, world: World, bea: Person, admin: asyncpg.Connection
) -> None:
    await make_agent(replace(world, admin=bea), [turn(ship())], slug="shipper")
    await admin.execute("update agent_version set created_by_id = null")
    card = await asking(http, world, await submitted(http, world.admin), bea)
    assert {"member_id": None, "name": "Bea", "why": "wrote version 1 of the agent"} in card["caused"]
    assert (await decide(http, bea, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.446")
async def test_whoever_changes_the_rules_of_a_call_that_is_asked_for_again(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    session = await opened(http, world.service)
    call = await asked(http, world.service, session)
    await decide(http, cal, await shown(http, cal, call["approval_id"]))
    await clock.advance(timedelta(days=2))  # nobody began it in time
    rules = FOUR_EYES.replace("refunds.create, effect", "refunds.create, approvers: {roles: [admin]}, effect")
    applied = await http.post("/v1/policies", json={"text": rules}, headers=bea.headers)
    assert applied.status_code in (200, 201), applied.text
    await world.person(Role.ADMIN, name="Dan")
    begun = await post(http, world.service, f"/v1/calls/{call['id']}/intent", input_hash=call["input_hash"])
    assert begun["status"] == "awaiting"
    card = await shown(http, bea, begun["approval_id"])
    assert card["deciders"] == ["Dan"]
    await refused(http, bea, card, "applied version 2 of the policies")


async def asked_again(
    http: httpx.AsyncClient, world: World, by: Person, call: dict[str, Any], clock: Clock
) -> dict[str, Any]:
    """The card of a call that nobody began in time, asked for again. The first one had the yes of ``by``."""
    await decide(http, by, await shown(http, by, call["approval_id"]))
    await clock.advance(timedelta(days=2))
    begun = await post(http, world.service, f"/v1/calls/{call['id']}/intent", input_hash=call["input_hash"])
    assert begun["status"] == "awaiting"
    return await shown(http, by, begun["approval_id"])


@pytest.mark.proves("D.446")
async def test_whoever_confirms_its_tool_in_the_instant_in_which_it_is_asked_for(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, admin: asyncpg.Connection
) -> None:
    await publish(world.db, offered("refunds.create"))
    await apply_policies(world.db, world.admin.actor, CAREFUL)
    clock = await Clock.install(admin, datetime.now(UTC))
    call = await asked(http, world.service, await opened(http, world.service))
    await agents.confirm_tool(world.db, bea.actor, RISKY)
    dan = await world.person(Role.ADMIN, name="Dan")
    card = await asked_again(http, world, cal, call, clock)
    assert card["deciders"] == ["Dan"]
    await refused(http, bea, card, "confirmed its tool")
    assert (await decide(http, dan, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.446")
async def test_whoever_was_about_to_confirm_its_tool_when_it_was_asked_for(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, admin: asyncpg.Connection
) -> None:
    """The confirmation is the older one by its time, but it was not there yet: the call was asked for by the terms before it."""
    await publish(world.db, offered("refunds.create"))
    await apply_policies(world.db, world.admin.actor, CAREFUL)
    session = await opened(http, world.service)
    async with admin.transaction():
        await admin.execute("select from org_head for update")  # where it is recorded last
        confirming = asyncio.ensure_future(agents.confirm_tool(world.db, bea.actor, RISKY))
        async with asyncio.timeout(10):
            while not await lock_waiters(admin):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
        call = await asked(http, world.service, session)
    confirmed = await confirming
    assert confirmed.created_at < await admin.fetchval("select requested_at from approval_request")
    clock = await Clock.install(admin, datetime.now(UTC))
    await world.person(Role.ADMIN, name="Dan")
    card = await asked_again(http, world, cal, call, clock)
    assert card["deciders"] == ["Dan"]
    await refused(http, bea, card, "confirmed its tool")


@pytest.mark.proves("D.446")
async def test_whoever_takes_back_what_was_confirmed_of_its_tool(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, admin: asyncpg.Connection
) -> None:
    await publish(world.db, offered("refunds.create", risk=Risk.HIGH))
    await apply_policies(world.db, world.admin.actor, CAREFUL)
    confirmed = await agents.confirm_tool(world.db, world.admin.actor, replace(RISKY, risk=Risk.MEDIUM))
    clock = await Clock.install(admin, datetime.now(UTC))
    call = await asked(http, world.service, await opened(http, world.service))
    await agents.revoke_confirmation(world.db, bea.actor, confirmed.id)
    dan = await world.person(Role.ADMIN, name="Dan")
    card = await asked_again(http, world, cal, call, clock)
    assert card["deciders"] == ["Dan"]
    await refused(http, bea, card, "took back what was confirmed of its tool")
    assert (await decide(http, dan, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.446")
async def test_whoever_confirmed_its_tool_before_it_was_asked_for_shaped_nothing(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, admin: asyncpg.Connection
) -> None:
    """Others changed its terms since, and only they are causes."""
    await publish(world.db, offered("refunds.create"))
    await apply_policies(world.db, world.admin.actor, CAREFUL)
    clock = await Clock.install(admin, datetime.now(UTC))
    await agents.confirm_tool(world.db, bea.actor, RISKY)
    call = await asked(http, world.service, await opened(http, world.service))
    dan = await world.person(Role.ADMIN, name="Dan")
    await apply_policies(world.db, dan.actor, FOUR_EYES)
    card = await asked_again(http, world, bea, call, clock)
    await refused(http, dan, card, "applied version 3 of the policies")
    assert (await decide(http, bea, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.464")
async def test_what_a_program_changed_is_on_the_card_of_the_call_that_profits_from_it(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    program = await world.service_with(Role.MEMBER, permissions=[Grantable.POLICY_WRITE, Grantable.AGENT_WRITE])
    await make_agent(world, [turn(ship())], slug="shipper")
    changed = await http.patch(
        "/v1/agents/shipper", json={"resource_limits": {"max_concurrent_jobs": 3}}, headers=program.headers
    )
    assert changed.status_code == 200, changed.text
    rules = FOUR_EYES.replace("name: refunds", "name: money-back")
    await post(http, program, "/v1/policies", text=rules)
    card = await asking(http, world, await submitted(http, bea), cal)
    name = program.actor.name
    assert [each.removeprefix(name) for each in card["programs"]] == [
        f" applied version {card['policy_version'].split('.')[0]} of the policies",
        " wrote version 2 of the agent",
    ]
    assert str(world.admin.member_id) in card["causes"], "whoever owns the program"
    visitor = await Visitor.log_in(http, world, cal)
    page = (await visitor.get(f"/approvals/{card['id']}")).text
    assert f"Changed by programs: {name} applied version" in page
