"""Atlases belong to somebody: a version of somebody else's waits for the owner's or an admin's yes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.model.approvals import (
    ApprovalDecision,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    DecisionReceipt,
    DelegationDraft,
    StandingDraft,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.verbs import deadlines
from cortex_plane.client import Client
from cortex_plane.gates.model.atlases import AtlasFile, AtlasHandover, Published
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.atlases import ATLAS, manifest, plain, publish
from tests.fixtures.clock import Clock
from tests.fixtures.gated import ATLAS as GATED
from tests.fixtures.gated import DELETE, Desk, ask_for, atlas, delete, get
from tests.fixtures.people import Person, World
from tests.fixtures.workers import ended, make_agent, submit, turn, working


class People:
    """Olga owns the atlas; Stella is another steward; Ada is the org's admin."""

    def __init__(self, world: World, olga: Person, stella: Person) -> None:
        self.world, self.olga, self.stella = world, olga, stella

    async def propose(self, text: str | None = None, by: Person | None = None) -> Published:
        proposal = await publish(self.world, text or manifest("2.0.0", policies=[]), (by or self.stella).actor)
        assert proposal.waits is not None
        return proposal

    async def card(self, proposal: Published, by: Person | None = None) -> ApprovalDetails:
        assert proposal.waits is not None
        actor = (by or self.world.admin).actor
        return await approvals.get_approval(self.world.db, actor, proposal.waits.approval_id)

    async def decide(
        self, proposal: Published, by: Person, choice: Choice = Choice.APPROVED, **more: Any
    ) -> DecisionReceipt:
        approval = (await self.card(proposal)).approval
        decision = ApprovalDecision(decision=choice, version=approval.version, input_hash=approval.input_hash, **more)
        return await decisions.decide(self.world.db, by.actor, approval.id, decision, Channel.API)

    async def holds(self) -> str | None:
        return (await atlases.get_atlas(self.world.db, self.world.admin.actor, ATLAS)).holds

    async def actions(self) -> list[str]:
        trail = await audit.list_entries(self.world.db, self.world.admin.actor, None, 0, 1000)
        return [entry.action for entry in trail]

    async def sound(self) -> bool:
        return (await audit.verify(self.world.db, self.world.admin.actor)).faults == []


@pytest.fixture
async def people(world: World) -> People:
    olga = await world.person(Role.STEWARD, name="Olga")
    stella = await world.person(Role.STEWARD, name="Stella")
    assert (await publish(world, manifest(), olga.actor)).created
    return People(world, olga, stella)


@pytest.mark.proves("D.800")
async def test_an_atlas_belongs_to_whoever_published_it_first(people: People) -> None:
    shown = await atlases.get_atlas(people.world.db, people.stella.actor, ATLAS)
    assert (shown.owner, shown.owner_id, shown.team) == ("Olga", people.olga.member_id, None)
    own = await publish(people.world, manifest("1.1.0"), people.olga.actor)
    assert (own.created, own.waits, own.version.holds) == (True, None, True)


