"""Publishing, looking at, comparing and retiring atlases: over REST, with the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.client import Client
from cortex_plane.gates.model.atlases import MAX_ATLAS_BYTES, AtlasFile
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, NotFound
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionChange, ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from tests.fixtures.atlases import ATLAS, govern, manifest, publish, service, steward
from tests.fixtures.people import Person, World

PATH = f"/v1/atlases/{ATLAS}"
HOOK = "https://acme.example/cra-events"


async def published(
    http: httpx.AsyncClient, person: Person, text: str, status: int = 201, **more: str
) -> dict[str, Any]:
    answer = await http.post("/v1/atlases", json={"manifest": text, **more}, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def got(http: httpx.AsyncClient, person: Person, path: str, **query: str) -> Any:
    answer = await http.get(path, params=query, headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


# Publishing ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.320")
async def test_a_steward_publishes_and_everybody_on_the_staff_reads(http: httpx.AsyncClient, world: World) -> None:
    stella = await world.person(Role.STEWARD, name="Stella")
    made = await published(http, stella, manifest())
    version = made["version"]
    assert (made["created"], version["holds"], version["number"]) == (True, True, 1)
    assert (version["atlas_id"], version["version"], version["gates"]) == (ATLAS, "1.0.0", 2)
    assert (version["published_by"], version["retired_at"], len(version["digest"])) == ("Stella", None, 64)
    auditor = await world.person(Role.APPROVER, name="Abe")
    assert await got(http, auditor, "/v1/atlases") == {"items": [await got(http, auditor, PATH)], "next_cursor": None}
    kept = await got(http, auditor, f"{PATH}/versions/1.0.0")
    assert kept == {**version, "sessions": 0, "source": None}
    full = await got(http, auditor, f"{PATH}/versions/1.0.0", source="true")
    assert full["source"] == manifest(), "byte for byte"
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    (entry,) = [each for each in trail if each.action == "atlas_published"]
    assert entry.body is not None
    assert entry.body["data"]["digest"] == version["digest"]
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.320", "S5.23")
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.APPROVER, Role.MEMBER, Role.GUEST])
async def test_nobody_else_publishes_or_retires(world: World, role: Role) -> None:
    await publish(world)
    person = await world.person(role)
    with pytest.raises(Forbidden):
        await publish(world, manifest("2"), person.actor)
    with pytest.raises(Forbidden):
        await atlases.retire_atlas(world.db, person.actor, ATLAS, "1.0.0")
    if role in (Role.MEMBER, Role.GUEST):
        with pytest.raises(Forbidden):
            await atlases.get_atlas(world.db, person.actor, ATLAS)


@pytest.mark.proves("D.321", "S5.23")
async def test_the_same_again_changes_nothing_and_other_content_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    first = await published(http, world.admin, manifest())
    rows = "select count(*), (select count(*) from audit_entry) from atlas_version"
    before = tuple(await admin.fetchrow(rows))
    # Another order, other spaces: the content is what counts.
    shuffled = json.dumps(dict(reversed(json.loads(manifest()).items())))
    again = await published(http, world.admin, shuffled, 200, name="again.json")
    assert (again["created"], again["version"]) == (False, first["version"])
    answer = await published(http, world.admin, manifest(name="Other"), 409)
    assert (answer["code"], "Raise `version`" in answer["hint"]) == ("atlas_version_taken", True)
    assert tuple(await admin.fetchrow(rows)) == before
    second = await published(http, world.admin, manifest("1.0.1", name="Other"))
    assert second["version"]["number"] == 2
    kept = await got(http, world.admin, f"{PATH}/versions/1.0.0", source="true")
    assert (kept["source"], kept["holds"]) == (manifest(), False)


@pytest.mark.proves("D.321")
async def test_what_was_published_cannot_be_written_over(world: World) -> None:
    """Not even by the plane itself: it has no right to."""
    await publish(world)
    for statement in ("update atlas_version set manifest = '{}'", "delete from atlas_version"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with world.db.transaction(world.org_id) as tx:
                await tx._connection.execute(statement)


@pytest.mark.proves("D.320")
async def test_a_file_with_faults_changes_nothing_and_names_each_line(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    entries = await admin.fetchval("select count(*) from audit_entry")
    text = "atlas_version: '1.0'\natlas_id: com.acme.support\nversion: '1'\nnmae: x\n"
    answer = await published(http, world.admin, text, 422, name="mine.yaml")
    assert answer["code"] == "invalid_atlas"
    assert "mine.yaml:4" in answer["detail"]
    for body in ({}, {"manifest": ""}, {"manifest": "x", "dry": 1}, {"manifest": "a\u0000"}, {"manifest": 1}):
        refused = await http.post("/v1/atlases", json=body, headers=world.admin.headers)
        assert refused.status_code == 422, body
    assert await admin.fetchval("select count(*) from atlas_version") == 0
    assert await admin.fetchval("select count(*) from audit_entry") == entries


@pytest.mark.proves("D.320")
async def test_a_large_file_is_for_those_who_may_publish(http: httpx.AsyncClient, world: World) -> None:
    contexts = [
        {"context_id": f"c{n}", "name": "C", "content": "y" * 500_000, "inject_mode": "on_demand"} for n in range(6)
    ]
    large = manifest(context_blocks=contexts)
    assert (await published(http, world.admin, large))["created"]
    body = json.dumps({"manifest": large})
    member = await world.person(Role.MEMBER)
    answer = await http.post("/v1/atlases", content=body, headers=member.headers)
    assert answer.status_code in (403, 413)
    anybody = await http.post("/v1/atlases", content=body)
    assert anybody.status_code in (401, 413)
    huge = json.dumps({"manifest": "z" * (MAX_ATLAS_BYTES + 1)})
    refused = await http.post("/v1/atlases", content=huge, headers=world.admin.headers)
    assert refused.status_code in (413, 422)
    assert len((await got(http, world.admin, "/v1/atlases"))["items"]) == 1


@pytest.mark.proves("D.322")
async def test_versions_that_come_at_once_get_numbers_of_their_own(world: World, admin: asyncpg.Connection) -> None:
    """And the same one at once is one."""
    texts = [manifest(f"{number}.0") for number in range(6)] + [manifest("9.0")] * 4
    made = await asyncio.gather(*(publish(world, text) for text in texts))
    assert sorted(each.version.number for each in made if each.created) == [1, 2, 3, 4, 5, 6, 7]
    assert await admin.fetchval("select count(*) from atlas_version") == 7
    assert (await audit.verify(world.db, world.admin.actor)).faults == []
    taken = await asyncio.gather(
        *(publish(world, manifest("10", name=f"n{number}")) for number in range(5)), return_exceptions=True
    )
    assert len([each for each in taken if not isinstance(each, BaseException)]) == 1
    assert {each.code for each in taken if isinstance(each, Conflict)} == {"atlas_version_taken"}


@pytest.mark.proves("D.320")
async def test_lists_come_in_pages(http: httpx.AsyncClient, world: World) -> None:
    for number in range(5):
        await publish(world, manifest(f"{number}"))
        await publish(world, manifest(atlas_id=f"com.acme.a{number}"))
    client = Client("http://plane", world.admin.secret, transport=http._transport)
    async with client:
        ids = [each.atlas_id async for each in client.atlases.list()]
        assert ids == sorted(ids)
        assert len(ids) == 6
        page = await got(http, world.admin, "/v1/atlases", limit="4")
        rest = await got(http, world.admin, "/v1/atlases", limit="4", cursor=page["next_cursor"])
        assert [each["atlas_id"] for each in page["items"] + rest["items"]] == ids
        assert rest["next_cursor"] is None
        versions = [each.version async for each in client.atlases.versions(ATLAS)]
        assert versions == ["4", "3", "2", "1", "0"]
        page = await got(http, world.admin, f"{PATH}/versions", limit="3")
        rest = await got(http, world.admin, f"{PATH}/versions", limit="3", cursor=page["next_cursor"])
        assert [each["version"] for each in page["items"] + rest["items"]] == versions
        assert (await client.atlases.get(ATLAS)).versions == 5


@pytest.mark.proves("D.320")
async def test_an_org_sees_no_other_orgs_atlases(http: httpx.AsyncClient, world: World, other: World) -> None:
    await publish(world)
    await publish(world, manifest("2"))
    assert (await got(http, other.admin, "/v1/atlases"))["items"] == []
    for method, path in (
        ("GET", PATH), ("GET", f"{PATH}/versions"), ("GET", f"{PATH}/versions/1.0.0"),
        ("GET", f"{PATH}/diff?from=1.0.0&to=2"), ("POST", f"{PATH}/versions/1.0.0/retire"),
    ):  # fmt: skip
        answer = await http.request(method, path, headers=other.admin.headers)
        assert answer.status_code == 404, path
        assert answer.json()["code"] in ("atlas_not_found", "atlas_version_not_found")
    theirs = await publish(other)
    assert (theirs.created, theirs.version.number) == (True, 1), "the same id is theirs, too"


# Warnings ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.320")
async def test_what_is_odd_in_this_org_is_a_warning(world: World) -> None:
    told = steward(
        access={"type": "authenticated", "api_keys": ["sk-*", "first*"]},
        notifications={"channels": {"webhook": HOOK}, "triggers": ["checkpoint_blocked"]},
    )
    made = await publish(world, manifest(steward=told))
    assert any(HOOK in each and "cortex connection create" in each for each in made.warnings)
    assert any("sk-*" in each for each in made.warnings)
    again = await publish(world, manifest(steward=told))
    assert (again.created, again.warnings) == (False, made.warnings)
    draft = ConnectionDraft(channel_type="webhook", name="events", url=HOOK)
    hook = await connections.create_connection(world.db, world.admin.actor, draft)
    await service(world, "sk-live")
    await service(world, "first")
    assert not [
        each
        for each in (await publish(world, manifest("2", steward=told))).warnings
        if HOOK in each or "sk-*" in each or "first*" in each
    ]
    await connections.update_connection(world.db, world.admin.actor, hook.id, ConnectionChange(enabled=False), None)
    assert any(HOOK in each for each in (await publish(world, manifest("3", steward=told))).warnings)


# Retiring ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.323")
async def test_a_retired_version_makes_way_for_the_one_before_it(http: httpx.AsyncClient, world: World) -> None:
    for version in ("1", "2", "3"):
        await publish(world, manifest(version))
    await govern(world)
    holding = []
    for version in ("3", "1", "1", "2"):
        answer = await http.post(f"{PATH}/versions/{version}/retire", headers=world.admin.headers)
        assert answer.status_code == 200, answer.text
        made = answer.json()
        assert made["version"]["retired_by"] == world.admin.actor.name
        holding.append((made["holds"], made["changed"], made["agents"]))
    assert holding == [("2", True, []), ("2", True, []), ("2", False, []), (None, True, ["deployer"])]
    summary = await got(http, world.admin, PATH)
    assert (summary["holds"], summary["newest"], summary["versions"]) == (None, "3", 3)
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    assert len([each for each in trail if each.action == "atlas_retired"]) == 3
    again = await publish(world, manifest("3"))
    assert (again.created, again.version.holds) == (False, False), "what is retired stays so"
    await publish(world, manifest("4"))
    assert (await got(http, world.admin, PATH))["holds"] == "4"


@pytest.mark.proves("D.323")
async def test_unknown_versions_are_not_found(http: httpx.AsyncClient, world: World) -> None:
    await publish(world)
    for path in (f"{PATH}/versions/9/retire", "/v1/atlases/com.acme.none/versions/1/retire"):
        answer = await http.post(path, headers=world.admin.headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "atlas_version_not_found")
    answer = await http.get("/v1/atlases/com.acme.none/versions", headers=world.admin.headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "atlas_not_found")
    for path in ("/v1/atlases/No%20Id", f"{PATH}/versions/%20", f"{PATH}/diff?from=1", f"{PATH}/diff?from=a%00&to=b"):
        assert (await http.get(path, headers=world.admin.headers)).status_code == 422, path


# Comparing -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.324")
async def test_two_versions_are_compared(http: httpx.AsyncClient, world: World) -> None:
    await publish(world)
    changed = json.loads(manifest("2"))
    changed["checkpoints"][0]["questions"][0]["question"] = "Are you sure?"
    changed["checkpoints"][0]["mode"] = "blocking"
    changed["actions"].append({"action_id": "ticket.list", "name": "List tickets"})
    changed["context_blocks"] = []
    await publish(world, json.dumps(changed))
    found = await got(http, world.admin, f"{PATH}/diff", **{"from": "1.0.0", "to": "2"})
    assert (found["added"], found["removed"], found["changed"]) == (1, 2, 1)
    assert [(each["change"], each["kind"], each["id"]) for each in found["changes"]] == [
        ("removed", "gate", "context:intro"),
        ("changed", "question", "delete-confirm/sure"),
        ("removed", "context", "intro"),
        ("added", "action", "ticket.list"),
    ]
    (field,) = found["changes"][1]["fields"]
    assert (field["field"], field["after"]) == ("question", "Are you sure?")
    back = await got(http, world.admin, f"{PATH}/diff", **{"from": "2", "to": "1.0.0"})
    assert (back["added"], back["removed"]) == (2, 1)


@pytest.mark.proves("D.324")
async def test_what_is_kept_is_compared_only_where_it_is_what_was_published(
    world: World, admin: asyncpg.Connection
) -> None:
    await publish(world)
    await publish(world, manifest("2"))
    await admin.execute("update atlas_version set manifest = replace(manifest, 'Acme', 'Evil') where version = '2'")
    with pytest.raises(Conflict) as refused:
        await atlases.diff_atlases(world.db, world.admin.actor, ATLAS, "1.0.0", "2")
    assert refused.value.code == "atlas_corrupt"


# Whole lines ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.320", "D.323", "D.324")
async def test_the_client_does_all_of_it(http: httpx.AsyncClient, world: World) -> None:
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        made = await plane.atlases.publish(AtlasFile(manifest=manifest()))
        assert made.created
        await plane.atlases.publish(AtlasFile(manifest=manifest("2.0+b", name="Second")))
        assert (await plane.atlases.get_version(ATLAS, "2.0+b")).source is None
        kept = await plane.atlases.get_version(ATLAS, "2.0+b", source=True)
        assert kept.source == manifest("2.0+b", name="Second")
        found = await plane.atlases.diff(ATLAS, "1.0.0", "2.0+b")
        assert [field.after for each in found.changes for field in each.fields] == ["Second"]
        retired = await plane.atlases.retire(ATLAS, "2.0+b")
        assert (retired.holds, retired.changed) == ("1.0.0", True)
        with pytest.raises(Conflict):
            await plane.atlases.publish(AtlasFile(manifest=manifest("2.0+b")))
        with pytest.raises(NotFound):
            await plane.atlases.get("com.acme.none")
        with pytest.raises(InvalidInput):
            await plane.atlases.publish(AtlasFile(manifest="nonsense"))


@pytest.mark.proves("D.325", "D.326", "D.331")
async def test_every_door_answers_with_a_problem(http: httpx.AsyncClient, world: World) -> None:
    """409 where no version holds, 403 where the steward keeps somebody out; and both say what to do."""
    await publish(world)
    await govern(world)
    session = (await http.post("/v1/sessions", json={"agent": "deployer"}, headers=world.admin.headers)).json()
    assert [(each["atlas_id"], each["version"]) for each in session["atlases"]] == [(ATLAS, "1.0.0")]
    shown = (await got(http, world.admin, f"/v1/sessions/{session['id']}"))["atlases"]
    assert shown == session["atlases"]
    assert (await got(http, world.admin, "/v1/sessions"))["items"][0]["atlases"] == shown
    await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.0")
    inbound = {"external_user_id": "u-1", "agent": "deployer", "text": "Hello"}
    tries = [
        ("/v1/sessions", {"agent": "deployer"}, world.admin),
        ("/v1/sessions", {"agent": "deployer", "kind": "external"}, world.admin),
        ("/v1/jobs", {"agent": "deployer"}, world.admin),
        (f"/v1/connections/{world.connection.id}/messages", inbound, world.service),
    ]
    for path, body, person in tries:
        answer = await http.post(path, json=body, headers=person.headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "atlas_missing"), (path, answer.text)
        assert answer.json()["hint"]
    locked = manifest("2", steward=steward(access={"type": "authenticated", "api_keys": ["sk-*"]}))
    await publish(world, locked)
    for path, body, person in tries:
        answer = await http.post(path, json=body, headers=person.headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "atlas_access_refused"), answer.text
        assert answer.json()["hint"]
    # Bound before: the version that it is bound to keeps nobody out.
    path = f"/v1/sessions/{session['id']}/messages"
    answer = await http.post(path, json={"text": "Hello"}, headers=world.admin.headers)
    assert answer.status_code == 201, answer.text
