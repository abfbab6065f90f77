"""Ways in which one human could have completed alone what a policy gives to two, over HTTP: each of them is closed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame, links
from tests.approvals.test_causes import asking, card_of, decide, refused, shown, submitted
from tests.approvals.test_settlements import answer
from tests.calls.test_http_calls import asked, digest, ended, opened, post
from tests.fixtures.approvals import Shipping, ship
from tests.fixtures.credentials import form_of
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.webhooks import URL, System
from tests.fixtures.workers import make_agent, turn, until, working
from tests.tenancy import test_invitations as mail
from tests.tenancy.test_enrolments import code_for, prove_channel

RULES = """\
policies:
  - {name: four-eyes, target: ship, effect: requires_approval, template: dev_review, on_deny: continue, standing: true,
     self_approval: false, approvers: {roles: [approver, admin]}}
  - {name: refunds, target: refunds.create, effect: requires_approval, template: dev_review, standing: true,
     self_approval: false, approvers: {roles: [approver, admin]}}
  - {name: two, target: payouts.create, effect: requires_approval, template: dev_review, quorum: 2, self_approval: true,
     approvers: {roles: [approver, admin]}}
"""
W = JobStatus.WAITING_FOR_APPROVAL


@pytest_asyncio.fixture
async def world(db: Database) -> World:
    world = await World.create(db, "acme", policies=None)
    await world.person(Role.APPROVER, name="Eve")  # a quorum of two must be possible
    await apply_policies(db, world.admin.actor, RULES)
    return world


@pytest_asyncio.fixture
async def bea(world: World) -> Person:
    """An admin who tries to be two people."""
    return await world.person(Role.ADMIN, name="Bea")


@pytest_asyncio.fixture
async def cal(world: World) -> Person:
    return await world.person(Role.APPROVER, name="Cal")


@pytest_asyncio.fixture
async def dan(world: World) -> Person:
    return await world.person(Role.APPROVER, Role.OPERATOR, name="Dan")


async def another(http: httpx.AsyncClient, bea: Person, *roles: str) -> Person:
    """A second account of Bea's: she adds it, and redeems its code herself."""
    made = await post(http, bea, "/v1/members", status=201, display_name="Bea's other", roles=list(roles))
    code = (await post(http, bea, f"/v1/members/{made['id']}/enrolment-codes", status=201))["code"]
    redeemed = (await http.post("/v1/enrolments", json={"code": code})).json()
    return Person(bea.actor, redeemed["secret"])


