"""Decisions that must not be: each has its error, decides nothing, and is on the audit trail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import JobStatus, Pause
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, Stale
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import Termination
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import frame, orgs
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import ended, job_of, steps_of, whole, working

W = JobStatus.WAITING_FOR_APPROVAL
TRAIL = {"approval_event", "audit_entry", "session_head"}
"""What a refusal writes, and it writes nothing else."""


async def refused(
    world: World,
    admin: asyncpg.Connection,
    asked: Approval,
    code: str,
    *,
    by: Person | None = None,
    choice: Choice = Choice.APPROVED,
    event: str = "refused",
    **more: Any,
) -> CortexError:
    """The error; everything that must hold of every refusal is looked at here."""
    before = await digests(admin)
    with pytest.raises(CortexError) as told:
        await decide(world, asked, choice, by, **more)
    error = told.value
    assert error.code == code, error
    assert error.hint
    after = await digests(admin)
    assert {table for table in before if before[table] != after[table]} == TRAIL
    who = (by or world.admin).actor
    details = await approvals.get_approval(world.db, world.admin.actor, asked.id)
    last = details.events[-1]
    assert (last.event_type, last.channel, last.actor) == (event, "api", who.name)
    assert last.payload == {"decision": choice, "code": code}
    (entry,) = (await audit.list_entries(world.db, world.admin.actor, asked.session_id, 0, 1000))[-1:]
    assert entry.action == "approval_refused"
    assert entry.body is not None
    assert entry.body["actor"]["name"] == who.name
    assert entry.body["data"]["code"] == code
    assert entry.body["data"]["approval"] == str(asked.id)
    assert await whole(world)
    return error


async def unseen(world: World, admin: asyncpg.Connection, asked: Approval, by: Person) -> None:
    """Whoever must not know of it leaves no trace in it either."""
    before = await digests(admin)
    for arguments in (None, {"version": "2.0"}):
        with pytest.raises(NotFound) as told:
            await decide(world, asked, by=by, arguments=arguments)
        assert told.value.code == "approval_not_found"
    assert await digests(admin) == before


def ask(**terms: Any) -> str:
    said = "".join(f", {name}: {value}" for name, value in terms.items())
    return f"policies: [{{name: asks, target: ship, effect: requires_approval{said}}}]"


# Who may not ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.11", "S1.12")
async def test_whoever_is_no_approver_is_refused_whatever_else_they_are(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    for role in (Role.APPROVER, Role.OPERATOR, Role.STEWARD, Role.ADMIN):
        other = await strict.person(role, name=f"Not the owner, {role}", clearance=1000)
        for choice in Choice:
            error = await refused(strict, admin, asked, "not_an_approver", by=other, choice=choice)
            assert isinstance(error, Forbidden)
            assert "the session's owner" in error.hint
    assert not (await approvals.get_approval(strict.db, other.actor, asked.id)).approval.may_decide
    assert (await decide(strict, asked)).result == "OK"


async def test_nobody_outside_of_it_learns_that_a_request_exists(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await unseen(strict, admin, asked, other.admin)
    await unseen(strict, admin, asked, await strict.person(Role.MEMBER, name="Colleague"))
    await unseen(strict, admin, asked, await strict.person(Role.GUEST, name="Passer-by"))
    await unseen(strict, admin, asked, strict.service)


@pytest.mark.proves("S4.12")
async def test_an_approver_without_the_clearance_is_refused(strict: World, admin: asyncpg.Connection) -> None:
    able = await strict.person(Role.APPROVER, name="Able", clearance=5)
    await apply_policies(
        strict.db, strict.admin.actor, ask(clearance=5, approvers="{roles: [approver]}", self_approval="true")
    )
    unable = await strict.person(Role.APPROVER, name="Unable", clearance=4)
    _, (asked,) = await waiting(strict, Shipping())
    for choice in Choice:
        error = await refused(strict, admin, asked, "clearance_too_low", by=unable, choice=choice)
        assert "needs clearance 5; yours is 4" in error.message
    assert (await decide(strict, asked, by=able)).result == "OK"


async def test_a_guest_decides_nothing_not_even_where_a_policy_names_them(
    strict: World, admin: asyncpg.Connection
) -> None:
    named = await strict.person(Role.MEMBER, name="Named")
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{owner: true, members: [Named]}"))
    assert named.actor.user_account_id is not None
    demoted = MemberChange(roles=[Role.GUEST])
    await orgs.update_member(strict.db, strict.admin.actor, named.actor.user_account_id, demoted, None)
    guest = Person(await frame.authenticate_key(strict.db, named.secret), named.secret)
    _, (asked,) = await waiting(strict, Shipping())
    for choice in Choice:
        await refused(strict, admin, asked, "guest_cannot_decide", by=guest, choice=choice)
    details = await approvals.get_approval(strict.db, guest.actor, asked.id)
    assert details.approval.deciders == ["Ada"]
    assert details.approval.why_not == "Guests decide nothing."


async def test_keys_of_programs_and_of_the_platform_decide_nothing(
    strict: World, world: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    service = await strict.service_with(Role.ADMIN, Role.APPROVER)
    await refused(strict, admin, asked, "not_a_person", by=service)
    await admin.execute("update api_key set platform = true where org_id = $1", world.org_id)
    visiting = await frame.authenticate_key(world.db, world.admin.secret, "strict")
    assert visiting.org_id == strict.org_id
    await refused(strict, admin, asked, "not_a_person", by=Person(visiting, world.admin.secret))


@pytest.mark.proves("S4.13")
@pytest.mark.parametrize("template", ["dev_review", "full_pipeline", "critical_path"])
async def test_who_asked_for_it_may_deny_but_not_approve_under_a_review(
    strict: World, admin: asyncpg.Connection, template: str
) -> None:
    second = await strict.person(Role.APPROVER, name="Second pair of eyes")
    await apply_policies(strict.db, strict.admin.actor, ask(template=template))
    _, (asked,) = await waiting(strict, Shipping())
    assert asked.deadline is not None
    hours = {"dev_review": 24, "full_pipeline": 48, "critical_path": 72}[template]
    assert asked.deadline - asked.requested_at == timedelta(hours=hours)
    error = await refused(strict, admin, asked, "self_approval")
    assert "another approver" in error.hint
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert details.approval.deciders == ["Second pair of eyes"]
    assert (await decide(strict, asked, by=second)).result == "OK"
    _, (again,) = await waiting(strict, Shipping(), slug="shipper-2")
    assert (await decide(strict, again, Choice.DENIED)).approval.status is ApprovalStatus.DENIED


async def test_who_asked_for_it_may_approve_it_where_no_review_is_wanted(strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    assert asked.caused_by == strict.admin.actor.user_account_id
    assert (asked.template, asked.rule.split("@")[0]) == ("dev_only", "default:owner")
    assert (await decide(strict, asked)).result == "OK"
    await apply_policies(strict.db, strict.admin.actor, ask(template="dev_only"))
    _, (asked,) = await waiting(strict, Shipping(), slug="shipper-2")
    assert (await decide(strict, asked)).result == "OK"


# What cannot be decided any more ------------------------------------------------------------------------------------


@pytest.mark.proves("S4.14")
async def test_only_the_version_and_the_digest_that_are_there_now_can_be_decided(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping(), ship("1"), ship("1"))
    assert asked.version == 2
    for choice in Choice:
        for saw in ({"version": 1}, {"version": 3}, {"input_hash": "0" * 64}):
            error = await refused(strict, admin, asked, "approval_changed", choice=choice, **saw)
            assert isinstance(error, Stale)
    assert (await decide(strict, asked)).result == "OK"


@pytest.mark.proves("S1.14")
async def test_a_decision_after_the_deadline_is_refused_before_and_after_a_scheduler_came(
    strict: World, admin: asyncpg.Connection
) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    assert asked.deadline is not None
    clock = await Clock.install(admin, asked.deadline - timedelta(microseconds=1))
    strictly_before = await shown(strict, asked.id)
    assert strictly_before.status is ApprovalStatus.PENDING
    await clock.set(asked.deadline)
    for choice in Choice:
        await refused(strict, admin, asked, "approval_expired", choice=choice)
    assert (await job_of(strict, id)).status is W
    assert (await deadlines.tick(strict.db, new_id(), "late")).done == ["expired"]
    job = await job_of(strict, id)
    assert job.status is JobStatus.FAILED
    assert "timed out after 24 hours" in (job.error_message or "")
    for choice in Choice:
        error = await refused(strict, admin, asked, "approval_conflict", choice=choice, event="channel_conflict")
        assert "It is expired already" in error.message


async def test_until_the_last_moment_a_decision_counts(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline - timedelta(microseconds=1))
    assert (await decide(strict, asked)).result == "OK"


async def test_nothing_of_a_terminated_session_is_decided(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    assert asked.session_id is not None
    await session_lifecycle.terminate(strict.db, strict.admin.actor, asked.session_id, Termination())
    for choice in Choice:
        error = await refused(strict, admin, asked, "approval_conflict", choice=choice, event="channel_conflict")
        assert "It is cancelled already" in error.message


async def test_what_was_decided_otherwise_stays_so(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, Choice.DENIED, reason="not today")
    error = await refused(strict, admin, asked, "approval_conflict", event="channel_conflict")
    assert isinstance(error, Conflict)
    assert error.message == "It is denied already by Ada: not today."


async def test_a_refusal_on_a_held_job_changes_nothing_of_the_hold(strict: World, admin: asyncpg.Connection) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    await steering.pause(strict.db, strict.admin.actor, id, Pause())
    other = await strict.person(Role.APPROVER)
    await refused(strict, admin, asked, "not_an_approver", by=other)
    assert (await job_of(strict, id)).holds == ["operator"]


# Edits --------------------------------------------------------------------------------------------------------------

FREEZE = """
policies:
  - {name: not-the-bank, target: ship, effect: deny, when: 'has(args.to) && args.to == "bank"'}
  - {name: vault, target: ship, effect: requires_approval, clearance: 7, approvers: {roles: [approver]},
     self_approval: true, when: 'has(args.to) && args.to == "vault"'}
  - {name: review, target: ship, effect: requires_approval, template: dev_review}
