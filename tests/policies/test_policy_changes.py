"""Policies that wait for a second person where the org says so, and the platform's policies."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import (
    ApprovalDecision,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    DecisionReceipt,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.client import Client
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.policies.model.versions import Applied, PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import MemberChange, OrgChange, OrgSettingsChange, PolicyChanges, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.approvals import Shipping, ship
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.workers import ended, make_agent, submit, turn, working

NO_DEPLOYS = "policies: [{name: no-deploys, target: deploy*, effect: deny}]"
NO_MAIL = "policies: [{name: no-mail, target: mail*, effect: deny}]"


async def set_changes(world: World, changes: PolicyChanges) -> None:
    change = OrgChange(settings=OrgSettingsChange(policy_changes=changes))
    await orgs.update_org(world.db, world.admin.actor, change, None)


@pytest.fixture
async def careful(world: World) -> World:
    """Version 1 holds; from here on changes need approval."""
    await set_changes(world, PolicyChanges.APPROVAL)
    return world


async def apply(world: World, text: str, by: Person | None = None, **more: object) -> Applied:
    return await policies.apply_policies(world.db, (by or world.admin).actor, PolicyFile(text=text, **more))  # type: ignore[arg-type]


async def decide(world: World, applied: Applied, by: Person, choice: Choice = Choice.APPROVED) -> DecisionReceipt:
    assert applied.waits is not None
    approval = (await approvals.get_approval(world.db, world.admin.actor, applied.waits.approval_id)).approval
    decision = ApprovalDecision(decision=choice, version=approval.version, input_hash=approval.input_hash)
    return await decisions.decide(world.db, by.actor, approval.id, decision, Channel.API)


async def current(world: World) -> int:
    return (await policies.get_policies(world.db, world.admin.actor)).version


@pytest.mark.proves("D.803")
async def test_a_policy_file_waits_for_a_second_person(careful: World) -> None:
    stella = await careful.person(Role.STEWARD, name="Stella")
    waiting = await apply(careful, NO_DEPLOYS, stella, note="Freeze")
    assert (waiting.version, waiting.changed) == (1, False)
    assert waiting.waits is not None
    assert waiting.waits.deciders == ["Ada"]
    assert await current(careful) == 1
    approval = (await approvals.get_approval(careful.db, careful.admin.actor, waiting.waits.approval_id)).approval
    assert (approval.kind, approval.tool_name, approval.target) == (ApprovalKind.CHANGE, "policy.apply", "policies")
    assert (approval.arguments["diff"]["added"], approval.arguments["diff"]["removed"]) == (1, 1)
    assert approval.arguments["effect"]["totals"]["looked_at"] == 0
    with pytest.raises(Forbidden):
        await decide(careful, waiting, stella)
    await decide(careful, waiting, careful.admin)
    version = await policies.get_policies(careful.db, careful.admin.actor)
    assert (version.version, version.source, version.applied_by, version.note) == (2, NO_DEPLOYS, "Stella", "Freeze")
    assert (await audit.verify(careful.db, careful.admin.actor)).faults == []


@pytest.mark.proves("D.803")
async def test_its_card_says_what_it_would_have_changed(careful: World) -> None:
    agent = await make_agent(careful, [turn(ship(), text="I ship.")], slug="shipper")
    async with working(careful.db, Shipping().app):
        assert (await ended(careful, await submit(careful, agent))).status is JobStatus.COMPLETED
    stella = await careful.person(Role.STEWARD, name="Stella")
    waiting = await apply(careful, "policies: [{name: frozen, target: ship, effect: deny}]", stella)
    assert waiting.waits is not None
    details = await approvals.get_approval(careful.db, careful.admin.actor, waiting.waits.approval_id)
    effect = details.approval.arguments["effect"]
    assert (effect["totals"]["changed"], effect["totals"]["stricter"]) == (1, 1)
    assert (effect["groups"][0]["tool"], effect["groups"][0]["after"]["verdict"]) == ("ship", "deny")


@pytest.mark.proves("D.803")
async def test_nothing_waits_where_nothing_changes_or_nobody_is_left(careful: World) -> None:
    same = await apply(careful, (await policies.get_policies(careful.db, careful.admin.actor)).source)
    assert (same.changed, same.waits) == (False, None)
    dry = await apply(careful, NO_DEPLOYS, dry_run=True)
    assert (dry.changed, dry.version, dry.waits) == (True, 2, None)
    with pytest.raises(Conflict) as refused:
        await apply(careful, NO_DEPLOYS)
    assert refused.value.code == "nobody_to_approve"
    await set_changes(careful, PolicyChanges.DIRECT)
    assert (await apply(careful, NO_DEPLOYS)).changed


@pytest.mark.proves("D.803")
async def test_one_of_two_proposals_holds_and_the_other_is_over(careful: World) -> None:
    one, two = await careful.person(Role.STEWARD, name="One"), await careful.person(Role.STEWARD, name="Two")
    first, second = await apply(careful, NO_DEPLOYS, one), await apply(careful, NO_MAIL, two)
    results = await asyncio.gather(
        decide(careful, first, careful.admin), decide(careful, second, careful.admin), return_exceptions=True
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    assert [type(failure) for failure in failures] == [Conflict]
    assert await current(careful) == 2
    statuses = set()
    for applied in (first, second):
        assert applied.waits is not None
        details = await approvals.get_approval(careful.db, careful.admin.actor, applied.waits.approval_id)
        statuses.add(details.approval.status)
    assert statuses == {ApprovalStatus.APPROVED, ApprovalStatus.CANCELLED}
    third = await apply(
        careful,
        NO_MAIL if (await policies.get_policies(careful.db, careful.admin.actor)).source == NO_DEPLOYS else NO_DEPLOYS,
        one,
    )
    await set_changes(careful, PolicyChanges.DIRECT)
    await apply(careful, "policies: []")
    with pytest.raises(Conflict) as refused:
        await decide(careful, third, careful.admin)
    assert refused.value.code == "approval_conflict"


@pytest.mark.proves("D.803")
async def test_a_name_that_came_to_stand_for_somebody_else_is_asked_about_again(careful: World) -> None:
    stella = await careful.person(Role.STEWARD, name="Stella")
    vera = await careful.person(Role.APPROVER, name="Vera")
    text = "policies: [{name: vera, target: deploy*, effect: requires_approval, approvers: {members: [Vera]}}]"
    waiting = await apply(careful, text, stella)
    await orgs.update_member(careful.db, careful.admin.actor, vera.member_id, MemberChange(display_name="Old"), None)
    await careful.person(Role.APPROVER, name="Vera")
    with pytest.raises(Conflict) as refused:
        await decide(careful, waiting, careful.admin)
    assert refused.value.code == "change_overtaken"
    assert await current(careful) == 1


async def propose(http: httpx.AsyncClient, by: Person, text: str) -> dict[str, Any]:
    """What waits now."""
    answer = await http.post("/v1/policies", json={"text": text}, headers=by.headers)
    assert answer.status_code == 202, answer.text
    waits: dict[str, Any] = answer.json()["waits"]
    return waits


async def shown(http: httpx.AsyncClient, world: World, waits: dict[str, Any]) -> dict[str, Any]:
    answer = await http.get(f"/v1/approvals/{waits['approval_id']}", headers=world.admin.headers)
    card: dict[str, Any] = answer.json()["approval"]
    return card


async def decide_over_http(
    http: httpx.AsyncClient, world: World, waits: dict[str, Any], choice: str
) -> tuple[int, str | None]:
    card = await shown(http, world, waits)
    decision = {"decision": choice, "version": card["version"], "input_hash": card["input_hash"]}
    path = f"/v1/approvals/{waits['approval_id']}/decide"
    answer = await http.post(path, json=decision, headers=world.admin.headers)
    return answer.status_code, answer.json().get("code")


@pytest.mark.proves("D.803")
async def test_change_that_can_no_longer_be_approved_is_proposed_again(http: httpx.AsyncClient, careful: World) -> None:
    """The file says the same, and a name in it stands for somebody else: the request that waits is over, and another asks."""
    stella = await careful.person(Role.STEWARD, name="Stella")
    vera = await careful.person(Role.APPROVER, name="Vera")
    text = "policies: [{name: vera, target: deploy*, effect: requires_approval, approvers: {members: [Vera]}}]"
    first, other = await propose(http, stella, text), await propose(http, stella, NO_MAIL)
    await orgs.update_member(careful.db, careful.admin.actor, vera.member_id, MemberChange(display_name="Old"), None)
    await careful.person(Role.APPROVER, name="Vera")
    assert await decide_over_http(http, careful, first, "approved") == (409, "change_overtaken")
    again = await propose(http, stella, text)
    assert again["created"] is True
    assert again["approval_id"] != first["approval_id"]
    card = await shown(http, careful, first)
    assert (card["status"], card["resolution_reason"]) == (
        "cancelled", "it could not be approved any more, and was proposed again",
    )  # fmt: skip
    assert (await shown(http, careful, other))["status"] == "pending", "what else was proposed still waits"
    assert (await propose(http, stella, text))["approval_id"] == again["approval_id"]
    assert await decide_over_http(http, careful, again, "approved") == (200, None)
    assert await current(careful) == 2
    assert (await audit.verify(careful.db, careful.admin.actor)).faults == []


@pytest.mark.parametrize("how", ["denied", "expired", "cancelled"])
@pytest.mark.proves("D.803")
async def test_denied_change_may_be_proposed_again(
    http: httpx.AsyncClient, careful: World, admin: asyncpg.Connection, how: str
) -> None:
    stella = await careful.person(Role.STEWARD, name="Stella")
    first = await propose(http, stella, NO_MAIL)
    if how == "denied":
        assert await decide_over_http(http, careful, first, "denied") == (200, None)
    elif how == "expired":
        await Clock.install(admin, datetime.fromisoformat(first["deadline"]))
    else:
        await decide_over_http(http, careful, await propose(http, stella, NO_DEPLOYS), "approved")
    again = await propose(http, stella, NO_MAIL)
    assert again["created"] is True
    assert again["approval_id"] != first["approval_id"]
    assert await decide_over_http(http, careful, again, "approved") == (200, None)


@pytest.mark.proves("D.803")
async def test_change_whose_decider_left_waits_for_the_next_one(http: httpx.AsyncClient, careful: World) -> None:
    bob = await careful.person(Role.STEWARD, name="Bob")
    first = await propose(http, careful.admin, NO_MAIL)
    assert first["deciders"] == ["Bob"]
    await orgs.update_member(careful.db, careful.admin.actor, bob.member_id, MemberChange(roles=[Role.MEMBER]), None)
    answer = await http.post("/v1/policies", json={"text": NO_MAIL}, headers=careful.admin.headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "nobody_to_approve")
    await careful.person(Role.STEWARD, name="Cleo")
    waits = await propose(http, careful.admin, NO_MAIL)
    assert (waits["created"], waits["deciders"]) == (False, ["Cleo"])


@pytest.mark.proves("D.803")
async def test_the_same_request_again_is_answered_as_it_was(careful: World) -> None:
    stella = await careful.person(Role.STEWARD, name="Stella")
    once = IdempotencyKey(key="k", fingerprint=b"x" * 32)
    first = await policies.apply_policies(careful.db, stella.actor, PolicyFile(text=NO_MAIL), once)
    assert await policies.apply_policies(careful.db, stella.actor, PolicyFile(text=NO_MAIL), once) == first
    again = await apply(careful, NO_MAIL, stella)
    assert first.waits is not None
    assert again.waits is not None
    assert (again.waits.approval_id, again.waits.created) == (first.waits.approval_id, False)


@pytest.mark.proves("D.803")
async def test_over_http_it_is_accepted(http: httpx.AsyncClient, careful: World) -> None:
    stella = await careful.person(Role.STEWARD, name="Stella")
    answer = await http.post("/v1/policies", json={"text": NO_MAIL}, headers=stella.headers)
    assert answer.status_code == 202, answer.text
    assert answer.json()["waits"]["deciders"] == ["Ada"]
    async with Client("http://plane", careful.admin.secret, transport=http._transport) as plane:
        card = await plane.approvals.get(answer.json()["waits"]["approval_id"])
        await plane.approvals.approve(card.approval)
        assert (await plane.policies.get()).version == 2


# The platform ----------------------------------------------------------------------------------------------------

CEILING = """
policies:
  - {name: critical-needs-approval, target: "*", effect: requires_approval, when: 'risk == "critical"', template: critical_path, final: true}
  - {name: no-rm, target: "rm*", effect: deny}
