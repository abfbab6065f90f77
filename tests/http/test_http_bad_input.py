"""Whatever is wrong with a request: a 4xx with a code and a hint, and not one row has changed.

In `make test` each place gets a third of the wrong values, another place another third; `make soak` tries all everywhere.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import asyncpg
import httpx
import orjson
import pytest

from cortex_plane.kernel.fields import BODY_LIMIT
from cortex_plane.kernel.routes import SMALL_BODY_BYTES
from cortex_plane.tenancy.model.access import SecretKind
from cortex_plane.tenancy.model.orgs import Role
from tests.crash.points import extents
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests
from tests.http.test_http_routes import (
    ANY_JSON,
    FREE_FORM,
    SERVICES,
    Example,
    Stage,
    body_schema,
    document,
    documented_routes,
    examples,
    random_id,
)

T = TypeVar("T")
_MARK = "@@here@@"


class Selection:
    """All of the wrong values, or in the short form a third of them."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._random = random.Random(1)

    def of(self, values: Sequence[T]) -> Sequence[T]:
        return values if self._whole else self._random.sample(values, -(-len(values) // 3))


def problem(answer: httpx.Response, status: int | set[int], code: str | None = None) -> dict[str, Any]:
    """The body of an error that tells the caller everything it should."""
    about = f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}"
    assert answer.status_code in ({status} if isinstance(status, int) else status), about
    assert answer.headers["Content-Type"] == "application/problem+json", about
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code, about
    assert body["request_id"] == answer.headers["X-Request-Id"], about
    for part in ("title", "code", "detail", "hint"):
        assert body[part].strip(), about
    assert code is None or body["code"] == code, about
    return body


def _raw(headers: dict[str, str]) -> dict[bytes, bytes]:
    """Headers as bytes, which may be any."""
    return {name.encode(): value.encode() for name, value in headers.items()}


def _sender(world: World, example: Example) -> Person:
    return world.service if example.route in SERVICES else world.admin


async def _bodies(http: httpx.AsyncClient, world: World) -> list[Example]:
    return [example for example in examples(await Stage.build(world)) if example.body is not None]


def _places(body: dict[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every declared field of a body, the nested ones too."""
    for name, value in body.items():
        yield (*way, name), value
        if isinstance(value, dict) and name not in FREE_FORM | ANY_JSON:
            yield from _places(value, (*way, name))


def _with(body: dict[str, Any], way: tuple[str, ...], raw: str) -> str:
    """The body as JSON text with raw text in one place, because some of it no serialiser would write."""
    changed = deepcopy(body)
    inner = changed
    for name in way[:-1]:
        inner = inner[name]
    inner[way[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), raw)


DEEP = '{"a":' * 65 + "1" + "}" * 65
DEEPER = '{"a":' * 5000 + "1" + "}" * 5000
OWN_WORDS = frozenset({"POST /v1/hooks/{dialect}"})
"""Bodies of others, who get a refusal in their own words: see `tests/calls/test_hooks.py`."""
_TEXT = ['"a\\u0000b"', '"\\ud800"', '"a\\udfffb"', "7", "true", '["x"]', '{"x": 1}']
_NUMBER = ['"x"', "-1", "99999999999999999999999", "NaN", "Infinity", "-Infinity", "1e999", "[]", "{}"]
_NO_OBJECT = ['"x"', "7", "[]", "true"]
_UNSTORABLE = [
    '{"a": "\\u0000"}', '{"\\u0000": 1}', '{"a": ["\\ud800"]}', '{"\\ud800": 1}',
    '{"a": NaN}', '{"a": [Infinity]}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 18446744073709551616}',
    '{"a": -9223372036854775809}', '{"a": ' + "9" * 5000 + "}", DEEP, DEEPER,
    '{"a": "' + "x" * 300_000 + '"}',
]  # fmt: skip


def _kind(example: Example, name: str) -> str:
    """What a job is given is an object; what a signal, an operator or an answer says is any JSON."""
    is_answer = name == "answer" and "/decide" in example.route
    is_any = is_answer or (example.route, name) == ("POST /v1/signals", "payload") or name == "operator_input"
    return "result" if is_any else name


def _bad_values(name: str, value: Any) -> list[str]:
    """What must be refused in the place of this value."""
    if name in FREE_FORM:
        return [*_NO_OBJECT, *_UNSTORABLE]
    if name in ANY_JSON:
        return [*_UNSTORABLE, "NaN", '"a\\u0000b"', '["\\ud800"]']
    match value:
        case bool():
            return ['"maybe"', "2", "[]", "{}", '"\\u0000"', '"\\ud800"']
        case int() | float():
            return _NUMBER if isinstance(value, float) else [*_NUMBER, "1.5"]
        case str():
            # What somebody wants is words, or a list of them.
            return [text for text in _TEXT if name != "request" or text != '["x"]']
        case list():
            return ['"x"', "7", "{}", "[7]", '["a\\u0000b"]', '["\\ud800"]', "[[]]", '[{"x": 1}]', "[null]"]
        case dict():
            return ['"x"', "7", "[]", '{"unknown": 1}', '{"\\ud800": 1}', DEEPER]
    assert value is None
    return ['"x"', "7", "[]", "{}", '"\\u0000"', '"\\ud800"', "NaN"]


@extents
@pytest.mark.proves("D.12")
async def test_a_wrong_value_in_any_field_is_refused_and_named(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    made = [example for example in await _bodies(http, world) if example.route not in OWN_WORDS]
    before = await digests(admin)
    for example in made:
        assert example.body is not None
        headers = _sender(world, example).headers
        for way, value in _places(example.body):
            for raw in selection.of(_bad_values(_kind(example, way[-1]), value)):
                answer = await example.send_raw(http, headers, _with(example.body, way, raw))
                is_secret = example.route == "POST /v1/enrolments" and way[-1] == "code"
                body = problem(
                    answer,
                    {400, 422}
                    | ({401} if is_secret else set())
                    | ({413} if _kind(example, way[-1]) in ANY_JSON else set())
                    # Whoever may not name people is told nothing about the name.
                    | ({403} if way[-1] == "on_behalf_of" else set()),
                )
                if answer.status_code == 422:
                    assert body["code"] == "invalid_request", (example.route, way, raw[:50])
                    assert "errors" in body, (example.route, way, raw[:50], body)
                    named = " ".join(error["field"] for error in body["errors"])
                    assert way[-1] in named, (example.route, way, raw[:50], named)
    assert await digests(admin) == before


@extents
@pytest.mark.proves("D.12")
async def test_an_unknown_or_missing_field_is_refused_and_named(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    described = await document(http)
    routes = documented_routes(described)
    made = [example for example in await _bodies(http, world) if example.route not in OWN_WORDS]
    before = await digests(admin)
    for example in made:
        assert example.body is not None
        headers = _sender(world, example).headers
        for name in selection.of(("surprise", "org_id", "id", "__class__", "a\x00b", "\ud800", "x" * 5000)):
            answer = await example.send_raw(http, headers, json.dumps({**example.body, name: 1}))
            assert problem(answer, 422, "invalid_request")["errors"], (example.route, name[:20])
        schema = body_schema(described, routes[example.route])
        assert schema is not None
        for name in schema.get("required", []):
            without = {key: value for key, value in example.body.items() if key != name}
            body = problem(await example.send_raw(http, headers, json.dumps(without)), 422, "invalid_request")
            assert [error["field"] for error in body["errors"]] == [f"body.{name}"]
            empty = json.dumps({**example.body, name: None})
            problem(await example.send_raw(http, headers, empty), 422, "invalid_request")
    assert await digests(admin) == before


UNREADABLE = [
    b"", b'{"name": "x"', b"{} {}", b"{} // hi", b"{'name': 'x'}", b'{"name": "\xff\xfe"}', b"[]", b'"name"',
    b"7", b"null", b"[" * 200_000, b"\x00" * 10,
]  # fmt: skip


@extents
async def test_a_body_that_is_not_an_object_in_json_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    made = await _bodies(http, world)
    before = await digests(admin)
    for example in made:
        for content in selection.of(UNREADABLE):
            answer = await example.send_raw(http, _sender(world, example).headers, content)
            problem(answer, {400, 413, 422})
    assert await digests(admin) == before


async def test_a_form_is_not_json(http: httpx.AsyncClient, world: World) -> None:
    headers = {**world.admin.headers, "Content-Type": "application/x-www-form-urlencoded"}
    answer = await http.post("/v1/teams", content=b"slug=ops&name=Ops", headers=headers)
    problem(answer, 422)
    plain = {**world.admin.headers, "Content-Type": "text/plain"}
    problem(await http.post("/v1/teams", content=b'{"slug":"ops","name":"Ops"}', headers=plain), 422)


async def _chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"name": "'
    for _ in range(size // 65536 + 1):
        yield b"x" * 65536
    yield b'"}'


@pytest.mark.proves("D.12")
async def test_an_oversized_body_is_refused_whether_its_size_is_declared_or_not(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    made = await _bodies(http, world)
    routes = documented_routes(await document(http))
    before = await digests(admin)
    for example in made:
        limit = routes[example.route].get(BODY_LIMIT, SMALL_BODY_BYTES)
        large = b'{"name": "' + b"x" * limit + b'"}'
        headers = {**_sender(world, example).headers, "Content-Type": "application/json"}
        problem(await example.send_raw(http, headers, large), 413, "too_large")
        chunked = await http.request(example.method, example.path, content=_chunks(limit), headers=headers)
        assert "Content-Length" not in chunked.request.headers
        problem(chunked, 413, "too_large")
    claimed = {**world.admin.headers, "Content-Length": "99999999999"}
    problem(await http.post("/v1/teams", content=b"{}", headers=claimed), 413, "too_large")
    keyed = {**world.admin.headers, "Idempotency-Key": "k", "Content-Type": "application/json"}
    problem(await http.post("/v1/teams", content=_chunks(SMALL_BODY_BYTES), headers=keyed), 413, "too_large")
    assert await digests(admin) == before


async def test_a_body_of_just_the_allowed_size_is_read(http: httpx.AsyncClient, world: World) -> None:
    start, end = b'{"name": "', b'"}'
    body = start + b"x" * (SMALL_BODY_BYTES - len(start) - len(end)) + end
    headers = {**world.admin.headers, "Content-Type": "application/json"}
    answer = await http.patch("/v1/teams/main", content=body, headers=headers)
    assert problem(answer, 422)["errors"][0]["field"] == "body.name"


BAD_SLUGS = [
    "a", "A-B", "-a", "a-", "a b", "a_b", "ä-b", "a.b", "", "x" * 101, "ab\n", "a/b",
    "0190c0de-0000-7000-8000-000000000000", "0190c0de000070008000000000000000",
]  # fmt: skip
BAD_NAMES = ["", " ", "\t", "a\nb", "\x7f", "\x1b[31m", "x" * 201]
BAD_SKILLS: list[dict[str, Any]] = [
    {"checkpoint_granularity": "sometimes"},
    {"checkpoint_granularity": []},
    {"checkpoint_granularity": {}},
    {"checkpoint_granularity": 7},
    {"side_effect_tools": "deploy"},
    {"side_effect_tools": [7]},
    {"side_effect_tools": {"deploy": True}},
]


@pytest.mark.proves("S2.2", "D.12")
async def test_an_invalid_slug_or_name_or_setting_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    before = await digests(admin)
    agent = {"name": "N", "role": "R", "team": "main", "model_config": {"model": "m"}}
    refused = [
        *(("slug", "/v1/teams", {"slug": slug, "name": "Ops"}) for slug in BAD_SLUGS),
        *(("slug", "/v1/orgs", {"slug": slug, "name": "Third"}) for slug in BAD_SLUGS),
        *(("slug", "/v1/agents", {**agent, "slug": slug}) for slug in BAD_SLUGS),
        *(("name", "/v1/teams", {"slug": "ops", "name": name}) for name in BAD_NAMES),
        *(("skill_config", "/v1/agents", {**agent, "slug": "n1", "skill_config": s}) for s in BAD_SKILLS),
    ]
    for field, path, body in refused:
        answer = await http.post(path, json=body, headers=world.admin.headers)
        assert problem(answer, 422, "invalid_request")["errors"][0]["field"] == f"body.{field}", body
    assert await digests(admin) == before


BAD_QUERY = {
    "above": ["-2", "x", "1.5", "", "2147483648", "NaN", "\x00"],
    "limit": ["0", "-1", "201", "x", "1.5", "", "99999999999999999999999", "NaN", "1e2", "\x00"],
    "cursor": ["", "x", "!!", "%00", "ä", "A" * 501, "bnVsbA", "W10", "e30"],
    "status": ["", "x", "active ", "\x00"],
    "role": ["", "x", "ADMIN", "\x00"],
    "session_id": ["", "x", "1", "\x00", "0190c0de-0000-7000-8000-00000000000"],
    "member_id": ["", "x", "1", "\x00", "0190c0de-0000-7000-8000-00000000000"],
    "job_id": ["", "x", "1", "\x00", "0190c0de-0000-7000-8000-00000000000"],
    "agent": ["", "x", "a_b", "\x00", "ä-b", "x" * 101],
    "after": ["-1", "x", "1.5", "", "9223372036854775808", "NaN", "\x00"],
    "follow": ["", "x", "JOB", "\x00"],
    "only_open": ["", "x", "2", "\x00"],
    "active": ["", "x", "2", "\x00"],
    "holding": ["", "x", "2", "\x00"],
    "app": ["", "x", "a_b", "\x00", "ä-b", "x" * 101],
    "name": ["", "\x00", "x" * 201],
    "key": ["", "\x00", "x" * 256],
    "outside_id": ["", "\x00", "ä", "x" * 256],
    "by": ["", "x", "DAY", "\x00"],
    "since": ["", "x", "1", "1.5", "\x00", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "1492-01-01T00:00:00Z"],
    "until": ["", "x", "1", "1.5", "\x00", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "1492-01-01T00:00:00Z"],
    "approval_id": ["", "x", "1", "\x00", "0190c0de-0000-7000-8000-00000000000"],
    "wait": ["", "x", "-1", "61", "NaN", "inf", "\x00"],
    "source": ["", "x", "2", "\x00"],
    "defer": ["", "x", "2", "\x00"],
    "action": ["", "a b", "\x00", "ä", "A", "x" * 65],
    "capability": ["", "a b", "\x00", "ä", "x" * 101],
    "from": ["", "a b", "\x00", "ä", "-1", "x" * 65],
    "to": ["", "a b", "\x00", "ä", "-1", "x" * 65],
    "below": ["-1", "x", "1.5", "", "9223372036854775808", "NaN", "\x00"],
}


@extents
async def test_a_wrong_query_parameter_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    """Every query parameter of the document; one without bad values in the table above fails here."""
    selection = Selection(whole)
    stage = await Stage.build(world)
    before = await digests(admin)
    routes = documented_routes(await document(http))
    for example in examples(stage):
        for parameter in routes[example.route].get("parameters", []):
            if parameter["in"] != "query":
                continue
            name = parameter["name"]
            for value in selection.of(BAD_QUERY[name]):
                bent = Example(example.route, example.params, {**example.query, name: value}, example.body)
                body = problem(await bent.send(http, world.admin.headers), 422)
                assert body["code"] in ("invalid_request", "invalid_cursor"), (example.route, name, value)
        if "limit" in example.query:
            strange = {**example.query, "offset": "5"}
            answer = await http.get(example.path, params=strange, headers=world.admin.headers)
            assert problem(answer, 422)["errors"][0]["field"] == "query.offset"
    assert await digests(admin) == before


def _cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


BY_TIME = {
    "/v1/orgs": "orgs", "/v1/teams": "teams", "/v1/members": "members", "/v1/keys": "keys",
    "/v1/connections": "connections", "/v1/agents": "agents", "/v1/sessions": "sessions", "/v1/jobs": "jobs",
}  # fmt: skip
BY_NUMBER = {"/v1/agents/deployer/versions": "versions", "/v1/audit": "audit"}


@pytest.mark.proves("D.12")
async def test_a_tampered_cursor_or_one_of_another_list_is_refused(http: httpx.AsyncClient, world: World) -> None:
    at, id = "2026-01-01T00:00:00+00:00", random_id()
    for path, noun in BY_TIME.items():
        tampered = [
            _cursor("other", at, id), _cursor(noun), _cursor(noun, at), _cursor(noun, at, id, 1),
            _cursor(noun, "now", id), _cursor(noun, at, "x"), _cursor(noun, at, 7), _cursor(noun, 7, id),
            _cursor(noun, None, None), _cursor(noun, "2026-01-01T00:00:00", id), _cursor(noun, at, [id]),
            _cursor(noun, "0001-01-01T00:00:00+14:00", id), _cursor(noun, "9999-12-31T23:59:59-14:00", id),
            _cursor(noun, 5), _cursor(noun, at, id)[:-3],
        ]  # fmt: skip
        for cursor in tampered:
            answer = await http.get(path, params={"cursor": cursor}, headers=world.admin.headers)
            problem(answer, 422, "invalid_cursor")
    for path, noun in BY_NUMBER.items():
        tampered = [
            _cursor(noun), _cursor(noun, -1), _cursor(noun, 2**31), _cursor(noun, "5"), _cursor(noun, 1.5),
            _cursor(noun, True), _cursor(noun, None), _cursor(noun, 1, 2), _cursor(noun, at, id),
            _cursor("messages", 1),
        ]  # fmt: skip
        for cursor in tampered:
            answer = await http.get(path, params={"cursor": cursor}, headers=world.admin.headers)
            problem(answer, 422, "invalid_cursor")


@extents
async def test_an_id_that_is_none_is_refused_or_not_found(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    stage = await Stage.build(world)
    before = await digests(admin)
    for example in examples(stage):
        for name in example.params:
            headers = _sender(world, example).headers
            for id in (random_id(), "0" * 8 + "-0000-0000-0000-" + "0" * 12):
                unknown = Example(example.route, {**example.params, name: id}, example.query, example.body)
                no_id = name in ("version", "provider", "dialect")
                body = problem(await unknown.send(http, headers), {404, 422} if no_id else 404)
                assert no_id or body["code"].endswith("_not_found"), example.route
            for junk in selection.of(("x", "%00", "a%0Ab", "..%2f", "%ff", "%ed%a0%80", "'--", "x" * 3000)):
                bent = Example(example.route, {**example.params, name: junk}, example.query, example.body)
                problem(await bent.send(http, headers), {404, 422})
    assert await digests(admin) == before


BAD_ETAGS = ["", '""', "x", '"x"', '"-1"', '"1.5"', '"1", "2"', '"9999999999"', "W/", '"١"', '"\x00"']


async def test_an_if_match_that_is_no_etag_or_an_old_one_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    stage = await Stage.build(world)
    before = await digests(admin)
    routes = documented_routes(await document(http))
    for example in examples(stage):
        if not any(p["name"] == "If-Match" for p in routes[example.route].get("parameters", [])):
            continue
        for tag in BAD_ETAGS:
            sent = {**world.admin.headers, "If-Match": tag}
            answer = await http.request(example.method, example.path, json=example.body, headers=_raw(sent))
            problem(answer, 422, "invalid_etag")
        answer = await example.send(http, {**world.admin.headers, "If-Match": '"77"'})
        problem(answer, 412, "stale")
    assert await digests(admin) == before


@extents
async def test_a_header_of_the_wrong_form_is_refused(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    stage = await Stage.build(world)
    before = await digests(admin)
    routes = documented_routes(await document(http))
    bad = {
        "Idempotency-Key": [b"", b" ", b"a b", b"x" * 256, "ä".encode(), b"\xff", b"a\tb"],
        "Cortex-Org": [b"", b"A", b"x", b"-a", b"a b", b"x" * 101, b"\xff\xfe", "ä-b".encode()],
    }
    for example in examples(stage):
        headers = _raw(_sender(world, example).headers)
        for parameter in routes[example.route].get("parameters", []):
            for value in selection.of(bad.get(parameter["name"], [])):
                answer = await http.request(
                    example.method,
                    example.path,
                    json=example.body,
                    headers={**headers, parameter["name"].encode(): value},
                )
                body = problem(answer, 422, "invalid_request")
                assert body["errors"][0]["field"] == f"header.{parameter['name']}"
    assert await digests(admin) == before


MALFORMED_KEYS = [
    "x", SecretKind.KEY, SecretKind.KEY + "a" * 42, SecretKind.KEY + "a" * 44, SecretKind.KEY + "!" * 43, SecretKind.KEY + "a" * 42 + "=",
    "cortex_apr_" + "a" * 43, "CORTEX_KEY_" + "a" * 43, "a" * 43, SecretKind.KEY + "a" * 43 + " x",
    SecretKind.KEY + "a" * 43, SecretKind.KEY + "ä" * 43, "\xff" * 20, SecretKind.KEY + "a" * 100_000,
]  # fmt: skip


async def test_a_key_that_is_none_is_refused(http: httpx.AsyncClient, world: World) -> None:
    for key in MALFORMED_KEYS:
        headers = {b"Authorization": b"Bearer " + key.encode("latin-1")}
        answer = await http.get("/v1/me", headers=headers)
        problem(answer, 401, "key_unknown")
    for value in ("", "Bearer", "Basic YTpi", world.admin.secret, f"Token {world.admin.secret}"):
        problem(await http.get("/v1/me", headers={"Authorization": value}), 401, "key_missing")


@extents
@pytest.mark.proves("D.6", "D.12")
async def test_a_key_that_has_ended_is_refused_with_the_reason(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    selection = Selection(whole)
    people: dict[str, Person] = {}
    for code in ("key_expired", "key_revoked", "member_deactivated"):
        people[code] = await world.person(Role.ADMIN, name=code)
    await admin.execute("update api_key set expires_at = plane_now() where id = $1", people["key_expired"].actor.key_id)
    await admin.execute("update api_key set revoked_at = plane_now() where id = $1", people["key_revoked"].actor.key_id)
    await admin.execute(
        "update user_account set deactivated_at = plane_now() where id = $1",
        people["member_deactivated"].actor.user_account_id,
    )
    stage = await Stage.build(world)
    before = await digests(admin)
    for example in examples(stage):
        # A token or a code is a credential of its own: such a route looks at no key.
        if " /v1/" not in example.route or example.route in ("POST /v1/approvals/decide", "POST /v1/enrolments"):
            continue
        for code, person in selection.of(list(people.items())):
            answer = await example.send(http, person.headers)
            problem(answer, 401, code)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert await digests(admin) == before


def _is_read_as(path: str, other: str) -> bool:
    here, there = path.split("/"), other.split("/")
    return len(here) == len(there) and all(a == b or b.startswith("{") for a, b in zip(here, there, strict=True))


async def test_a_wrong_method_is_refused_and_the_right_ones_named(http: httpx.AsyncClient, world: World) -> None:
    whole = await document(http)
    made = {example.route.split()[1]: example for example in examples(await Stage.build(world))}
    for path, methods in whole["paths"].items():
        # What is a word here may be read as an id there.
        also = {m for other in whole["paths"] if _is_read_as(path, other) for m in whole["paths"][other]}
        for method in {"get", "post", "put", "patch", "delete", "options", "trace"} - set(methods) - also:
            answer = await http.request(method, made[path].path, headers=world.admin.headers)
            problem(answer, 405, "method_not_allowed")
            assert answer.headers["Allow"]


UNKNOWN_ROUTES = [
    "/v1", "/v1/", "/v1/nothing", "/v2/teams", "/v1/teams/", "/v1/teams/a/b", "//v1/teams", "/V1/teams",
    "/v1/%00", "/v1/%ff", "/doc", "/redoc", "/v1/sessions/x/y/z",
]  # fmt: skip


async def test_an_unknown_route_is_not_found(http: httpx.AsyncClient, world: World) -> None:
    for path in UNKNOWN_ROUTES:
        problem(await http.get(path, headers=world.admin.headers), 404, "route_not_found")
