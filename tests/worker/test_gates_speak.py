"""Where an atlas allows a call, and no policy says anything: who is asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from tests.fixtures.atlases import govern, publish
from tests.fixtures.external_gates import opened, permissions, sent
from tests.fixtures.gated import atlas, governed
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import call, submit, turn, until, working

NOTES = {"capability_id": "notes", "name": "Notes", "actions": ["note.*"]}
OPEN = atlas(capabilities=[NOTES], policies=[{"policy_id": "mail", "type": "allow", "actions": ["mail.send"]}])


def desk(risk: str | None) -> App:
    app = App("tests")

    @app.tool(name="note.add", risk=risk, on_uncertain="retry_with_key", timeout=5)
    async def note(text: str) -> str:
        return text

    @app.tool(name="mail.send", risk=risk, on_uncertain="retry_with_key", timeout=5)
    async def mail(text: str) -> str:
        return text

    return app


async def rules_of(world: World, risk: str | None, *, text: str = OPEN) -> list[str | None]:
    """By which rule each of two calls runs; `None` where a person is asked."""
    agent = await governed(world, text, turn(call("note.add", text="1"), call("mail.send", text="2")))
    id = await submit(world, agent)
    async with working(world.db, desk(risk)):
        await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.WAITING_FOR_APPROVAL)
    return [rule if status == "completed" else None for status, rule in await verdicts(world, id)]


async def verdicts(world: World, id: UUID) -> list[tuple[str, str]]:
    async with world.db.transaction(world.org_id) as tx:
        rows = await tx.rows("select status, rule from tool_call where job_id = $1 order by step_index, position", id)
    return [(row["status"], row["rule"]) for row in rows]


@pytest.mark.proves("S5.200")
@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_an_open_capability_and_an_allowing_policy_let_a_call_run_without_a_policy_of_the_org(
    strict: World, risk: str
) -> None:
    assert await rules_of(strict, risk) == ["capability:com.acme.desk/notes", "atlas:com.acme.desk/mail"]


@pytest.mark.proves("S5.200")
@pytest.mark.parametrize("risk", ["high", "critical", None])
async def test_a_tool_that_is_risky_or_does_not_say_how_risky_it_is_keeps_the_default(
    strict: World, risk: str | None
) -> None:
    await strict.person(Role.APPROVER)  # the platform's policy asks them about critical calls
    assert await rules_of(strict, risk) == [None, None]


@pytest.mark.proves("S5.200")
async def test_the_risk_that_the_atlas_gives_an_action_counts_where_it_is_higher(strict: World) -> None:
    actions = [{"action_id": "note.add", "risk_tier": "high"}, {"action_id": "mail.send"}]
    text = atlas(
        capabilities=[NOTES],
        policies=[{"policy_id": "mail", "type": "allow", "actions": ["mail.send"]}],
        actions=actions,
    )
    agent = await governed(strict, text, turn(call("mail.send", text="2")), turn(call("note.add", text="1")))
    id = await submit(strict, agent)
    async with working(strict.db, desk("low")):
        await until(strict, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.WAITING_FOR_APPROVAL)
    assert await verdicts(strict, id) == [("completed", "atlas:com.acme.desk/mail"), ("awaiting", "default:owner")]


@pytest.mark.proves("S5.200")
async def test_a_policy_of_the_org_that_matches_holds_beside_the_atlas(strict: World) -> None:
    text = 'policies: [{name: ask, target: "note.*", effect: requires_approval}]'
    await apply_policies(strict.db, strict.admin.actor, text)
    agent = await governed(strict, OPEN, turn(call("mail.send", text="2")), turn(call("note.add", text="1")))
    id = await submit(strict, agent)
    async with working(strict.db, desk("low")):
        await until(strict, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.WAITING_FOR_APPROVAL)
    mail, (status, rule) = await verdicts(strict, id)
    assert mail == ("completed", "atlas:com.acme.desk/mail")
    assert (status, rule.partition("@")[0]) == ("awaiting", "org:ask")


@pytest.mark.proves("S5.200")
async def test_a_call_that_runs_elsewhere_is_spoken_for_where_its_agent_declares_its_risk(
    http: httpx.AsyncClient, strict: World
) -> None:
    await publish(strict, OPEN)
    await govern(strict, "com.acme.desk")
    session = await opened(http, strict.service)
    path, note = f"/sessions/{session}/calls", {"tool": "note.add", "arguments": {"text": "1"}}

    async def asked(**more: Any) -> tuple[str, str, bool]:
        made = await sent(http, strict.service, path, 201, **note, **more)
        return made["status"], made["rule"], made["declares_risk"]

    assert await asked(risk="low", dispatch=True) == ("intended", "capability:com.acme.desk/notes", True)
    allowed = await sent(http, strict.service, path, 201, **note, risk="medium", key="later")
    assert (allowed["status"], allowed["rule"]) == ("allowed", "capability:com.acme.desk/notes")
    # What it declared holds when it begins as well.
    begun = await sent(http, strict.service, f"/calls/{allowed['id']}/intent", input_hash=allowed["input_hash"])
    assert (begun["status"], begun["next"]) == ("intended", "run")
    assert await asked(risk="high") == ("awaiting", "default:owner", True)
    assert await asked() == ("awaiting", "default:owner", False)
    for risk, decision in (("low", "allow"), ("high", "requires_approval"), (None, "requires_approval")):
        body = {"action": "note.add", "arguments": {"text": "1"}, **({"risk": risk} if risk else {})}
        answer = await sent(http, strict.service, f"/sessions/{session}/resolve", 201, **body)
        assert answer["decision"] == decision, risk


@pytest.mark.proves("S5.200")
async def test_permissions_say_of_published_tools_what_their_calls_meet(http: httpx.AsyncClient, strict: World) -> None:
    agent = await governed(strict, OPEN, turn(text="done"))
    for risk, state in ((None, "asks_first"), ("medium", "allowed"), (None, "asks_first"), ("high", "asks_first")):
        async with working(strict.db, desk(risk)):
            id = await submit(strict, agent)
            job = await until(strict, id, JobStatus.COMPLETED)
        actions = (await permissions(http, strict.admin, str(job.session_id)))["actions"]
        assert {each["action"]: each["state"] for each in actions}["note.add"] == state, risk
