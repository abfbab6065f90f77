"""Simulations: which calls would be judged otherwise, which way, and how they are counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import (
    OWNER_DECIDES,
    Approvers,
    OnDeny,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    PolicyVerdict,
    Quorum,
    RoleVotes,
    Template,
)
from cortex_plane.policies.model.versions import Direction, Recorded, SimulationRequest, SimulationTotals
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.simulations import MAX_GROUPS, PastCall, PolicyReplay, different_terms, direction
from cortex_plane.tenancy.model.orgs import Role

ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
STRICTER, LOOSER, OTHERWISE = Direction.STRICTER, Direction.LOOSER, Direction.OTHERWISE
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BOTH = Approvers(roles=(Role.ADMIN, Role.APPROVER))
BASE = replace(
    OWNER_DECIDES,
    required_clearance=2,
    timeout_seconds=600,
    approvers=BOTH,
    quorum=Quorum(votes=2, roles=(RoleVotes(role=Role.ADMIN, votes=1),)),
)


def past(n: int = 1, **known: Any) -> PastCall:
    call = PastCall(
        id=UUID(int=n), job_id=UUID(int=99), tool_name="deploy", arguments={"n": n}, created_at=NOON, agent="deployer",
        teams=(), session_kind="programmatic", request_policies=None, risk=Risk.LOW, read_only=False,
        recorded_verdict=None, recorded_rule=None,
    )  # fmt: skip
    return replace(call, **known)


def policies(*rows: PolicyRow, version: str = "1.1") -> CompiledPolicies:
    return CompiledPolicies(PolicySet(version=version, org=rows))


def row(effect: PolicyVerdict, name: str = "row", target: str = "*", **said: Any) -> PolicyRow:
    return PolicyRow(name=name, target=target, effect=effect, **said)


@pytest.mark.proves("D.116")
@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({"required_clearance": 3}, STRICTER),
        ({"required_clearance": 1}, LOOSER),
        ({"timeout_seconds": 60}, STRICTER),
        ({"timeout_seconds": 6000}, LOOSER),
        ({"quorum": Quorum(votes=3, roles=(RoleVotes(role=Role.ADMIN, votes=1),))}, STRICTER),
        ({"quorum": Quorum(votes=2)}, LOOSER),
        ({"quorum": Quorum(votes=3)}, OTHERWISE),
        ({"approvers": Approvers(roles=(Role.ADMIN,))}, STRICTER),
        ({"approvers": replace(BOTH, owner=True)}, LOOSER),
        ({"approvers": Approvers(members=(UUID(int=1),))}, OTHERWISE),
        ({"self_approval": False}, STRICTER),
        ({"standing": False}, STRICTER),
        ({"required_clearance": 3, "standing": False, "template": Template.DEV_REVIEW}, STRICTER),
        ({"required_clearance": 3, "timeout_seconds": 6000}, OTHERWISE),
        ({"channels": ("email",)}, OTHERWISE),
        ({"on_deny": OnDeny.CONTINUE}, OTHERWISE),
        ({"escalations": (BOTH,), "escalation_seconds": 60}, OTHERWISE),
    ],
)  # fmt: skip
def test_terms_become_stricter_or_looser_or_just_others(changes: dict[str, Any], way: Direction) -> None:
    before = PolicyDecision(verdict=ASK, rule="r", terms=BASE)
    after = PolicyDecision(verdict=ASK, rule="r", terms=replace(BASE, **changes))
    assert direction(before, after) is way
    assert set(different_terms(before.terms, after.terms)) == set(changes)
    back = {STRICTER: LOOSER, LOOSER: STRICTER, OTHERWISE: OTHERWISE}[way]
    assert direction(after, before) is back


def test_what_a_request_says_is_no_difference_between_policies() -> None:
    assert different_terms(BASE, replace(BASE, action="Ship it", details={"a": 1})) == []
    assert different_terms(BASE, None) == []


@pytest.mark.proves("D.116")
def test_calls_are_grouped_by_what_would_change_with_examples_and_what_was_recorded() -> None:
    replay = PolicyReplay(
        policies(row(ALLOW, "free", "deploy*"), row(ASK, "asks", "pay", required_clearance=1)),
        policies(
            row(DENY, "never", "deploy*", condition='agent == "deployer"'),
            row(ALLOW, "open", "deploy*"),
            row(ASK, "asks", "pay", required_clearance=3, quorum=Quorum(votes=2)),
            version="2.1",
        ),
    )
    replay.look_at(
        [
            *(past(n, recorded_verdict=ALLOW, recorded_rule="org:free@1.1") for n in range(1, 6)),
            past(6, recorded_verdict=DENY, recorded_rule="org:old@0.1"),
            past(7, agent="other", recorded_verdict=ALLOW, recorded_rule="org:free@1.1"),
            past(8, tool_name="pay"),
            past(9, tool_name="look", read_only=True),
            past(10, tool_name="gone", risk=None, read_only=None),
            past(11, arguments="not an object"),
        ]
    )
    assert replay.totals == SimulationTotals(
        looked_at=11, unchanged=2, other_rule=1, changed=7, stricter=7, looser=0, unknown=2, drifted=1
    )
    first, second = replay.groups()
    assert (first.tool, first.agent, first.calls, first.direction) == ("deploy", "deployer", 6, STRICTER)
    assert (first.before.verdict, first.before.rule) == (ALLOW, "org:free")
    assert (first.after.verdict, first.after.rule, first.terms) == (DENY, "org:never", [])
    assert first.examples == [UUID(int=1), UUID(int=2), UUID(int=3)]
    assert first.recorded == [
        Recorded(verdict=ALLOW, rule="org:free", calls=5), Recorded(verdict=DENY, rule="org:old", calls=1),
    ]  # fmt: skip
    assert (second.tool, second.before.rule, second.after.rule) == ("pay", "org:asks", "org:asks")
    assert second.terms == ["required_clearance", "quorum"]
    assert second.recorded == [Recorded(verdict=None, rule=None, calls=1)]


def test_the_jobs_own_demands_are_part_of_both_verdicts() -> None:
    demands = [row(DENY, "mine", "deploy")]
    replay = PolicyReplay(policies(row(ALLOW)), policies(row(ASK)))
    replay.look_at([past(1, request_policies=demands), past(2)])
    assert (replay.totals.unchanged, replay.totals.changed) == (1, 1)


def test_the_same_policies_change_nothing_and_many_groups_are_cut() -> None:
    same = PolicyReplay(policies(row(ASK)), policies(row(ASK), version="2.1"))
    same.look_at([past(1), past(2, read_only=True)])
    assert (same.totals.changed, same.totals.other_rule, same.groups()) == (0, 0, [])
    many = PolicyReplay(policies(row(ALLOW)), policies(row(DENY)))
    many.look_at(past(n, tool_name=f"tool_{n}") for n in range(MAX_GROUPS + 5))
    assert (len(many.groups()), many.total_groups) == (MAX_GROUPS, MAX_GROUPS + 5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"since": NOON, "within_seconds": 60}, "not both"),
        ({"since": NOON, "until": NOON}, "must be earlier"),
        ({"since": datetime(2026, 1, 1)}, "timezone"),
        ({"until": datetime(1, 1, 1, tzinfo=UTC)}, "between the years 1970 and 9000"),
        ({"since": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)}, "between the years 1970 and 9000"),
        ({"within_seconds": 0}, "greater than or equal to 1"),
        ({"within_seconds": 10**9}, "less than or equal to"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"limit": 10**6}, "less than or equal to 100000"),
        ({"unknown": 1}, "Unexpected keyword"),
    ],
)
def test_a_span_or_a_limit_that_makes_no_sense_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SimulationRequest(**({"text": "policies: []"} | asked))
