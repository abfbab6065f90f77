"""The SQL function `decider_refusal`, the only rule of who may decide, and the words for its codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortex_plane.approvals import store
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.approvals.rules.decisions import BARS_ONLY_YES, describe_refusal
from cortex_plane.db.database import Database
from cortex_plane.policies.model.policies import OWNER_DECIDES, TEMPLATES, Approvers, Template
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.model.orgs import Role

ME, OTHER, ORG = UUID(int=1), UUID(int=2), UUID(int=9)


def person(*roles: Role, id: UUID = ME, clearance: int = 0) -> Actor:
    return Actor(
        org_id=ORG, key_id=UUID(int=5), kind=ActorKind.PERSON, name="Me", roles=frozenset(roles),
        user_account_id=id, clearance=clearance,
    )  # fmt: skip


async def code(db: Database, **more: Any) -> str | None:
    """What the rule answers for the owner of a session who shaped the call."""
    case: dict[str, Any] = {
        "approvers": Approvers(owner=True), "required_clearance": 0, "self_approval": True, "owner_id": ME,
        "causes": [ME], "actor": person(Role.MEMBER), "choice": Choice.APPROVED,
    } | more  # fmt: skip
    terms = replace(
        OWNER_DECIDES, **{name: case[name] for name in ("approvers", "required_clearance", "self_approval")}
    )
    async with db.transaction(ORG) as tx:
        answer = await store.refusal_under_terms(tx, terms, case["owner_id"], case["causes"], case["actor"])
    return None if case["choice"] is Choice.DENIED and answer in BARS_ONLY_YES else answer


ROLES = st.frozensets(st.sampled_from(Role), min_size=1)
APPROVER_SETS = st.builds(
    Approvers,
    owner=st.booleans(),
    roles=st.lists(st.sampled_from([r for r in Role if r is not Role.GUEST]), max_size=2).map(tuple),
    members=st.lists(st.sampled_from([ME, OTHER]), max_size=2).map(tuple),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    kind=st.sampled_from(ActorKind), roles=ROLES, clearance=st.integers(0, 3), approvers=APPROVER_SETS,
    needed=st.integers(0, 3), self_approval=st.booleans(), owner=st.sampled_from([ME, OTHER, None]),
    caused=st.sampled_from([ME, OTHER, None]), choice=st.sampled_from(Choice),
)  # fmt: skip
async def test_whoever_is_not_refused_fulfils_every_condition(
    db: Database, kind: ActorKind, roles: frozenset[Role], clearance: int, approvers: Approvers, needed: int,
    self_approval: bool, owner: UUID | None, caused: UUID | None, choice: Choice,
) -> None:  # fmt: skip
    actor = replace(person(*roles, clearance=clearance), kind=kind)
    stands_in = owner is None and not roles.isdisjoint({Role.ADMIN, Role.APPROVER})
    named = (
        (approvers.owner and (owner == ME or stands_in))
        or ME in approvers.members
        or not roles.isdisjoint(approvers.roles)
    )
    may = (
        kind is ActorKind.PERSON and roles != {Role.GUEST} and named and clearance >= needed
        and not (choice is not Choice.DENIED and not self_approval and caused == ME)
    )  # fmt: skip
    answer = await code(
        db, approvers=approvers, required_clearance=needed, self_approval=self_approval, owner_id=owner,
        causes=[caused] if caused else [], actor=actor, choice=choice,
    )  # fmt: skip
    refused = describe_refusal(answer, actor, approvers, needed)
    assert (refused is None) is may
    if refused is not None:
        assert refused.message
        assert refused.hint


async def test_each_refusal_has_its_own_code(db: Database) -> None:
    assert await code(db) is None
    assert (
        await code(db, actor=replace(person(Role.ADMIN), kind=ActorKind.SERVICE, user_account_id=None))
        == "not_a_person"
    )
    assert await code(db, actor=replace(person(Role.ADMIN), kind=ActorKind.PLATFORM)) == "not_a_person"
    assert await code(db, actor=person(Role.GUEST)) == "guest_cannot_decide"
    assert await code(db, actor=person(Role.ADMIN, id=OTHER)) == "not_an_approver"
    assert await code(db, required_clearance=1) == "clearance_too_low"
    assert await code(db, self_approval=False) == "self_approval"
    assert await code(db, self_approval=False, choice=Choice.DENIED) is None
    assert await code(db, self_approval=False, causes=[]) is None
    assert await code(db, owner_id=None, actor=person(Role.APPROVER)) is None
    assert await code(db, owner_id=None, actor=person(Role.MEMBER)) == "not_an_approver"


async def test_templates_from_review_on_want_somebody_else(db: Database) -> None:
    for template, terms in TEMPLATES.items():
        refused = await code(
            db, self_approval=terms.self_approval, approvers=Approvers(roles=(Role.ADMIN,)), actor=person(Role.ADMIN)
        )  # fmt: skip
        assert (refused is None) is (template is Template.DEV_ONLY)


@pytest.mark.proves("D.161")
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, None),
        ({"required_clearance": 4}, "clearance_too_low"),
        ({"approvers": Approvers(owner=True)}, "not_an_approver"),
        ({"actor": person(Role.APPROVER, clearance=2)}, "clearance_too_low"),
        ({"actor": person(Role.MEMBER, clearance=3)}, "not_an_approver"),
        ({"actor": person(Role.GUEST, clearance=3)}, "guest_cannot_decide"),
        ({"causes": [OTHER, ME]}, "self_approval"),
        ({"causes": [ME], "self_approval": True}, None),
    ],
)
async def test_a_standing_approval_is_never_wider_than_its_givers_authority_now(
    db: Database, case: dict[str, Any], expected: str | None
) -> None:
    giver: dict[str, Any] = {
        "approvers": Approvers(roles=(Role.APPROVER,)), "required_clearance": 3, "self_approval": False,
        "owner_id": OTHER, "causes": [OTHER], "actor": person(Role.APPROVER, clearance=3),
    }  # fmt: skip
    assert await code(db, **giver | case) == expected


ROW = """jsonb_populate_record(null::approval_request, '{"approvers": {"roles": ["approver"]}, "required_clearance": 1,
    "self_approval": false, "causes": ["00000000-0000-0000-0000-000000000002"], "delegated": [], "kind": "uncertain_effect"}')"""


@pytest.mark.parametrize(
    ("settles", "shapers", "behind", "named", "expected"),
    [
        (None, None, None, False, "not_an_approver"),
        (None, None, None, True, None),
        (None, [OTHER], [ME], True, None),
        (None, [OTHER, ME], [ME], True, "one_human"),
        (True, None, None, False, None),
        (False, None, None, True, "not_a_settler"),
    ],
)
async def test_humans_settlers_and_takers(
    admin: asyncpg.Connection, settles: bool | None, shapers: list[UUID] | None, behind: list[UUID] | None,
    named: bool, expected: str | None,
) -> None:  # fmt: skip
    query = f"select decider_refusal({ROW}, $1, array['member'], 1, $2, $3, $4, $5)"
    assert await admin.fetchval(query, ME, settles, shapers, behind, named) == expected