"""


@pytest.mark.fresh_database
@pytest.mark.proves("D.804")
async def test_platform_policies_are_applied_with_a_platform_key(
    http: httpx.AsyncClient, world: World, db: Database
) -> None:
    other = await World.create(db, "globex")
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        before = await plane.platform.get_policies()
        assert [row.name for row in before.rows] == ["critical-needs-approval"]
        dry = await plane.platform.apply_policies(PolicyFile(text=CEILING, dry_run=True))
        assert (dry.changed, dry.diff.added, dry.diff.removed) == (True, 1, 0)
        result = await plane.platform.apply_policies(
            PolicyFile(text=CEILING, note="No rm", expected_version=before.version)
        )
        after = await plane.platform.get_policies()
        assert (after.version, [row.name for row in after.rows]) == (
            result.version,
            ["critical-needs-approval", "no-rm"],
        )
        assert after.version > before.version
        assert not (await plane.platform.apply_policies(PolicyFile(text=CEILING))).changed
        with pytest.raises(Stale):
            await plane.platform.apply_policies(PolicyFile(text="policies: []", expected_version=before.version))
        first = "policies: [{name: first, target: x, effect: deny}, {name: no-rm, target: rm, effect: deny}]"
        merged = await plane.platform.apply_policies(PolicyFile(text=first, merge=True))
        assert (merged.diff.added, merged.diff.removed) == (1, 0)
        rows = (await plane.platform.get_policies()).rows
        assert [(row.name, row.target) for row in rows] == [
            ("first", "x"), ("critical-needs-approval", "*"), ("no-rm", "rm"),
        ]  # fmt: skip
        await plane.platform.apply_policies(PolicyFile(text=CEILING))
    for each in (world, other):
        trail = await audit.list_entries(db, each.admin.actor, None, 0, 1000)
        entry, _, _ = [entry for entry in trail if entry.action == "platform_policy_applied"]
        assert entry.body is not None
        assert (entry.body["actor"]["kind"], entry.body["data"]["note"]) == ("platform", "No rm")
        assert (await audit.verify(db, each.admin.actor)).faults == []
        shown = await policies.get_policies(db, each.admin.actor)
        assert [row.name for row in shown.platform] == ["critical-needs-approval", "no-rm"]


@pytest.mark.proves("D.804")
async def test_only_a_platform_key_changes_them_and_they_name_nothing_of_an_org(world: World) -> None:
    stella = await world.person(Role.ADMIN, name="Stella")
    for text in (CEILING, "policies: []"):
        with pytest.raises(Forbidden):
            await policies.apply_platform_policies(world.db, stella.actor, PolicyFile(text=text))
    with pytest.raises(Forbidden):
        await policies.get_platform_policies(world.db, stella.actor)
    for text in (
        "teams: {main: [{name: a, target: b, effect: deny}]}",
        "policies: [{name: a, target: b, effect: requires_approval, approvers: {members: [Ada]}}]",
    ):
        with pytest.raises(InvalidInput) as refused:
            await policies.apply_platform_policies(world.db, world.admin.actor, PolicyFile(text=text))
        assert "line 1" in refused.value.message


@pytest.mark.fresh_database
@pytest.mark.proves("D.804")
async def test_of_two_files_at_once_both_hold_one_after_the_other(world: World, admin: asyncpg.Connection) -> None:
    texts = [f"policies: [{{name: no-{name}, target: {name}, effect: deny}}]" for name in ("a", "b", "c", "d")]
    results = await asyncio.gather(
        *(policies.apply_platform_policies(world.db, world.admin.actor, PolicyFile(text=text)) for text in texts)
    )
    assert len({result.version for result in results}) == 4
    assert await admin.fetchval("select count(*) from platform_policy") == 1
