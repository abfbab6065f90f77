"""What a decision does, without a database. Who may decide: tests/storage/test_deciders.py."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.approvals.model.approvals import (
    TRANSITIONS,
    Approval,
    ApprovalDecision,
    ApprovalKind,
    ApprovalStatus,
    Choice,
)
from cortex_plane.approvals.rules.decisions import (
    JobOutcome,
    LockedApproval,
    Sibling,
    WaitingCall,
    WaitingJob,
    already_decided,
    describe_approvers,
    end_approved,
    end_denied,
    end_expired,
    is_same,
    staleness_error,
)
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.text import in_words
from cortex_plane.policies.model.policies import Approvers, OnDeny, Quorum, Template
from cortex_plane.tenancy.model.orgs import Role

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
ME, OTHER, ORG = UUID(int=1), UUID(int=2), UUID(int=9)
ONE, TWO = "1" * 64, "2" * 64
JOB, JOB2, CALL, CALL2 = UUID(int=11), UUID(int=12), UUID(int=21), UUID(int=22)


def request(**changes: Any) -> Approval:
    approval = Approval(
        id=UUID(int=31), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, session_id=UUID(int=41),
        job_id=JOB, agent_id=UUID(int=42), agent="a", agent_name="A", step_index=3, action_type="tool_call",
        tool_name="ship", tool_digest="d", target="ship", arguments={}, original_arguments=None, input_hash=ONE,
        invocations=1, risk="high", action_summary="", agent_says=None, asked_for=None, question=None,
        rule="org:ships@1.1", policy_version="1.1", template=Template.DEV_ONLY, required_clearance=0,
        approvers=Approvers(owner=True), on_deny=OnDeny.FAIL, self_approval=True, owner_id=ME, caused_by=None,
        causes=[ME], quorum=Quorum(), votes_for=0, delegated=[], standing=False, action=None, details=None,
        escalation_level=0, escalations=0, escalate_at=None, channels_dispatched=[], requested_at=NOW,
        deadline=NOW + timedelta(hours=1), reminded_at=None, resolved_at=None, resolved_by=None,
        resolved_by_name=None, resolution_reason=None, resolved_via=None, created_at=NOW,
    )  # fmt: skip
    return replace(approval, **changes)


def job(id: UUID = JOB, open_approvals: int = 1, holds: tuple[str, ...] = ()) -> WaitingJob:
    return WaitingJob(id=id, status=JobStatus.WAITING_FOR_APPROVAL, holds=list(holds), open_approvals=open_approvals)


def waiting_call(id: UUID = CALL, job_id: UUID = JOB, status: CallStatus = CallStatus.AWAITING) -> WaitingCall:
    return WaitingCall(id=id, job_id=job_id, status=status, step_index=3)


def opened(
    *jobs: WaitingJob, calls: list[WaitingCall] | None = None, siblings: list[Sibling] | None = None, **changes: Any
) -> LockedApproval:  # fmt: skip
    return LockedApproval(
        approval=request(**changes), jobs=list(jobs) or [job()], calls=calls or [waiting_call()],
        siblings=siblings or [], votes=[], policies="1.1", now=NOW, visible=True, timeout_seconds=86_400,
        remind_at=None, levels=[], level_times=[],
    )  # fmt: skip


# Who may ----------------------------------------------------------------------------------------------------------


def test_approvers_are_named_in_words() -> None:
    everybody = Approvers(owner=True, roles=(Role.ADMIN,), members=(ME, OTHER))
    assert describe_approvers(everybody) == "the session's owner, anybody with the role admin, 2 named members"
    assert describe_approvers(Approvers(members=(ME,))) == "1 named member"
    assert describe_approvers(Approvers()) == "nobody"


# Whether it still can be ------------------------------------------------------------------------------------------


def decision(choice: Choice = Choice.APPROVED, **more: Any) -> ApprovalDecision:
    return ApprovalDecision(**{"decision": choice, "version": 1, "input_hash": ONE, **more})


@pytest.mark.parametrize(
    ("status", "choice", "saw", "edited", "same"),
    [
        ("approved", "approved", ONE, None, True),
        ("approved", "approved", TWO, None, False),
        ("approved", "approved", TWO, ONE, True),
        ("approved", "approved", ONE, TWO, False),
        ("approved", "denied", ONE, None, False),
        ("denied", "denied", ONE, None, True),
        ("denied", "denied", TWO, None, True),
        ("denied", "approved", ONE, None, False),
        ("expired", "denied", ONE, None, False),
        ("cancelled", "approved", ONE, None, False),
        ("pending", "approved", ONE, None, False),
    ],
)
def test_a_decision_is_the_same_where_it_leads_to_the_same(
    status: str, choice: str, saw: str, edited: str | None, same: bool
) -> None:
    resolved = request(status=ApprovalStatus(status))
    assert is_same(resolved, decision(Choice(choice), input_hash=saw), edited) is same


def test_what_the_decider_saw_must_be_what_is_there_and_in_time() -> None:
    assert staleness_error(request(), decision(), NOW) is None
    late = NOW + timedelta(hours=1)
    assert staleness_error(request(), decision(), late - timedelta(microseconds=1)) is None
    for at, made, expected in (
        (late, decision(), "approval_expired"),
        (late, decision(version=9), "approval_expired"),
        (NOW, decision(version=2), "approval_changed"),
        (NOW, decision(input_hash=TWO), "approval_changed"),
    ):
        refused = staleness_error(request(), made, at)
        assert refused is not None
        assert refused.code == expected
    assert staleness_error(request(deadline=None), decision(), late) is None


def test_a_conflict_says_who_decided_and_why() -> None:
    done = request(status=ApprovalStatus.DENIED, resolved_by_name="Bea", resolution_reason="no")
    assert already_decided(done).message == "It is denied already by Bea: no."
    assert already_decided(request(status=ApprovalStatus.EXPIRED)).message == "It is expired already."


# What it does -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("open_approvals", "holds", "status"),
    [(1, (), "RUNNING"), (1, ("operator",), "PAUSED"), (2, (), None), (2, ("operator",), None)],
)
def test_with_the_last_approval_a_job_goes_on_unless_it_is_held(
    open_approvals: int, holds: tuple[str, ...], status: str | None
) -> None:
    closing = end_approved(opened(job(open_approvals=open_approvals, holds=holds)))
    assert closing.jobs == [JobOutcome(id=JOB, open=open_approvals - 1, status=JobStatus(status) if status else None)]
    assert closing.calls == [(CALL, CallStatus.APPROVED, None)]
    assert closing.cancelled == []


def test_several_calls_of_one_job_count_once() -> None:
    closing = end_approved(opened(job(), calls=[waiting_call(), waiting_call(CALL2)]))
    assert [(each.open, each.status) for each in closing.jobs] == [(0, JobStatus.RUNNING)]
    assert [id for id, _, _ in closing.calls] == [CALL, CALL2]


def test_a_job_whose_call_waits_no_more_is_left_alone() -> None:
    """It ended meanwhile; another job still waits for the same request."""
    both = opened(job(), job(JOB2), calls=[waiting_call(status=CallStatus.REJECTED), waiting_call(CALL2, JOB2)])
    for closing in (end_approved(both), end_denied(both, "Bea", None), end_expired(both)):
        assert [each.id for each in closing.jobs] == [JOB2]
        assert [id for id, _, _ in closing.calls] == [CALL2]


def test_a_denial_fails_every_job_that_waits_and_ends_what_they_alone_wait_for() -> None:
    alone = Sibling(id=UUID(int=51), tool_name="look", jobs=[JOB])
    shared = Sibling(id=UUID(int=52), tool_name="look", jobs=[JOB, UUID(int=99)])
    nobody = Sibling(id=UUID(int=53), tool_name="look", jobs=None)
    turned_down = opened(
        job(open_approvals=3), job(JOB2), calls=[waiting_call(), waiting_call(CALL2, JOB2)],
        siblings=[alone, shared, nobody],
    )  # fmt: skip
    closing = end_denied(turned_down, "Bea", "not on a Friday")
    assert [(each.id, each.open, each.status) for each in closing.jobs] == [
        (JOB, 0, JobStatus.FAILED),
        (JOB2, 0, JobStatus.FAILED),
    ]
    error = closing.jobs[0].error or ""
    assert error.startswith(f"Job {JOB}, step 3: Approval of `ship` denied by Bea: not on a Friday")
    assert "`cortex job resubmit`" in error
    assert closing.cancelled == [alone, nobody]
    assert closing.status is ApprovalStatus.DENIED


@pytest.mark.parametrize(
    ("reason", "told"),
    [(None, "by Bea."), ("", "by Bea."), ("  ", "by Bea."), ("no", "by Bea: no."), ("No!", "by Bea: No!")],
)
def test_a_reason_is_a_sentence_of_its_own(reason: str | None, told: str) -> None:
    ((_, _, answer),) = end_denied(opened(), "Bea", reason).calls
    assert f"denied {told} Do not send" in (answer or "")


def test_with_on_deny_continue_nothing_fails_and_nothing_is_cancelled() -> None:
    sibling = Sibling(id=UUID(int=51), tool_name="look", jobs=[JOB])
    asked = opened(job(open_approvals=2), siblings=[sibling], on_deny=OnDeny.CONTINUE)
    for closing, why in (
        (end_denied(asked, "Bea", None), "denied by Bea."),
        (end_expired(asked), "timed out after 24"),
    ):
        assert [(each.open, each.status, each.error) for each in closing.jobs] == [(1, None, None)]
        ((_, status, told),) = closing.calls
        assert status is CallStatus.REJECTED
        assert why in (told or "")
        assert "Do not send the same call again" in (told or "")
        assert closing.cancelled == []


def test_an_end_is_an_edge_of_the_machine() -> None:
    assert set(TRANSITIONS) == set(ApprovalStatus)
    assert {old for old, targets in TRANSITIONS.items() if targets} == {ApprovalStatus.PENDING}
    for closing in (end_approved(opened()), end_denied(opened(), "Bea", None), end_expired(opened())):
        assert closing.status in TRANSITIONS[ApprovalStatus.PENDING]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"), (59, "59 seconds"), (60, "1 minute"), (90, "90 seconds"), (3600, "1 hour"),
        (5400, "90 minutes"), (86_400, "24 hours"), (172_800, "2 days"), (604_800, "7 days"), (0, "0 seconds"),
    ],
)  # fmt: skip
def test_times_are_said_as_people_say_them(seconds: int, words: str) -> None:
    assert in_words(seconds) == words


@given(st.integers(1, 10**7))
def test_a_time_in_words_is_exact(seconds: int) -> None:
    count, unit = in_words(seconds).split()
    size = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1}[unit.removesuffix("s")]
    assert int(count) * size == seconds


# What callers send ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"version": 0}, {"version": "1"}, {"version": True}, {"version": 10**7}, {"input_hash": "A" * 64},
        {"input_hash": ONE + "\n"}, {"input_hash": "1" * 63}, {"decision": "maybe"}, {"decision": "expired"},
        {"reason": "x" * 2001}, {"reason": "a\x00b"}, {"reason": "\ud800"}, {"arguments": []}, {"arguments": "{}"},
        {"arguments": {"a": math.nan}}, {"arguments": {"a": math.inf}}, {"arguments": {"a": "\ud800"}},
        {"arguments": {"a\x00": 1}}, {"arguments": {"a": 2**65}}, {"arguments": {"a": "x" * 2**20}},
        {"surprise": 1},
    ],
    ids=lambda bad: repr(bad)[:40].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_a_decision_that_cannot_be_kept_is_not_made(bad: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        decision(**bad)