@pytest.mark.proves("D.800", "D.801")
async def test_a_version_of_somebody_else_holds_only_after_the_owners_yes(people: People) -> None:
    empty = manifest("2.0.0", policies=[], checkpoints=[], capabilities=[])
    proposal = await people.propose(empty)
    assert (proposal.created, proposal.version.holds, proposal.version.version) == (False, False, "2.0.0")
    assert proposal.waits is not None
    assert proposal.waits.created
    assert proposal.waits.deciders == ["Ada", "Olga"]
    assert await people.holds() == "1.0.0"
    with pytest.raises(NotFound):
        await atlases.get_atlas_version(people.world.db, people.olga.actor, ATLAS, "2.0.0")

    approval = (await people.card(proposal, people.olga)).approval
    assert (approval.kind, approval.target, approval.agent_name) == (ApprovalKind.CHANGE, ATLAS, "Stella")
    assert (approval.session_id, approval.job_id, approval.agent_id) == (None, None, None)
    assert approval.may_decide
    diff, effect = approval.arguments["diff"], approval.arguments["effect"]
    assert (diff["before"], diff["after"], diff["removed"]) == ("1.0.0", "2.0.0", 4)
    assert (effect["looked_at"], bool(effect["left_out"])) == (0, True)

    receipt = await people.decide(proposal, people.olga)
    assert receipt.approval.status is ApprovalStatus.APPROVED
    assert await people.holds() == "2.0.0"
    version = await atlases.get_atlas_version(people.world.db, people.olga.actor, ATLAS, "2.0.0", source=True)
    assert (version.published_by, version.holds, version.source) == ("Stella", True, empty)
    actions = await people.actions()
    assert actions[-2:] == ["approval_decision", "atlas_published"]
    assert {"approval_requested", "approval_dispatched"} <= set(actions)
    kept = await receipts.get_receipt(people.world.db, people.olga.actor, approval.id)
    assert '"job":null' in kept.body
    assert await people.sound()


@pytest.mark.proves("D.805")
async def test_the_card_says_what_it_would_have_changed_over_the_last_week(
    world: World, admin: asyncpg.Connection
) -> None:
    """Calls of sessions under this atlas, each judged by both versions; those of others are left out, and that is said."""
    olga, stella = await world.person(Role.STEWARD, name="Olga"), await world.person(Role.STEWARD, name="Stella")
    await publish(world, atlas(), olga.actor)
    await publish(world, atlas(atlas_id="com.acme.other"), olga.actor)
    for slug, id in (("clerk", GATED), ("other", "com.acme.other")):
        # No atlas governs what the plane's own tools do.
        script = [turn(ask_for("faq")), turn(get("1"), get("2"), delete("1"))]
        agent = await make_agent(world, script, slug=slug, atlases=[id])
        async with working(world.db, Desk().app):
            await ended(world, await submit(world, agent))
    denied = [{"policy_id": "frozen", "type": "deny", "actions": ["ticket.get"]}]
    allowed = [{"policy_id": "everything", "type": "allow", "actions": ["*"]}]
    stricter = await publish(world, atlas(DELETE, version="2.0.0", policies=[*denied, *allowed]), stella.actor)
    assert stricter.waits is not None
    details = await approvals.get_approval(world.db, olga.actor, stricter.waits.approval_id)
    effect = details.approval.arguments["effect"]
    assert (effect["looked_at"], effect["changed"], effect["stricter"], effect["looser"]) == (3, 3, 3, 0)
    reads, deletes = effect["groups"]
    assert (reads["tool"], reads["calls"], reads["after"]["verdict"], reads["after"]["gates"]) == (
        "ticket.get",
        2,
        "deny",
        [],
    )
    assert (deletes["tool"], deletes["before"]["verdict"], deletes["after"]["gates"]) == (
        "ticket.delete",
        "allow",
        ["delete-confirm"],
    )
    assert any("answers" in text for text in effect["left_out"])
    await Clock.install(admin, details.now + timedelta(days=8))
    later = await publish(world, atlas(DELETE, version="3.0.0"), stella.actor)
    assert later.waits is not None
    details = await approvals.get_approval(world.db, olga.actor, later.waits.approval_id)
    assert details.approval.arguments["effect"]["looked_at"] == 0


@pytest.mark.proves("D.801")
async def test_an_admin_may_say_yes_and_the_proposer_may_not(people: People) -> None:
    proposal = await people.propose()
    for person in (people.stella, await people.world.person(Role.STEWARD, name="Other"), people.world.service):
        with pytest.raises(CortexError) as refused:
            await people.decide(proposal, person)
        assert isinstance(refused.value, Forbidden | NotFound)
    assert await people.holds() == "1.0.0"
    await people.decide(proposal, people.world.admin)
    assert await people.holds() == "2.0.0"
    assert await people.sound()


