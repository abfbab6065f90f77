"""Steering over HTTP: pause, resume, cancel, questions and their answers, with jobs that a worker really runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import httpx

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests
from tests.fixtures.stages import PATIENT, held_job, staging
from tests.fixtures.workers import call, make_agent, submit, turn, until, working


@dataclass
class Gate:
    """A tool that waits until the test lets it go on, and counts how often it was called."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0

    def app(self) -> App:
        app = App("tests")

        @app.tool(on_uncertain="ask_human")
        async def act() -> str:
            """Acts."""
            self.calls += 1
            self.entered.set()
            await self.opened.wait()
            return "acted"

        return app


async def _post(
    http: httpx.AsyncClient, who: World | Person, path: str, expect: int = 200, **body: Any
) -> dict[str, Any]:
    headers = who.admin.headers if isinstance(who, World) else who.headers
    answer = await http.post(f"/v1/{path}", json=body, headers=headers)
    assert answer.status_code == expect, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def _get(http: httpx.AsyncClient, world: World, path: str, **query: Any) -> Any:
    answer = await http.get(f"/v1/{path}", params=query, headers=world.admin.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


@asynccontextmanager
async def _running(world: World, gate: Gate) -> AsyncIterator[UUID]:
    """A job that a worker runs, in the middle of a call."""
    agent = await make_agent(world, [turn(call("act"))])
    id = await submit(world, agent)
    async with working(world.db, gate.app(), settings=PATIENT):
        await asyncio.wait_for(gate.entered.wait(), 20)
        try:
            yield id
        finally:
            gate.opened.set()


async def test_a_waiting_job_is_held_and_resumed_and_asking_twice_changes_nothing(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    job = (await _post(http, world, "jobs", 201, agent="deployer"))["id"]
    held = await _post(http, world, f"jobs/{job}/pause", reason="let me look")
    assert (held["changed"], held["pending"], held["settled"], held["uncertain"]) == (True, False, [], [])
    assert (held["job"]["status"], held["job"]["holds"]) == ("PENDING", ["operator"])
    before = await digests(admin)
    assert await _post(http, world, f"jobs/{job}/pause", reason="again") == held | {"changed": False}
    assert await digests(admin) == before
    resumed = await _post(http, world, f"jobs/{job}/resume", note="fine")
    assert (resumed["changed"], resumed["job"]["holds"]) == (True, [])
    before = await digests(admin)
    assert (await _post(http, world, f"jobs/{job}/resume", 409))["code"] == "failed_precondition"
    assert await digests(admin) == before
    async with working(world.db, settings=PATIENT):
        await until(world, UUID(job), JobStatus.COMPLETED)
    for verb in ("pause", "resume", "cancel"):
        late = await _post(http, world, f"jobs/{job}/{verb}", 409)
        assert late["code"] == ("failed_precondition" if verb == "resume" else "job_finished")


async def test_a_running_job_is_paused_at_its_boundary_and_goes_on_where_it_was(
    http: httpx.AsyncClient, world: World
) -> None:
    gate = Gate()
    async with _running(world, gate) as id:
        asked = await _post(http, world, f"jobs/{id}/pause")
        assert (asked["changed"], asked["pending"], asked["settled"]) == (True, True, [])
        assert (asked["job"]["status"], asked["job"]["pending_pause"]) == ("RUNNING", True)
        (step,) = (await _get(http, world, f"jobs/{id}/steps"))["items"]
        assert asked["uncertain"] == [step["calls"][0]["id"]]
        assert step["calls"][0]["status"] == "intended"
        again = await _post(http, world, f"jobs/{id}/pause")
        assert (again["changed"], again["pending"]) == (False, True)
        gate.opened.set()
        await until(world, id, JobStatus.PAUSED)
        paused = await _post(http, world, f"jobs/{id}/pause")
        assert (paused["changed"], paused["pending"], paused["uncertain"]) == (False, False, [])
        assert paused["settled"] == asked["uncertain"]
        assert (await _post(http, world, f"jobs/{id}/resume"))["job"]["status"] == "RUNNING"
        await until(world, id, JobStatus.COMPLETED)
    assert gate.calls == 1


async def test_a_running_job_is_cancelled_at_its_boundary(http: httpx.AsyncClient, world: World) -> None:
    gate = Gate()
    async with _running(world, gate) as id:
        asked = await _post(http, world, f"jobs/{id}/cancel", reason="wrong branch")
        assert (asked["changed"], asked["pending"], len(asked["uncertain"])) == (True, True, 1)
        assert (asked["job"]["status"], asked["job"]["pending_cancel"]) == ("RUNNING", True)
        again = await _post(http, world, f"jobs/{id}/cancel", reason="other")
        assert (again["changed"], again["pending"]) == (False, True)
        gate.opened.set()
        await until(world, id, JobStatus.CANCELLED)
    ended = await _post(http, world, f"jobs/{id}/cancel")
    assert (ended["changed"], ended["pending"], ended["uncertain"]) == (False, False, [])
    assert ended["settled"] == asked["uncertain"], "what was under way has its outcome"


async def test_a_question_is_answered_once_and_the_job_goes_on(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    held = await held_job(world)
    path = f"jobs/{held.job}"
    job = await _get(http, world, path)
    assert (job["status"], job["holds"]) == ("PAUSED", ["uncertain_effect"])
    (question,) = (await _get(http, world, f"{path}/questions"))["items"]
    assert (question["call_id"], question["tool_name"]) == (str(held.call), "pay")
    assert (question["step_index"], question["arguments"]) == (1, {"amount": 7})
    assert "connection reset" in question["error"]
    assert "cannot tell whether it happened" in question["text"]
    before = await digests(admin)
    assert (await _post(http, world, f"{path}/resume", 409))["code"] == "still_held"
    settle = f"{path}/calls/{held.call}/settle"
    for bad in ({}, {"verdict": "maybe"}, {"verdict": "happened", "by": "me"}):
        assert (await _post(http, world, settle, 422, **bad))["code"] == "invalid_request"
    assert await digests(admin) == before
    receipt = await _post(http, world, settle, verdict="happened", result={"receipt": 7}, note="the bank says so")
    assert (receipt["changed"], receipt["job"]["status"], receipt["job"]["holds"]) == (True, "RUNNING", [])
    assert (receipt["settled"], receipt["uncertain"]) == ([str(held.call)], [])
    before = await digests(admin)
    for verdict in ("happened", "did_not_happen", "fail"):
        assert (await _post(http, world, settle, 409, verdict=verdict))["code"] == "call_settled"
    assert (await _get(http, world, f"{path}/questions"))["items"] == []
    assert await digests(admin) == before
    async with working(world.db, staging(), settings=PATIENT):
        await until(world, held.job, JobStatus.COMPLETED)
    steps = (await _get(http, world, f"{path}/steps"))["items"]
    paid = steps[1]["calls"][0]
    assert (paid["status"], paid["result"], paid["settled_by"]) == ("completed", {"receipt": 7}, "Ada")


async def test_a_call_that_did_not_happen_is_sent_again(http: httpx.AsyncClient, world: World) -> None:
    sent: list[str] = []
    app = App("tests")

    @app.tool(on_uncertain="ask_human")
    async def pay() -> str:
        """Pays."""
        sent.append("pay")
        if len(sent) == 1:
            raise RuntimeError("connection reset")
        return "paid"

    id = await submit(world, await make_agent(world, [turn(call("pay"))]))
    async with working(world.db, app, settings=PATIENT):
        await until(world, id, JobStatus.PAUSED)
        (question,) = (await _get(http, world, f"jobs/{id}/questions"))["items"]
        settle = f"jobs/{id}/calls/{question['call_id']}/settle"
        receipt = await _post(http, world, settle, verdict="did_not_happen")
        assert receipt["uncertain"] == []
        await until(world, id, JobStatus.COMPLETED)
    assert sent == ["pay", "pay"]
    (called,) = (await _get(http, world, f"jobs/{id}/steps"))["items"][0]["calls"]
    assert (called["attempt"], called["status"], called["result"]) == (2, "completed", "paid")


async def test_giving_a_call_up_fails_the_job(http: httpx.AsyncClient, world: World) -> None:
    held = await held_job(world)
    settle = f"jobs/{held.job}/calls/{held.call}/settle"
    receipt = await _post(http, world, settle, verdict="fail", note="nobody knows")
    assert receipt["job"]["status"] == "FAILED"
    for part in ("pay", "Ada", "nobody knows"):
        assert part in receipt["job"]["error_message"]
    assert (await _post(http, world, settle, 409, verdict="happened"))["code"] == "call_settled"
    assert (await _post(http, world, f"jobs/{held.job}/resubmit", 201))["status"] == "PENDING"


async def test_an_answered_job_that_an_operator_paused_stays_paused(http: httpx.AsyncClient, world: World) -> None:
    held = await held_job(world)
    assert (await _post(http, world, f"jobs/{held.job}/pause"))["changed"] is True
    settle = f"jobs/{held.job}/calls/{held.call}/settle"
    receipt = await _post(http, world, settle, verdict="happened")
    assert (receipt["job"]["status"], receipt["job"]["holds"]) == ("PAUSED", ["operator"])
    assert (await _post(http, world, f"jobs/{held.job}/resume"))["job"]["status"] == "RUNNING"


async def test_an_approver_answers_and_a_member_or_guest_does_not(http: httpx.AsyncClient, world: World) -> None:
    mel = await world.person(Role.MEMBER, name="Mel")
    held = await held_job(world, mel.actor)
    settle = f"jobs/{held.job}/calls/{held.call}/settle"
    for person in (mel, await world.person(Role.GUEST), await world.person(Role.STEWARD)):
        assert (await _post(http, person, settle, 403, verdict="happened"))["code"] == "forbidden"
    questions = await http.get(f"/v1/jobs/{held.job}/questions", headers=mel.headers)
    assert len(questions.json()["items"]) == 1, "whose job it is sees what is asked"
    approver = await world.person(Role.APPROVER, name="Abe")
    assert (await _post(http, approver, f"jobs/{held.job}/pause", 403))["code"] == "forbidden"
    receipt = await _post(http, approver, settle, verdict="happened")
    assert receipt["job"]["status"] == "RUNNING"


async def test_another_org_finds_nothing_to_steer(
    http: httpx.AsyncClient, world: World, other: World, admin: asyncpg.Connection
) -> None:
    held = await held_job(world)
    before = await digests(admin)
    for verb in ("pause", "resume", "cancel"):
        assert (await _post(http, other, f"jobs/{held.job}/{verb}", 404))["code"] == "job_not_found"
    for verb in ("pause", "resume"):
        said = await _post(http, other, f"sessions/{held.session}/{verb}", 404)
        assert said["code"] == "session_not_found"
    settle = f"jobs/{held.job}/calls/{held.call}/settle"
    assert (await _post(http, other, settle, 404, verdict="happened"))["code"] == "job_not_found"
    for part in ("steps", "checkpoint", "questions", f"results/{held.result}"):
        answer = await http.get(f"/v1/jobs/{held.job}/{part}", headers=other.admin.headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    assert await digests(admin) == before


async def test_a_held_session_holds_its_jobs_and_what_comes_after(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    job = await _post(http, world, "jobs", 201, agent="deployer")
    session = job["session_id"]
    held = await _post(http, world, f"sessions/{session}/pause", reason="too many")
    assert (held["changed"], held["pending"]) == (True, False)
    assert (held["session"]["hold_reason"], held["session"]["status"]) == ("too many", "ACTIVE")
    assert [(each["id"], each["holds"]) for each in held["jobs"]] == [(job["id"], ["session"])]
    before = await digests(admin)
    assert await _post(http, world, f"sessions/{session}/pause") == held | {"changed": False}
    assert (await _post(http, world, f"jobs/{job['id']}/resume", 409))["code"] == "still_held"
    assert await digests(admin) == before
    later = await _post(http, world, "jobs", 201, agent="deployer", session_id=session)
    assert later["holds"] == ["session"]
    await _post(http, world, f"jobs/{later['id']}/pause")
    resumed = await _post(http, world, f"sessions/{session}/resume", note="go on")
    assert (resumed["changed"], resumed["session"]["held_at"]) == (True, None)
    assert {each["id"]: each["holds"] for each in resumed["jobs"]} == {
        job["id"]: [], later["id"]: ["operator"],
    }  # fmt: skip
    before = await digests(admin)
    assert (await _post(http, world, f"sessions/{session}/resume", 409))["code"] == "failed_precondition"
    assert await digests(admin) == before
    await _post(http, world, f"sessions/{session}/terminate")
    assert (await _post(http, world, f"sessions/{session}/resume", 409))["code"] == "failed_precondition"
    assert (await _post(http, world, f"sessions/{session}/pause", 409))["code"] == "session_terminated"


async def test_a_session_is_pending_while_one_of_its_jobs_runs(http: httpx.AsyncClient, world: World) -> None:
    gate = Gate()
    async with _running(world, gate) as id:
        session = (await _get(http, world, f"jobs/{id}"))["session_id"]
        assert (await _post(http, world, f"sessions/{session}/pause"))["pending"] is True
        gate.opened.set()
        await until(world, id, JobStatus.PAUSED)
        assert (await _post(http, world, f"sessions/{session}/pause"))["pending"] is False
        await _post(http, world, f"sessions/{session}/resume")
        await until(world, id, JobStatus.COMPLETED)
