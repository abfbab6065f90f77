"""Another org's id looks exactly like no id, on every route and for every id that a request can carry."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests, ids_of
from tests.http.test_http_bad_input import OWN_WORDS
from tests.http.test_http_routes import SERVICES, Example, Stage, document, documented_routes, examples, random_id


def _caller(world: World, example: Example) -> Person:
    return world.service if example.route in SERVICES else world.admin


async def _answer(http: httpx.AsyncClient, person: Person, example: Example, id: str) -> tuple[int, Any]:
    """Status and body, without what differs between any two requests: the request's id and the id it asked for."""
    answer = await example.send(http, person.headers)
    body = answer.json()
    body.pop("request_id", None)
    return answer.status_code, _masked(body, id)


def _masked(value: Any, id: str) -> Any:
    match value:
        case str():
            return value.replace(id, "<id>")
        case dict():
            return {key: _masked(inner, id) for key, inner in value.items()}
        case list():
            return [_masked(inner, id) for inner in value]
    return value


@pytest.mark.proves("D.2")
async def test_a_foreign_id_gets_the_same_answer_as_a_random_one(
    http: httpx.AsyncClient, world: World, other: World, admin: asyncpg.Connection
) -> None:
    """One id of a request is foreign, all others are the caller's own: every id of every route in turn."""
    theirs, own = await Stage.build(world), await Stage.build(other)
    before = await digests(admin)
    for name in Stage.names():
        foreign, unknown = getattr(theirs, name), random_id()
        requests = zip(
            examples(own), examples(own.with_id(name, foreign)), examples(own.with_id(name, unknown)), strict=True
        )
        changed = [triple for triple in requests if triple[0] != triple[1]]
        assert changed, f"no route takes the id of {name}"
        for plain, with_foreign, with_unknown in changed:
            caller = _caller(other, plain)
            got = await _answer(http, caller, with_foreign, foreign)
            assert got == await _answer(http, caller, with_unknown, unknown), plain.route
            is_empty = got == (200, {"items": [], "next_cursor": None})
            assert got[0] == 404 or is_empty or plain.route in OWN_WORDS, plain.route
    assert await digests(admin) == before


async def test_every_id_that_a_route_takes_is_one_of_the_stage(http: httpx.AsyncClient, world: World) -> None:
    """Otherwise the test above would overlook it."""
    own = await Stage.build(world)
    known = {getattr(own, name) for name in Stage.names()}
    for route, entry in documented_routes(await document(http)).items():
        shown = [example for example in examples(own) if example.route == route]
        for parameter in entry.get("parameters", []):
            if parameter["name"] in ("provider", "dialect"):
                continue  # one of a few words, the same for everybody
            if parameter["in"] == "path" and parameter["schema"].get("type") != "integer":
                assert all(example.params[parameter["name"]] in known for example in shown), route
            elif parameter["in"] == "query" and "uuid" in str(parameter["schema"]):
                assert any(example.query.get(parameter["name"]) in known for example in shown), route


@pytest.mark.proves("D.2")
async def test_no_answer_holds_anything_of_another_org(
    http: httpx.AsyncClient, world: World, other: World, admin: asyncpg.Connection
) -> None:
    await Stage.build(world)
    own = await Stage.build(other)
    await world.say("ours")
    await other.say("theirs")
    foreign = await ids_of(admin, world.org_id)
    person = await other.person(Role.ADMIN)
    for example in examples(own):
        if example.method != "GET" or example.path == "/metrics":
            continue
        for query in ({}, example.query):
            answer = await http.get(example.path, params=query, headers=person.headers)
            leaked = [id for id in foreign if id in answer.text]
            assert leaked == [], example.route
            assert "acme" not in answer.text.lower(), example.route


