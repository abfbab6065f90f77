"""Requests made up from the OpenAPI document: no 5xx, and no answer that the document does not have.

Schemathesis is not asynchronous and the plane is, so the application, its pool and PostgreSQL live in a loop that
runs while a request is under way. The routes are divided by their tags, so that test processes share the work; the long
campaigns make up more of everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.http.app import Api, framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.routes import openapi_document
from cortex_plane.kernel.shares import Throttle
from cortex_plane.main.api_process import create_app
from tests.conftest import PAGES
from tests.fixtures.atlases import plain
from tests.fixtures.listeners import nowhere
from tests.fixtures.people import Person, World
from tests.fixtures.servers import VAULT, TestServer, available, fresh_database
from tests.fixtures.stages import SHIP_HASH
from tests.fixtures.tool_confirmations import DIGEST
from tests.http.test_http_routes import SERVICES, Stage

CHECKS: list[schemathesis.CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
ADDRESS = "http://plane"

Operation = schemathesis.APIOperation[Any, Any, Any, Any]
Case = schemathesis.Case[Any]


PARTS = {
    "work": {"jobs", "sessions", "events", "requests", "signals"},
    "approvals": {"approvals", "standing approvals", "absences", "deliveries", "policies", "platform"},
    "people": {"members", "identities", "teams", "orgs", "keys", "me", "audit"},
    "agents": {"agents", "models", "tools", "workers", "atlases", "resolutions"},
    "calls": {"calls", "connections", "health", "schemas"},
}
"""The tags of the document, in parts that take about the same time."""


@dataclass(frozen=True)
class Effort:
    """How many requests are made up for a route."""

    right: int
    malformed: int
    every: int = 1
    """Malformed requests are made up for every so many routes only: others are bent by hand, route by route."""


EFFORTS = [
    pytest.param(Effort(right=2, malformed=2, every=3), id="few"),
    pytest.param(Effort(right=15, malformed=5), id="many", marks=pytest.mark.soak),
]
ROUNDS = 20
"""Of requests, each larger than the last, until one is answered with success: a body of many fields is seldom right in all."""


@dataclass(frozen=True)
class Plane:
    loop: asyncio.Runner
    http: httpx.AsyncClient
    world: World
    stage: Stage

    def send(self, case: Case, person: Person) -> httpx.Response:
        parts = case.as_transport_kwargs(base_url=ADDRESS, headers=person.headers)
        request = requests.Request(**parts).prepare()
        headers = {name.lower().encode(): _bytes(value) for name, value in request.headers.items()}
        if b"text/event-stream" in headers.get(b"accept", b"*/*") or b"*" in headers.get(b"accept", b"*"):
            # A stream has no end: what can be compared with the document is the page.
            headers[b"accept"] = b"application/json"
        asked = self.http.request(
            str(request.method), str(request.url), headers=headers, content=_bytes(request.body or b"")
        )
        return self.loop.run(asked)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.loop.run(self.http.get("/openapi.json")).json()
        return found

    def caller(self, operation: Operation) -> Person:
        """Who may do it: a service speaks for other people, the platform's key does everything else."""
        return self.world.service if operation.label in SERVICES else self.world.admin


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("latin-1")


@dataclass(frozen=True)
class Staged:
    """A database with everything that requests need, and the application; each test gets a copy of the first."""

    server: TestServer
    world: World
    stage: Stage
    app: Api


@pytest.fixture(scope="module")
def staged() -> Iterator[Staged]:
    async def build(url: str) -> tuple[World, Stage]:
        db = await Database.open(url, max_size=2, vault=VAULT)
        try:
            world = await World.create(db, "acme")
            return world, await Stage.build(world)
        finally:
            await db.close()

    metrics = Metrics()
    app = create_app(Database(None), metrics, webhook_channel=WebhookChannel(resolver=nowhere))
    app.state.mailing = True
    server = available()[0]
    with fresh_database(server) as name:
        world, stage = asyncio.run(build(server.app(name)))
        yield Staged(replace(server, template=name), world, stage, app)
    metrics.close()


@pytest.fixture
def plane(staged: Staged) -> Iterator[Plane]:
    with fresh_database(staged.server) as name, asyncio.Runner() as loop:
        db = loop.run(Database.open(staged.server.app(name), max_size=2, vault=VAULT))
        staged.app.state.db, staged.app.state.throttle = db, Throttle()
        transport = httpx.ASGITransport(framed(staged.app), raise_app_exceptions=False)
        http = httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=PAGES)
        try:
            yield Plane(loop, http, staged.world, staged.stage)
        finally:
            loop.run(http.aclose())
            loop.run(db.close())


