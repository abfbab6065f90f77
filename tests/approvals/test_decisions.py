"""What a decision answers, who sees a request, and what its card tells."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalStatus,
    Channel,
    Choice,
    RecordResult,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.policies.model.versions import RequestPolicy
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import frame, orgs
from tests.approvals.test_approvals import TRAIL, ask, refused
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import ended, job_of, make_agent, steps_of, submit, turn, until, whole, working

W = JobStatus.WAITING_FOR_APPROVAL


async def keyed(
    world: World, asked: Approval, key: str, choice: Choice = Choice.APPROVED, by: Person | None = None,
    **more: Any,
) -> RecordResult:  # fmt: skip
    seen = {"version": asked.version, "input_hash": asked.input_hash}
    decision = ApprovalDecision(decision=choice, **{**seen, **more})
    once = IdempotencyKey(key=key, fingerprint=b"")
    receipt = await decisions.decide(world.db, (by or world.admin).actor, asked.id, decision, Channel.API, once)
    return receipt.result


async def unchanged(world: World, admin: asyncpg.Connection, asked: Approval, **more: Any) -> None:
    """The same decision again: DUPLICATE, a line on the trail, and nothing else."""
    before = await digests(admin)
    receipt = await decide(world, asked, **more)
    assert receipt.result is RecordResult.DUPLICATE
    after = await digests(admin)
    assert {table for table in before if before[table] != after[table]} == TRAIL
    details = await approvals.get_approval(world.db, world.admin.actor, asked.id)
    assert details.events[-1].event_type == "channel_duplicate"
    entries = await audit.list_entries(world.db, world.admin.actor, asked.session_id, 0, 1000)
    assert entries[-1].action == "approval_duplicate"
    assert await whole(world)


# OK, DUPLICATE, CONFLICT --------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.16", "S1.16")
async def test_the_same_decision_again_is_a_duplicate_and_another_one_a_conflict(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    assert (await decide(strict, asked, reason="fine")).result is RecordResult.OK
    await unchanged(strict, admin, asked, reason="still fine")
    assert (await shown(strict, asked.id)).resolution_reason == "fine"
    conflict: dict[str, Any] = {"event": "channel_conflict"}
    await refused(strict, admin, asked, "approval_conflict", choice=Choice.DENIED, **conflict)
    await refused(strict, admin, asked, "approval_conflict", arguments={"version": "2"}, **conflict)
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [(vote.member, vote.decision, vote.reason) for vote in details.votes] == [("Ada", "approved", "fine")]
    assert await admin.fetchval("select count(*) from approval_grant") == 1


async def test_after_an_edited_approval_only_the_same_edit_is_the_same(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    edited = {"version": "1.0", "to": "staging"}
    assert (await decide(strict, asked, arguments=edited)).result is RecordResult.OK
    await unchanged(strict, admin, asked, arguments=edited)
    await unchanged(strict, admin, await shown(strict, asked.id))
    await refused(strict, admin, asked, "approval_conflict", event="channel_conflict")
    await refused(strict, admin, asked, "approval_conflict", event="channel_conflict", arguments={"version": "3"})
    # Whoever may not decide it is told that, and not what became of it.
    other = await strict.person(Role.APPROVER)
    await refused(strict, admin, asked, "not_an_approver", by=other)


async def test_an_idempotency_key_has_one_effect_for_one_person_and_one_decision(
    strict: World, admin: asyncpg.Connection
) -> None:
    second = await strict.person(Role.ADMIN, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{roles: [admin]}", self_approval="true"))
    _, (asked,) = await waiting(strict, Shipping())
    edited: dict[str, Any] = {"arguments": {"version": "1.1"}}
    assert await keyed(strict, asked, "k", **edited) is RecordResult.OK
    before = await digests(admin)
    assert await keyed(strict, asked, "k", **edited) is RecordResult.DUPLICATE
    assert await digests(admin) == before
    for other in ({"choice": Choice.DENIED}, {}, {"arguments": {"version": "9"}}):
        with pytest.raises(Conflict) as told:
            await keyed(strict, asked, "k", **other)
        assert told.value.code == "idempotency_key_reused"
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [event.event_type for event in details.events] == [
        "requested", "dispatched", "edited", "approved", "refused", "refused", "refused",
    ]  # fmt: skip
    # Somebody else's keys are their own.
    assert await keyed(strict, asked, "k", by=second, **edited) is RecordResult.DUPLICATE
    assert await keyed(strict, asked, "another key", **edited) is RecordResult.DUPLICATE
    assert await whole(strict)


async def test_a_key_of_a_refused_decision_is_still_free(strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    with pytest.raises(Conflict):
        await keyed(strict, asked, "k", version=7)
    assert await keyed(strict, asked, "k") is RecordResult.OK


async def test_of_many_decisions_at_once_one_counts(strict: World, admin: asyncpg.Connection) -> None:
    """Sent at the same instant through one pool: the others are told what became of it."""
    id, (asked,) = await waiting(strict, Shipping())
    sent = [decide(strict, asked, (Choice.APPROVED, Choice.DENIED)[n % 2]) for n in range(8)]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    results = [a if isinstance(a, BaseException) else a.result for a in answers]
    assert results.count(RecordResult.OK) == 1
    assert results.count(RecordResult.DUPLICATE) == 3
    assert sum(isinstance(r, Conflict) and r.code == "approval_conflict" for r in results) == 4
    approval = await shown(strict, asked.id)
    job = await job_of(strict, id)
    assert job.status is (JobStatus.RUNNING if approval.status == "approved" else JobStatus.FAILED)
    assert await admin.fetchval("select count(*) from approval_vote") == 1
    assert await whole(strict)


# Who sees what ----------------------------------------------------------------------------------------------------


async def mine(db_of: World, person: Person) -> list[str]:
    page = await approvals.list_approvals(db_of.db, person.actor, None, 100)
    return [item.arguments["version"] for item in page.items]


@pytest.mark.proves("S4.17")
async def test_a_member_sees_requests_of_their_own_and_those_that_name_them(strict: World) -> None:
    named = await strict.person(Role.MEMBER, name="Named")
    own = await strict.person(Role.MEMBER, name="Own")
    watcher = await strict.person(Role.STEWARD, name="Watcher")
    _, (first,) = await waiting(strict, Shipping(), ship("1"))
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{members: [Named]}"))
    _, (second,) = await waiting(strict, Shipping(), ship("2"), slug="shipper-2")
    await apply_policies(strict.db, strict.admin.actor, "policies: []")
    agent = await make_agent(strict, [turn(ship("3"))], slug="shipper-3")
    job = await jobs.submit(strict.db, own.actor, JobDraft(agent=agent.slug))
    async with working(strict.db, Shipping().app):
        await until(strict, job.id, W)
    assert await mine(strict, strict.admin) == ["3", "2", "1"]
    assert await mine(strict, watcher) == ["3", "2", "1"]
    assert await mine(strict, named) == ["2"]
    assert await mine(strict, own) == ["3"]
    assert await mine(strict, strict.service) == []
    with pytest.raises(NotFound):
        await approvals.get_approval(strict.db, named.actor, first.id)
    details = await approvals.get_approval(strict.db, named.actor, second.id)
    assert (details.approval.may_decide, details.approval.deciders) == (True, ["Named"])
    assert (await decide(strict, second, by=named)).result is RecordResult.OK


async def test_whoever_has_a_role_that_may_decide_sees_what_they_may_decide(strict: World) -> None:
    colleague = await strict.person(Role.MEMBER, name="Colleague")
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{roles: [member]}"))
    _, (asked,) = await waiting(strict, Shipping())
    assert await mine(strict, colleague) == ["1.0"]
    assert (await decide(strict, asked, by=colleague)).approval.resolved_by_name == "Colleague"


async def test_lists_are_narrowed_by_status_job_and_session(strict: World) -> None:
    first, (one,) = await waiting(strict, Shipping(), ship("1"))
    second, (two,) = await waiting(strict, Shipping(), ship("2"), slug="shipper-2")
    await decide(strict, one)

    async def found(**by: Any) -> list[str]:
        page = await approvals.list_approvals(strict.db, strict.admin.actor, None, 100, **by)
        return [item.arguments["version"] for item in page.items]

    assert await found(status=ApprovalStatus.APPROVED) == ["1"]
    assert await found(status=ApprovalStatus.PENDING) == ["2"]
    assert await found(status=ApprovalStatus.EXPIRED) == []
    assert await found(job_id=second) == ["2"]
    assert await found(session_id=one.session_id) == ["1"]
    assert await found(job_id=first, session_id=two.session_id) == []


async def test_a_call_leads_to_its_request(strict: World, other: World) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    call_id = (await steps_of(strict, id))[0].calls[0].id
    assert (await approvals.approval_for_call(strict.db, strict.admin.actor, call_id)).id == asked.id
    for stranger in (other.admin, await strict.person(Role.MEMBER)):
        with pytest.raises(NotFound):
            await approvals.approval_for_call(strict.db, stranger.actor, call_id)


# What the card tells ----------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.18")
async def test_every_event_of_a_life_is_in_the_read_model_and_on_the_chain(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, ship("1"), ship("1"))
    await decide(strict, asked, arguments={"version": "2"}, reason="newer")
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    told = [(event.event_type, event.channel, event.actor) for event in details.events]
    assert told == [
        ("requested", None, None), ("dispatched", "dashboard", None), ("joined", None, None),
        ("edited", "api", "Ada"), ("approved", "api", "Ada"),
    ]  # fmt: skip
    assert details.events[-1].payload == {
        "decision": "approved",
        "reason": "newer",
        "version": 3,
        "input_hash": details.approval.input_hash,
    }
    assert (details.approval.resolved_via, details.approval.resolved_by_name) == ("api", "Ada")
    assert [(vote.version, vote.decision) for vote in details.votes] == [(3, "approved")]
    assert details.now >= details.events[-1].created_at
    entries = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    (decision,) = [entry.body for entry in entries if entry.action == "approval_decision"]
    assert decision is not None
    said = decision["data"]
    assert (said["edited_from"], said["version"], len(said["calls"])) == (asked.input_hash, 3, 2)
    order = [entry.action for entry in entries if entry.action.startswith(("approval", "session"))]
    for earlier, later in (
        ("approval_requested", "approval_decision"), ("session_suspended", "session_resumed"),
        ("approval_decision", "session_resumed"),
    ):  # fmt: skip
        assert order.index(earlier) < order.index(later)
    assert await whole(strict)


async def test_the_card_shows_earlier_decisions_about_the_tool_to_those_who_see_all(strict: World) -> None:
    ids = []
    for n in range(7):
        _, (asked,) = await waiting(strict, Shipping(), ship(str(n)), slug=f"shipper-{n}")
        await decide(strict, asked, Choice.DENIED if n % 2 else Choice.APPROVED)
        ids.append(asked.id)
    _, (last,) = await waiting(strict, Shipping(), ship("last"), slug="shipper-last")
    details = await approvals.get_approval(strict.db, strict.admin.actor, last.id)
    assert [one.id for one in details.similar] == ids[:1:-1]
    own = await strict.person(Role.MEMBER)
    agent = await make_agent(strict, [turn(ship("mine"))], slug="shipper-own")
    job = await jobs.submit(strict.db, own.actor, JobDraft(agent=agent.slug))
    async with working(strict.db, Shipping().app):
        await until(strict, job.id, W)
    (asked,) = (await approvals.list_approvals(strict.db, own.actor, None, 10)).items
    assert (await approvals.get_approval(strict.db, own.actor, asked.id)).similar == []


# How long ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.15")
@pytest.mark.parametrize(
    ("times", "policy", "seconds"),
    [
        (None, None, 86_400),
        ({"token_ttl_seconds": 60}, None, 60),
        ({"token_ttl_seconds": 7200, "max_ttl_seconds": 3600}, None, 3600),
        ({"token_ttl_seconds": 60}, ask(timeout="2h"), 7200),
        ({"max_ttl_seconds": 600}, ask(timeout="2h"), 600),
        (None, ask(timeout="7d"), 604_800),
    ],
)
async def test_an_agent_has_a_time_of_its_own_and_a_cap(
    strict: World, times: dict[str, int] | None, policy: str | None, seconds: int
) -> None:
    if policy:
        await apply_policies(strict.db, strict.admin.actor, policy)
    skills: dict[str, Any] = {"approval": times} if times else {}
    id = await submit(strict, await make_agent(strict, [turn(ship())], slug="shipper", **skills))
    async with working(strict.db, Shipping().app):
        await until(strict, id, W)
    (asked,) = (await approvals.list_approvals(strict.db, strict.admin.actor, None, 10)).items
    assert asked.deadline is not None
    assert (asked.deadline - asked.requested_at).total_seconds() == seconds


FINAL_HOUR = """
  - {name: limit, target: "*", effect: requires_approval, timeout: 1h, final: true}"""
FINAL_DAYS = """
  - {name: limit, target: "*", effect: requires_approval, timeout: 2d, final: true}"""


@pytest.mark.proves("S1.208")
@pytest.mark.parametrize(
    ("team", "org", "own", "seconds"),
    [
        ("{name: asked, target: ship, effect: requires_approval}", "", 60, 60),
        ("{name: asked, target: ship, effect: requires_approval}", "", 400_000, 400_000),
        ("{name: asked, target: ship, effect: requires_approval}", "", None, 86_400),
        ("{name: asked, target: ship, effect: requires_approval, template: dev_review}", "", 60, 86_400),
        ("{name: asked, target: ship, effect: requires_approval, timeout: 24h}", "", 60, 86_400),
        # What may not be exceeded limits the agent's own time too.
        ("{name: asked, target: ship, effect: requires_approval}", FINAL_DAYS, 400_000, 172_800),
        ("{name: asked, target: ship, effect: requires_approval}", FINAL_DAYS, 60, 60),
        ("{name: asked, target: ship, effect: requires_approval}", FINAL_HOUR, 400_000, 3600),
    ],
)
async def test_an_agents_own_time_holds_where_the_matching_policy_names_none(
    strict: World, team: str, org: str, own: int | None, seconds: int
) -> None:
    await strict.person(Role.ADMIN, name="Bea")
    text = f"teams:\n  main:\n    - {team}\npolicies:{org or ' []'}\n"
    await apply_policies(strict.db, strict.admin.actor, text)
    skills: dict[str, Any] = {"approval": {"token_ttl_seconds": own}} if own else {}
    id = await submit(strict, await make_agent(strict, [turn(ship())], slug="shipper", **skills))
    async with working(strict.db, Shipping().app):
        await until(strict, id, W)
    (asked,) = (await approvals.list_approvals(strict.db, strict.admin.actor, None, 10)).items
    assert asked.deadline is not None
    assert (asked.deadline - asked.requested_at).total_seconds() == seconds


@pytest.mark.parametrize(
    "times",
    [{"token_ttl_seconds": 0}, {"max_ttl_seconds": 604_801}, {"ttl": 5}, {"token_ttl_seconds": "1h"}, [1],
     {"token_ttl_seconds": True}, {"max_ttl_seconds": 1.5}],
)  # fmt: skip
def test_times_that_cannot_be_are_refused_with_the_agent(times: Any) -> None:
    with pytest.raises(ValueError, match="each from 1 to 604800"):
        AgentDraft(
            name="A", slug="aa", role="R", team="main", model_config=ModelConfig(model="scripted"),
            skill_config={"approval": times},
        )  # fmt: skip


# What a job demands for itself ---------------------------------------------------------------------------------


async def test_a_job_may_ask_for_more_and_never_for_less(world: World, strict: World) -> None:
    """In `world` everything is allowed; in `strict` the owner decides."""
    asks = RequestPolicy(name="ask-me", target="ship", effect="requires_approval", clearance=3)  # type: ignore[arg-type]
    assert world.admin.actor.user_account_id is not None
    raised = MemberChange(clearance=3)
    await orgs.update_member(world.db, world.admin.actor, world.admin.actor.user_account_id, raised, None)
    id, (asked,) = await waiting(world, Shipping(), policies=[asks])
    assert asked.rule.startswith("request:ask-me")
    assert asked.required_clearance == 3
    able = await frame.authenticate_key(world.db, world.admin.secret)
    seen = ApprovalDecision(decision=Choice.APPROVED, version=1, input_hash=asked.input_hash)
    with pytest.raises(Forbidden, match="needs clearance 3"):
        await decisions.decide(world.db, world.admin.actor, asked.id, seen, Channel.API)
    await decisions.decide(world.db, able, asked.id, seen, Channel.API)
    async with working(world.db, Shipping().app):
        assert (await ended(world, id)).status is JobStatus.COMPLETED
    with pytest.raises(ValueError, match="a request only tightens"):
        RequestPolicy(name="let-me", target="*", effect="allow")  # type: ignore[arg-type]
    shorter = RequestPolicy(name="soon", target="*", effect="requires_approval", timeout_seconds=30)  # type: ignore[arg-type]
    longer = RequestPolicy(name="late", target="*", effect="requires_approval", timeout_seconds=604_800)  # type: ignore[arg-type]
    for slug, row, seconds in (("shipper-a", shorter, 30), ("shipper-b", longer, 86_400)):
        _, (asked,) = await waiting(strict, Shipping(), slug=slug, policies=[row])
        assert asked.deadline is not None
        assert (asked.deadline - asked.requested_at).total_seconds() == seconds


STAGING = {"version": "1.0", "to": "staging"}


@pytest.mark.parametrize(
    ("terms", "others", "choice", "more"),
    [
        ({}, 0, Choice.APPROVED, {"reason": "go"}),
        ({}, 0, Choice.DENIED, {"reason": "not today"}),
        ({"self_approval": "true"}, 0, Choice.APPROVED, {"arguments": STAGING}),
        ({"self_approval": "false"}, 0, Choice.APPROVED, {"arguments": STAGING}),
        ({"quorum": 2}, 0, Choice.APPROVED, {}),
        ({"quorum": 2}, 1, Choice.APPROVED, {}),
        ({"quorum": 2}, 1, Choice.DENIED, {}),
        ({"quorum": 2, "self_approval": "true"}, 1, Choice.APPROVED, {"arguments": STAGING}),
    ],
)
async def test_a_decision_answers_with_what_it_stored(
    strict: World, terms: dict[str, Any], others: int, choice: Choice, more: dict[str, Any]
) -> None:
    """Nothing is read again after the change: what the rules make of it is what the database has."""
    bea, *more_people = [await strict.person(Role.APPROVER, name=name) for name in ("Bea", "Cal", "Dot")]
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{roles: [approver]}", **terms))
    _, (asked,) = await waiting(strict, Shipping())
    for person in more_people[:others]:
        await decide(strict, asked, by=person)
    answered = (await decide(strict, asked, choice, by=bea, **more)).approval
    stored = (await approvals.get_approval(strict.db, bea.actor, asked.id)).approval
    assert answered == replace(stored, deciders=[])
