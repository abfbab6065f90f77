"""Services that work for people: whose session it is, who decides, and what such a service cannot do."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.model import IntentDraft
from cortex_plane.calls.verbs import calls
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.identities import LinkDraft
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import links, orgs
from tests.calls.test_external_rights import asked
from tests.calls.test_outside_sessions import listed, opened
from tests.fixtures.people import Person, World, apply_policies

ASK_OWNER = (
    'policies: [{name: owner, target: "*", effect: requires_approval, approvers: {owner: true}, self_approval: true}]'
)
NO_SELF = 'policies: [{name: two, target: "*", effect: requires_approval, approvers: {owner: true, members: [Ada]}, self_approval: false}]'


async def server_for(world: World, *roles: Role) -> Person:
    """A service that may say for whom it works."""
    return await world.service_with(*(roles or (Role.MEMBER,)), permissions=[Grantable.SESSION_ON_BEHALF])


async def opened_for(http: httpx.AsyncClient, service: Person, person: Person, **more: Any) -> dict[str, Any]:
    return await opened(http, service, on_behalf_of=str(person.member_id), **more)


@pytest.mark.proves("D.1020")
async def test_each_person_of_a_service_has_a_session_of_their_own(http: httpx.AsyncClient, world: World) -> None:
    service, pat, kim = await server_for(world), await world.person(Role.MEMBER), await world.person(Role.MEMBER)
    pats = await opened_for(http, service, pat)
    assert (pats["user_account_id"], pats["on_behalf_by"]) == (str(pat.member_id), str(service.actor.key_id))
    assert (await opened_for(http, service, pat))["id"] == pats["id"]
    kims, own, theirs = await opened_for(http, service, kim), await opened(http, service), await opened(http, pat)
    other = await opened_for(http, await server_for(world), pat)
    assert len({session["id"] for session in (pats, kims, own, theirs, other)}) == 5
    assert await listed(http, pat) == [other["id"], theirs["id"], pats["id"]]
    # The same key of a call is another call for each of them.
    answers = []
    for session, person in ((pats, service), (kims, service), (own, service), (theirs, pat)):
        path, body = f"/v1/sessions/{session['id']}/calls", {"tool": "pay.out", "arguments": {}, "key": "t:1"}
        answer = await http.post(path, json=body, headers=person.headers)
        assert answer.status_code == 201, answer.text
        answers.append(answer.json()["id"])
    assert len(set(answers)) == 4


@pytest.mark.proves("D.1020")
async def test_a_person_is_named_by_a_verified_name_on_a_connection(http: httpx.AsyncClient, world: World) -> None:
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    code = await links.issue_link_code(world.db, pat.actor)
    draft = LinkDraft(external_user_id="U-7", code=code.code)
    await links.redeem_link_code(world.db, world.service.actor, world.connection.id, draft)
    await world.say(external_user_id="stranger")
    session = await opened(http, service, on_behalf_of="site:U-7")
    assert session["user_account_id"] == str(pat.member_id)
    assert (await opened_for(http, service, pat))["id"] == session["id"]
    refusal = await opened(http, service, on_behalf_of="site:stranger", status=403)
    assert refusal["code"] == "guest_not_served"
    for unknown in ("site:U-8", "nowhere:U-7", "Pat", "site:", "01890000-0000-7000-8000-000000000000"):
        refusal = await opened(http, service, on_behalf_of=unknown, status=404)
        assert refusal["code"] == "member_not_found"
    assert await listed(http, service) == [session["id"]]


@pytest.mark.proves("D.1021")
@pytest.mark.parametrize("who", ["service", "admin service", "member", "admin"])
async def test_only_a_service_that_was_granted_it_says_for_whom_it_works(
    http: httpx.AsyncClient, world: World, who: str
) -> None:
    pat = await world.person(Role.MEMBER)
    caller = {
        "service": world.service, "admin service": await world.service_with(Role.ADMIN),
        "member": await world.person(Role.MEMBER), "admin": world.admin,
    }[who]  # fmt: skip
    refusal = await opened(http, caller, on_behalf_of=str(pat.member_id), status=403)
    assert refusal["code"] == "forbidden"
    # Not even whether there is such a person.
    unknown = await opened(http, caller, on_behalf_of="site:nobody", status=403)
    assert (unknown["detail"], unknown["hint"]) == (refusal["detail"], refusal["hint"])
    assert await listed(http, world.admin) == []


@pytest.mark.proves("D.1021")
async def test_a_service_grants_it_to_nobody(http: httpx.AsyncClient, world: World) -> None:
    service = await server_for(world, Role.ADMIN)
    body = {"name": "more", "roles": ["member"], "permissions": ["session.on_behalf"]}
    answer = await http.post("/v1/keys", json=body, headers=service.headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "grants_nothing")
    key = await http.get(f"/v1/keys/{service.actor.key_id}", headers=world.admin.headers)
    assert key.json()["permissions"] == ["session.on_behalf"]
    await http.post(f"/v1/keys/{service.actor.key_id}/revoke", headers=world.admin.headers)
    pat = await world.person(Role.MEMBER)
    assert (await opened(http, service, on_behalf_of=str(pat.member_id), status=401))["code"] == "key_revoked"


@pytest.mark.proves("D.1022")
async def test_the_person_is_asked_and_the_service_decides_nothing(http: httpx.AsyncClient, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, ASK_OWNER)
    service, pat = await server_for(world, Role.MEMBER, Role.APPROVER), await world.person(Role.MEMBER)
    session = await opened_for(http, service, pat)
    call = await asked(world, service.actor, UUID(session["id"]), key="t:1")
    assert call.approval_id is not None
    card = (await approvals.get_approval(world.db, pat.actor, call.approval_id)).approval
    assert card.deciders == ["Pat"]
    # Both are causes: the person, and whoever made the key of the service.
    assert {pat.member_id, world.admin.member_id} <= set(card.causes)
    assert "is the person for whom it works" in [cause.why for cause in card.caused]
    decision = ApprovalDecision(decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash)
    with pytest.raises(CortexError) as refused:
        await decisions.decide(world.db, service.actor, card.id, decision, Channel.API)
    assert refused.value.http_status == 403
    await decisions.decide(world.db, pat.actor, card.id, decision, Channel.API)
    assert (await calls.get_call(world.db, service.actor, call.id)).next == "begin"


@pytest.mark.proves("D.1022")
async def test_where_nobody_approves_for_themselves_the_person_does_not_either(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, NO_SELF)
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    session = await opened_for(http, service, pat)
    body = {"tool": "pay.out", "arguments": {}, "key": "t:1"}
    answer = await http.post(f"/v1/sessions/{session['id']}/calls", json=body, headers=service.headers)
    assert (answer.json()["status"], answer.json()["approval_id"]) == ("rejected", None)
    assert "Pat" in answer.json()["reason"]


@pytest.mark.proves("D.1022")
async def test_such_a_service_sees_nothing_else_of_its_person(http: httpx.AsyncClient, world: World) -> None:
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    private, ours = await opened(http, pat, "private"), await opened_for(http, service, pat)
    path, body = f"/v1/sessions/{private['id']}/calls", {"tool": "pay.out", "arguments": {}, "key": "private:1"}
    mine = await http.post(path, json=body | {"dispatch": True, "sender": "p"}, headers=pat.headers)
    outcome = {"status": "completed", "result": "secret"}
    await http.post(f"/v1/calls/{mine.json()['id']}/outcome", json=outcome, headers=pat.headers)
    for hidden in (f"/v1/sessions/{private['id']}", f"/v1/calls/{mine.json()['id']}"):
        assert (await http.get(hidden, headers=service.headers)).status_code == 404
    assert (await http.post(path, json=body, headers=service.headers)).status_code == 404
    # A key that the person used elsewhere is a new one here: its result is not handed out.
    again = await http.post(f"/v1/sessions/{ours['id']}/calls", json=body, headers=service.headers)
    assert (again.status_code, again.json()["result"]) == (201, None)
    sessions = (await http.get("/v1/sessions", headers=service.headers)).json()["items"]
    assert [session["id"] for session in sessions] == [ours["id"]]
    me = (await http.get("/v1/me", headers=service.headers)).json()
    assert (me["clearance"], me["member_id"]) == (0, None)


@pytest.mark.proves("D.1023")
async def test_nothing_runs_for_somebody_who_was_deactivated(http: httpx.AsyncClient, world: World) -> None:
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    session = await opened_for(http, service, pat)
    allowed = await asked(world, service.actor, UUID(session["id"]), key="t:1")
    await orgs.update_member(world.db, world.admin.actor, pat.member_id, MemberChange(active=False), None)
    assert (await opened(http, service, on_behalf_of=str(pat.member_id), status=409))["code"] == "member_deactivated"
    with pytest.raises(Conflict, match="deactivated"):
        await asked(world, service.actor, UUID(session["id"]), key="t:2")
    with pytest.raises(Conflict, match="deactivated"):
        await calls.begin_call(
            world.db, service.actor, allowed.id, IntentDraft(input_hash=allowed.input_hash, sender="s")
        )


@pytest.mark.proves("D.1102")
async def test_nothing_runs_for_somebody_who_became_a_guest(http: httpx.AsyncClient, world: World) -> None:
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    session = await opened_for(http, service, pat)
    allowed = await asked(world, service.actor, UUID(session["id"]), key="t:1")
    await orgs.update_member(world.db, world.admin.actor, pat.member_id, MemberChange(roles=[Role.GUEST]), None)
    assert (await opened(http, service, on_behalf_of=str(pat.member_id), status=403))["code"] == "guest_not_served"
    with pytest.raises(CortexError, match="guest"):
        await asked(world, service.actor, UUID(session["id"]), key="t:2")
    with pytest.raises(CortexError, match="guest"):
        await calls.begin_call(
            world.db, service.actor, allowed.id, IntentDraft(input_hash=allowed.input_hash, sender="s")
        )


@pytest.mark.proves("D.1102")
async def test_a_service_takes_back_what_it_asked_for_a_person(http: httpx.AsyncClient, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, ASK_OWNER)
    service, pat = await server_for(world), await world.person(Role.MEMBER)
    session = await opened_for(http, service, pat)
    call = await asked(world, service.actor, UUID(session["id"]), key="t:1")
    path, body = f"/v1/calls/{call.id}/outcome", {"status": "withdrawn"}
    for other in (pat, await server_for(world), world.admin):
        assert (await http.post(path, json=body, headers=other.headers)).status_code in (403, 404)
    answer = await http.post(path, json=body, headers=service.headers)
    assert (answer.status_code, answer.json()["status"]) == (200, "rejected")
    assert call.approval_id is not None
    assert (await approvals.get_approval(world.db, pat.actor, call.approval_id)).approval.status == "cancelled"