async def doubted(
    http: httpx.AsyncClient, asker: Person, tool: str, *approvers: Person
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call from elsewhere that was approved, sent, and is uncertain; and the question about it."""
    call = await asked(http, asker, await opened(http, asker), tool=tool)
    for person in approvers:
        await decide(http, person, await shown(http, person, call["approval_id"]))
    await begun(http, asker, call, "intended")
    doubt = await ended(http, asker, call, "unknown", error="no answer")
    return call, await shown(http, asker, doubt["approval_id"])


async def begun(http: httpx.AsyncClient, asker: Person, call: dict[str, Any], status: str) -> dict[str, Any]:
    told = await post(http, asker, f"/v1/calls/{call['id']}/intent", input_hash=digest(call["arguments"]))
    assert told["status"] == status
    return told


@pytest.mark.proves("D.444", "D.465")
async def test_a_second_account_does_not_settle_what_its_owner_asked_for(
    http: httpx.AsyncClient, bea: Person, cal: Person
) -> None:
    other = await another(http, bea, "approver")
    _, question = await doubted(http, bea, "refunds.create", cal)
    told = await answer(http, other, question, "did_not_happen", 403)
    assert (told["code"], "one human" in told["detail"]) == ("self_approval", True)
    assert (await answer(http, cal, question, "did_not_happen"))["approval"]["status"] == "approved"


@pytest.mark.proves("D.444", "D.465")
async def test_two_accounts_of_one_human_do_not_settle_what_needs_two(
    http: httpx.AsyncClient, bea: Person, cal: Person, dan: Person
) -> None:
    other = await another(http, bea, "approver")
    _, question = await doubted(http, bea, "payouts.create", cal, dan)
    assert (await answer(http, bea, question, "did_not_happen"))["approval"]["status"] == "pending"
    assert (await answer(http, other, question, "did_not_happen"))["approval"]["status"] == "pending"
    assert (await answer(http, cal, question, "did_not_happen"))["approval"]["status"] == "approved"


async def hook_of(http: httpx.AsyncClient, world: World, owner: Person, member: Person) -> tuple[str, str]:
    """A webhook that ``owner`` set up, behind which the name `cal@corp` is the member's: its path and secret."""
    made = await post(http, owner, "/v1/connections", status=201, channel_type="webhook", name="hook", url=URL)
    path = f"/v1/connections/{made['id']}/mappings"
    body = {"member_id": str(member.member_id), "external_user": "cal@corp"}
    mapped = await http.post(path, json=body, headers=owner.headers)
    assert mapped.is_success, mapped.text
    return made["id"], made["secret"]


async def vote_through(
    http: httpx.AsyncClient, world: World, hook: tuple[str, str], card: dict[str, Any], choice: str = "approved"
) -> httpx.Response:
    event = {
        "type": "approval.decision", "timestamp": "2026-01-01T00:00:00Z",
        "data": {"approval_id": card["id"], "decision": choice, "version": card["version"], "input_hash": card["input_hash"],
                 "external_user": "cal@corp", "reason": "Ship evil instead."},
    }  # fmt: skip
    return await System(world, UUID(hook[0]), hook[1]).send(http, event)


@pytest.mark.proves("D.466")
async def test_a_webhook_that_a_second_account_set_up_speaks_for_its_owner(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, dan: Person
) -> None:
    hook = await hook_of(http, world, await another(http, bea, "admin"), cal)
    call = await asked(http, bea, await opened(http, bea), tool="payouts.create")
    card = await shown(http, bea, call["approval_id"])
    await decide(http, bea, card)
    assert (await vote_through(http, world, hook, card)).json()["status"] == "pending"
    assert (await decide(http, dan, card))["approval"]["status"] == "approved"
    call = await asked(http, bea, await opened(http, bea))
    told = await vote_through(http, world, hook, await shown(http, bea, call["approval_id"]))
    assert (told.status_code, told.json()["code"]) == (403, "self_approval")


@pytest.mark.proves("D.441", "D.466")
async def test_whoever_set_up_the_webhook_of_a_reason_that_the_job_has_read_shaped_it(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, dan: Person
) -> None:
    hook = await hook_of(http, world, bea, cal)
    await make_agent(world, [turn(ship()), turn(ship("evil"))], slug="shipper")
    job = await submitted(http, dan)
    told = await vote_through(http, world, hook, await asking(http, world, job, bea), "denied")
    assert told.json()["status"] == "denied"
    card = await asking(http, world, job, bea)
    await refused(http, bea, card, "set up the webhook through which a reason came")


@pytest.mark.proves("D.161", "D.465")
async def test_a_standing_approval_of_a_second_account_does_not_cover_what_its_owner_shaped(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, dan: Person
) -> None:
    other = await another(http, bea, "approver")
    await make_agent(world, [turn(ship())], slug="shipper")
    shipping, first = Shipping(), await submitted(http, dan)
    async with working(world.db, shipping.app):
        await until(world, first, W)
        card = await card_of(http, dan, first)
        await decide(http, other, card, standing={"calls": 5})
        await until(world, first, JobStatus.COMPLETED)
        again = await submitted(http, dan, session_id=card["session_id"])
        await until(world, again, JobStatus.COMPLETED)
        third = await submitted(http, bea, session_id=card["session_id"])
        await until(world, third, W)
    assert len(shipping.shipped) == 2
    assert "Bea" in {cause["name"] for cause in (await card_of(http, dan, third))["caused"]}


@pytest.mark.proves("D.444", "D.165")
async def test_a_call_under_a_standing_approval_is_settled_by_whoever_could_approve_it(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person, dan: Person
) -> None:
    session = await opened(http, dan)
    first = await asked(http, dan, session)
    card = await shown(http, cal, first["approval_id"])
    await decide(http, cal, card, standing={"calls": 5})
    covered = await asked(http, dan, session, key="second", dispatch=True)
    assert covered["status"] == "intended"
    doubt = await ended(http, dan, covered, "unknown", error="no answer")
    question = await shown(http, dan, doubt["approval_id"])
    assert question["settles"] == card["id"]
    assert (await answer(http, dan, question, "did_not_happen", 403))["code"] == "self_approval"
    assert (await answer(http, bea, question, "did_not_happen"))["approval"]["status"] == "approved"
    await begun(http, dan, covered, "intended")


@pytest.mark.proves("D.441", "D.444")
async def test_everybody_who_answered_about_a_call_shaped_what_comes_after_it(
    http: httpx.AsyncClient, bea: Person, cal: Person, dan: Person
) -> None:
    call, question = await doubted(http, bea, "payouts.create", cal, dan)
    await answer(http, cal, question, "happened")
    assert (await answer(http, dan, question, "happened"))["approval"]["status"] == "approved"
    later = await asked(http, bea, call["session_id"])
    await refused(http, cal, await shown(http, cal, later["approval_id"]), "answered whether a call happened")


@pytest.mark.proves("D.463")
async def test_a_code_ends_when_its_person_proves_a_channel_and_ends_what_they_have_not_proven_yet(
    http: httpx.AsyncClient, world: World, cal: Person, dan: Person
) -> None:
    code = await code_for(http, world, str(cal.member_id))
    await prove_channel(world, cal)
    told = await http.post("/v1/enrolments", json={"code": code})
    assert (told.status_code, told.json()["code"]) == (401, "enrolment_code_invalid")
    assert (await http.get("/v1/me", headers=cal.headers)).status_code == 200
    typed = (await links.issue_link_code(world.db, dan.actor)).code
    code = await code_for(http, world, str(dan.member_id))
    assert (await http.post("/v1/enrolments", json={"code": code})).status_code == 201
    link = {"code": typed, "external_user_id": "4712"}
    path = f"/v1/connections/{world.connection.id}/link"
    late = await http.post(path, json=link, headers=world.service.headers)
    assert late.json()["code"] == "link_code_invalid"


@pytest.mark.proves("D.463", "D.465")
async def test_an_invitation_that_its_person_follows_ends_what_others_made_in_their_name(
    http: httpx.AsyncClient, world: World, bea: Person, cal: Person
) -> None:
    """Bea invites Fay, enrols as Fay herself, and keeps that key until Fay has proven that she is somebody else."""
    invited = await mail.invite(replace(world, admin=bea), "fay@example.com", "Fay", roles=[Role.APPROVER, Role.ADMIN])
    path = f"/v1/members/{invited.member.id}/enrolment-codes"
    code = (await post(http, bea, path, status=201))["code"]
    stolen = Person(bea.actor, (await http.post("/v1/enrolments", json={"code": code})).json()["secret"])
    handed_on = await post(http, stolen, f"/v1/members/{cal.member_id}/enrolment-codes", status=201)
    link = await mail.code_for(world, invited.mapping.id)
    page = await http.get(f"/verify/{link}")
    followed = await http.post(f"/verify/{link}", data=form_of(page))
    assert followed.status_code == 303
    http.cookies.clear()
    told = await http.get("/v1/me", headers=stolen.headers)
    assert (told.status_code, told.json()["code"]) == (401, "key_revoked")
    late = await http.post("/v1/enrolments", json={"code": handed_on["code"]})
    assert late.json()["code"] == "enrolment_code_invalid"


async def redeemed(http: httpx.AsyncClient, bea: Person, member_id: str) -> Person:
    code = (await post(http, bea, f"/v1/members/{member_id}/enrolment-codes", status=201))["code"]
    secret = (await http.post("/v1/enrolments", json={"code": code})).json()["secret"]
    return Person(bea.actor, secret)


async def real_one(http: httpx.AsyncClient, world: World, bea: Person, member_id: str) -> Person:
    """The person whose account it is redeems a code of their own, and proves a channel."""
    secret = (await redeemed(http, bea, member_id)).secret
    person = Person(await frame.authenticate_key(world.db, secret), secret)
    await prove_channel(world, person)
    return person


@pytest.mark.proves("D.465")
async def test_a_vote_in_the_name_of_somebody_who_comes_later_stays_the_vote_of_its_human(
    http: httpx.AsyncClient, world: World, bea: Person, dan: Person
) -> None:
    made = await post(http, bea, "/v1/members", status=201, display_name="Fay", roles=["approver"])
    before = await redeemed(http, bea, made["id"])
    call = await asked(http, dan, await opened(http, dan), tool="payouts.create")
    card = await shown(http, bea, call["approval_id"])
    await decide(http, before, card)
    fay = await real_one(http, world, bea, made["id"])
    assert (await decide(http, bea, card))["approval"]["status"] == "pending"
    assert (await decide(http, fay, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_a_vote_stays_its_persons_own_when_their_channel_is_taken_away(
    http: httpx.AsyncClient, world: World, bea: Person, dan: Person
) -> None:
    made = await post(http, bea, "/v1/members", status=201, display_name="Fay", roles=["approver"])
    fay = await real_one(http, world, bea, made["id"])
    call = await asked(http, dan, await opened(http, dan), tool="payouts.create")
    card = await shown(http, bea, call["approval_id"])
    await decide(http, fay, card)
    mappings = f"/v1/members/{made['id']}/mappings"
    (mapping,) = (await http.get(mappings, headers=bea.headers)).json()["items"]
    assert (await http.delete(f"{mappings}/{mapping['id']}", headers=bea.headers)).status_code == 204
    assert (await decide(http, bea, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.465")
async def test_a_call_in_the_name_of_somebody_who_comes_later_stays_the_call_of_its_human(
    http: httpx.AsyncClient, world: World, bea: Person, dan: Person
) -> None:
    made = await post(http, bea, "/v1/members", status=201, display_name="Fay", roles=["member"])
    before = await redeemed(http, bea, made["id"])
    call = await asked(http, before, await opened(http, before))
    card = await shown(http, bea, call["approval_id"])
    await real_one(http, world, bea, made["id"])
    body = {"decision": "approved", "version": card["version"], "input_hash": card["input_hash"]}
    told = await http.post(f"/v1/approvals/{card['id']}/decide", json=body, headers=bea.headers)
    assert (told.status_code, told.json()["code"]) == (403, "self_approval")
    assert (await decide(http, dan, card))["approval"]["status"] == "approved"


@pytest.mark.proves("D.161", "D.465")
async def test_a_standing_approval_in_the_name_of_somebody_who_comes_later_does_not_cover_its_human(
    http: httpx.AsyncClient, world: World, bea: Person, dan: Person
) -> None:
    made = await post(http, bea, "/v1/members", status=201, display_name="Fay", roles=["approver"])
    before = await redeemed(http, bea, made["id"])
    session = await opened(http, dan)
    first = await asked(http, dan, session)
    await decide(http, before, await shown(http, dan, first["approval_id"]), standing={"calls": 5})
    await real_one(http, world, bea, made["id"])
    assert (await asked(http, dan, session, key="second", dispatch=True))["status"] == "intended"
    assert (await asked(http, bea, session, key="third", dispatch=True))["status"] == "awaiting"
