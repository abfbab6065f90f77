"""The example atlas of spec 5, word for word, in a worker, in an org without policies of its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from cortex_plane.jobs.model.jobs import Job, JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending
from tests.fixtures.atlases import publish
from tests.fixtures.gated import ledger, say, traces
from tests.fixtures.people import Person, World, with_key
from tests.fixtures.workers import call, make_agent, turn, until, whole, working
from tests.gates.files import SPEC

ATLAS = "com.acme.support"
RISKS = {
    "ticket.get": "low", "ticket.list": "low", "ticket.comment": "low", "ticket.reassign": "medium",
    "ticket.delete": "high", "user.ban": "critical", "mail.send": "low",
}  # fmt: skip
GET, LIST, COMMENT, REASSIGN, DELETE, BAN, MAIL = (
    call(name, **({"ticket_id": "T-1"} if name.startswith("ticket.") else {"who": "eve"})) for name in RISKS
)
AGREE = turn(say("onboarding", agree_terms=True))
ADMIN = say("admin-gate", admin_ack="understood")
CONFIRM = say("delete-confirm", confirm_delete="understood")
SHORT = say("high-risk-gate", justify_risk="it is needed")
JUSTIFY = say("high-risk-gate", justify_risk="The customer asked for it in writing today.")
SETTLED = (JobStatus.WAITING_FOR_APPROVAL, JobStatus.COMPLETED, JobStatus.FAILED)


class Support:
    def __init__(self) -> None:
        self.app, self.done = App("tests"), list[str]()
        for name, risk in RISKS.items():
            self._add(name, risk)

    def _add(self, name: str, risk: str) -> None:
        async def ticket(ticket_id: str) -> str:
            self.done.append(name)
            return ticket_id

        async def person(who: str) -> str:
            self.done.append(name)
            return who

        function = ticket if name.startswith("ticket.") else person
        offer = self.app.tool(name=name, description=name, risk=risk, on_uncertain="retry_with_key", timeout=5)
        offer(function)


async def mia(world: World) -> Person:
    """Whose session it is, with a key whose name the steward of the example lets in."""
    person = await world.person(Role.MEMBER, name="Mia")
    return await with_key(world.db, world.org_id, person.member_id, "sk-acme-mia")


async def play(world: World, support: Support, owner: Person, *script: dict[str, Any]) -> Job:
    await publish(world, SPEC.read_text())
    agent = await make_agent(world, [*script], atlases=[ATLAS])
    id = (await jobs.submit(world.db, owner.actor, JobDraft(agent=agent.slug, payload={"text": "go"}))).id
    return await go_on(world, support, id)


async def go_on(world: World, support: Support, id: UUID) -> Job:
    async with working(world.db, support.app):
        return await until(world, id, *SETTLED)


async def calls(world: World, job: Job) -> list[str]:
    made = await ledger(world, job.id)
    return [f"{each.tool_name} {each.status}" for each in made if not each.tool_name.startswith("plane.")]


async def asked_before(world: World, job: Job, action: str) -> list[str]:
    """The gates that fired for the action, in order."""
    facts = await traces(world, job)
    return [
        data["checkpoint_id"] for kind, data in facts
        if kind == "triggered" and data["trigger_data"].get("action_id") == action
    ]  # fmt: skip


@pytest.mark.proves("S5.205")
async def test_nothing_runs_before_onboarding_is_answered_with_true(strict: World) -> None:
    support, owner = Support(), await mia(strict)
    every = [turn(GET, LIST, COMMENT, REASSIGN, DELETE, BAN, MAIL)]
    job = await play(strict, support, owner, *every, turn(say("onboarding", agree_terms=False)), *every)
    assert support.done == []
    assert {each.split()[1] for each in await calls(strict, job)} == {"rejected"}


@pytest.mark.proves("S5.205")
async def test_basic_support_then_runs_reassign_after_admin_ack_and_nothing_else(strict: World) -> None:
    support, owner = Support(), await mia(strict)
    job = await play(
        strict, support, owner, AGREE, turn(GET, LIST, COMMENT), turn(REASSIGN), turn(ADMIN), turn(REASSIGN), turn(MAIL)
    )
    assert job.status is JobStatus.COMPLETED
    assert support.done == ["ticket.get", "ticket.list", "ticket.comment", "ticket.reassign"]
    assert await calls(strict, job) == [
        "ticket.get completed", "ticket.list completed", "ticket.comment completed",
        "ticket.reassign rejected", "ticket.reassign completed", "mail.send rejected",
    ]  # fmt: skip
    assert await asked_before(strict, job, "ticket.reassign") == ["admin-gate"]
    assert "atlas:default" in ((await ledger(strict, job.id))[-1].error or "")
    assert await pending(strict, job.id) == []


@pytest.mark.proves("S5.205")
async def test_delete_meets_its_three_gates_and_then_waits_for_a_person(strict: World) -> None:
    support, owner = Support(), await mia(strict)
    job = await play(
        strict,
        support,
        owner,
        AGREE,
        turn(DELETE),
        turn(ADMIN, CONFIRM, SHORT),
        turn(DELETE),
        turn(JUSTIFY),
        turn(DELETE),
    )
    assert (job.status, support.done) == (JobStatus.WAITING_FOR_APPROVAL, [])
    # By priority: 920, then twice 900.
    first, second = [each for each in await ledger(strict, job.id) if each.tool_name == "ticket.delete"][:2]
    order = ["admin-gate", "delete-confirm", "high-risk-gate"]
    assert await asked_before(strict, job, "ticket.delete") == order
    places = [(first.error or "").index(gate) for gate in order]
    assert places == sorted(places)
    assert "high-risk-gate" in (second.error or ""), "fewer than 20 characters justify nothing"
    assert "delete-confirm" not in (second.error or "")
    (card,) = await pending(strict, job.id)
    assert (card.tool_name, card.rule) == ("ticket.delete", f"atlas:{ATLAS}/require-admin-approval")
    await decide(strict, card, by=owner)
    assert (await go_on(strict, support, job.id)).status is JobStatus.COMPLETED
    assert support.done == ["ticket.delete"]
    assert await whole(strict)


@pytest.mark.proves("S5.205")
async def test_ban_meets_two_gates_and_then_waits_for_a_person(strict: World) -> None:
    support, owner = Support(), await mia(strict)
    ann = await strict.person(Role.APPROVER, name="Ann")
    job = await play(strict, support, owner, AGREE, turn(BAN), turn(ADMIN, JUSTIFY), turn(BAN))
    assert (job.status, support.done) == (JobStatus.WAITING_FOR_APPROVAL, [])
    assert await asked_before(strict, job, "user.ban") == ["admin-gate", "high-risk-gate"]
    (card,) = await pending(strict, job.id)
    assert (card.tool_name, card.rule) == ("user.ban", f"atlas:{ATLAS}/require-admin-approval")
    await decide(strict, card, by=ann)
    assert (await go_on(strict, support, job.id)).status is JobStatus.COMPLETED
    assert support.done == ["user.ban"]