@pytest.mark.proves("D.801")
async def test_an_admins_version_of_somebody_elses_atlas_waits_too(people: People) -> None:
    proposal = await people.propose(by=people.world.admin)
    assert proposal.waits is not None
    assert proposal.waits.deciders == ["Olga"]
    with pytest.raises(Forbidden) as refused:
        await people.decide(proposal, people.world.admin)
    assert refused.value.code == "self_approval"
    await people.decide(proposal, people.olga)
    assert await people.holds() == "2.0.0"


@pytest.mark.proves("D.801")
async def test_where_the_owner_is_gone_admins_decide(people: People) -> None:
    await orgs.update_member(
        people.world.db, people.world.admin.actor, people.olga.member_id, MemberChange(active=False), None
    )
    proposal = await people.propose()
    assert proposal.waits is not None
    assert proposal.waits.deciders == ["Ada"]
    with pytest.raises(Conflict) as refused:
        await publish(people.world, manifest("3.0.0"), people.world.admin.actor)
    assert refused.value.code == "nobody_to_approve", "the only admin does not approve what they propose"
    await people.decide(proposal, people.world.admin)
    assert await people.holds() == "2.0.0"


@pytest.mark.proves("D.801")
async def test_a_no_and_the_end_of_its_time_leave_the_old_version(people: People, admin: asyncpg.Connection) -> None:
    denied = await people.propose()
    receipt = await people.decide(denied, people.olga, Choice.DENIED, reason="Gates are missing")
    assert receipt.approval.status is ApprovalStatus.DENIED
    late = await people.propose(manifest("2.1.0", policies=[]))
    assert late.waits is not None
    await Clock.install(admin, late.waits.deadline)
    await deadlines.tick(people.world.db, new_id(), "scheduler")
    approval = (await people.card(late)).approval
    assert approval.status is ApprovalStatus.EXPIRED
    assert await people.holds() == "1.0.0"
    assert "approval_expired" in await people.actions()
    assert await people.sound()


@pytest.mark.proves("D.802")
async def test_a_proposal_that_the_owner_overtakes_is_over(people: People) -> None:
    proposal = await people.propose()
    await publish(people.world, manifest("1.1.0"), people.olga.actor)
    details = await people.card(proposal)
    assert details.approval.status is ApprovalStatus.CANCELLED
    assert details.approval.resolution_reason == "version 1.1.0 was published meanwhile"
    with pytest.raises(Conflict) as refused:
        await people.decide(proposal, people.olga)
    assert refused.value.code == "approval_conflict"
    assert await people.holds() == "1.1.0"
    other = await people.propose(manifest("1.2.0", policies=[]))
    await atlases.retire_atlas(people.world.db, people.olga.actor, ATLAS, "1.1.0")
    assert (await people.card(other)).approval.status is ApprovalStatus.CANCELLED
    assert await people.sound()


@pytest.mark.proves("D.802")
async def test_of_two_proposals_one_holds(people: People) -> None:
    third = await people.world.person(Role.STEWARD, name="Third")
    one, two = await people.propose(), await people.propose(manifest("3.0.0", policies=[]), third)
    again = await people.propose()
    assert one.waits is not None
    assert again.waits is not None
    assert (again.waits.approval_id, again.waits.created) == (one.waits.approval_id, False)
    await people.decide(two, people.olga)
    assert await people.holds() == "3.0.0"
    assert (await people.card(one)).approval.status is ApprovalStatus.CANCELLED


@pytest.mark.proves("D.802")
async def test_a_version_of_an_older_process_does_not_go_under(people: People, admin: asyncpg.Connection) -> None:
    """A process of the release before publishes without looking at what waits: a yes then puts nothing in force."""
    proposal = await people.propose()
    await admin.execute(
        "insert into atlas_version (org_id, atlas_id, version, number, digest, name, description, gates, source, manifest, warnings,"
        " access, api_keys, published_by) select org_id, atlas_id, '1.5.0', 2, digest, name, description, gates, source, manifest,"
        " warnings, access, api_keys, published_by from atlas_version"
    )
    with pytest.raises(Conflict) as refused:
        await people.decide(proposal, people.olga)
    assert refused.value.code == "change_overtaken"
    assert await people.holds() == "1.5.0"
    assert (await people.card(proposal)).approval.status is ApprovalStatus.PENDING