_DECIDED: dict[str, list[Any]] = {"version": [1], "arguments": [None], "standing": [None], "reason": [None]}
"""Few decisions that are made up fit the request that waits."""
_NOW = datetime.now(UTC)
SOON, LATER = ((_NOW + timedelta(days=days)).isoformat() for days in (1, 30))


def _known(stage: Stage, operation: Operation) -> dict[str, list[Any]]:
    """What exists, for the fields and parameters that name it: otherwise every made-up id would be a 404."""
    deletes = operation.method.upper() == "DELETE"
    of_member = "/members/" in operation.path and deletes
    return {
        "team": [stage.spare_team] if deletes else [stage.team, "main"],
        "parent": [stage.team],
        "member_id": [stage.invited if of_member and "/mappings" in operation.path else stage.member],
        "mapping_id": [stage.claim, stage.doubtful_claim]
        if "/link-claims/" in operation.path
        else [stage.invited_mapping if of_member else stage.mapping],
        "absence_id": [stage.absence],
        "delegate_id": [stage.colleague],
        "to": [stage.next_atlas_version] if "/atlases/" in operation.path else [stage.colleague],
        "starts_at": [SOON],
        "ends_at": [LATER],
        "since": [SOON],
        "until": [LATER],
        "delivery_id": [stage.delivery],
        "code": [stage.enrolment_code if operation.path.endswith("/enrolments") else stage.link_code],
        "token": [stage.token],
        "email": ["somebody@example.com"],
        "external_user_id": ["u-7"],
        "key_id": [stage.own_key if "/me/" in operation.path else stage.key],
        "browser_session_id": [stage.own_browser_session if "/me/" in operation.path else stage.browser_session],
        "connection_id": [stage.connection, stage.hook],
        "agent": [stage.spare_agent] if deletes else [stage.agent, "deployer"],
        "session_id": [stage.elsewhere_ending]
        if operation.path.endswith("/fail")
        else [stage.elsewhere]
        if operation.path.endswith(("/calls", "/calls/batch", "/resolve", "/usage", "/state"))
        else [stage.gated]  # has no call that must be settled before it can be completed
        if operation.path.endswith(("/answers", "/permissions", "/complete"))
        else [stage.session, stage.ending_session],
        "job_id": [stage.job, stage.cancelled_job, stage.held_job, stage.held_job],
        "call_id": [stage.elsewhere_call] if operation.path.startswith("/v1/calls") else [stage.call],
        "request_id": [stage.job, stage.held_job],
        "tool_call_id": [stage.asking_call],
        "approval_id": [stage.handed_on] if operation.path.endswith("/delegate") else [stage.approval, stage.card],
        "standing_id": [stage.standing],
        "confirmation_id": [stage.confirmation],
        "resolution_id": [stage.resolution],
        "gate": ["hello"],
        "replaces": [0],
        "dialect": ["claude-code"],
        "hook_event_name": ["PreToolUse"],
        "tool": ["files.read_query"],
        **_resolved(stage, operation.path),
        "app": ["office"],
        "digest": [DIGEST],
        "channel_type": ["web", "x-pager"],
        "config": [{}],
        "secrets": [{}],
        "url": [None],
        "provider": ["anthropic"] if deletes else ["openai", "anthropic"],
        "input_hash": [SHIP_HASH],
        "sender": ["stage"],
        "result_id": [stage.result],
        "text": ["policies: []"],
        "version": [stage.atlas_version] if "/atlases/" in operation.path else ["0", "1"],
        "atlas_id": [stage.atlas],
        "from": [stage.atlas_version],
        "atlases": [[]] if operation.path.endswith("/atlases/test") else [[], [stage.atlas]],
        "scenarios": [json.dumps({"agent": stage.agent, "scenarios": [{"name": "It", "expect": {"shut": []}}]})],
        "wait": [0, 0.01],
        "manifest": [plain("com.example.fuzzed", "1"), plain("com.example.fuzzed", "2")],
        **(_DECIDED | {"approval_id": [stage.approval]} if operation.path.endswith("_id}/decide") else {}),
    }


