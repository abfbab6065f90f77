"""Who may call what, route by route: exactly what the document and the access table say, and nothing else.

`make test` sends every request that must be refused, and everything that changes something; of what a caller may read it
sends a third, another third for each kind of caller. It leaves out services of some roles. `make soak` sends all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from cortex_plane.tenancy.model.access import (
    BY_NAME,
    GRANTS,
    NEVER_SERVICES,
    PERSONS_ONLY,
    PLATFORM_ONLY,
    SERVICES_ONLY,
    Permission,
)
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World
from tests.http.test_http_routes import OPEN, Example, Stage, document, documented_routes, examples

JUDGED = (
    "not_a_person", "guest_cannot_decide", "not_an_approver", "approval_not_found", "not_your_absence", "absence_not_found",
    "not_yours_to_revoke",
)  # fmt: skip
OF_HUMANS = ("grants_nothing",)
"""A program makes keys, and grants them nothing by name."""
OF_ITS_AGENT = ("not_its_agent", "not_opener", "calls_open", "resolution_not_found")
"""A call that is under way is its agent's alone, and keeps its session open; acting under a resolution is for who asked, and saving the state of
a run for who opened its session."""
OF_OPERATORS = ("operator_input_unread",)
"""Members resume their own jobs, and only operators say something with it."""
OF_OWNERS = ("not_your_atlas",)
"""Stewards publish atlases, and retire and hand over their own."""
ASKED_OF_EACH = (Permission.APPROVAL_DECIDE, Permission.ABSENCE_WRITE)
"""Whoever has these may ask; whether they may do it is said by the thing itself."""


@dataclass(frozen=True)
class Kind:
    """A kind of caller, and what the table lets it do."""

    name: str
    role: Role
    may: Callable[[Permission, Role], bool]

    def __str__(self) -> str:
        return f"{self.name}-{self.role}"


def _person(permission: Permission, role: Role) -> bool:
    return role in GRANTS[permission] and permission not in SERVICES_ONLY | PLATFORM_ONLY


def _service(permission: Permission, role: Role) -> bool:
    return role in GRANTS[permission] and permission not in PLATFORM_ONLY | PERSONS_ONLY | NEVER_SERVICES | BY_NAME


def _elsewhere(permission: Permission, role: Role) -> bool:
    """A platform admin acts in an org without being one of its people."""
    return _platform(permission, role) and permission not in PERSONS_ONLY


def _platform(permission: Permission, role: Role) -> bool:
    return permission in PLATFORM_ONLY or _person(permission, role)


KINDS = [
    *(Kind("person", role, _person) for role in Role),
    *(Kind("service", role, _service) for role in Role),
    Kind("platform at home", Role.ADMIN, _platform),
    Kind("platform elsewhere", Role.ADMIN, _elsewhere),
]
SHORT_SERVICES = (Role.ADMIN, Role.MEMBER)
"""A role gives a service what it gives a person, but for what only one of them may do: two roles show that."""
CAMPAIGNS = [
    *(
        pytest.param(kind, False, id=str(kind))
        for kind in KINDS
        if kind.name != "service" or kind.role in SHORT_SERVICES
    ),
    *(pytest.param(kind, True, id=f"{kind}-whole", marks=pytest.mark.soak) for kind in KINDS),
]


async def _headers_and_stage(kind: Kind, world: World, other: World) -> tuple[dict[str, str], Stage]:
    """The caller's headers, and things that the caller can see."""
    match kind.name:
        case "person":
            person = await world.person(kind.role)
            return person.headers, await Stage.build(world, person.actor.user_account_id)
        case "service":
            service = await world.service_with(kind.role)
            return service.headers, await Stage.build(world, opened_by=service.actor.key_id)
        case "platform at home":
            return world.admin.headers, await Stage.build(world)
    return {**world.admin.headers, "Cortex-Org": "rival"}, await Stage.build(other)