@pytest.mark.proves("D.802")
async def test_whoever_decides_and_publishes_at_once_leaves_one_version(people: People) -> None:
    """The owner's own version, two proposals and their decisions, all at the same instant: nothing is lost silently."""
    third = await people.world.person(Role.STEWARD, name="Third")
    for number in range(2, 8):
        before = await people.holds()
        base = await people.propose(manifest(f"{number}.0.0", policies=[]))
        other = await people.propose(manifest(f"{number}.1.0", policies=[]), third)
        results = await asyncio.gather(
            people.decide(base, people.olga),
            people.decide(base, people.world.admin),
            people.decide(other, people.olga),
            publish(people.world, manifest(f"{number}.2.0"), people.olga.actor),
            return_exceptions=True,
        )
        for result in results:
            assert not isinstance(result, BaseException) or isinstance(result, Conflict), result
        statuses = [(await people.card(proposal)).approval.status for proposal in (base, other)]
        assert ApprovalStatus.PENDING not in statuses
        assert statuses.count(ApprovalStatus.APPROVED) <= 1, "each was proposed on top of the same version"
        assert isinstance(results[3], Published)
        assert results[3].created, "the owner's own version always comes through"
        assert await people.holds() == f"{number}.2.0" != before
        assert await people.sound()


@pytest.mark.proves("D.801")
async def test_a_decision_is_recorded_once_and_as_shown(people: People) -> None:
    proposal = await people.propose()
    results = await asyncio.gather(*(people.decide(proposal, people.olga) for _ in range(5)))
    assert sorted(receipt.result for receipt in results) == ["DUPLICATE"] * 4 + ["OK"]
    with pytest.raises(Conflict) as refused:
        await people.decide(proposal, people.world.admin, Choice.DENIED)
    assert refused.value.code == "approval_conflict"
    actions = await people.actions()
    assert actions.count("atlas_published") == 2


@pytest.mark.proves("D.801")
async def test_a_change_is_neither_edited_nor_standing_nor_handed_on(people: People) -> None:
    proposal = await people.propose()
    with pytest.raises(InvalidInput) as edited:
        await people.decide(proposal, people.olga, arguments={"version": "9"})
    assert edited.value.code == "change_not_editable"
    with pytest.raises(Forbidden) as standing:
        await people.decide(proposal, people.olga, standing=StandingDraft(calls=3))
    assert standing.value.code == "standing_not_allowed"
    assert proposal.waits is not None
    draft = DelegationDraft(to=people.stella.member_id)
    with pytest.raises(Conflict) as handed:
        await approvals.delegate(people.world.db, people.olga.actor, proposal.waits.approval_id, draft)
    assert handed.value.code == "not_a_call"
    assert await people.holds() == "1.0.0"


@pytest.mark.proves("D.801")
async def test_a_file_that_was_changed_by_hand_is_not_put_in_force(people: People, admin: asyncpg.Connection) -> None:
    proposal = await people.propose()
    await admin.execute("update rule_change set source = replace(source, 'Support', 'Evil')")
    with pytest.raises(Conflict) as refused:
        await people.decide(proposal, people.olga)
    assert refused.value.code == "change_corrupt"
    assert await people.holds() == "1.0.0"


