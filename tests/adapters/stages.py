"""A job that really ran: with steps, a checkpoint, a result kept apart, and a call of which nobody knows the outcome."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from uuid import UUID

from cortex_plane.agents.model.agents import DEFAULT_APP, Agent
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.policies.model.policies import PolicyVerdict, Template
from cortex_plane.policies.model.versions import RequestPolicy
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.tools.app import App
from tests.people import World
from tests.runtime.planes import FAST, call, make_agent, turn, until, working

LARGE = "x" * 20_000
SHIP_HASH = hashlib.sha256(b'{"version":"1"}').hexdigest()
"""The digest of the arguments of the first call that asks."""
PATIENT = replace(FAST, adoption_seconds=60, dispatch_seconds=20)
"""For workers that must not lose a job while a slow machine is busy elsewhere."""


def staging(name: str = "staging") -> App:
    """Fetches something large; pays, and does not know whether it did."""
    app = App(name)

    @app.tool(read_only=True)
    async def fetch(page: int) -> dict[str, object]:
        """Fetches a page."""
        return {"page": page, "content": LARGE}

    @app.tool(on_uncertain="ask_human")
    async def pay(amount: int) -> str:
        """Pays."""
        raise RuntimeError(f"connection reset while paying {amount}")

    @app.tool(risk="high")
    async def ship(version: str) -> str:
        """Ships a version."""
        return f"{version} is out"

    return app


@dataclass(frozen=True)
class Held:
    """A job that waits for a person's answer about one call."""

    job: UUID
    session: UUID
    call: UUID
    result: UUID


async def staged_agent(world: World, slug: str = "payer") -> Agent:
    script = [turn(call("fetch", page=1), text="I look first."), turn(call("pay", amount=7), text="I pay.")]
    return await make_agent(world, script, app="staging", slug=slug)


async def held_job(world: World, acting: Actor | None = None, agent: Agent | None = None) -> Held:
    """Submitted by ``acting``, by default the admin, and run by a worker until it asks."""
    agent = agent or await staged_agent(world)
    job = await jobs.submit(world.db, acting or world.admin.actor, JobDraft(agent=agent.slug))
    async with working(world.db, staging(), settings=PATIENT) as worker:
        del worker.apps[DEFAULT_APP]  # it leaves all other jobs alone
        await until(world, job.id, JobStatus.PAUSED)
    steps = await steering.list_steps(world.db, world.admin.actor, job.id, -1, 10)
    result = steps[0].calls[0].result_id
    assert result is not None
    return Held(job.id, job.session_id, steps[1].calls[0].id, result)


@dataclass(frozen=True)
class Asking:
    """A job whose two calls wait for a person each."""

    approval: UUID
    call: UUID
    """The one that the other approval is about."""
    other: UUID
    """That approval."""


async def asking_agent(world: World) -> Agent:
    script = [turn(call("ship", version="1"), call("ship", version="2"))]
    return await make_agent(world, script, app="staging", slug="shipper")


async def asking_job(world: World, agent: Agent, acting: Actor | None = None) -> Asking:
    """Its submitter wants it to ask, whatever the org's policies allow."""
    asks = RequestPolicy(
        name="ask", target="ship", effect=PolicyVerdict.REQUIRES_APPROVAL, template=Template.DEV_ONLY
    )
    draft = JobDraft(agent=agent.slug, policies=[asks])
    job = await jobs.submit(world.db, acting or world.admin.actor, draft)
    async with working(world.db, staging(), settings=PATIENT) as worker:
        del worker.apps[DEFAULT_APP]
        await until(world, job.id, JobStatus.WAITING_FOR_APPROVAL)
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, job_id=job.id)
    first = next(each for each in page.items if each.arguments == {"version": "1"})
    (step,) = await steering.list_steps(world.db, world.admin.actor, job.id, -1, 10)
    assert first.input_hash == SHIP_HASH
    second = next(each for each in page.items if each.id != first.id)
    return Asking(first.id, step.calls[1].id, second.id)


async def card_of(world: World, call_id: UUID) -> UUID:
    """The card that asks whether a call happened."""
    return (await approvals.approval_for_call(world.db, world.admin.actor, call_id)).id
