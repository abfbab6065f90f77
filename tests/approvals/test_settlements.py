"""An uncertain call that needed an approval is settled by those who could approve it, over HTTP, and sent again only with a new grant."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.effects import MAX_REPEATS
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.approvals.test_causes import card_of, decide, shown, submitted
from tests.calls.test_http_calls import asked, digest, ended, looked, opened, post
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.stages import PATIENT, held_job, staging
from tests.fixtures.workers import call, make_agent, turn, until, working

FOUR_EYES = """\
policies:
  - {name: payments, target: pay, effect: requires_approval, template: dev_review, approvers: {roles: [approver]}}
  - {name: refunds, target: refunds.create, effect: requires_approval, template: dev_review, approvers: {roles: [approver]}, standing: true}
  - {name: rest, target: "*", effect: allow}
"""
W, PAUSED = JobStatus.WAITING_FOR_APPROVAL, JobStatus.PAUSED


@pytest_asyncio.fixture
async def world(db: Database) -> World:
    world = await World.create(db, "acme", policies=None)
    await world.person(Role.APPROVER, name="Cal")
    await apply_policies(db, world.admin.actor, FOUR_EYES)
    return world


async def run(world: World, job: UUID, *until_it_is: JobStatus, app: App | None = None) -> None:
    async with working(world.db, app or staging(), settings=PATIENT):
        await until(world, job, *until_it_is)


async def paid(http: httpx.AsyncClient, world: World, cal: Person) -> UUID:
    """A job whose payment was approved, sent, and is uncertain."""
    await make_agent(world, [turn(call("pay", amount=7))], app="staging", slug="payer")
    job = await submitted(http, world.admin, "payer")
    await run(world, job, W)
    await decide(http, cal, await card_of(http, cal, job))
    await run(world, job, PAUSED)
    return job


async def answer(
    http: httpx.AsyncClient, person: Person, card: dict[str, Any], verdict: str, status: int = 200, **more: Any
) -> dict[str, Any]:
    body = {"verdict": verdict, **more}
    told = await http.post(f"/v1/approvals/{card['id']}/answer", json=body, headers=person.headers)
    assert told.status_code == status, told.text
    found: dict[str, Any] = told.json()
    return found


@pytest_asyncio.fixture
async def dan(world: World) -> Person:
    return await world.person(Role.APPROVER, name="Dan")


@pytest.mark.proves("D.444")
async def test_a_requester_who_is_no_approver_does_not_settle_what_they_asked_for(
    http: httpx.AsyncClient, world: World, dan: Person
) -> None:
    job = await paid(http, world, dan)
    card = await card_of(http, dan, job)
    assert (card["kind"], card["may_decide"]) == ("uncertain_effect", True)
    asked_for = await shown(http, world.admin, card["id"])
    assert asked_for["may_decide"] is False
    told = await answer(http, world.admin, card, "did_not_happen", 403)
    assert told["code"] == "not_an_approver"
    operator = await world.person(Role.OPERATOR, name="Olga")
    assert (await answer(http, operator, card, "did_not_happen", 403))["code"] == "not_an_approver"
    questions = (await http.get(f"/v1/jobs/{job}/questions", headers=dan.headers)).json()
    path = f"/v1/jobs/{job}/calls/{questions['items'][0]['call_id']}/settle"
    assert (await post(http, operator, path, status=403, verdict="happened"))["code"] == "not_an_approver"
    assert (await shown(http, dan, card["id"]))["status"] == "pending"
    assert (await answer(http, dan, card, "happened"))["approval"]["status"] == "approved"


@pytest.mark.proves("D.444")
async def test_a_cause_settles_nothing_but_may_give_it_up(http: httpx.AsyncClient, world: World, dan: Person) -> None:
    both = await world.person(Role.ADMIN, Role.APPROVER, name="Ann")
    await make_agent(world, [turn(call("pay", amount=7))], app="staging", slug="payer")
    job = await submitted(http, both, "payer")
    await run(world, job, W)
    await decide(http, dan, await card_of(http, dan, job))
    await run(world, job, PAUSED)
    card = await card_of(http, dan, job)
    assert (await answer(http, both, card, "did_not_happen", 403))["code"] == "self_approval"
    assert (await answer(http, both, card, "fail"))["approval"]["status"] == "denied"


@pytest.mark.proves("D.444")
async def test_settling_needs_the_same_quorum_and_answers_that_agree(
    http: httpx.AsyncClient, world: World, dan: Person
) -> None:
    eve = await world.person(Role.APPROVER, name="Eve")
    await apply_policies(
        world.db,
        world.admin.actor,
        FOUR_EYES.replace("pay, effect: requires_approval,", "pay, effect: requires_approval, quorum: 2,"),
    )
    await make_agent(world, [turn(call("pay", amount=7))], app="staging", slug="payer")
    job = await submitted(http, world.admin, "payer")
    await run(world, job, W)
    card = await card_of(http, dan, job)
    await decide(http, dan, card)
    await decide(http, eve, card)
    await run(world, job, PAUSED)
    card = await card_of(http, dan, job)
    assert card["quorum"]["votes"] == 2
    first = await answer(http, dan, card, "did_not_happen")
    assert first["approval"]["status"] == "pending"
    assert (await answer(http, dan, card, "did_not_happen"))["approval"]["status"] == "pending", "one person is one"
    assert (await answer(http, eve, card, "happened"))["approval"]["status"] == "pending", "they do not agree"
    assert (await answer(http, eve, card, "did_not_happen"))["approval"]["status"] == "approved"


@pytest.mark.proves("D.444")
async def test_raced_answers_settle_once(http: httpx.AsyncClient, world: World, dan: Person) -> None:
    job = await paid(http, world, dan)
    card = await card_of(http, dan, job)
    people = [dan, *[await world.person(Role.APPROVER, name=f"P{n}") for n in range(5)]]

    async def one(person: Person) -> int:
        path = f"/v1/approvals/{card['id']}/answer"
        answered = await http.post(path, json={"verdict": "did_not_happen"}, headers=person.headers)
        return answered.status_code

    assert sorted(await asyncio.gather(*map(one, people))) == [200, 409, 409, 409, 409, 409]
    assert (await shown(http, dan, card["id"]))["repeats"] == 1


@pytest.mark.proves("D.445")
async def test_the_second_repetition_needs_a_new_grant_and_their_number_is_capped(
    http: httpx.AsyncClient, world: World, dan: Person
) -> None:
    job = await paid(http, world, dan)
    for times in range(1, MAX_REPEATS + 1):
        card = await card_of(http, dan, job)
        assert (card["kind"], card["repeats"]) == ("uncertain_effect", times - 1)
        await answer(http, dan, card, "did_not_happen")
        if times > 1:
            await run(world, job, W)
            again = await card_of(http, dan, job)
            assert (again["kind"], again["repeats"]) == ("call", times)
            await decide(http, await world.person(Role.APPROVER, name=f"New {times}"), again)
        await run(world, job, PAUSED)
        dan = await world.person(Role.APPROVER, name=f"Dan {times}")  # whoever answered is a cause of the next request
    card = await card_of(http, dan, job)
    assert card["repeats"] == MAX_REPEATS
    told = await answer(http, dan, card, "did_not_happen", 409)
    assert told["code"] == "repeats_used_up"
    assert (await answer(http, dan, card, "happened"))["approval"]["status"] == "approved"


@pytest.mark.proves("D.445")
async def test_a_call_from_elsewhere_is_sent_again_once_and_then_asked_for(
    http: httpx.AsyncClient, world: World, dan: Person
) -> None:
    session = await opened(http, world.service)
    made = await asked(http, world.service, session)
    intent = f"/v1/calls/{made['id']}/intent"
    await decide(http, dan, await shown(http, dan, made["approval_id"]))
    arguments = digest(made["arguments"])
    await post(http, world.service, intent, input_hash=arguments)
    eve = await world.person(Role.APPROVER, name="Eve")
    for person, expected in ((dan, "intended"), (eve, "awaiting")):
        doubted = await ended(http, world.service, made, "unknown", error="no answer")
        card = await shown(http, dan, doubted["approval_id"])
        assert (await answer(http, world.admin, card, "did_not_happen", 403))["code"] == "not_an_approver"
        await answer(http, person, card, "did_not_happen")
        begun = await post(http, world.service, intent, input_hash=arguments)
        assert begun["status"] == expected
    again = await shown(http, dan, (await looked(http, world.service, made["id"]))["approval_id"])
    assert (again["kind"], again["repeats"]) == ("call", 2)
    assert (await decide(http, dan, again, 403))["code"] == "self_approval", "Dan answered about it"


@pytest.mark.proves("D.445")
async def test_a_call_under_a_standing_approval_is_sent_again_once_and_then_asked_for(
    http: httpx.AsyncClient, world: World, dan: Person
) -> None:
    session = await opened(http, world.service)
    first = await asked(http, world.service, session)
    await decide(http, dan, await shown(http, dan, first["approval_id"]), standing={"calls": 1})
    made = await asked(http, world.service, session)
    assert (made["verdict"], made["approval_id"]) == ("allow", None)
    intent, arguments = f"/v1/calls/{made['id']}/intent", digest(made["arguments"])
    await post(http, world.service, intent, input_hash=arguments)
    eve = await world.person(Role.APPROVER, name="Eve")
    for person, expected in ((eve, "intended"), (await world.person(Role.APPROVER, name="Fay"), "awaiting")):
        doubted = await ended(http, world.service, made, "unknown", error="no answer")
        await answer(http, person, await shown(http, eve, doubted["approval_id"]), "did_not_happen")
        begun = await post(http, world.service, intent, input_hash=arguments)
        assert begun["status"] == expected


@pytest.mark.proves("D.444")
async def test_a_call_that_needed_no_approval_is_settled_as_before(http: httpx.AsyncClient, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, 'policies: [{name: all, target: "*", effect: allow}]')
    held = await held_job(world)
    card = await card_of(http, world.admin, held.job)
    operator = await world.person(Role.OPERATOR, name="Olga")
    member = await world.person(Role.MEMBER, name="Max")
    assert (await answer(http, member, card, "happened", 404))["code"] == "approval_not_found"
    assert (await answer(http, operator, card, "happened"))["approval"]["status"] == "approved"


@pytest.mark.proves("D.444")
@pytest.mark.parametrize("settled", ["probe", "retry_with_key"])
async def test_a_call_that_nobody_asks_about_is_not_settled_by_its_requester(
    http: httpx.AsyncClient, world: World, dan: Person, settled: str
) -> None:
    olga = await world.person(Role.OPERATOR, Role.MEMBER, name="Olga")
    sent = await asked(http, olga, await opened(http, olga), on_uncertain=settled)
    await decide(http, dan, await shown(http, dan, sent["approval_id"]))
    path, seen = f"/v1/calls/{sent['id']}/intent", digest(sent["arguments"])
    assert (await post(http, olga, path, input_hash=seen))["status"] == "intended"
    assert (await ended(http, olga, sent, "unknown", error="no answer"))["approval_id"] is None
    path = f"/v1/jobs/{sent['job_id']}/calls/{sent['id']}/settle"
    for verdict in ("did_not_happen", "happened"):
        told = await post(http, olga, path, status=403, verdict=verdict)
        assert told["code"] == "not_an_approver"
    assert (await post(http, dan, path, verdict="happened"))["changed"] is True
