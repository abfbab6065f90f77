"""Jobs that stop before they act, and go on when somebody said yes to exactly that."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.completions import AssistantTurn
from cortex_plane.approvals.model.approvals import Approval, ApprovalKind, ApprovalStatus, Channel, Choice, EffectAnswer
from cortex_plane.approvals.verbs import settlements
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import Verdict
from cortex_plane.jobs.model.jobs import TERMINAL, Cancellation, JobDraft, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Forbidden
from cortex_plane.sessions.model.sessions import InboundMessage, MessageDraft, Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import Shipping, decide, pending, ship, shown, waiting
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import (
    Recording,
    actions,
    call,
    ended,
    job_of,
    make_agent,
    moves,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

W = JobStatus.WAITING_FOR_APPROVAL


@pytest.mark.proves("S4.6", "S1.11")
async def test_a_call_with_side_effects_waits_for_its_owner_and_runs_once_approved(
    strict: World, admin: asyncpg.Connection
) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    job = await job_of(strict, id)
    assert (job.status, job.open_approvals, shipping.shipped) == (W, 1, [])
    lease = await admin.fetchrow("select worker_id, leased_at, runnable_at from job where id = $1", id)
    assert lease is not None
    assert tuple(lease) == (None, None, None)
    checkpoint = await steering.get_checkpoint(strict.db, strict.admin.actor, id)
    assert checkpoint["status"] == "awaiting_approval"
    assert (asked.tool_name, asked.arguments, asked.risk) == ("ship", {"version": "1.0"}, "high")
    assert (asked.agent_says, asked.asked_for) == ("I ship.", "go")
    assert asked.may_decide
    receipt = await decide(strict, asked, reason="looks good")
    assert receipt.approval.status is ApprovalStatus.APPROVED
    assert (await job_of(strict, id)).status is JobStatus.RUNNING
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, ["1.0 to production"])
    assert await moves(strict, id) == [
        "PENDING", "RUNNING", "WAITING_FOR_APPROVAL", "RUNNING", "COMPLETED",
    ]  # fmt: skip
    said = await actions(strict, job)
    for action in (
        "approval_requested",
        "approval_dispatched",
        "session_suspended",
        "approval_decision",
        "session_resumed",
    ):
        assert action in said
    grant = await admin.fetchrow("select consumed_at is not null as used, tool_digest from approval_grant")
    assert grant is not None
    assert (grant["used"], grant["tool_digest"]) == (True, asked.tool_digest)
    assert await whole(strict)


@pytest.mark.proves("S1.13")
async def test_a_denial_fails_the_job_and_says_who_and_why(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked, Choice.DENIED, reason="not on a Friday")
    job = await job_of(strict, id)
    assert job.status is JobStatus.FAILED
    assert "denied by Ada: not on a Friday" in (job.error_message or "")
    assert "`cortex job resubmit`" in (job.error_message or "")
    assert shipping.shipped == []
    session = await sessions.get_session(strict.db, strict.admin.actor, job.session_id)
    assert session.status == "ACTIVE"


ASKED_AND_TOLD = """
policies:
  - {name: ask-and-go-on, target: ship, effect: requires_approval, on_deny: continue}
