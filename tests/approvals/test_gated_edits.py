"""Edits of calls that atlases govern: the edited call is authorised like any other, by gates and policies, before it is approved."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobStatus
from tests.fixtures import external_gates
from tests.fixtures.approvals import pending
from tests.fixtures.gated import ATLAS, DELETE, Desk, atlas, before, delete, gate, governed, question, say
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import submit, turn, until, whole, working

W, OVER = JobStatus.WAITING_FOR_APPROVAL, (JobStatus.COMPLETED, JobStatus.FAILED)
YES = turn(say("delete-confirm", sure="understood"))
SCHEMA = {"type": "object", "properties": {"id": {"enum": ["1", "2"]}}}
DECLARED = [{"action_id": "ticket.delete", "name": "Delete", "risk_tier": "medium", "parameters_schema": SCHEMA}]
ASKS = """
policies:
  - {name: ask, target: ticket.delete, effect: requires_approval}
  - {name: rest, target: '*', effect: allow}
"""


async def parked(world: World, desk: Desk, manifest: str, *script: dict[str, Any]) -> tuple[UUID, Approval]:
    """A job that waits for a person, and its card."""
    id = await submit(world, await governed(world, manifest, *script))
    async with working(world.db, desk.app):
        await until(world, id, W, *OVER)
    (card,) = await pending(world, id)
    return id, card


async def decide(http: httpx.AsyncClient, world: World, card: Approval, **arguments: str) -> httpx.Response:
    body: dict[str, Any] = {"decision": "approved", "version": card.version, "input_hash": card.input_hash}
    if arguments:
        body["arguments"] = arguments
    return await http.post(f"/v1/approvals/{card.id}/decide", json=body, headers=world.admin.headers)


async def finish(world: World, desk: Desk, id: UUID) -> None:
    async with working(world.db, desk.app):
        job = await until(world, id, W, *OVER)
    assert job.status is JobStatus.COMPLETED, job.error_message
    assert await whole(world)


async def run_edited(http: httpx.AsyncClient, world: World, desk: Desk, id: UUID, card: Approval) -> None:
    edited = await decide(http, world, card, id="2")
    assert edited.status_code == 200, edited.text
    await finish(world, desk, id)
    assert desk.deleted == ["delete 2"]


@pytest.mark.proves("S4.15")
async def test_an_edit_does_not_pass_a_gate_that_was_answered_for_other_arguments(
    http: httpx.AsyncClient, world: World
) -> None:
    await apply_policies(world.db, world.admin.actor, ASKS)
    desk = Desk()
    id, card = await parked(world, desk, atlas(DELETE), turn(delete("1")), YES, turn(delete("1")))
    refused = await decide(http, world, card, id="2")
    assert (refused.status_code, refused.json()["code"]) == (403, "edit_denied"), refused.text
    assert f"by gate:{ATLAS}/delete-confirm: the gate `delete-confirm` must be answered first" in refused.text
    assert "the agent" in refused.json()["hint"]
    assert (await decide(http, world, card)).status_code == 200
    await finish(world, desk, id)
    assert desk.deleted == ["delete 1"]


@pytest.mark.parametrize("asks", ["a policy", "the atlas", "a gate"])
@pytest.mark.proves("S4.15")
async def test_an_edit_must_fit_the_atlas_and_runs_where_it_does(
    http: httpx.AsyncClient, world: World, asks: str
) -> None:
    if asks == "a policy":
        await apply_policies(world.db, world.admin.actor, ASKS)
    gates, rules = [], [{"policy_id": "all", "type": "allow", "actions": ["*"]}]
    if asks == "the atlas":
        rules.insert(0, {"policy_id": "ask", "type": "requires_approval", "actions": ["ticket.delete"]})
    elif asks == "a gate":
        gates = [gate("four-eyes", before("ticket.delete"), audience="human", questions=[question("looked")])]
    desk = Desk()
    manifest = atlas(*gates, actions=DECLARED, policies=rules)
    id, card = await parked(world, desk, manifest, turn(delete("1")))
    refused = await decide(http, world, card, id="3")
    assert (refused.status_code, refused.json()["code"]) == (403, "edit_denied"), refused.text
    assert "its arguments do not fit its atlas" in refused.json()["detail"]
    await run_edited(http, world, desk, id, card)


@pytest.mark.proves("S4.15")
async def test_code_of_a_worker_keeps_no_edit_from_its_calls(http: httpx.AsyncClient, world: World) -> None:
    """A trigger that only workers load does not stand before the calls that a worker sends."""
    await apply_policies(world.db, world.admin.actor, ASKS)
    desk = Desk()

    @desk.app.trigger("mood")
    def mood(text: str, params: dict[str, Any]) -> bool:
        return False

    custom = gate("mood", {"type": "custom", "trigger_id": "mood"}, questions=[question("agree")])
    id, card = await parked(world, desk, atlas(custom), turn(delete("1")))
    await run_edited(http, world, desk, id, card)


@pytest.mark.proves("S4.15")
async def test_an_edit_of_a_call_elsewhere_meets_its_gates(http: httpx.AsyncClient, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, ASKS)
    await external_gates.governed(world)
    session = await external_gates.opened(http, world.service, agrees=True)
    path, schema = f"/sessions/{session}/calls", {"type": "object", "properties": {"ticket_id": {"type": "string"}}}
    call = {**external_gates.DELETE, "parameters": schema, "key": "one"}
    await external_gates.sent(http, world.service, path, 409, **call)
    await external_gates.sent(http, world.service, f"/sessions/{session}/answers", **external_gates.SURE)
    made = await external_gates.sent(http, world.service, path, 201, **call)
    card = (await approvals.get_approval(world.db, world.admin.actor, UUID(made["approval_id"]))).approval
    refused = await decide(http, world, card, ticket_id="T-2")
    assert (refused.status_code, refused.json()["code"]) == (403, "edit_denied"), refused.text
    assert "delete-confirm" in refused.json()["detail"]
    assert (await decide(http, world, card)).status_code == 200
    intent = f"/calls/{made['id']}/intent"
    begun = await external_gates.sent(http, world.service, intent, input_hash=made["input_hash"])
    assert begun["next"] == "run"