def _resolved(stage: Stage, path: str) -> dict[str, list[Any]]:
    """What was resolved, for the routes that are about it."""
    if path.endswith("/report"):
        return {"call": [stage.executed_call]}
    if path.endswith("/resolve"):
        return {"action": ["ship.now"]}
    if path.endswith("/batch"):
        return {"calls": [[{"key": "batch", "tool": "files.read_query", "arguments": {}}]]}
    if path.endswith("/execute"):
        return {"tool": ["ship.now"], "arguments": [{"version": "1"}]}
    return {}


def _aim(case: Case, known: dict[str, list[Any]], data: st.DataObject) -> None:
    """Most of the time, put what exists into a request that was made up."""
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict):
            for name in sorted(set(place) & set(known)):
                if data.draw(st.integers(0, 4)) > 0:
                    place[name] = data.draw(st.sampled_from(known[name]))


def _fuzz(plane: Plane, operation: Operation, mode: GenerationMode, examples: int, turn: int = 0) -> set[int]:
    """The statuses of the answers, each of which was compared with the document. Each round makes up others."""
    known = _known(plane.stage, operation)
    seen: set[int] = set()

    @seed(turn)
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Case, data: st.DataObject) -> None:
        if mode is GenerationMode.POSITIVE:
            _aim(case, known, data)
            # As good as never those of an org or a revision that is there.
            for name in ("Cortex-Org", "If-Match"):
                if data.draw(st.integers(0, 4)) > 0:
                    case.headers.pop(name, None)
        answer = plane.send(case, plane.caller(operation))
        seen.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    check()
    return seen


def _succeeded(codes: set[int]) -> bool:
    return any(code < 300 for code in codes)


def _operations(document: dict[str, Any], part: str) -> list[Operation]:
    schema = schemathesis.openapi.from_dict(document).include(tag=sorted(PARTS[part]))
    found = list(schema.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(operations) == len(found), found
    return operations


def _turn(operation: Operation) -> int:
    """What changes or ends things comes last, so that everything else still finds what it needs."""
    if operation.path == "/v1/approvals/decide":
        return 3  # its token is for a request that others decide too
    if operation.path.endswith(("/delegate", "/link", "/intent", "/{browser_session_id}")):
        return -1  # before anything else uses up what stands ready for them
    if operation.method.upper() == "DELETE" or operation.path.endswith(
        (
            "/terminate",
            "/complete",
            "/fail",
            "/outcome",
            "/report",
            "/cancel",
            "/revoke",
            "/settle",
            "/decide",
            "/delegate",
            "/answer",
            "/link",
            "/{tool_call_id}",
        )
    ):
        return 2
    return 1 if operation.method.upper() == "PATCH" else 0


def test_every_route_belongs_to_one_part(staged: Staged) -> None:
    document = openapi_document()
    tags = [route["tags"] for routes in document["paths"].values() for route in routes.values()]
    assert {tag for (tag,) in tags} == set().union(*PARTS.values())
    assert sum(len(_operations(document, part)) for part in PARTS) == len(tags)


@pytest.mark.proves("D.11")
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("part", PARTS)
def test_no_made_up_request_gets_an_answer_outside_the_document(
    plane: Plane, part: str, effort: Effort, subtests: pytest.Subtests
) -> None:
    seen: dict[str, set[int]] = {}
    for operation in sorted(_operations(plane.document(), part), key=_turn):
        with subtests.test(operation.label):
            codes = seen[operation.label] = set()
            for turn in range(ROUNDS):
                codes |= _fuzz(plane, operation, GenerationMode.POSITIVE, effort.right + turn, turn)
                if _succeeded(codes):
                    break
    unreached = {label: codes for label, codes in seen.items() if not _succeeded(codes)}
    assert unreached == {}, f"never answered with success, so that answer was not compared: {unreached}"


@pytest.mark.proves("D.11")
@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("part", PARTS)
def test_no_malformed_request_gets_an_answer_outside_the_document(
    plane: Plane, part: str, effort: Effort, subtests: pytest.Subtests
) -> None:
    """The same with requests that break the document on purpose."""
    takes_something = [
        operation
        for operation in _operations(plane.document(), part)
        if any(True for _ in operation.iter_parameters()) or operation.body
    ]
    for operation in takes_something[:: effort.every]:
        with subtests.test(operation.label):
            _fuzz(plane, operation, GenerationMode.NEGATIVE, effort.malformed)