"""


@pytest.mark.proves("S4.15")
async def test_edited_arguments_must_fit_the_schema_of_the_tool(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "version"),
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"version": "2", "extra": 1}, "extra"),
        ({"version": "2", "to": ["prod"]}, "to"),
    ]
    for arguments, named in bad:
        error = await refused(strict, admin, asked, "edit_invalid", arguments=arguments)
        assert isinstance(error, InvalidInput)
        assert named in error.message


async def test_edited_arguments_that_a_policy_denies_are_refused(strict: World, admin: asyncpg.Connection) -> None:
    await strict.person(Role.APPROVER, name="Cleared", clearance=7)
    reviewer = await strict.person(Role.APPROVER, name="Reviewer", clearance=1)
    await apply_policies(strict.db, strict.admin.actor, FREEZE)
    _, (asked,) = await waiting(strict, Shipping())
    to_bank = {"version": "1.0", "to": "bank"}
    error = await refused(strict, admin, asked, "edit_denied", by=reviewer, arguments=to_bank)
    assert "org:not-the-bank" in error.message
    # An edit does not reach what its author could not approve.
    to_vault = {"version": "1.0", "to": "vault"}
    await refused(strict, admin, asked, "clearance_too_low", by=reviewer, arguments=to_vault)
    await refused(strict, admin, asked, "self_approval", arguments={"version": "1.1"})
    assert (await decide(strict, asked, by=reviewer, arguments={"version": "1.1"})).result == "OK"


async def test_a_policy_that_came_after_the_request_holds_for_its_edit(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await apply_policies(strict.db, strict.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
    await refused(strict, admin, asked, "edit_denied", arguments={"version": "1.1"})


async def test_arguments_do_not_go_with_a_denial(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await refused(strict, admin, asked, "invalid_request", choice=Choice.DENIED, arguments={"version": "1.1"})


async def test_a_tool_that_nobody_knows_any_more_cannot_be_edited(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await admin.execute("delete from tool_version")
    await refused(strict, admin, asked, "schema_unknown", arguments={"version": "1.1"})
    assert (await decide(strict, asked)).result == "OK"


async def test_an_edit_that_says_what_was_there_is_no_edit(strict: World) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    approval = (await decide(strict, asked, arguments={"version": "1.0"})).approval
    assert (approval.version, approval.original_arguments) == (1, None)


async def test_a_large_edit_runs_as_it_was_written(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    large = {"version": "1.0", "to": "é" * 100_000}
    approval = (await decide(strict, asked, arguments=large)).approval
    assert approval.arguments == large
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipping.shipped == [f"1.0 to {large['to']}"]
    (step, *_) = await steps_of(strict, id)
    assert step.calls[0].arguments == large


async def test_a_number_that_json_writes_in_two_ways_is_judged_as_it_is_sent(strict: World) -> None:
    """1.0 is stored and sent as 1: a policy must not see another value than the tool does."""
    from cortex_plane.worker.tools.app import App
    from tests.fixtures.approvals import pending
    from tests.fixtures.workers import call, make_agent, submit, turn, until

    app = App("tests")
    paid: list[int] = []

    @app.tool(timeout=5, on_uncertain="fail")
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    await apply_policies(
        strict.db,
        strict.admin.actor,
        "policies: [{name: small, target: pay, effect: requires_approval, when: 'args.amount <= 10'},"
        " {name: large, target: pay, effect: deny}]",
    )
    id = await submit(strict, await make_agent(strict, [turn(call("pay", amount=1))]))
    async with working(strict.db, app):
        await until(strict, id, W)
        (asked,) = await pending(strict, id)
        with pytest.raises(Forbidden, match="org:large"):
            await decide(strict, asked, arguments={"amount": 11.0})
        approval = (await decide(strict, asked, arguments={"amount": 9.0})).approval
        assert (approval.arguments, type(approval.arguments["amount"])) == ({"amount": 9}, int)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert paid == [9]
