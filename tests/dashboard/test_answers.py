"""Answers on pages without scripts: the card of the dashboard, and the page of a link from a mail."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.channels.email import EmailChannel
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import orgs
from cortex_plane.worker.notifier import Notifier
from tests.approvals.test_question_forms import AMOUNT
from tests.channels.behaviour import drain
from tests.dashboard.test_dashboard_approvals import FOUR_EYES
from tests.dashboard.test_dashboard_approvals import shown as read
from tests.fixtures.approvals import Shipping, decide, pending_soon, shown, waiting
from tests.fixtures.credentials import form_of, link_for, press
from tests.fixtures.mail_servers import mail_server
from tests.fixtures.people import World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.visitors import SENT, Visitor, asked, fields_of, open_shop, settled
from tests.fixtures.workers import call, ended, make_agent, steps_of, submit, turn, working
from tests.tenancy.test_invitations import BEA, invite

R = Choice.RESPONDED
STAFF = "policies: [{name: staff, target: plane.ask_person, effect: requires_approval, approvers: {roles: [approver]}}]"


async def question(world: World, **arguments: Any) -> Approval:
    """A job whose model asks a person; nobody works on it."""
    ask = call("plane_ask_person", **{"question": "Which plan?\u202e", **arguments})
    agent = await make_agent(world, [turn(ask, text="I ask."), turn(text="{result}")], slug="asks", ask_people=True)
    id = await submit(world, agent)
    async with working(world.db, Shipping().app):
        return (await pending_soon(world, id))[0]


async def answer_read(world: World, approval: Approval) -> Any:
    """What the model got as the result of its call."""
    assert approval.job_id is not None
    async with working(world.db, Shipping().app):
        assert (await ended(world, approval.job_id)).status is JobStatus.COMPLETED
    return (await steps_of(world, approval.job_id))[0].calls[0].result


# The card ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.744")
async def test_a_choice_is_answered_on_the_card(http: httpx.AsyncClient, strict: World) -> None:
    approval = await question(strict, choices=["basic", "pro\u200bfessional", "<b>none</b>"])
    visitor = await Visitor.log_in(http, strict)
    inbox = read(await visitor.get("/"))
    assert "asks you" in inbox
    page = await visitor.get(f"/approvals/{approval.id}")
    text = read(page)
    job = read(await visitor.get(f"/jobs/{approval.job_id}"))
    assert "agent: suspended" in job
    assert ("Waiting for a person Needs an answer" in job, "May this run?" in job) == (True, False)
    for words in (
        "Needs an answer",
        "Which plan? ⟨U+202E⟩",
        "pro ⟨U+200B⟩ fessional",
        "Decline",
        "the agent is told so.",
    ):
        assert words in text, words
    for part in ("data-approve", "data-edit", "What it can do"):
        assert part not in page.text, part
    assert "<b>none" not in page.text
    refused = await visitor.decide(approval.id, "responded", answer="other")
    assert refused.status_code == 422
    assert "The answer does not fit: it is none of the choices" in read(refused)
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    done = await visitor.decide(approval.id, "responded", answer="pro\u200bfessional")
    assert done.status_code == 303
    after = read(await visitor.get(f"/approvals/{approval.id}"))
    assert "Answered by Ada" in after
    assert "“pro ⟨U+200B⟩ fessional”" in after
    assert "Receipt" in after
    assert await answer_read(strict, approval) == "pro\u200bfessional"


@pytest.mark.proves("D.744")
async def test_a_form_is_filled_in_and_what_does_not_fit_stays_to_be_corrected(
    http: httpx.AsyncClient, strict: World
) -> None:
    approval = await question(strict, schema=AMOUNT, default={"amount": 1, "to": "card"})
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get(f"/approvals/{approval.id}")
    for words in ("Amount in EUR", "For the books.", "its default is the answer."):
        assert words in read(page), words
    fields = {"field.amount": "60", "field.to": "voucher", "field.why": "late <parcel>", "field.sure": "yes"}
    refused = await visitor.decide(approval.id, "responded", **fields)
    assert refused.status_code == 422
    assert "`amount`" in read(refused)
    kept = fields_of(refused.text, f"/approvals/{approval.id}/decide", "responded")
    assert kept["field.why"] == "late <parcel>"
    assert 'name="field.amount" inputmode="decimal" value="60"' in refused.text
    assert '<option value="voucher" selected>' in refused.text
    assert (await visitor.decide(approval.id, "responded", **fields | {"field.amount": "40.5"})).status_code == 303
    answer = {"amount": 40.5, "to": "voucher", "why": "late <parcel>", "sure": True}
    assert (await shown(strict, approval.id)).answer == answer
    assert await answer_read(strict, approval) == answer


@pytest.mark.proves("D.740")
async def test_any_call_is_answered_on_its_card_and_nothing_is_sent(http: httpx.AsyncClient, strict: World) -> None:
    async with open_shop(strict):
        approval = await asked(strict)
        visitor = await Visitor.log_in(http, strict)
        text = read(await visitor.get(f"/approvals/{approval.id}"))
        assert "Answer instead of sending it" in text
        assert "Nothing is sent. The agent goes on with your words." in text
        empty = await visitor.decide(approval.id, "responded", answer=" ")
        assert empty.status_code == 422
        done = await visitor.decide(approval.id, "responded", answer="Order\r\ncoffee.")
        assert done.status_code == 303
        assert await settled(strict, approval.job_id) is JobStatus.COMPLETED
        late = await visitor.send(
            f"/approvals/{approval.id}/decide", {"form_token": fields_of(
                (await visitor.get("/")).text, "/logout")["form_token"], "decision": "responded", "answer": "Tea.",
                "version": "1", "input_hash": approval.input_hash},
        )  # fmt: skip
        assert late.status_code == 409
        assert "Ada was faster" in read(late)
    assert SENT == []
    assert (await shown(strict, approval.id)).answer == "Order\ncoffee."
    page = read(await visitor.get(f"/jobs/{approval.job_id}"))
    assert "answered" in page


@pytest.mark.proves("D.740")
async def test_whoever_may_not_approve_has_no_form_to_answer(http: httpx.AsyncClient, strict: World) -> None:
    await strict.person(Role.ADMIN, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    async with open_shop(strict):
        approval = await asked(strict)
    page = await (await Visitor.log_in(http, strict)).get(f"/approvals/{approval.id}")
    assert "You can deny this, but not approve it." in read(page)
    assert 'value="responded"' not in page.text


# The link of a mail ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.744")
async def test_a_question_in_a_mail_is_answered_on_its_page(
    http: httpx.AsyncClient, strict: World, admin: asyncpg.Connection
) -> None:
    async with mail_server() as server:
        channel = EmailChannel(server.server, "c@plane.example")
        notifier = Notifier(strict.db, [channel], "http://plane")
        await invite(strict, roles=[Role.APPROVER])
        await apply_policies(strict.db, strict.admin.actor, STAFF)
        await drain(notifier)
        (path,) = [urlsplit(url).path for url in server.got[0].urls]
        verify = await http.get(path)
        await http.post(path, data=fields_of(verify.text, path))
        http.cookies.clear()
        approval = await question(strict, choices=["basic", "pro"])
        await drain(notifier)
        mail = server.got[-1]
        assert mail.recipient == BEA
        assert mail.message["Subject"].startswith("An agent asks you")
        (link,) = {url for url in mail.urls if "d=responded" in url}
        assert not [url for url in mail.urls if "d=approved" in url]
        before = await digests(admin)
        page = await http.get(link)
        assert await digests(admin) == before, "looking answers nothing"
        assert "Which plan? ⟨U+202E⟩" in read(page)
        assert "<script" not in page.text
        refused = await press(http, link, answer="both")
        assert refused.status_code == 422
        assert "none of the choices" in read(refused)
        done = await press(http, link, answer="pro", reason="cheaper")
        assert "Answered. " in read(done)
        assert "The agent goes on with your answer." in read(done)
        again = await http.post(link, data={**form_of(page), "answer": "pro"})
        assert "Already answered by" in read(again)
        other = await http.post(link, data={**form_of(page), "answer": "basic"})
        assert other.status_code == 409
        assert "Already answered by" in read(other)
        await drain(notifier)
        assert "Answer:" in server.got[-1].text
        await channel.close()
    assert await answer_read(strict, approval) == "pro"


@pytest.mark.proves("D.744")
async def test_a_call_is_answered_over_a_link_and_a_question_is_never_approved(
    http: httpx.AsyncClient, strict: World
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    link = await link_for(strict, approval, R)
    assert "Nothing is sent. The agent goes on with your words." in read(await http.get(link))
    assert (await press(http, link, answer="x" * 20_000)).status_code == 422
    assert "Answered. ship: The agent goes on" in read(await press(http, link, answer="Wait."))
    asks = await question(strict)
    refused = await press(http, await link_for(strict, asks))
    assert refused.status_code == 409
    assert "This is a question" in read(refused)
    assert "Decline to answer" in read(await http.get(await link_for(strict, asks, Choice.DENIED)))


@pytest.mark.proves("D.744")
async def test_a_question_that_is_hidden_in_part_is_answered_in_the_dashboard(
    http: httpx.AsyncClient, strict: World
) -> None:
    settings = OrgSettingsChange(redact=("iban",))
    await orgs.update_org(strict.db, strict.admin.actor, OrgChange(settings=settings), None)
    form = {"type": "object", "properties": {"iban": {"type": "string"}}, "required": ["iban"]}
    approval = await question(strict, schema=form)
    link = await link_for(strict, approval, R)
    page = await http.get(link)
    assert "Log in to answer it" in read(page)
    assert form_of(page) == {}
    visitor = await Visitor.log_in(http, strict)
    assert (await visitor.decide(approval.id, "responded", **{"field.iban": "DE1"})).status_code == 303
    after = read(await http.get(link))
    assert "Answered by Ada" in after
    assert "DE1" not in after


async def test_a_decision_over_the_api_is_on_the_card_at_once(http: httpx.AsyncClient, strict: World) -> None:
    approval = await question(strict)
    visitor = await Visitor.log_in(http, strict)
    await decide(strict, approval, R, answer="basic")
    live = await visitor.get(f"/approvals/{approval.id}/live")
    assert "Answered by Ada" in read(live)
