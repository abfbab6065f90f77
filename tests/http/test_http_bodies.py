"""Bodies: bounded by route before they are validated, faults ten at a time, no key of an object twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.kernel.fields import BODY_LIMIT, MAX_BODY_BYTES
from cortex_plane.kernel.routes import SMALL_BODY_BYTES
from tests.fixtures.people import World
from tests.fixtures.rows import digests
from tests.http.test_http_bad_input import OWN_WORDS, _bodies, _sender, problem
from tests.http.test_http_routes import document, documented_routes

MAX_ANSWER_BYTES = 16 * 1024


def junk(size: int) -> dict[str, int]:
    """So many bytes of keys that nothing knows."""
    return {f"k{n:06d}": 1 for n in range(size // 14)}


@pytest.mark.proves("D.12", "D.590")
async def test_flood_of_unknown_fields_from_a_stranger_is_refused_unread(http: httpx.AsyncClient) -> None:
    flood = json.dumps({f"k{n}": 1 for n in range(125_000)}).encode()
    answer = await http.post("/v1/approvals/decide", content=flood, headers={"Content-Type": "application/json"})
    problem(answer, 413, "too_large")
    small = await http.post("/v1/approvals/decide", json=junk(SMALL_BODY_BYTES - 2000))
    body = problem(small, 422, "invalid_request")
    assert len(body["errors"]) == 10
    assert {error["message"] for error in body["errors"]} == {"There is no such field."}
    assert "These are the first of them." in body["detail"]
    assert len(small.content) < MAX_ANSWER_BYTES


@pytest.mark.proves("D.12", "D.590")
async def test_faults_of_every_route_are_reported_ten_at_a_time(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    made = await _bodies(http, world)
    routes = documented_routes(await document(http))
    before = await digests(admin)
    for example in made:
        limit = min(routes[example.route].get(BODY_LIMIT, SMALL_BODY_BYTES), MAX_BODY_BYTES // 4)
        headers = _sender(world, example).headers
        answer = await example.send_raw(http, headers, json.dumps(junk(limit - 1000)))
        body = problem(answer, 422, "invalid_request")
        count = 1 if example.route in OWN_WORDS else 10
        assert (len(body["errors"]), len(answer.content) < MAX_ANSWER_BYTES) == (count, True), example.route
    assert await digests(admin) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"agent": "deployer", "policies": [junk(200_000)]}),
        ("/v1/jobs", {"agent": "deployer", "policies": [{"name": "n", "quorum": {"roles": junk(200_000)}}]}),
        ("/v1/agents", {"name": "N", "slug": "nn", "role": "R", "team": "main", "model_config": junk(200_000)}),
        ("/v1/agents", {"name": "N", "slug": "nn", "role": "R", "team": "main",
                        "model_config": {"model": "m", "script": [{"calls": [{}] * 100}] * 500}}),
        ("/v1/signals", {"name": ["x" * 100_000], "x" * 100_000: 1}),
    ],
)  # fmt: skip
async def test_faults_inside_a_body_are_counted_and_not_all_described(
    http: httpx.AsyncClient, world: World, path: str, body: dict[str, Any]
) -> None:
    answer = await http.post(path, json=body, headers=world.admin.headers)
    told = problem(answer, 422, "invalid_request")
    assert 1 <= len(told["errors"]) <= 10
    assert len(answer.content) < MAX_ANSWER_BYTES


@pytest.mark.proves("D.12", "D.590")
async def test_large_body_is_read_only_for_a_caller_who_is_known(http: httpx.AsyncClient, world: World) -> None:
    routes = documented_routes(await document(http))
    large = [e for e in await _bodies(http, world) if BODY_LIMIT in routes[e.route]]
    assert len(large) > 10
    for example in large:
        pieces = 0

        async def sent() -> AsyncIterator[bytes]:
            nonlocal pieces
            for _ in range(8):
                pieces += 1
                yield b" " * 65536

        headers = {"Content-Type": "application/json", "Authorization": "Bearer cortex_key_" + "a" * 43}
        answer = await http.request(example.method, example.path, content=sent(), headers=headers)
        problem(answer, 401, "key_unknown")
        assert pieces == 0, example.route


@pytest.mark.proves("D.590")
async def test_body_of_a_file_may_be_large_in_its_text_alone(http: httpx.AsyncClient, world: World) -> None:
    """Millions of small values stop everybody while they are made; the text of a file is one value."""
    headers = {**world.admin.headers, "Content-Type": "application/json"}
    text = "policies: []\n" + '# "a" \\ comment\n' * 200_000
    for path, field in (("/v1/policies", "text"), ("/v1/policies/simulate", "text"), ("/v1/atlases", "manifest")):
        for many in ("{}", '""', "[[]]", "0 ", '"\\""'):
            values = f"[{', '.join([many] * (MAX_BODY_BYTES // 2))}]"
            raw = f'{{"{field}": "policies: []", "more": {values}}}'
            answer = await http.post(path, content=raw, headers=headers)
            problem(answer, 413, "too_large")
        for encoding in ("utf-16-le", "utf-32-be"):
            answer = await http.post(path, content=raw.encode(encoding), headers=headers)
            problem(answer, {413, 422})
            assert answer.json()["code"] in ("too_large", "invalid_json")
    applied = await http.post("/v1/policies", json={"text": text, "dry_run": True}, headers=world.admin.headers)
    assert applied.status_code == 200, applied.text


@pytest.mark.proves("D.12", "D.591")
async def test_key_that_stands_twice_is_refused_on_every_route(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    made = [example for example in await _bodies(http, world) if example.body]
    before = await digests(admin)
    for example in made:
        assert example.body is not None
        name, value = next(iter(example.body.items()))
        twice = f"{json.dumps({name: value})[:-1]}, {json.dumps(example.body)[1:]}"
        answer = await example.send_raw(http, _sender(world, example).headers, twice)
        body = problem(answer, 422, "duplicate_key")
        assert f"`{name}`" in body["detail"], example.route
    assert await digests(admin) == before


async def test_key_that_stands_twice_inside_is_refused(http: httpx.AsyncClient, world: World) -> None:
    headers = {**world.admin.headers, "Content-Type": "application/json"}
    for inner in ('{"to": "a", "to": "b"}', '{"x": [{"to": 1, "\\u0074o": 2}]}'):
        raw = f'{{"agent": "deployer", "payload": {inner}}}'
        answer = await http.post("/v1/jobs", content=raw, headers=headers)
        assert "`to` stands there twice" in problem(answer, 422, "duplicate_key")["detail"]
    # Also on the way that takes no detour through the framework.
    path = f"/v1/connections/{world.connection.id}/messages"
    raw = '{"external_user_id": "u", "external_user_id": "v", "agent": "deployer", "text": "Hi"}'
    answer = await http.post(path, content=raw, headers={**world.service.headers, "Content-Type": "application/json"})
    problem(answer, 422, "duplicate_key")
