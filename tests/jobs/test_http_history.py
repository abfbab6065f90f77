"""What a job's history and its checkpoint say of its approvals, and that every change of a job moves its time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.verbs import decisions
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_approvals import ask
from tests.approvals.test_http_approvals import Door
from tests.fixtures.approvals import Shipping, decide, pending, ship, waiting
from tests.fixtures.people import World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import call, job_of, make_agent, submit, turn, until, working

S = JobStatus


async def history(door: Door, id: UUID) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await door.get(f"jobs/{id}/history"))["items"]
    return items


@pytest.fixture
def door(http: httpx.AsyncClient, strict: World) -> Door:
    return Door(http, strict.admin)


@pytest.mark.proves("S0.200")
async def test_history_names_the_approvals_and_who_decided_them(strict: World, door: Door) -> None:
    shipping = Shipping()
    bea = await strict.person(Role.ADMIN, name="Bea")
    await apply_policies(strict.db, strict.admin.actor, ask(approvers="{roles: [admin]}", self_approval="true"))
    id, asked = await waiting(strict, shipping, ship(), ship("2.0"))
    assert len(asked) == 2
    wait = (await history(door, id))[-1]
    assert (wait["new_status"], wait["metadata"]["open_approvals"]) == ("WAITING_FOR_APPROVAL", 2)
    assert wait["metadata"]["approvals"] == [{"id": str(each), "tool": "ship"} for each in sorted(a.id for a in asked)]
    await decide(strict, asked[0])
    await decide(strict, asked[1], by=bea)
    back = (await history(door, id))[-1]
    assert (back["previous_status"], back["new_status"]) == ("WAITING_FOR_APPROVAL", "RUNNING")
    by = {asked[0].id: strict.admin, asked[1].id: bea}
    assert back["metadata"]["approvals"] == [
        {
            "id": str(id), "tool": "ship", "status": "approved", "decided_by": by[id].actor.name,
            "decided_by_id": str(by[id].member_id), "via": "api",
        }
        for id in sorted(by)
    ]  # fmt: skip
    async with working(strict.db, shipping.app):
        await until(strict, id, S.COMPLETED)
    assert (await history(door, id))[-1]["metadata"] == {}


@pytest.mark.proves("S0.200", "S1.202")
@pytest.mark.parametrize("end", ["denied", "expired", "cancelled"])
async def test_history_and_checkpoint_say_how_a_request_ended(
    strict: World, door: Door, admin: asyncpg.Connection, end: str
) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    before = await door.get(f"jobs/{id}/checkpoint")
    assert (before["status"], before["active_tools"][0]["status"]) == ("awaiting_approval", "pending")
    if end == "denied":
        answer = await door.decide(await door.card(id), "denied", reason="not on a Friday")
        assert answer.status_code == 200, answer.text
    elif end == "expired":
        await admin.execute(
            """update approval_request set deadline = plane_now() - interval '1 second', remind_at = null,
            next_action_at = plane_now() - interval '1 second' where id = $1""", asked.id,
        )  # fmt: skip
        await decisions.act_when_due(strict.db, scheduler_actor(strict.org_id, new_id(), "test"), asked.id)
    else:
        assert (await door.post(f"jobs/{id}/cancel", {})).status_code == 200
    last = (await history(door, id))[-1]
    (said,) = last["metadata"]["approvals"]
    assert (last["new_status"], said["id"]) == ("CANCELLED" if end == "cancelled" else "FAILED", str(asked.id))
    assert (said.get("status"), said.get("decided_by")) == {
        "denied": ("denied", strict.admin.actor.name), "expired": ("expired", None), "cancelled": (None, None),
    }[end]  # fmt: skip
    blob = await door.get(f"jobs/{id}/checkpoint")
    (tool,) = blob["active_tools"]
    assert (blob["status"], tool["status"]) == ("failed", "failed")
    if end != "cancelled":
        assert {"denied": "denied by", "expired": "timed out"}[end] in tool["result"]["error"]


async def test_the_page_of_a_job_shows_who_decided(http: httpx.AsyncClient, strict: World) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked)
    page = (await (await Visitor.log_in(http, strict)).get(f"/jobs/{id}")).text
    assert f"approved by {strict.admin.actor.name}" in page
    assert f'href="/approvals/{asked.id}"' in page


# updated_at -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S0.201")
async def test_every_change_of_a_job_moves_its_time(strict: World, admin: asyncpg.Connection) -> None:
    shipping, last = Shipping(), None
    id, asked = await waiting(strict, shipping, ship(), ship("2.0"))
    last = (await job_of(strict, id)).updated_at

    async def moved() -> None:
        nonlocal last
        now = (await job_of(strict, id)).updated_at
        assert last is not None
        assert now > last
        last = now

    await decide(strict, asked[0])
    await moved()
    await steering.pause(strict.db, strict.admin.actor, id, Pause())
    await moved()
    await decide(strict, asked[1])
    await moved()
    await steering.resume(strict.db, strict.admin.actor, id, Resumption())
    await moved()
    async with working(strict.db, shipping.app):
        await until(strict, id, S.COMPLETED)
    await moved()
    columns = await admin.fetch(
        """select column_name as name from information_schema.columns
        where table_name = 'job' and column_name not in ('updated_at', 'queue')"""
    )
    assert len(columns) > 30
    for column in columns:
        await admin.execute(f"update job set {column['name']} = {column['name']} where id = $1", id)
        await moved()


# Tools under way --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.201")
async def test_a_call_that_was_sent_is_running_and_small_results_stay_until_the_step_is_over(
    http: httpx.AsyncClient, world: World
) -> None:
    door, seen = Door(http, world.admin), list[dict[str, Any]]()
    shipping, ids = Shipping(), list[UUID]()

    @shipping.app.tool
    async def act(what: str) -> str:
        seen.append(await door.get(f"jobs/{ids[0]}/checkpoint"))
        return f"{what} is done"

    agent = await make_agent(world, [turn(call("look"), call("act", what="a"), call("act", what="b"))])
    ids.append(await submit(world, agent))
    async with working(world.db, shipping.app):
        await until(world, ids[0], S.COMPLETED)
    shown = [[(tool["status"], tool["result"]) for tool in blob["active_tools"]] for blob in seen]
    done = ("completed", "seen")
    assert shown == [
        [done, ("running", None), ("pending", None)],
        [done, ("completed", "a is done"), ("running", None)],
    ]
    over = await door.get(f"jobs/{ids[0]}/checkpoint")
    assert over["status"] == "completed"
    assert {tool["result"] for tool in over["active_tools"]} <= {None}


async def test_an_uncertain_call_is_running_for_whoever_resumes_it(world: World, http: httpx.AsyncClient) -> None:
    app = Shipping().app

    @app.tool(on_uncertain="ask_human")
    async def pay() -> str:
        raise RuntimeError("the line broke")

    id = await submit(world, await make_agent(world, [turn(call("pay"))]))
    async with working(world.db, app):
        await until(world, id, S.PAUSED)
    (tool,) = (await Door(http, world.admin).get(f"jobs/{id}/checkpoint"))["active_tools"]
    assert (tool["status"], tool["result"]) == ("running", None)
    assert len(await pending(world, id)) == 1