@pytest.mark.proves("D.800")
async def test_only_the_owner_and_admins_retire_and_hand_over(people: People) -> None:
    db = people.world.db
    with pytest.raises(Forbidden) as refused:
        await atlases.retire_atlas(db, people.stella.actor, ATLAS, "1.0.0")
    assert refused.value.code == "not_your_atlas"
    handover = AtlasHandover(member_id=people.stella.member_id)
    with pytest.raises(Forbidden):
        await atlases.hand_over_atlas(db, people.stella.actor, ATLAS, handover)
    waiting = await people.propose()
    shown = await atlases.hand_over_atlas(db, people.olga.actor, ATLAS, handover)
    assert shown.owner == "Stella"
    assert (await people.card(waiting)).approval.status is ApprovalStatus.CANCELLED
    assert (await publish(people.world, manifest("2.0.0"), people.stella.actor)).created
    assert (await publish(people.world, manifest("3.0.0"), people.olga.actor)).waits is not None
    back = await atlases.hand_over_atlas(db, people.world.admin.actor, ATLAS, AtlasHandover(team="main"))
    assert (back.owner, back.team) == (None, "main")
    assert "atlas_handed_over" in await people.actions()
    member = await people.world.person(Role.MEMBER, name="Member")
    with pytest.raises(InvalidInput):
        await atlases.hand_over_atlas(db, people.world.admin.actor, ATLAS, AtlasHandover(member_id=member.member_id))


@pytest.mark.proves("D.800")
async def test_an_atlas_of_a_team_is_its_stewards(people: People) -> None:
    db, admin = people.world.db, people.world.admin.actor
    for person in (people.olga, people.stella):
        await orgs.update_member(db, admin, person.member_id, MemberChange(teams=["main"]), None)
    await atlases.hand_over_atlas(db, people.olga.actor, ATLAS, AtlasHandover(team="main"))
    assert (await publish(people.world, manifest("2.0.0"), people.stella.actor)).created
    stranger = await people.world.person(Role.STEWARD, name="Stranger")
    proposal = await people.propose(manifest("3.0.0", policies=[]), stranger)
    assert proposal.waits is not None
    assert proposal.waits.deciders == ["Ada", "Olga", "Stella"]
    await people.decide(proposal, people.stella)
    assert await people.holds() == "3.0.0"


@pytest.mark.proves("D.800", "D.801")
async def test_a_program_publishes_for_whoever_made_its_key(people: People) -> None:
    program = await people.world.service_with(Role.MEMBER, permissions=[Grantable.ATLAS_WRITE])
    assert (await publish(people.world, plain("com.acme.other", "1.0.0"), program.actor)).created
    own = await publish(people.world, plain("com.acme.other", "1.1.0"), people.world.admin.actor)
    assert own.created, "the admin made its key"
    proposal = await people.propose(by=program)
    with pytest.raises(Forbidden) as refused:
        await people.decide(proposal, people.world.admin)
    assert refused.value.code == "self_approval"
    assert proposal.waits is not None
    seen = await approvals.get_approval(people.world.db, program.actor, proposal.waits.approval_id)
    assert seen.approval.agent_name == "service"
    await people.decide(proposal, people.olga)
    assert await people.holds() == "2.0.0"


@pytest.mark.proves("D.801")
async def test_over_http_it_is_accepted_listed_and_decided(http: httpx.AsyncClient, people: People) -> None:
    body = {"manifest": manifest("2.0.0", policies=[])}
    answer = await http.post("/v1/atlases", json=body, headers=people.stella.headers)
    assert answer.status_code == 202, answer.text
    id = answer.json()["waits"]["approval_id"]
    async with Client("http://plane", people.olga.secret, transport=http._transport) as plane:
        assert [approval.id async for approval in plane.approvals.list(10)] == [
            (await plane.approvals.get(id)).approval.id
        ]
        receipt = await plane.approvals.approve((await plane.approvals.get(id)).approval)
        assert receipt.approval.status is ApprovalStatus.APPROVED
        assert (await plane.atlases.get(ATLAS)).holds == "2.0.0"
        owner = await plane.atlases.hand_over(ATLAS, AtlasHandover(member_id=people.stella.member_id))
        assert owner.owner == "Stella"
        assert (await plane.atlases.publish(AtlasFile(manifest=manifest("4.0.0", policies=[])))).waits is not None
