"""`reason` of a policy: from the file to whoever decides, and to the agent where it denies."""

from __future__ import annotations

import asyncpg
import httpx
import pytest

from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies import files
from cortex_plane.policies.model.policies import Level, PolicyRow, PolicyVerdict
from cortex_plane.policies.model.versions import MAX_REASON, PlacedRow, row_line
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.channels.behaviour import link
from tests.channels.postbox import connect
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.dashboard.test_dashboard_approvals import shown
from tests.fixtures.approvals import Shipping, pending, ship, waiting
from tests.fixtures.external_gates import desk, opened, permissions, sent
from tests.fixtures.external_gates import governed as governed_elsewhere
from tests.fixtures.gated import Desk, atlas, delete, governed
from tests.fixtures.mail_servers import only_mail
from tests.fixtures.people import World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import ended, make_agent, steps_of, submit, turn, until, working

__all__ = ["live"]

REASON = "Releases leave the house: two people look."
ASKS = f"""
policies:
  - {{name: releases, target: ship, effect: requires_approval, approvers: {{roles: [approver, admin]}}, reason: "{REASON}"}}
"""
DENIES = f"""
policies:
  - {{name: releases, target: ship, effect: deny, reason: "{REASON}"}}
"""


@pytest.mark.proves("D.806")
async def test_approver_reads_it_on_api_page_and_mail(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    await apply_policies(world.db, world.admin.actor, ASKS)
    bea = await world.person(Role.APPROVER, name="Bea")
    await link(admin, world, await connect(world, "email", "post"), bea, "bea@example.com")
    _, (card,) = await waiting(world, Shipping())
    answer = await http.get(f"/v1/approvals/{card.id}", headers=world.admin.headers)
    assert answer.json()["approval"]["rule_reason"] == REASON
    visitor = await Visitor.log_in(http, world)
    for page in (await visitor.get(f"/approvals/{card.id}"), await visitor.decide(card.id, "approved")):
        assert REASON in shown(page)
    mail = await only_mail(world.db)
    assert REASON in mail.text
    assert REASON in mail.html
    assert (await audit.verify(world.db, world.admin.actor)).row_faults == [], "its rows are those that were applied"


@pytest.mark.proves("D.806")
def test_the_terminal_shows_it_with_request_policy_and_verdict(live: Live) -> None:
    async def ask() -> str:
        await apply_policies(live.world.db, live.world.admin.actor, ASKS)
        _, (card,) = await waiting(live.world, Shipping())
        return str(card.id)

    id = live.begin(ask())()
    for command in (
        ("approval", "show", id),
        ("policy", "show"),
        ("policy", "explain", "shipper", "ship", "--risk", "high"),
    ):
        assert REASON in " ".join(live.shell.run(*command).stdout.split()), command


@pytest.mark.proves("D.806")
async def test_a_model_reads_it_with_the_denial(world: World) -> None:
    await apply_policies(world.db, world.admin.actor, DENIES)
    shipping = Shipping()
    id = await submit(world, await make_agent(world, [turn(ship())]))
    async with working(world.db, shipping.app):
        await ended(world, id)
    (call,) = [call for step in await steps_of(world, id) for call in step.calls]
    assert call.error == (
        "`ship` is denied (org:releases@2.1): Releases leave the house: two people look. Do not call it again; go another way."
    )
    assert shipping.shipped == []


@pytest.mark.proves("D.806")
async def test_an_agent_elsewhere_reads_it_with_the_denial(http: httpx.AsyncClient, world: World) -> None:
    await governed_elsewhere(world, desk(gates=[], actions=[{"action_id": "wire.send"}]))
    await apply_policies(world.db, world.admin.actor, DENIES.replace("ship", "wire.send"))
    session = await opened(http, world.service)
    call = await sent(http, world.service, f"/sessions/{session}/calls", 201, tool="wire.send")
    assert (call["status"], REASON.rstrip(".") in call["error"]) == (CallStatus.REJECTED, True)
    answers = (await permissions(http, world.service, session))["actions"]
    assert [answer["reason"] for answer in answers if answer["action"] == "wire.send"] == [REASON]


@pytest.mark.proves("D.806")
async def test_a_card_has_the_reasons_of_atlas_and_policy_where_both_ask(world: World) -> None:
    asks = {"policy_id": "second", "type": "requires_approval", "actions": ["ticket.delete"], "reason": "It is final."}
    agent = await governed(world, atlas(policies=[asks]), turn(delete()))
    await apply_policies(world.db, world.admin.actor, ASKS.replace("ship", "ticket.delete"))
    id = await submit(world, agent)
    async with working(world.db, Desk().app):
        await until(world, id, JobStatus.WAITING_FOR_APPROVAL)
    (card,) = await pending(world, id)
    assert card.rule_reason == f"It is final.\n{REASON}"


@pytest.mark.fresh_database
@pytest.mark.proves("D.806", "D.804")
async def test_policies_of_the_platform_have_it_too(http: httpx.AsyncClient, world: World) -> None:
    answer = await http.post("/v1/platform/policies", headers=world.admin.headers, json={"text": ASKS})
    assert answer.status_code == 200, answer.text
    (row,) = (await http.get("/v1/platform/policies", headers=world.admin.headers)).json()["rows"]
    assert row["reason"] == REASON
    await world.person(Role.APPROVER, name="Bea")
    _, (card,) = await waiting(world, Shipping())
    assert (card.rule.partition("@")[0], card.rule_reason) == ("platform:releases", REASON)


@pytest.mark.proves("D.806")
@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        (
            '"Two \\u202Epeople."',
            "line 3: `reason` has a character that nobody sees (U+202E) at position 5: leave it out.",
        ),
        ("x" * (MAX_REASON + 1), f"line 3: `reason` has {MAX_REASON + 1} characters; the limit is {MAX_REASON}."),
        ('" "', "line 3: `reason` must be a text with something in it."),
    ],
)
def test_unreadable_reason_is_refused_with_its_line(reason: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        files.read(f"policies:\n- {{name: a, target: b, effect: deny,\n   reason: {reason}}}\n")
    assert fault in refused.value.message


@pytest.mark.proves("D.806")
def test_versions_without_it_keep_their_digest() -> None:
    row = PolicyRow(name="a", target="b", effect=PolicyVerdict.DENY)
    lines = [
        row_line(PlacedRow(level=Level.ORG, team_id=None, team=None, position=0, row=each))
        for each in (row, PolicyRow(name="a", target="b", effect=PolicyVerdict.DENY, reason=REASON))
    ]
    assert [b'"reason"' in line for line in lines] == [False, True]
