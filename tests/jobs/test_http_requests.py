"""Spec 3's flow over its own routes: execute, see the call, decide, see it go on."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus, Pause
from cortex_plane.jobs.verbs import steering
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs import events
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.fixtures.people import World
from tests.fixtures.workers import call, job_of, make_agent, submit, turn, until, working

UNKNOWN = "01936f3a-0000-7000-8000-000000000000"
ROOTS = ("/v1", "/api")
DECISIVE = (JobStatus.WAITING_FOR_APPROVAL, JobStatus.COMPLETED, JobStatus.FAILED)


@pytest.fixture
async def world(db: Database) -> World:
    """An org without policies: whatever changes something needs a person's yes."""
    return await World.create(db, "acme", policies=None)


def an_app(done: list[str]) -> App:
    app = App("tests")

    @app.tool(on_uncertain="ask_human")
    async def deploy(what: str) -> str:
        """Deploys."""
        done.append(what)
        return f"deployed {what}"

    return app


async def a_request(world: World) -> UUID:
    script = [turn(call("deploy", what="2.4"), text="I deploy."), turn(call("deploy", what="2.5"))]
    return await submit(world, await make_agent(world, script))


async def told(world: World, job: UUID) -> list[Event]:
    return (await events.of_job(world.db, world.admin.actor, job, 0)).events


async def post(http: httpx.AsyncClient, world: World, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return await http.post(path, headers=world.admin.headers, json=body)


async def last_call(world: World, job: UUID) -> str:
    return str([event for event in await told(world, job) if event.type == "tool_call"][-1].data["id"])


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.proves("S3.1", "S3.2", "S3.3", "S3.5", "S3.6")
async def test_a_request_stops_at_each_call_and_goes_on_with_each_decision(
    http: httpx.AsyncClient, world: World, root: str
) -> None:
    done: list[str] = []
    job = await a_request(world)
    execute = f"{root}/agent-requests/{job}/execute"
    fresh = await post(http, world, execute)
    assert (fresh.status_code, fresh.json()["status"]) == (202, "PENDING")
    async with working(world.db, an_app(done)):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        assert done == []
        shown = {event.type: event.data for event in await told(world, job)}
        assert shown["message"]["text"] == "I deploy."
        assert shown["tool_call"]["tool"] == "deploy"
        assert shown["approval_requested"]["call"] == shown["tool_call"]["id"]

        refused = await post(http, world, execute)
        assert (refused.status_code, refused.json()["code"]) == (409, "approval_pending")
        assert shown["approval_requested"]["approval_id"] in refused.json()["detail"]
        assert done == [], "nothing runs that nobody approved"

        approve = f"{root}/approve-tool/{shown['tool_call']['id']}"
        approved = await post(http, world, approve, {"approved": True, "reason": "go"})
        assert (approved.status_code, approved.json()["result"]) == (200, "OK")
        assert approved.json()["approval"]["status"] == "approved"
        again = await post(http, world, approve, {"approved": True, "reason": "go"})
        assert (again.status_code, again.json()["result"]) == (200, "DUPLICATE")
        otherwise = await post(http, world, approve, {"approved": False})
        assert (otherwise.status_code, otherwise.json()["code"]) == (409, "approval_conflict")

        await _until_asked_again(world, job)
        assert done == ["2.4"]
        second = f"{root}/approve-tool/{await last_call(world, job)}"
        assert (await post(http, world, second, {"approved": True})).status_code == 200
        ended = await until(world, job, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (ended.status, done) == (JobStatus.COMPLETED, ["2.4", "2.5"])
    kinds = [e.type for e in await told(world, job) if e.type in ("tool_call", "tool_result", "completion")]
    assert kinds == ["tool_call", "tool_result", "tool_call", "tool_result", "completion"]
    over = await post(http, world, execute)
    assert (over.status_code, over.json()["code"]) == (409, "job_finished")


async def _until_asked_again(world: World, job: UUID) -> None:
    while True:
        await until(world, job, *DECISIVE)
        asked = [event for event in await told(world, job) if event.type == "approval_requested"]
        if len(asked) == 2:
            return


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.proves("S3.4")
async def test_a_call_that_is_rejected_ends_the_request(http: httpx.AsyncClient, world: World, root: str) -> None:
    done: list[str] = []
    job = await a_request(world)
    async with working(world.db, an_app(done)):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        path = f"{root}/approve-tool/{await last_call(world, job)}"
        denied = await post(http, world, path, {"approved": False, "reason": "not on a Friday"})
        assert (denied.status_code, denied.json()["approval"]["status"]) == (200, "denied")
        ended = await until(world, job, JobStatus.FAILED, JobStatus.COMPLETED)
    assert (ended.status, done) == (JobStatus.FAILED, [])
    assert "not on a Friday" in (ended.error_message or "")


async def test_executing_a_paused_request_resumes_it(http: httpx.AsyncClient, world: World) -> None:
    job = await a_request(world)
    await steering.pause(world.db, world.admin.actor, job, Pause())
    resumed = await post(http, world, f"/v1/agent-requests/{job}/execute")
    assert (resumed.status_code, resumed.json()["holds"]) == (202, [])
    async with working(world.db, an_app([])):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    over = await post(http, world, f"/v1/agent-requests/{job}/execute")
    assert (over.status_code, over.json()["code"]) == (409, "job_finished")


@pytest.mark.proves("S3.5")
async def test_a_held_request_that_waits_is_not_woken_by_execute(http: httpx.AsyncClient, world: World) -> None:
    job = await a_request(world)
    async with working(world.db, an_app([])):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        await steering.pause(world.db, world.admin.actor, job, Pause())
        for root in ROOTS:
            answer = await post(http, world, f"{root}/agent-requests/{job}/execute")
            assert (answer.status_code, answer.json()["code"]) == (409, "approval_pending")
    assert (await job_of(world, job)).open_approvals == 1


async def test_bad_requests_change_nothing(http: httpx.AsyncClient, world: World, other: World) -> None:
    job = await a_request(world)
    async with working(world.db, an_app([])):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
    path = f"/v1/approve-tool/{await last_call(world, job)}"
    for body in ({}, {"approved": "yes"}, {"approved": 1}, {"approved": True, "extra": 1}, {"approved": None}):
        assert (await post(http, world, path, body)).status_code == 422, body
    stranger, service = await world.person(Role.MEMBER), await world.service_with(Role.ADMIN)
    for person in (stranger, other.admin):
        for target in (path, f"/v1/agent-requests/{job}/execute"):
            answer = await http.post(target, headers=person.headers, json={"approved": True})
            assert answer.status_code == 404, target
    refused = await http.post(path, headers=service.headers, json={"approved": True})
    assert refused.status_code == 403
    assert (await post(http, world, f"/v1/approve-tool/{UNKNOWN}", {"approved": True})).status_code == 404
    assert (await post(http, world, f"/v1/agent-requests/{UNKNOWN}/execute")).status_code == 404
    assert (await job_of(world, job)).status is JobStatus.WAITING_FOR_APPROVAL
