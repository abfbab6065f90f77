"""What a job did, over HTTP: its steps, its checkpoint, results kept apart, the workers and the tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jsonschema_rs
import pytest

from cortex_plane import Client
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Hold, JobDraft, JobStatus
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, NotFound
from cortex_plane.main.api_process import create_app
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World
from tests.fixtures.stages import LARGE, PATIENT, held_job, staging
from tests.fixtures.workers import call, make_agent, submit, turn, until, working


async def test_steps_are_read_page_by_page_and_after_a_number(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    script = [turn(call("fetch", page=n), text=f"Page {n}") for n in range(7)]
    id = await submit(world, await make_agent(world, script, app="staging"))
    path = f"/v1/jobs/{id}/steps"
    empty = await http.get(path, headers=headers)
    assert empty.json() == {"items": [], "next_cursor": None}
    async with working(world.db, staging(), settings=PATIENT):
        await until(world, id, JobStatus.COMPLETED)
    seen: list[dict[str, Any]] = []
    sizes: list[int] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = (await http.get(path, params=query, headers=headers)).json()
        seen += page["items"]
        sizes.append(len(page["items"]))
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert [step["step_index"] for step in seen] == [*range(8)]
    assert sizes == [3, 3, 2]
    assert [step["text"] for step in seen] == [*(f"Page {n}" for n in range(7)), "done"]
    assert [call["arguments"] for step in seen for call in step["calls"]] == [{"page": n} for n in range(7)]
    for above, expected in ((-1, 0), (0, 1), (5, 6)):
        page = (await http.get(path, params={"above": above}, headers=headers)).json()
        assert page["items"][0]["step_index"] == expected
    assert (await http.get(path, params={"above": 7}, headers=headers)).json()["items"] == []
    foreign = (await http.get("/v1/audit", params={"limit": 1}, headers=headers)).json()["next_cursor"]
    refused = await http.get(path, params={"cursor": foreign}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_cursor")


async def test_a_checkpoint_is_shown_as_it_is_kept_and_fits_its_public_schema(
    http: httpx.AsyncClient, world: World
) -> None:
    fresh = await http.post("/v1/jobs", json={"agent": "deployer"}, headers=world.admin.headers)
    path = f"/v1/jobs/{fresh.json()['id']}/checkpoint"
    missing = await http.get(path, headers=world.admin.headers)
    assert (missing.status_code, missing.json()["code"]) == (404, "checkpoint_not_found")
    held = await held_job(world)
    blob = (await http.get(f"/v1/jobs/{held.job}/checkpoint", headers=world.admin.headers)).json()
    assert (blob["schema_version"], blob["step_index"]) == (1, 0)
    assert [tool["invocation_id"] for tool in blob["active_tools"]] == [str(held.call)]
    schema = await http.get("/schemas/checkpoint/v1.json")
    assert schema.status_code == 200, "for everybody"
    assert schema.json()["$id"].endswith("/schemas/checkpoint/v1.json")
    jsonschema_rs.validator_for(schema.json()).validate(blob)


async def test_a_large_result_is_fetched_by_itself_and_saved_not_shown(http: httpx.AsyncClient, world: World) -> None:
    held = await held_job(world)
    steps = (await http.get(f"/v1/jobs/{held.job}/steps", headers=world.admin.headers)).json()["items"]
    fetched = steps[0]["calls"][0]
    assert fetched["result_id"] == str(held.result)
    assert LARGE not in str(fetched)
    answer = await http.get(f"/v1/jobs/{held.job}/results/{held.result}", headers=world.admin.headers)
    assert answer.json() == {"page": 1, "content": LARGE}
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{held.result}.json"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    elsewhere = await http.post("/v1/jobs", json={"agent": "deployer"}, headers=world.admin.headers)
    wrong = f"/v1/jobs/{elsewhere.json()['id']}/results/{held.result}"
    refused = await http.get(wrong, headers=world.admin.headers)
    assert (refused.status_code, refused.json()["code"]) == (404, "result_not_found")


async def test_workers_and_tools_are_listed(http: httpx.AsyncClient, world: World) -> None:
    async with working(world.db, staging(), settings=PATIENT) as worker:
        id = await submit(world, world.agent)
        await until(world, id, JobStatus.COMPLETED)
        (shown,) = (await http.get("/v1/workers", headers=world.admin.headers)).json()["items"]
        assert (shown["id"], shown["name"], shown["alive"]) == (str(worker.id), worker.name, True)
        assert shown["apps"] == ["plane", "staging"]
    (gone,) = (await http.get("/v1/workers", headers=world.admin.headers)).json()["items"]
    assert (gone["alive"], gone["stopped_at"] is None) == (False, False)
    person = await world.person(Role.ADMIN)
    refused = await http.get("/v1/workers", headers=person.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    listed = (await http.get("/v1/tools", headers=person.headers)).json()
    assert listed["next_cursor"] is None
    fetch, pay, _ = listed["items"]
    assert (fetch["app"], fetch["name"], fetch["read_only"], fetch["on_uncertain"]) == (
        "staging", "fetch", True, None,
    )  # fmt: skip
    assert (pay["name"], pay["read_only"], pay["on_uncertain"]) == ("pay", False, "ask_human")
    assert pay["parameters"]["properties"]["amount"]["type"] == "integer"


@contextmanager
def refused_with(kind: type[CortexError], code: str) -> Iterator[None]:
    with pytest.raises(kind) as refused:
        yield
    assert refused.value.code == code


async def test_the_client_speaks_every_verb(world: World) -> None:
    held = await held_job(world)
    metrics = Metrics()
    transport = httpx.ASGITransport(framed(create_app(world.db, metrics)))
    async with Client("http://plane", world.admin.secret, transport=transport) as plane:
        steps = [step async for step in plane.jobs.steps(held.job)]
        assert [step.step_index for step in steps] == [0, 1]
        assert [step.step_index async for step in plane.jobs.steps(held.job, above=0)] == [1]
        assert [step.step_index async for step in plane.jobs.steps(held.job, 1)] == [0]
        assert (await plane.jobs.checkpoint(held.job))["agent_id"]
        assert (await plane.jobs.result(held.job, held.result))["page"] == 1
        (question,) = await plane.jobs.questions(held.job)
        assert question.call_id == held.call
        assert (await plane.jobs.pause(held.job, "wait")).job.holds == [Hold.UNCERTAIN_EFFECT, Hold.OPERATOR]
        assert (await plane.jobs.resume(held.job)).job.holds == [Hold.UNCERTAIN_EFFECT]
        with refused_with(Conflict, "still_held"):
            await plane.jobs.resume(held.job)
        answer = Answer(verdict=Verdict.HAPPENED, result=[1, None])
        assert (await plane.jobs.settle(held.job, held.call, answer)).settled == [held.call]
        with refused_with(Conflict, "call_settled"):
            await plane.jobs.settle(held.job, held.call, answer)
        steps = [step async for step in plane.jobs.steps(held.job)]
        assert steps[1].calls[0].result == [1, None]
        assert (await plane.sessions.pause(held.session, "stop")).session.hold_reason == "stop"
        assert (await plane.sessions.resume(held.session)).jobs[0].holds == []
        assert (await plane.jobs.cancel(held.job, "enough")).job.status is JobStatus.CANCELLED
        assert [tool.name for tool in await plane.tools.list()] == ["fetch", "pay", "ship"]
        assert [worker.alive for worker in await plane.workers.list()] == [False]
        fresh = await plane.jobs.submit(JobDraft(agent="deployer"))
        with refused_with(NotFound, "checkpoint_not_found"):
            await plane.jobs.checkpoint(fresh.id)
    person = await world.person(Role.ADMIN)
    async with Client("http://plane", person.secret, transport=transport) as plane:
        with refused_with(Forbidden, "forbidden"):
            await plane.workers.list()
    metrics.close()
