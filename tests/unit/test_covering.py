"""What a standing approval covers, bound by bound."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pydantic
import pytest

from cortex_plane.agents.model.tools import Risk
from cortex_plane.approvals.model.approvals import (
    MAX_CALLS,
    MAX_SECONDS,
    ApprovalKind,
    ApprovalStatus,
    GrantedUnder,
    StandingApproval,
    StandingDraft,
)
from cortex_plane.approvals.rules.deciders import Request
from cortex_plane.approvals.rules.standing_match import CallAsked, check, covers, may_revoke, unusable
from cortex_plane.kernel.errors import CortexError
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


def asked(arguments: dict[str, Any] | None = None, **changes: Any) -> CallAsked:
    facts = CallFacts(
        target="ship", arguments=arguments or {"amount": 5}, read_only=False, risk=Risk.HIGH, agent="shipper"
    )
    call = CallAsked(
        session_id=SESSION, tool_name="ship", tool_digest="d1", input_hash=HASH, facts=facts, owner_id=OWNER,
        causes=[OWNER],
    )  # fmt: skip
    return replace(call, **changes)


def granter(*roles: Role, **changes: Any) -> Actor:
    actor = Actor(
        org_id=uuid4(), key_id=uuid4(), kind=ActorKind.PERSON, name="Pat", roles=frozenset(roles or {Role.APPROVER}),
        user_account_id=GRANTER, clearance=3,
    )  # fmt: skip
    return replace(actor, **changes)


def why(
    standing: StandingApproval = STANDING, call: CallAsked | None = None, terms: Terms = TERMS,
    by: Actor | None = None, **more: Any,
) -> str | None:  # fmt: skip
    return covers(standing, call or asked(), terms, by or granter(), NOW, **more)


def test_within_its_bounds_it_covers() -> None:
    assert why() is None
    assert (
        why(replace(STANDING, input_hash=HASH, max_calls=2, used_calls=1, condition="args.amount < 6"))
        is None
    )


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
    assert reason in (why(replace(STANDING, **standing), asked(**call)) or "covered")


def test_calls_of_one_response_are_counted_together() -> None:
    two = replace(STANDING, max_calls=2, used_calls=0)
    assert why(two, taken=1) is None
    assert why(two, taken=2) == "all its calls are used"
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
        ({"required_clearance": 4}, {}, "clearance_too_low"),
        ({"approvers": Approvers(owner=True)}, {}, "not_an_approver"),
        ({"named": (uuid4(),)}, {}, "asks for somebody else"),
        ({}, {"clearance": 2}, "clearance_too_low"),
        ({}, {"roles": frozenset({Role.MEMBER})}, "not_an_approver"),
        ({}, {"roles": frozenset({Role.GUEST})}, "guest_cannot_decide"),
    ],
)  # fmt: skip
def test_it_is_never_wider_than_its_givers_authority_now(
    terms: dict[str, Any], by: dict[str, Any], reason: str
) -> None:
    assert reason in (why(terms=replace(TERMS, **terms), by=granter(**by)) or "covered")


def test_nobody_approves_what_they_asked_for_themselves() -> None:
    assert "self_approval" in (why(call=asked(causes=[OWNER, GRANTER])) or "covered")
    assert why(call=asked(causes=[GRANTER]), terms=replace(TERMS, self_approval=True)) is None


def test_somebody_who_is_gone_covers_nothing() -> None:
    assert covers(STANDING, asked(), TERMS, None, NOW) == "whoever gave it is not there any more"


def test_named_approvers_may_cover() -> None:
    assert why(terms=replace(TERMS, named=(GRANTER,))) is None


# Giving it -------------------------------------------------------------------------------------------------------


def request(**changes: Any) -> Request:
    made = Request(
        id=uuid4(), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, session_id=SESSION,
        job_id=uuid4(), step_index=0, tool_name="ship", tool_digest="d1", risk="high", input_hash=HASH,
        template=Template.DEV_REVIEW, required_clearance=3, timeout_seconds=60, approvers=APPROVERS,
        on_deny=OnDeny.FAIL, self_approval=False, owner_id=OWNER, causes=[], deadline=None, remind_at=None,
        reminded_at=None, requested_at=NOW, resolved_by_name=None, resolution_reason=None, rule="org:ask@1.1",
        quorum=Quorum(), escalations=[], escalate_at=[], escalation_level=0, delegated=[], standing=True,
    )  # fmt: skip
    return replace(made, **changes)


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
    assert check(request(), draft) is None


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
def test_what_cannot_be_given_is_refused(
    changes: dict[str, Any], draft: dict[str, Any], expected: str
) -> None:
    refused = check(request(**changes), StandingDraft(**draft))
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
        ({}, None, "Pat is not active any more"),
        ({}, granter(clearance=1), "Pat has clearance 1 by now, and it needs 3"),
        ({}, granter(Role.MEMBER), "not one of those who may approve it any more"),
        ({}, granter(Role.GUEST), "a guest by now"),
    ],
)
def test_a_list_says_why_one_is_of_no_use(standing: dict[str, Any], by: Actor | None, reason: str) -> None:
    assert reason in (unusable(replace(STANDING, **standing), by, NOW) or "usable")


def test_a_list_says_that_one_is_usable() -> None:
    assert unusable(STANDING, granter(), NOW) is None


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
    refused = may_revoke(STANDING, granter(*roles, user_account_id=person))
    assert code(refused) == (None if may else "not_yours_to_revoke")
