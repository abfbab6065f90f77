"""Confirming what a tool of an MCP server is: over REST, with the client, from the command line."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from cortex_plane.agents import store as agents_store
from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.client import Client
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.versions import PolicyFile, SimulationRequest
from cortex_plane.policies.verbs import policies, simulations
from cortex_plane.policies.verbs.policy_cache import book
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import EVERYTHING_GOES, World
from tests.fixtures.tool_confirmations import DIGEST, offered, publish

OTHER = "cd" * 32
READ = ConfirmationDraft(tool="files.read_query", digest=DIGEST, read_only=True)


def _draft(tool: str) -> ConfirmationDraft:
    return ConfirmationDraft(tool=tool, digest=DIGEST, read_only=True)


@pytest.mark.proves("D.266")
async def test_a_steward_confirms_and_takes_back(http: httpx.AsyncClient, world: World) -> None:
    await publish(world.db)
    steward = await world.person(Role.STEWARD, name="Stella")
    body = {"tool": "files.read_query", "digest": DIGEST, "read_only": True, "note": "looked at it"}
    unseen = {name: value for name, value in body.items() if name != "digest"}
    answer = await http.post("/v1/tools/confirmations", json=unseen, headers=steward.headers)
    assert (answer.status_code, "digest" in answer.text) == (422, True)
    answer = await http.post("/v1/tools/confirmations", json=body, headers=steward.headers)
    assert answer.status_code == 201
    made = answer.json()
    assert (made["digest"], made["confirmed_by"], made["current"]) == (DIGEST, "Stella", True)
    again = await http.post("/v1/tools/confirmations", json={**body, "idempotent": True}, headers=steward.headers)
    listed = await http.get("/v1/tools/confirmations", params={"holding": "true"}, headers=steward.headers)
    assert [each["id"] for each in listed.json()["items"]] == [again.json()["id"]]
    everything = await http.get("/v1/tools/confirmations", headers=steward.headers)
    assert [each["revoked_by"] for each in everything.json()["items"]] == [None, "Stella"]
    path = f"/v1/tools/confirmations/{again.json()['id']}/revoke"
    for _ in range(2):
        revoked = await http.post(path, headers=steward.headers)
        assert (revoked.status_code, revoked.json()["revoked_by"]) == (200, "Stella")
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    said = [entry.action for entry in trail if entry.action.startswith("tool_")]
    assert said == ["tool_confirmed", "tool_confirmed", "tool_unconfirmed"]
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.266")
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.APPROVER, Role.MEMBER, Role.GUEST])
async def test_nobody_else_confirms(world: World, role: Role) -> None:
    await publish(world.db)
    person = await world.person(role)
    with pytest.raises(Forbidden):
        await agents.confirm_tool(world.db, person.actor, READ)
    made = await agents.confirm_tool(world.db, world.admin.actor, READ)
    with pytest.raises(Forbidden):
        await agents.revoke_confirmation(world.db, person.actor, made.id)


@pytest.mark.proves("D.266")
async def test_what_cannot_be_confirmed_is_refused_and_changes_nothing(world: World, other: World) -> None:
    db, steward = world.db, world.admin.actor
    version = (await book.current(db, world.org_id))[0]
    with pytest.raises(NotFound) as unknown:
        await agents.confirm_tool(db, steward, READ)
    assert unknown.value.code == "tool_not_found"
    await publish(
        db,
        offered(),
        offered("files.both"),
        offered("files.both", app="depot"),
        offered("deploy", server=None, remote_name=None, implementation=None, hints=None),
    )
    with pytest.raises(InvalidInput) as several:
        await agents.confirm_tool(db, steward, _draft("files.both"))
    assert several.value.code == "app_needed"
    with pytest.raises(InvalidInput) as in_code:
        await agents.confirm_tool(db, steward, _draft("deploy"))
    assert in_code.value.code == "tool_not_confirmable"
    draft = ConfirmationDraft(tool="files.read_query", digest=OTHER, read_only=True)
    with pytest.raises(Conflict) as changed:
        await agents.confirm_tool(db, steward, draft)
    assert (changed.value.code, changed.value.details["digest"]) == ("tool_changed", DIGEST)
    assert (await agents.list_confirmations(db, steward, None, 10)).items == []
    assert (await book.current(db, world.org_id))[0] == version
    made = await agents.confirm_tool(db, steward, READ)
    for verb in (agents.get_confirmation, agents.revoke_confirmation):
        with pytest.raises(NotFound):
            await verb(db, other.admin.actor, made.id)


@pytest.mark.proves("D.267")
async def test_a_confirmation_is_part_of_the_policies_of_its_org_alone(world: World, other: World) -> None:
    db = world.db
    await publish(db)
    before = (await book.current(db, world.org_id))[0]
    untouched = (await book.current(db, other.org_id))[0]
    draft = ConfirmationDraft(tool="files.read_query", digest=DIGEST, idempotent=True, risk=Risk.HIGH)
    made = await agents.confirm_tool(db, world.admin.actor, draft)
    version, compiled = await book.current(db, world.org_id)
    assert (before, version) == ("1.1", "1.1.1")
    assert [*compiled.confirmed] == [("office", "files.read_query", DIGEST)]
    assert (await book.current(db, other.org_id))[0] == untouched
    # Whatever reads versions of policies still does.
    shown = await policies.get_policies(db, world.admin.actor)
    assert shown.version == 1
    file = PolicyFile(text=EVERYTHING_GOES.replace("everything", "anything"))
    assert (await policies.apply_policies(db, world.admin.actor, file)).version == 2
    tried = await simulations.simulate_policies(db, world.admin.actor, SimulationRequest(text=EVERYTHING_GOES))
    assert tried.version == "2.1.1"
    await agents.revoke_confirmation(db, world.admin.actor, made.id)
    version, compiled = await book.current(db, world.org_id)
    assert (version, compiled.confirmed) == ("2.1.2", {})


@pytest.mark.proves("D.263")
async def test_the_client_sees_what_changed(http: httpx.AsyncClient, world: World) -> None:
    await publish(world.db)
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        made = await plane.tool_confirmations.confirm(READ)
        assert [await publish(world.db, offered(digest=OTHER))] == [[offered(digest=OTHER)]]
        versions = await plane.tools.versions("office")
        assert [(each.digest, each.newest, each.changed) for each in versions] == [
            (OTHER, True, True),
            (DIGEST, False, False),
        ]
        assert not (await plane.tool_confirmations.get(made.id)).current
        assert [each.id async for each in plane.tool_confirmations.list(holding=True)] == [made.id]
        assert (await plane.tool_confirmations.revoke(made.id)).revoked_by == "Ada"
        assert await plane.tools.servers() == []
        assert await publish(world.db, offered(digest=OTHER)) == []
        # What comes back takes the place of what came after it.
        assert await publish(world.db, offered()) == [offered()]
        assert [tool.digest for tool in await plane.tools.list()] == [DIGEST]


@pytest.mark.proves("D.265")
async def test_tenants_do_not_see_the_machines_of_the_platform(http: httpx.AsyncClient, world: World) -> None:
    id = new_id()
    await jobs_store.register_worker(world.db, id, "host-7", "here", 1, ["office"], 1, timedelta(hours=1))
    why = "The program `/srv/bin/files` of the MCP server `files` is not there."
    await agents_store.record_tool_server(world.db, "office", "files", id, "down", why, 3)
    for role in (Role.ADMIN, Role.STEWARD, Role.MEMBER):
        person = await world.person(role)
        (seen,) = (await http.get("/v1/tools/servers", headers=person.headers)).json()["items"]
        assert (seen["app"], seen["name"], seen["state"], seen["tools"]) == ("office", "files", "down", 3)
        assert (seen["worker"], seen["reason"]) == (None, "it cannot be started or reached")
    (seen,) = (await http.get("/v1/tools/servers", headers=world.admin.headers)).json()["items"]
    assert (seen["worker"], seen["reason"]) == ("host-7", why)