def _with_aliases(example: Example) -> list[Example]:
    """Spec 2's path is a second door to the same room, so it is tried as well (what it deletes is deleted once)."""
    if "/v1/agents" not in example.route or example.method in ("POST", "DELETE"):
        return [example]
    return [example, Example(example.route.replace("/v1", ""), example.params, example.query, example.body)]


@pytest.mark.parametrize(("kind", "whole"), CAMPAIGNS)
@pytest.mark.proves("D.5")
async def test_a_caller_may_call_exactly_what_the_table_says(
    http: httpx.AsyncClient, world: World, other: World, kind: Kind, whole: bool
) -> None:
    routes = documented_routes(await document(http))
    headers, stage = await _headers_and_stage(kind, world, other)
    wrong: list[str] = []
    for number, example in enumerate(examples(stage), start=KINDS.index(kind)):
        permission = routes[example.route].get("x-permission")
        allowed = permission is None or example.path in OPEN or kind.may(Permission(permission), kind.role)
        if allowed and example.method == "GET" and number % 3 and not whole:
            continue
        for request in _with_aliases(example):
            answer = await request.send(http, headers)
            refused = answer.status_code == 403 and answer.json()["code"] == "forbidden"
            # Who may decide is said by each request, not by the table: an answer about that is an answer, too.
            code = None if answer.is_success else answer.json().get("code")
            judged = (permission in ASKED_OF_EACH and code in JUDGED) or code in (
                *OF_ITS_AGENT,
                *OF_HUMANS,
                *OF_OPERATORS,
                *OF_OWNERS,
            )
            if (answer.is_success or judged) if allowed else refused:
                continue
            wrong.append(f"{request.route} ({permission}): {answer.status_code} {answer.text}")
    assert wrong == []


@pytest.mark.proves("D.5")
async def test_without_a_key_all_but_health_is_closed(http: httpx.AsyncClient, world: World) -> None:
    for example in examples(await Stage.build(world)):
        for request in _with_aliases(example):
            answer = await request.send(http, {})
            if request.path in OPEN:
                assert answer.is_success
            else:
                assert (answer.status_code, answer.json()["code"]) == (401, "key_missing"), request.route
                assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_person_with_several_roles_may_do_what_any_of_them_may(http: httpx.AsyncClient, world: World) -> None:
    person = await world.person(Role.STEWARD, Role.MEMBER)
    mine = (await http.get("/v1/me", headers=person.headers)).json()
    expected = {p for p in Permission if _person(p, Role.STEWARD) or _person(p, Role.MEMBER)}
    assert set(mine["permissions"]) == expected
    assert mine["roles"] == ["member", "steward"]


async def test_a_refusal_says_which_roles_would_do(http: httpx.AsyncClient, world: World) -> None:
    person = await world.person(Role.MEMBER)
    refused = (await http.get("/v1/audit", headers=person.headers)).json()
    assert refused["detail"] == "This needs one of the roles: admin, operator, steward."
    ingest = Example(
        "POST /v1/connections/{connection_id}/messages",
        {"connection_id": str(world.connection.id)},
        body={"external_user_id": "u", "agent": "deployer", "text": "Hi"},
    )
    assert "service key" in (await ingest.send(http, world.admin.headers)).json()["detail"]
    org = Example("POST /v1/orgs", body={"slug": "third", "name": "Third"})
    assert "platform key" in (await org.send(http, person.headers)).json()["detail"]


async def test_a_key_that_is_not_of_the_platform_cannot_name_another_org(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    person = await world.person(Role.ADMIN)
    for named in ("rival", "nowhere"):
        answer = await http.get("/v1/org", headers={**person.headers, "Cortex-Org": named})
        assert (answer.status_code, answer.json()["code"]) == (404, "org_not_found")
    own = await http.get("/v1/org", headers={**person.headers, "Cortex-Org": "acme"})
    assert own.json()["slug"] == "acme"