async def test_an_idempotency_key_of_one_org_means_nothing_in_another(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    made = []
    for each in (world, other):
        headers = {**each.admin.headers, "Idempotency-Key": "same"}
        answer = await http.post("/v1/jobs", json={"agent": "deployer"}, headers=headers)
        assert answer.status_code == 201
        made.append(answer.json()["id"])
    assert made[0] != made[1]


async def test_a_cursor_of_another_org_shows_nothing_of_it(
    http: httpx.AsyncClient, world: World, other: World, admin: asyncpg.Connection
) -> None:
    await Stage.build(world)
    await Stage.build(other)
    page = (await http.get("/v1/teams", params={"limit": 1}, headers=world.admin.headers)).json()
    cursor = {"cursor": page["next_cursor"]}
    answer = await http.get("/v1/teams", params=cursor, headers=other.admin.headers)
    foreign = await ids_of(admin, world.org_id)
    assert foreign.isdisjoint(team["id"] for team in answer.json()["items"])


ALL = {"/v1/sessions": 9, "/v1/jobs": 9, "/v1/approvals": 6}
"""How many of each a stage has, and how many of them are a guest's, for whose job nobody could decide anything."""
GUESTS = {"/v1/sessions": 7, "/v1/jobs": 7, "/v1/approvals": 2}


@pytest.mark.parametrize("role", [Role.MEMBER, Role.GUEST])
async def test_a_member_sees_only_their_own_sessions_and_jobs(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, role: Role
) -> None:
    mine, someone = await world.person(role, name="Mia"), await world.person(role, name="Sam")
    their_stage = await Stage.build(world, someone.actor.user_account_id)
    before = await digests(admin)
    for name in (
        "session",
        "ending_session",
        "job",
        "cancelled_job",
        "held_job",
        "approval",
        "asking_call",
        "card",
        "standing",
    ):
        theirs, unknown = getattr(their_stage, name), random_id()
        with_unknown = examples(their_stage.with_id(name, unknown))
        for example, blank in zip(examples(their_stage), with_unknown, strict=True):
            if example == blank:
                continue
            got = await _answer(http, mine, example, theirs)
            assert got == await _answer(http, mine, blank, unknown), example.route
            assert got[0] in (403, 404) or got[1]["items"] == [], example.route
    for path in ALL:
        assert (await http.get(path, headers=mine.headers)).json()["items"] == []
        assert (
            len((await http.get(path, headers=someone.headers)).json()["items"])
            == (ALL if role is Role.MEMBER else GUESTS)[path]
        )
        assert len((await http.get(path, headers=world.admin.headers)).json()["items"]) == ALL[path]
    named = {"member_id": str(someone.actor.user_account_id)}
    assert (await http.get("/v1/sessions", params=named, headers=mine.headers)).json()["items"] == []
    assert await digests(admin) == before


async def test_staff_sees_everyones_sessions_and_a_service_those_it_opened(
    http: httpx.AsyncClient, world: World
) -> None:
    someone = await world.person(Role.MEMBER)
    stage = await Stage.build(world, someone.actor.user_account_id)
    for role in (Role.ADMIN, Role.STEWARD, Role.OPERATOR, Role.APPROVER):
        watcher = await world.person(role)
        answer = await http.get(f"/v1/sessions/{stage.session}", headers=watcher.headers)
        assert answer.status_code == 200, role
    watching = await world.service_with(Role.OPERATOR)
    answer = await http.get(f"/v1/sessions/{stage.session}", headers=watching.headers)
    assert answer.status_code == 200

    opened = await world.say("Over the bridge", "u-77")
    bridge, stranger = world.service, await world.service_with(Role.MEMBER)
    for path in (f"/v1/sessions/{opened.session_id}", f"/v1/jobs/{opened.job_id}"):
        assert (await http.get(path, headers=bridge.headers)).status_code == 200
        assert (await http.get(path, headers=stranger.headers)).status_code == 404
    listed = await http.get("/v1/sessions", headers=bridge.headers)
    assert str(opened.session_id) in [item["id"] for item in listed.json()["items"]]
    assert (await http.get("/v1/jobs", headers=stranger.headers)).json()["items"] == []
    end = f"/v1/sessions/{opened.session_id}/terminate"
    assert (await http.post(end, json={}, headers=stranger.headers)).status_code == 404
