"""What a standing approval covers, bound by bound."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pydantic
import pytest

from cortex_plane.approvals.model.approvals import (
    MAX_CALLS,
    MAX_SECONDS,
    Approval,
    ApprovalKind,
    ApprovalStatus,
    GrantedUnder,
    StandingApproval,
    StandingDraft,
)
from cortex_plane.approvals.rules.authority import (
    Candidate,
    revocation_refusal,
    standing_refusal,
    why_not_covered,
    why_unusable,
)
from cortex_plane.gates.rules.authorization import Uncovered
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import (
    OWNER_DECIDES,
    Approvers,
    CallFacts,
    OnDeny,
    Quorum,
    RoleVotes,
    Template,
    Terms,
)
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.model.orgs import Role

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SESSION, OWNER, GRANTER = uuid4(), uuid4(), uuid4()
HASH = "ab" * 32
APPROVERS = Approvers(roles=(Role.APPROVER,))
TERMS = replace(OWNER_DECIDES, approvers=APPROVERS, required_clearance=3, self_approval=False, standing=True)

STANDING = StandingApproval(
    id=uuid4(), session_id=SESSION, agent="shipper", tool_name="ship", tool_digest="d1", input_hash=None,
    condition=None, max_calls=None, used_calls=0, expires_at=NOW + timedelta(hours=1), granted_by="Pat",
    granted_by_id=GRANTER,
    required=GrantedUnder(rule="org:ask@1.1", template=Template.DEV_REVIEW, clearance=3, approvers=APPROVERS),
    approval_id=uuid4(), reason=None, revoked_at=None, revoked_by=None, revocation_reason=None, created_at=NOW,
    last_used_at=None, owner_id=OWNER,
)  # fmt: skip


def asked(arguments: dict[str, Any] | None = None, **changes: Any) -> Uncovered:
    facts = CallFacts(
        target="ship", arguments=arguments or {"amount": 5}, read_only=False, risk=Risk.HIGH, agent="shipper"
    )
    call = Uncovered(call_id=uuid4(), tool_name="ship", tool_digest="d1", input_hash=HASH, facts=facts, terms=TERMS)
    return replace(call, **changes)


def granter(**changes: Any) -> Candidate:
    """Whoever gave it, with what the SQL rule says about them: tests/storage/test_deciders.py."""
    return replace(
        Candidate(id=GRANTER, name="Pat", roles=frozenset({Role.APPROVER}), clearance=3, active=True, refusal=None),
        **changes,
    )


def actor(*roles: Role, **changes: Any) -> Actor:
    made = Actor(
        org_id=uuid4(), key_id=uuid4(), kind=ActorKind.PERSON, name="Pat", roles=frozenset(roles or {Role.APPROVER}),
        user_account_id=GRANTER, clearance=3,
    )  # fmt: skip
    return replace(made, **changes)


def why(
    standing: StandingApproval = STANDING, call: Uncovered | None = None, terms: Terms = TERMS,
    by: Candidate | None = None, session_id: UUID = SESSION, **more: Any,
) -> str | None:  # fmt: skip
    call = replace(call or asked(), terms=terms)
    return why_not_covered(standing, session_id, call, by or granter(), NOW, **more)


def test_within_its_bounds_it_covers() -> None:
    assert why() is None
    assert why(replace(STANDING, input_hash=HASH, max_calls=2, used_calls=1, condition="args.amount < 6")) is None


@pytest.mark.proves("D.160")
@pytest.mark.parametrize(
    ("standing", "call", "reason"),
    [
        ({"revoked_at": NOW, "revoked_by": "Ada"}, {}, "Ada revoked it"),
        ({"expires_at": NOW}, {}, "its time is over"),
        ({"max_calls": 2, "used_calls": 2}, {}, "all its calls are used"),
        ({}, {"session_id": uuid4()}, "another session"),
        ({}, {"tool_name": "pay"}, "another tool"),
        ({}, {"tool_digest": "d2"}, "another version"),
        ({"input_hash": HASH}, {"input_hash": "cd" * 32}, "other arguments"),
        ({"condition": "args.amount < 5"}, {}, "condition is false"),
        ({"condition": "args.missing < 5"}, {}, "condition failed"),
        ({"condition": "size(args.amount) < 5"}, {}, "condition failed"),
        ({"condition": "nonsense("}, {}, "cannot be used"),
    ],
)  # fmt: skip
def test_each_bound_is_a_limit(standing: dict[str, Any], call: dict[str, Any], reason: str) -> None:
    session_id = call.pop("session_id", SESSION)
    found = why(replace(STANDING, **standing), asked(**call), session_id=session_id)
    assert reason in (found or "covered")


def test_calls_of_one_response_are_counted_together() -> None:
    two = replace(STANDING, max_calls=2, used_calls=0)
    assert why(two, reserved=1) is None
    assert why(two, reserved=2) == "all its calls are used"
    spent = replace(STANDING, max_calls=1, used_calls=1)
    assert why(spent, counted=True) is None, "it was counted for this very call"


@pytest.mark.proves("D.161")
@pytest.mark.parametrize(
    ("terms", "by", "reason"),
    [
        ({"standing": False}, {}, "the policy does not allow it"),
        ({"template": Template.FULL_PIPELINE}, {}, "the policy does not allow it"),
        ({"template": Template.CRITICAL_PATH}, {}, "the policy does not allow it"),
        ({"quorum": Quorum(votes=2)}, {}, "one person is not enough"),
        ({"quorum": Quorum(votes=1, roles=(RoleVotes(role=Role.ADMIN, votes=1),))}, {}, "one person is not enough"),
        ({"named": (uuid4(),)}, {}, "asks for somebody else"),
        ({}, {"refusal": "clearance_too_low"}, "clearance_too_low"),
        ({}, {"refusal": "not_an_approver"}, "not_an_approver"),
        ({}, {"refusal": "guest_cannot_decide"}, "guest_cannot_decide"),
        ({}, {"refusal": "self_approval"}, "self_approval"),
        ({}, {"refusal": "one_human"}, "count as one human"),
    ],
)  # fmt: skip
def test_it_is_never_wider_than_its_givers_authority_now(
    terms: dict[str, Any], by: dict[str, Any], reason: str
) -> None:
    assert reason in (why(terms=replace(TERMS, **terms), by=granter(**by)) or "covered")


def test_somebody_who_is_gone_covers_nothing() -> None:
    assert why(by=granter(active=False)) == "whoever gave it is not there any more"


def test_named_approvers_may_cover() -> None:
    assert why(terms=replace(TERMS, named=(GRANTER,))) is None


# Giving it -------------------------------------------------------------------------------------------------------


def request(**changes: Any) -> Approval:
    approval = Approval(
        id=uuid4(), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, session_id=SESSION,
        job_id=uuid4(), agent_id=uuid4(), agent="a", agent_name="A", step_index=0, action_type="tool_call",
        tool_name="ship", tool_digest="d1", target="ship", arguments={}, original_arguments=None, input_hash=HASH,
        invocations=1, risk="high", action_summary="", agent_says=None, asked_for=None, question=None,
        rule="org:ask@1.1", policy_version="1.1", template=Template.DEV_REVIEW, required_clearance=3,
        approvers=APPROVERS, on_deny=OnDeny.FAIL, self_approval=False, owner_id=OWNER, caused_by=None, causes=[],
        quorum=Quorum(), votes_for=0, delegated=[], standing=True, action=None, details=None, escalation_level=0,
        escalations=0, escalate_at=None, channels_dispatched=[], requested_at=NOW, deadline=None, reminded_at=None,
        resolved_at=None, resolved_by=None, resolved_by_name=None, resolution_reason=None, resolved_via=None,
        created_at=NOW,
    )  # fmt: skip
    return replace(approval, **changes)


def code(error: CortexError | None) -> str | None:
    return error.code if error else None


@pytest.mark.parametrize(
    "draft",
    [
        StandingDraft(same_arguments=True),
        StandingDraft(calls=1),
        StandingDraft(calls=MAX_CALLS, seconds=MAX_SECONDS),
        StandingDraft(seconds=60),
        StandingDraft(condition="args.amount < 100"),
    ],
)
def test_any_bound_is_enough(draft: StandingDraft) -> None:
    assert standing_refusal(request(), draft) is None


@pytest.mark.parametrize(
    ("changes", "draft", "expected"),
    [
        ({"standing": False}, {"calls": 1}, "standing_not_allowed"),
        ({"template": Template.FULL_PIPELINE}, {"calls": 1}, "standing_not_allowed"),
        ({"template": Template.CRITICAL_PATH}, {"calls": 1}, "standing_not_allowed"),
        ({"quorum": Quorum(votes=2)}, {"calls": 1}, "standing_not_allowed"),
        ({"kind": ApprovalKind.UNCERTAIN_EFFECT}, {"calls": 1}, "standing_not_allowed"),
        ({"tool_digest": None}, {"calls": 1}, "standing_not_allowed"),
        ({}, {}, "standing_unbounded"),
        ({}, {"condition": "args.amount <"}, "invalid_condition"),
        ({}, {"condition": "env.HOME == 'x'"}, "invalid_condition"),
        ({}, {"condition": " "}, "invalid_condition"),
        ({}, {"condition": "args.x.all(a, args.y.all(b, a == b))"}, "invalid_condition"),
        ({}, {"condition": "'a'.matches('(a{1000}){1000}')"}, "invalid_condition"),
    ],
)
def test_what_cannot_be_given_is_refused(changes: dict[str, Any], draft: dict[str, Any], expected: str) -> None:
    refused = standing_refusal(request(**changes), StandingDraft(**draft))
    assert code(refused) == expected
    assert refused is not None
    assert refused.hint


@pytest.mark.parametrize(
    "draft",
    [
        {"calls": 0}, {"calls": MAX_CALLS + 1}, {"calls": "5"}, {"calls": True}, {"calls": 1.5}, {"seconds": 0},
        {"seconds": -1}, {"seconds": MAX_SECONDS + 1}, {"same_arguments": "yes"}, {"condition": "x" * 2001},
        {"condition": "a\x00b"}, {"forever": True},
    ],
)  # fmt: skip
def test_what_is_out_of_range_cannot_be_said(draft: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        StandingDraft(**draft)


# Listing and revoking it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standing", "by", "reason"),
    [
        ({"max_calls": 1, "used_calls": 1}, granter(), "all its calls are used"),
        ({"expires_at": NOW}, granter(), "its time is over"),
        ({}, granter(active=False), "Pat is not active any more"),
        ({}, granter(clearance=1, refusal="clearance_too_low"), "Pat has clearance 1 by now, and it needs 3"),
        ({}, granter(refusal="not_an_approver"), "not one of those who may approve it any more"),
        ({}, granter(refusal="guest_cannot_decide"), "a guest by now"),
    ],
)
def test_a_list_says_why_one_is_of_no_use(standing: dict[str, Any], by: Candidate, reason: str) -> None:
    assert reason in (why_unusable(replace(STANDING, **standing), by, NOW) or "usable")


def test_a_list_says_that_one_is_usable() -> None:
    assert why_unusable(STANDING, granter(), NOW) is None


@pytest.mark.parametrize(
    ("roles", "person", "may"),
    [
        ({Role.ADMIN}, uuid4(), True),
        ({Role.OPERATOR}, None, True),
        ({Role.MEMBER}, GRANTER, True),
        ({Role.APPROVER}, uuid4(), False),
        ({Role.STEWARD}, uuid4(), False),
        ({Role.GUEST}, OWNER, False),
    ],
)
def test_who_may_revoke(roles: set[Role], person: UUID | None, may: bool) -> None:
    refused = revocation_refusal(STANDING, actor(*roles, user_account_id=person))
    assert code(refused) == (None if may else "not_yours_to_revoke")