"""


@pytest.mark.proves("S4.7")
async def test_with_on_deny_continue_the_model_is_told_and_cannot_send_the_same_call_again(strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, ASKED_AND_TOLD)
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(ship(), text="again"), turn(text="{result}")])
    await decide(strict, asked, Choice.DENIED, reason="no")
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, [])
    first, second, *_ = await steps_of(strict, id)
    assert "denied by Ada: no" in (first.calls[0].error or "")
    assert second.calls[0].status == "rejected"
    assert "turned down before" in (second.calls[0].error or "")
    assert await pending(strict) == []


@pytest.mark.proves("S4.8")
async def test_an_edited_call_runs_as_edited_and_the_model_sees_it_as_its_own(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    receipt = await decide(strict, asked, arguments={"version": "1.0", "to": "staging"})
    edited = receipt.approval
    assert (edited.version, edited.arguments) == (2, {"version": "1.0", "to": "staging"})
    assert edited.original_arguments == {"version": "1.0"}
    model = Recording()
    async with working(strict.db, shipping.app, backends=Backends({"scripted": model})):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, ["1.0 to staging"])
    said = [turn for turn in model.asked[-1] if isinstance(turn, AssistantTurn)]
    assert said[0].calls[0].arguments == {"version": "1.0", "to": "staging"}
    # And once more from the rows alone, as a later job or attempt would read it.
    (step, *_) = await steps_of(strict, id)
    assert step.calls[0].arguments == {"version": "1.0", "to": "staging"}


@pytest.mark.proves("D.90")
async def test_calls_of_one_response_are_asked_together_and_decided_one_by_one(strict: World) -> None:
    shipping = Shipping()
    id, asked = await waiting(strict, shipping, ship("1"), call("look"), ship("2"))
    assert [a.arguments["version"] for a in asked] == ["1", "2"]
    assert (await job_of(strict, id)).open_approvals == 2
    await decide(strict, asked[1])
    job = await job_of(strict, id)
    assert (job.status, job.open_approvals) == (W, 1)
    await decide(strict, asked[0])
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert job.status is JobStatus.COMPLETED
    # In the order in which the agent sent them, not in that of the decisions.
    assert shipping.shipped == ["1 to production", "2 to production"]


async def test_a_denial_cancels_the_other_approvals_of_its_job(strict: World) -> None:
    shipping = Shipping()
    id, asked = await waiting(strict, shipping, ship("1"), ship("2"), ship("3"))
    await decide(strict, asked[0])
    await decide(strict, asked[1], Choice.DENIED)
    assert (await job_of(strict, id)).status is JobStatus.FAILED
    ends = [(await shown(strict, a.id)).status.value for a in asked]
    assert ends == ["approved", "denied", "cancelled"]
    async with working(strict.db, shipping.app):
        pass
    assert shipping.shipped == []


@pytest.mark.proves("S4.9")
async def test_identical_calls_share_one_card_and_each_has_its_own_grant(
    strict: World, admin: asyncpg.Connection
) -> None:
    shipping = Shipping()
    id, asked = await waiting(strict, shipping, ship("1"), ship("1"))
    assert [(a.invocations, a.version) for a in asked] == [(2, 2)]
    assert (await job_of(strict, id)).open_approvals == 1
    await decide(strict, asked[0])
    assert await admin.fetchval("select count(*) from approval_grant") == 2
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert len(shipping.shipped) == 2


@pytest.mark.proves("D.91")
async def test_a_second_job_of_the_session_joins_an_open_request(strict: World) -> None:
    shipping = Shipping()
    first, (asked,) = await waiting(strict, shipping)
    session_id = (await job_of(strict, first)).session_id
    second = await submit(strict, await _agent(strict), session_id=session_id)
    async with working(strict.db, shipping.app):
        await until(strict, second, W)
    joined = await shown(strict, asked.id)
    assert (joined.invocations, joined.version) == (2, 2)
    await decide(strict, joined)
    async with working(strict.db, shipping.app):
        assert (await ended(strict, first)).status is JobStatus.COMPLETED
        assert (await ended(strict, second)).status is JobStatus.COMPLETED
    assert len(shipping.shipped) == 2
    assert await whole(strict)


async def _agent(world: World):  # type: ignore[no-untyped-def]
    from cortex_plane.agents import verbs as agents

    return await agents.get_agent(world.db, world.admin.actor, "shipper")


# Holds, cancels, ends --------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.10")
async def test_a_decision_on_a_held_job_is_kept_and_wakes_it_only_with_the_resume(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await steering.pause(strict.db, strict.admin.actor, id, Pause())
    await decide(strict, asked)
    assert (await job_of(strict, id)).status is JobStatus.PAUSED
    async with working(strict.db, shipping.app):
        await steering.resume(strict.db, strict.admin.actor, id, Resumption())
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert len(shipping.shipped) == 1


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_what_ends_a_job_ends_its_approvals(strict: World, how: str) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    job = await job_of(strict, id)
    if how == "cancel":
        await steering.cancel(strict.db, strict.admin.actor, id, Cancellation())
    else:
        await session_lifecycle.terminate(strict.db, strict.admin.actor, job.session_id, Termination())
    after = await shown(strict, asked.id)
    assert after.status is ApprovalStatus.CANCELLED
    assert "approval_cancelled" in await actions(strict, job)
    assert await whole(strict)


# What ran is what was shown --------------------------------------------------------------------------------------


@pytest.mark.proves("D.92")
async def test_an_approval_for_other_code_is_asked_for_again(strict: World) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked)
    newer = App("tests")
    shipped: list[str] = []

    @newer.tool(risk="high", timeout=6, on_uncertain="retry_with_key")
    async def ship(version: str, to: str = "production") -> str:
        """Ship a version, and tell everybody."""
        shipped.append(version)
        return "out"

    async with working(strict.db, newer):
        job = await until(strict, id, W)
        (again,) = await pending(strict, id)
        assert again.id != asked.id
        assert again.tool_digest != asked.tool_digest
        assert shipped == []
        await decide(strict, again)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipped == ["1.0"]
    assert "approval_outgrown" in await actions(strict, job)


async def test_a_grant_that_expired_is_asked_for_again(strict: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await admin.execute("update approval_grant set expires_at = now() - interval '1 second'")
    async with working(strict.db, shipping.app):
        await until(strict, id, W)
        (again,) = await pending(strict, id)
        assert shipping.shipped == []
        await decide(strict, again)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert len(shipping.shipped) == 1


@pytest.mark.proves("D.93")
async def test_a_deny_that_was_applied_meanwhile_beats_an_approval(strict: World) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await apply_policies(strict.db, strict.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, [])
    (step, *_) = await steps_of(strict, id)
    assert "denied (org:freeze" in (step.calls[0].error or "")


@pytest.mark.proves("D.94")
async def test_a_policy_that_changes_between_verdict_and_intent_is_obeyed(world: World) -> None:
    """Everything is allowed when the response comes; when its second call is to be sent, nothing is."""
    app = App("tests")
    acted: list[str] = []

    @app.tool(timeout=5, on_uncertain="fail")
    async def first() -> str:
        acted.append("first")
        await apply_policies(world.db, world.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
        return "done"

    @app.tool(timeout=5, on_uncertain="fail")
    async def second() -> str:
        acted.append("second")
        return "done"

    agent = await make_agent(world, [turn(call("first"), call("second"))])
    id = await submit(world, agent)
    async with working(world.db, app):
        job = await ended(world, id)
    assert (job.status, acted) == (JobStatus.COMPLETED, ["first"])
    (step, *_) = await steps_of(world, id)
    assert [c.status for c in step.calls] == ["completed", "rejected"]


async def test_the_database_sends_nothing_without_a_grant(strict: World, admin: asyncpg.Connection) -> None:
    """An approval is consumed with the intent: whoever writes the row by hand gets no dispatch out of it."""
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await admin.execute("update approval_grant set consumed_at = now()")
    async with working(strict.db, shipping.app):
        await until(strict, id, W)
    assert shipping.shipped == []


@pytest.mark.proves("D.95")
async def test_a_request_that_nobody_can_decide_fails_at_once(strict: World) -> None:
    await apply_policies(
        strict.db,
        strict.admin.actor,
        "policies: [{name: two-eyes, target: ship, effect: requires_approval, template: dev_review,"
        " approvers: {roles: [admin]}, self_approval: true}]",
    )
    text = (
        "policies: [{name: four-eyes, target: ship, effect: requires_approval, template: dev_review,"
        " approvers: {roles: [admin]}, self_approval: false}]"
    )
    other = await strict.person(*strict.admin.actor.roles, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, text)
    from cortex_plane.tenancy.model.orgs import MemberChange
    from cortex_plane.tenancy.verbs import orgs

    assert other.actor.user_account_id is not None
    await orgs.update_member(
        strict.db, strict.admin.actor, other.actor.user_account_id, MemberChange(active=False), None
    )
    shipping = Shipping()
    agent = await make_agent(strict, [turn(ship())], slug="shipper")
    id = await submit(strict, agent)
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert job.status is JobStatus.FAILED
    assert "nobody can give it" in (job.error_message or "")
    assert shipping.shipped == []


# Uncertain effects -----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.96")
async def test_an_uncertain_effect_is_a_card_of_its_own_kind(world: World) -> None:
    app = App("tests")
    tries: list[int] = []

    @app.tool(timeout=5)
    async def pay() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the line went dead")
        return "paid"

    agent = await make_agent(world, [turn(call("pay"))])
    id = await submit(world, agent)
    async with working(world.db, app):
        await until(world, id, JobStatus.PAUSED)
        (card,) = await pending(world, id)
        assert (card.kind, card.deadline) == (ApprovalKind.UNCERTAIN_EFFECT, None)
        assert "cannot tell whether it happened" in (card.question or "")
        receipt = await settlements.answer(
            world.db, world.admin.actor, card.id, EffectAnswer(verdict=Verdict.DID_NOT_HAPPEN), Channel.API
        )
        assert receipt.approval.status is ApprovalStatus.APPROVED
        assert (await ended(world, id)).status is JobStatus.COMPLETED
    assert len(tries) == 2
    assert await pending(world) == []


# What was allowed once is not allowed for ever -------------------------------------------------------------------


class Paying:
    """A payment whose first try ends in doubt."""

    def __init__(self, *, fee: int | None = None) -> None:
        self.sent: list[str] = []
        self.app = App("tests")

        if fee is None:

            @self.app.tool(timeout=5)
            async def pay(amount: int) -> str:
                """Pay."""
                self.sent.append(f"{amount}")
                raise RuntimeError("the line went dead")

        else:

            @self.app.tool(name="pay", timeout=5)
            async def pay_with_fee(amount: int, fee: int = fee) -> str:
                """Pay, with a fee."""
                self.sent.append(f"{amount} and {fee}")
                return "paid"


async def _in_doubt(world: World, paying: Paying, *, approve: bool) -> tuple[UUID, Approval]:
    agent = await make_agent(world, [turn(call("pay", amount=5))])
    id = await submit(world, agent)
    async with working(world.db, paying.app):
        if approve:
            await until(world, id, W)
            (asked,) = await pending(world, id)
            await decide(world, asked)
        await until(world, id, JobStatus.PAUSED)
    (card,) = await pending(world, id)
    return id, card


async def _it_did_not_happen(world: World, card: Approval) -> None:
    answer = EffectAnswer(verdict=Verdict.DID_NOT_HAPPEN)
    await settlements.answer(world.db, world.admin.actor, card.id, answer, Channel.API)


async def test_a_call_that_did_not_happen_is_sent_again_with_the_approval_it_had(strict: World) -> None:
    paying = Paying()
    id, card = await _in_doubt(strict, paying, approve=True)
    await _it_did_not_happen(strict, card)
    async with working(strict.db, paying.app):
        await until(strict, id, JobStatus.PAUSED)
    assert paying.sent == ["5", "5"], "nobody was asked for the same permission twice"


async def test_an_approval_for_other_code_does_not_send_a_call_again(strict: World) -> None:
    id, card = await _in_doubt(strict, Paying(), approve=True)
    assert card.tool_digest == Paying().app.versions[0].digest, "what was sent, not what is there now"
    await _it_did_not_happen(strict, card)
    newer = Paying(fee=1000)
    async with working(strict.db, newer.app):
        await until(strict, id, W)
        (again,) = await pending(strict, id)
        assert newer.sent == []
        await decide(strict, again)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert newer.sent == ["5 and 1000"]


async def test_a_deny_that_was_applied_meanwhile_stops_a_call_from_being_sent_again(world: World) -> None:
    paying = Paying()
    id, card = await _in_doubt(world, paying, approve=False)
    await apply_policies(world.db, world.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
    await _it_did_not_happen(world, card)
    async with working(world.db, paying.app):
        job = await ended(world, id)
    assert (job.status, paying.sent) == (JobStatus.COMPLETED, ["5"])


async def test_a_deny_turns_a_retry_with_key_into_a_question(world: World) -> None:
    app = App("tests")
    sent: list[int] = []

    @app.tool(timeout=1, on_uncertain="retry_with_key")
    async def act() -> str:
        sent.append(1)
        await apply_policies(world.db, world.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
        raise RuntimeError("the line went dead")

    id = await submit(world, await make_agent(world, [turn(call("act"))]))
    async with working(world.db, app):
        await until(world, id, JobStatus.PAUSED)
    assert sent == [1]


async def test_an_outgrown_approval_whose_policy_allows_the_call_now_is_sent(strict: World) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked)
    await apply_policies(strict.db, strict.admin.actor, "policies: [{name: all, target: '*', effect: allow}]")
    newer = App("tests")
    shipped: list[str] = []

    @newer.tool(timeout=6)
    async def ship(version: str) -> str:
        """Ship it otherwise."""
        shipped.append(version)
        return "out"

    async with working(strict.db, newer):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipped == ["1.0"]


async def test_a_grant_that_is_refused_does_not_cost_the_outcome_before_it(
    strict: World, admin: asyncpg.Connection
) -> None:
    app = App("tests")
    done: list[str] = []

    @app.tool(timeout=5, on_uncertain="fail")
    async def one() -> str:
        done.append("one")
        await admin.execute("update approval_grant set expires_at = now() - interval '1 s' where consumed_at is null")
        return "done"

    @app.tool(timeout=5, on_uncertain="fail")
    async def two() -> str:
        done.append("two")
        return "done"

    id = await submit(strict, await make_agent(strict, [turn(call("one"), call("two"))]))
    async with working(strict.db, app):
        await until(strict, id, W)
        for asked in await pending(strict, id):
            await decide(strict, asked)
        job = await until(strict, id, W, *TERMINAL)
        assert job.status is W, job.error_message
        (again,) = await pending(strict, id)
        await decide(strict, again)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert done == ["one", "two"]


async def test_a_request_is_made_under_the_policies_of_its_moment(strict: World) -> None:
    """A steward tightens the rules while the model speaks."""
    bea = await strict.person(Role.ADMIN, name="Bea")

    async def tighten(times: int) -> None:
        if times == 1:
            await apply_policies(
                strict.db,
                bea.actor,
                "policies: [{name: four-eyes, target: ship, effect: requires_approval, template: dev_review}]",
            )

    shipping = Shipping()
    id = await submit(strict, await make_agent(strict, [turn(ship())]))
    async with working(strict.db, shipping.app, backends=Backends({"scripted": Recording(tighten)})):
        await until(strict, id, W)
    (asked,) = await pending(strict, id)
    assert (asked.rule.startswith("org:four-eyes"), asked.self_approval) == (True, False)
    assert [step.step_index for step in await steps_of(strict, id)] == [0], "the response was kept"


# Nobody approves alone what they asked for -----------------------------------------------------------------------

FOUR_EYES = "policies: [{name: four-eyes, target: ship, effect: requires_approval, template: dev_review}]"


async def test_a_join_does_not_step_around_the_self_rule(strict: World) -> None:
    bea = await strict.person(Role.ADMIN, name="Bea")
    cal = await strict.person(Role.ADMIN, name="Cal")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    shipping = Shipping()
    first, (asked,) = await waiting(strict, shipping)
    session_id = (await job_of(strict, first)).session_id
    draft = JobDraft(agent="shipper", payload={"text": "go"}, session_id=session_id)
    second = (await jobs.submit(strict.db, bea.actor, draft)).id
    async with working(strict.db, shipping.app):
        await until(strict, second, W)
    (both,) = await pending(strict, first)
    assert (both.id, both.invocations) == (asked.id, 2)
    assert {cause.name: cause.why for cause in both.caused if cause.why.startswith("submitted")} == {
        "Ada": "submitted the job",
        "Bea": "submitted the job",
    }
    for person in (bea, strict.admin):
        with pytest.raises(Forbidden) as refused:
            await decide(strict, both, by=person)
        assert refused.value.code == "self_approval"
    await decide(strict, both, by=cal)


@pytest.mark.proves("D.442")
async def test_calls_that_together_leave_nobody_to_decide_are_asked_apart(strict: World) -> None:
    bea = await strict.person(Role.ADMIN, name="Bea")
    cal = await strict.person(Role.ADMIN, name="Cal")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    shipping = Shipping()
    await make_agent(replace(strict, admin=cal), [turn(ship(), text="I ship.")], slug="shipper")
    draft = JobDraft(agent="shipper", payload={"text": "go"})
    first = await jobs.submit(strict.db, strict.admin.actor, draft)
    second = await jobs.submit(strict.db, bea.actor, replace(draft, session_id=first.session_id))
    async with working(strict.db, shipping.app):
        await until(strict, first.id, W)
        await until(strict, second.id, W)
    (adas,), (beas,) = await pending(strict, first.id), await pending(strict, second.id)
    assert adas.id != beas.id
    with pytest.raises(Forbidden):
        await decide(strict, beas, by=bea)
    await decide(strict, beas)
    await decide(strict, adas, by=bea)


async def test_whoever_spoke_to_the_job_did_ask_for_it(strict: World) -> None:
    bea = await strict.person(Role.ADMIN, name="Bea")
    cal = await strict.person(Role.ADMIN, name="Cal")
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    agent = await make_agent(strict, [turn(ship())], slug="chatting")
    inbound = InboundMessage(external_user_id="guest-1", agent=agent.slug, text="hello")
    told = await sessions.ingest_message(strict.db, strict.service.actor, strict.connection.id, inbound)
    await sessions.post_message(strict.db, bea.actor, told.session_id, MessageDraft(text="ship 1.0 now"))
    shipping = Shipping()
    async with working(strict.db, shipping.app):
        await until(strict, told.job_id, W)
    (asked,) = await pending(strict, told.job_id)
    for person, why in ((bea, "message"), (strict.admin, "version 1 of the agent")):
        with pytest.raises(Forbidden, match=why) as refused:
            await decide(strict, asked, by=person)
        assert refused.value.code == "self_approval"
    await decide(strict, asked, by=cal)


async def test_a_policy_that_changes_during_a_read_is_obeyed_by_the_next_read(world: World) -> None:
    app, reads = App("tests"), list[int]()

    @app.tool(read_only=True)
    async def look(n: int) -> int:
        """Looks, and is forbidden meanwhile."""
        reads.append(n)
        if n == 1:
            await apply_policies(world.db, world.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
        return n

    job = await submit(world, await make_agent(world, [turn(call("look", n=n)) for n in range(4)]))
    async with working(world.db, app):
        await ended(world, job)
    assert reads == [0, 1]
