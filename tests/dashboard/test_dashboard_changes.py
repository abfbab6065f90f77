"""Changes of rules in the inbox, on their card, and in a mail, as whoever decides them reads them."""

from __future__ import annotations

import quopri

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.channels.email import _body
from cortex_plane.gates.verbs import atlases
from cortex_plane.notify.model.notifications import Card
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import PUBLIC_URL, Failure, drain, link
from tests.channels.postbox import Postbox, connect
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.atlases import ATLAS, manifest, publish
from tests.fixtures.people import World
from tests.fixtures.visitors import Visitor


@pytest.mark.proves("D.801")
async def test_the_card_shows_how_it_differs_and_what_it_would_have_changed(
    http: httpx.AsyncClient, world: World
) -> None:
    stella = await world.person(Role.STEWARD, name="Stella")
    await publish(world)
    proposal = await publish(world, manifest("2.0.0", policies=[], name="<b>Loose</b>"), stella.actor)
    assert proposal.waits is not None
    path = f"/approvals/{proposal.waits.approval_id}"
    visitor = await Visitor.log_in(http, world)
    inbox = shown(await visitor.get("/"))
    for words in ("atlas.publish", ATLAS, f"Publish version 2.0.0 of {ATLAS}", "Stella", "High"):
        assert words in inbox
    page = await visitor.get(path)
    card = shown(page)
    for words in (
        "What changes", "compared with version 1.0.0, which holds now", "Removed policy ask-before-deleting", "<b>Loose</b>",
        "What it would have changed", "Of 0 calls of the last week 0 would have been judged otherwise", "Not looked at:",
        "Proposed by Stella", "If nobody decides by then, nothing changes.", f"May this version of {ATLAS} hold?",
    ):  # fmt: skip
        assert words in card, words
    assert "<b>Loose" not in page.text
    for absent in (
        "/jobs/None",
        f"{path}/edit",
        "the job fails",
        "Hand your part",
        "Answer instead",
        'value="responded"',
    ):
        assert absent not in page.text
    own = shown(await (await Visitor.log_in(http, world, stella)).get(path))
    assert "You are not one of those who may decide this" in own
    answer = await visitor.decide(proposal.waits.approval_id, "approved", twice="yes")
    assert answer.status_code in (200, 303), answer.text
    details = await approvals.get_approval(world.db, world.admin.actor, proposal.waits.approval_id)
    if details.approval.status is ApprovalStatus.PENDING:  # a high risk is asked about once more
        await visitor.submit(answer, f"{path}/decide", decision="approved")
    over = await visitor.get(path)
    assert "Approved by Ada" in shown(over)
    assert f"{path}/receipt" in over.text
    assert (await atlases.get_atlas(world.db, world.admin.actor, ATLAS)).holds == "2.0.0"
    assert "Approved" in shown(await visitor.get("/"))


@pytest.mark.proves("D.801")
async def test_the_owner_is_told_by_mail_also_of_what_became_of_it(world: World, admin: asyncpg.Connection) -> None:
    """Its messages are on the chain of the org, because it belongs to no session; what fails for good is there as well."""
    olga, stella = await world.person(Role.STEWARD, name="Olga"), await world.person(Role.STEWARD, name="Stella")
    mail = await connect(world)
    await link(admin, world, mail, olga, "olga@example.com")
    await publish(world, manifest(), olga.actor)
    proposal = await publish(world, manifest("2.0.0", policies=[]), stella.actor)
    assert proposal.waits is not None
    box = Postbox()
    sending = Notifier(world.db, [box], PUBLIC_URL)
    await drain(sending)
    (first,) = box.received
    assert isinstance(first.content, Card)
    assert (first.target.member, first.content.agent, first.content.tool) == ("Olga", "Stella", "atlas.publish")
    assert first.content.token is None, "a message alone does not decide about rules"
    assert first.content.approve_url is not None
    assert first.content.respond_url is None, "there is no call to answer in the place of"
    mailed = quopri.decodestring(_body(first)).decode().replace("\n", " ")
    assert mailed.count("If nobody decides by then, nothing changes.") == 2
    assert "Proposed by" in mailed
    assert "Answer instead" not in mailed
    await publish(world, manifest("1.1.0"), olga.actor)
    box.failures = [Failure.PERMANENT]
    await drain(sending)
    trail = [entry.action for entry in await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)]
    assert {"approval_dispatched", "approval_cancelled", "approval_undeliverable"} <= set(trail)
    assert (await audit.verify(world.db, world.admin.actor)).faults == []
