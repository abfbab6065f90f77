"""The access table itself; that every route follows it is proven over HTTP."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from cortex_plane.kernel.errors import Forbidden
from cortex_plane.tenancy.model.access import (
    GRANTS,
    PLATFORM_ONLY,
    SERVICES_ONLY,
    Actor,
    ActorKind,
    KeyKind,
    Permission,
    actor_kind,
)
from cortex_plane.tenancy.model.orgs import Role

ME = UUID(int=7)


def actor(*roles: Role, kind: ActorKind = ActorKind.PERSON, platform: bool = False) -> Actor:
    return Actor(
        org_id=UUID(int=1),
        key_id=UUID(int=2),
        kind=kind,
        name="Pat",
        roles=frozenset(roles),
        user_account_id=ME if kind is ActorKind.PERSON else None,
        platform=platform,
    )


def test_every_permission_has_an_entry_and_only_those_of_platform_and_workers_have_no_role() -> None:
    assert set(GRANTS) == set(Permission)
    assert {permission for permission, roles in GRANTS.items() if not roles} == PLATFORM_ONLY | {Permission.WORKER_RUN}


def test_an_admin_may_do_everything_that_a_role_may() -> None:
    for permission, roles in GRANTS.items():
        assert not roles or Role.ADMIN in roles, permission


def test_a_guest_changes_nothing_but_the_end_of_its_own_sessions() -> None:
    may = {permission for permission, roles in GRANTS.items() if Role.GUEST in roles}
    # It may try to decide: whoever is refused is refused by the approval itself, on its trail.
    assert may == {
        Permission.LOGIN, Permission.ORG_READ, Permission.SESSION_READ, Permission.SESSION_TERMINATE,
        Permission.JOB_READ, Permission.APPROVAL_READ, Permission.APPROVAL_DECIDE,
    }  # fmt: skip


@pytest.mark.parametrize("permission", Permission)
@pytest.mark.parametrize("role", Role)
def test_what_may_says_is_what_require_does(permission: Permission, role: Role) -> None:
    for kind in ActorKind:
        for platform in (False, True):
            someone = actor(role, kind=kind, platform=platform)
            if someone.may(permission):
                someone.require(permission)
            else:
                with pytest.raises(Forbidden) as caught:
                    someone.require(permission)
                assert caught.value.hint


def test_special_permissions_do_not_follow_roles() -> None:
    assert actor(platform=True).may(Permission.ORG_CREATE)
    assert not actor(*Role).may(Permission.ORG_CREATE)
    for permission in SERVICES_ONLY:
        assert not actor(*Role).may(permission)
        assert not actor(*Role, kind=ActorKind.PLATFORM, platform=True).may(permission)
        service = actor(*Role, kind=ActorKind.SERVICE)
        assert replace(service, granted=frozenset({permission})).may(permission)
        assert service.may(permission) is (permission is not Permission.SESSION_ON_BEHALF), "an admin grants it by name"


def test_members_and_guests_see_their_own_and_everybody_else_sees_all() -> None:
    assert actor(Role.MEMBER).sees == ME
    assert actor(Role.GUEST).sees == ME
    assert actor().sees == ME
    for role in (Role.ADMIN, Role.STEWARD, Role.OPERATOR, Role.APPROVER):
        assert actor(role).sees is None
        assert actor(role, Role.MEMBER).sees is None
    assert actor(Role.OPERATOR, kind=ActorKind.SERVICE).sees is None
    service = replace(actor(Role.MEMBER, kind=ActorKind.SERVICE), user_account_id=None)
    assert service.sees == service.key_id, "what it opened"
    assert actor(Role.ADMIN, kind=ActorKind.PLATFORM).sees is None


def test_whoever_acts_elsewhere_acts_as_the_platform() -> None:
    assert actor_kind(KeyKind.PERSON, acts_elsewhere=False) is ActorKind.PERSON
    assert actor_kind(KeyKind.SERVICE, acts_elsewhere=False) is ActorKind.SERVICE
    for kind in KeyKind:
        assert actor_kind(kind, acts_elsewhere=True) is ActorKind.PLATFORM
