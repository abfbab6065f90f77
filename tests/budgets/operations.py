"""The operations that have a budget: a step, a decision, a guarded call, a message, a claim. `make profile` runs the same.

Each is a context that prepares so many repetitions and yields a function that performs one of them and nothing else. No worker
loop runs: jobs are claimed and attempted directly, so that no beat and no poll falls into a repetition.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
from benchmarks.peers.payloads import TOOL_ARGUMENTS, TOOL_RESULT, words

from cortex_plane import App, Client, Context
from cortex_plane.agents import store as agents_store
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.channels.email import EmailChannel, Mail, SmtpPool
from cortex_plane.channels.mail_servers import SmtpServer
from cortex_plane.db.database import NOBODY
from cortex_plane.http.app import framed
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.rules import Assignment
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs.outbox import PER_LANE
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.attempt import Attempt
from cortex_plane.worker.code.attempt import CodeAttempt
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.worker import JobRunner, WorkerSettings, attempt_of
from tests.fixtures.approvals import decide, pending
from tests.fixtures.atlases import plain, publish
from tests.fixtures.macs import sign_mappings
from tests.fixtures.notifications import COPY
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, make_agent, submit, turn

Perform = Callable[[], Awaitable[object]]
Operation = Callable[["Stage", int], AbstractAsyncContextManager[Perform]]

TEXT = words(240, 1)
STEPS = 100_000
GATES = 100
ACT = {"tool": "act", "arguments": TOOL_ARGUMENTS}
LOOK = {"tool": "look", "arguments": TOOL_ARGUMENTS}


@dataclass(frozen=True)
class Stage:
    """A plane with one org that allows everything, one that asks for everything, and the API without a socket."""

    world: World
    strict: World
    api: Any

    def client(self, secret: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(framed(self.api)),
            base_url="http://plane",
            headers={"Authorization": f"Bearer {secret}"},
        )


class Pace:
    """Holds a job at one place in each of its steps."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._go = asyncio.Event()
        self._ended = False

    async def hold(self) -> None:
        self._arrived.set()
        await self._go.wait()
        if not self._ended:
            self._go.clear()

    async def arrived(self) -> None:
        await self._arrived.wait()

    async def step(self) -> None:
        """Let the job go on until it is held again."""
        self._arrived.clear()
        self._go.set()
        await self._arrived.wait()

    def end(self) -> None:
        """Hold nothing any more."""
        self._ended = True
        self._go.set()


def effects(name: str, pace: Pace) -> App:
    """Each step is held in its tool: by then everything of the step before is written."""
    app = App(name)

    @app.tool(on_uncertain="retry_with_key")
    async def act(tool: str, region: str, count: int, dry_run: bool, note: str) -> dict[str, Any]:
        """The side effect of a step."""
        await pace.hold()
        return TOOL_RESULT

    @app.tool(read_only=True)
    async def look(tool: str, region: str, count: int, dry_run: bool, note: str) -> dict[str, Any]:
        """A tool that only reads."""
        await pace.hold()
        return TOOL_RESULT

    async def act_when_paced() -> dict[str, Any]:
        await pace.hold()
        return TOOL_RESULT

    @app.agent("endless")
    async def run(ctx: Context) -> None:
        while True:
            await ctx.step("act", act_when_paced, repeatable=True)

    return app


# Jobs ------------------------------------------------------------------------------------------------------------


class Hands:
    """A worker that is only a row, so that nothing of it runs by itself."""

    def __init__(self, world: World, app: App, backends: Backends | None = None, **settings: Any) -> None:
        self._db, self._app = world.db, app.name
        self.worker = JobRunner(world.db, [app], KEY, WorkerSettings(**settings), name="budgets")
        self._host = replace(self.worker._host, backends=backends or Backends())

    async def register(self) -> None:
        names = sorted(self.worker.apps)
        lease = timedelta(hours=1)
        await jobs_store.register_worker(self._db, self.worker.id, self.worker.name, "nowhere", 1, names, 1000, lease)
        await agents_store.publish_tools(self._db, [v for app in self.worker.apps.values() for v in app.versions])

    async def claim(self) -> Assignment:
        (claimed,), _ = await jobs_store.claim_jobs(self._db, self.worker.id, [self._app], 1, NOBODY)
        return claimed

    def attempt(self, assignment: Assignment) -> Attempt | CodeAttempt:
        return attempt_of(self._host, assignment)


def unique(label: str) -> str:
    return f"{label}-{uuid4().hex[:12]}"


@asynccontextmanager
async def _steps(
    world: World, label: str, calls: Sequence[dict[str, Any]], *, defer_seconds: float = 0.0, **skills: Any
) -> AsyncIterator[Perform]:
    """One job without an end; each repetition is its next step."""
    pace, name = Pace(), unique(label)
    hands = Hands(world, effects(name, pace), defer_seconds=defer_seconds)
    await hands.register()
    script = [turn(*calls, repeat=True)]
    agent = await make_agent(world, script, app=name, slug=name, limits={"max_iterations": STEPS}, **skills)
    job = await submit(world, agent)
    attempt = hands.attempt(await hands.claim())
    running = asyncio.create_task(attempt.run())
    arrived = asyncio.create_task(pace.arrived())
    await asyncio.wait([running, arrived], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        arrived.cancel()
        await running
        raise AssertionError(f"the job of {label} ended before its first step")
    try:
        yield pace.step
    finally:
        await steering.cancel(world.db, world.admin.actor, job, Cancellation())
        attempt.interrupt()
        pace.end()
        await running


@asynccontextmanager
async def step_with_effect(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _steps(stage.world, "effect", [ACT]) as perform:
        yield perform


@asynccontextmanager
async def step_in_one_commit(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _steps(stage.world, "deferred", [ACT], defer_seconds=60) as perform:
        yield perform


@asynccontextmanager
async def step_that_reads(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _steps(stage.world, "read", [LOOK]) as perform:
        yield perform


@asynccontextmanager
async def step_of_code(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _steps(stage.world, "code", [], run="endless") as perform:
        yield perform


async def _atlas(world: World, *more: dict[str, Any]) -> str:
    """An atlas of 100 gates, of which only ``more`` fire."""
    atlas = unique("com.acme.budgets").replace("-", ".x")
    gates: list[dict[str, Any]] = [
        {
            "checkpoint_id": f"g{number}",
            "name": f"g{number}",
            "mode": "advisory",
            "trigger": {"type": "action_pre", "patterns": [f"service_{number}.*"]}
            if number % 2
            else {"type": "keyword", "patterns": [f"word{number}"]},
        }
        for number in range(GATES - len(more))
    ]
    await publish(world, plain(atlas, "1.0.0", checkpoints=[*gates, *more]))
    return atlas


@asynccontextmanager
async def step_with_quiet_gates(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """A step with a side effect in a session with an atlas, of which no gate fires."""
    async with _steps(stage.world, "quiet", [ACT], atlases=[await _atlas(stage.world)]) as perform:
        yield perform


@asynccontextmanager
async def step_with_gates(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """A step with a side effect in a session with an atlas, of which one gate fires and is traced."""
    fires = {
        "checkpoint_id": "seen",
        "name": "Seen",
        "mode": "observational",
        "trigger": {"type": "action_pre", "patterns": ["act"]},
    }
    async with _steps(stage.world, "gates", [ACT], atlases=[await _atlas(stage.world, fires)]) as perform:
        yield perform


@asynccontextmanager
async def claim(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """One job is claimed; as many wait as there are repetitions."""
    name = unique("claim")
    hands = Hands(stage.world, effects(name, Pace()))
    await hands.register()
    agent = await make_agent(stage.world, [], app=name, slug=name, limits={"max_concurrent_jobs": 10_000})
    jobs = [await submit(stage.world, agent) for _ in range(times)]
    claimed: list[Assignment] = []

    async def perform() -> None:
        claimed.append(await hands.claim())

    try:
        yield perform
    finally:
        for job in jobs:
            await steering.cancel(stage.world.db, stage.world.admin.actor, job, Cancellation())
        for assignment in claimed:
            attempt = hands.attempt(assignment)
            attempt.interrupt()
            await attempt.run()


# People ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _asking(stage: Stage, times: int) -> AsyncIterator[tuple[list[UUID], list[Attempt | CodeAttempt]]]:
    """Jobs that are claimed, each about to ask for an approval."""
    world, name = stage.strict, unique("asking")
    hands = Hands(world, effects(name, Pace()))
    await hands.register()
    script = [turn(ACT, text="I act.")]
    agent = await make_agent(world, script, app=name, slug=name, limits={"max_concurrent_jobs": 10_000})
    jobs = [await submit(world, agent) for _ in range(times)]
    try:
        yield jobs, [hands.attempt(await hands.claim()) for _ in jobs]
    finally:
        for job in jobs:
            await steering.cancel(world.db, world.admin.actor, job, Cancellation())


@asynccontextmanager
async def approval_request(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """The first attempt of a job: its model is asked, its call needs an approval, and the lease is given up."""
    async with _asking(stage, times) as (_, ready):
        yield lambda: ready.pop(0).run()


@asynccontextmanager
async def _requests(stage: Stage, times: int) -> AsyncIterator[list[Approval]]:
    async with _asking(stage, times) as (jobs, ready):
        for attempt in ready:
            await attempt.run()
        yield [(await pending(stage.strict, job))[0] for job in jobs]


@asynccontextmanager
async def decision(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _requests(stage, times) as requests:
        yield lambda: decide(stage.strict, requests.pop(0))


@asynccontextmanager
async def decision_over_http(stage: Stage, times: int) -> AsyncIterator[Perform]:
    async with _requests(stage, times) as requests, stage.client(stage.strict.admin.secret) as client:

        async def perform() -> None:
            request = requests.pop(0)
            body = {"decision": "approved", "version": request.version, "input_hash": request.input_hash}
            answer = await client.post(f"/v1/approvals/{request.id}/decide", json=body)
            assert answer.status_code == 200, answer.text

        yield perform


class Envelopes:
    """Takes the place of a mail server's conversations."""

    async def send(self, mail: Mail) -> None:
        assert mail.content


@asynccontextmanager
async def mails(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """Twenty mails to one approver: claimed, rendered, sent and written down. All but the mail server."""
    name = unique("mails")
    world = await World.create(stage.world.db, name, policies=None)
    approver = await world.person(Role.APPROVER, name="Bea")
    await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text=ASK))
    channel = EmailChannel(SmtpServer.parse("smtp://127.0.0.1:25"), "plane@example.com")
    channel._pool = cast("SmtpPool", Envelopes())
    hands = Hands(world, effects(name, Pace()))
    await hands.register()
    agent = await make_agent(world, [turn(ACT, text="I act.")], app=name, slug=name)
    job = await submit(world, agent)
    await hands.attempt(await hands.claim()).run()
    (asked,) = await pending(world, job)
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows(WAY, world.org_id, new_id(), new_id(), approver.actor.user_account_id)
    await sign_mappings(world.db, world.org_id)
    async with world.db.transaction(world.org_id) as tx:
        for row in await tx.rows(COPY, asked.id, 1, times * PER_LANE):
            await tx.rows("select notify_approvers($1, $2)", world.org_id, row["id"])
    notifier = Notifier(world.db, [channel], "https://plane.example")
    yield notifier.turn
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    while await notifier.turn():
        pass


ASK = 'policies: [{name: ask, target: "*", effect: requires_approval, approvers: {roles: [approver]}, timeout: 1d}]'
WAY = """
with way as (insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, 'email', 'mail') returning id)
insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
select $1, $3, w.id, $4, 'email', 'bea@example.com', plane_now() from way w
"""


@asynccontextmanager
async def message(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """A further message of somebody whose conversation is open."""
    perform = _messages(stage, lambda: "somebody")
    await perform()
    yield perform


@asynccontextmanager
async def first_message(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """The first message of somebody new: account, identity, session and job are made."""
    yield _messages(stage, lambda: uuid4().hex)


def _messages(stage: Stage, person: Callable[[], str]) -> Perform:
    world = stage.world

    async def perform() -> None:
        inbound = InboundMessage(external_user_id=person(), agent=world.agent.slug, text=TEXT)
        await sessions.ingest_message(world.db, world.service.actor, world.connection.id, inbound)

    return perform


@asynccontextmanager
async def guarded_call(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """`plane.guard` around a function that does nothing: the client and the API together."""
    name = unique("guarded")
    await make_agent(stage.world, [], app=name, slug=name)
    transport = httpx.ASGITransport(framed(stage.api))
    async with Client("http://plane", stage.world.service.secret, transport=transport) as client:

        @client.guard("budgets.act", agent=name, on_uncertain="fail")
        async def act(note: str) -> dict[str, Any]:
            return TOOL_RESULT

        yield lambda: act(json.dumps(TOOL_ARGUMENTS))


@asynccontextmanager
async def policy_apply(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """A policy file with 20 rows, of which one differs from the version before."""
    world = stage.world
    rows = "".join(
        f"  - {{name: r{n}, target: svc{n}.*, effect: requires_approval, when: args.amount > {n}, approvers: {{roles: [admin]}}}}\n"
        for n in range(18)
    )
    rest = "  - {name: rest, target: '*', effect: allow}\n"
    texts = [f"policies:\n{rows}  - {{name: new-{n}, target: once, effect: deny}}\n{rest}" for n in range(times)]

    async def perform() -> None:
        await policies.apply_policies(world.db, world.admin.actor, PolicyFile(text=texts.pop(0)))

    yield perform


@asynccontextmanager
async def known_work(stage: Stage, times: int) -> AsyncIterator[Perform]:
    """Four statements, of which one reads a whole table and one writes a row: shows that the meter sees them."""
    world = stage.world

    async def perform() -> None:
        async with world.db.transaction(world.org_id) as tx:
            await tx.rows("select count(*) from message where text <> ''")
            await tx.rows("update user_account set display_name = 'Ada' where id = $1", world.admin.member_id)

    yield perform


OPERATIONS: dict[str, Operation] = {
    "step_with_effect": step_with_effect,
    "step_in_one_commit": step_in_one_commit,
    "step_that_reads": step_that_reads,
    "step_of_code": step_of_code,
    "step_with_quiet_gates": step_with_quiet_gates,
    "step_with_gates": step_with_gates,
    "approval_request": approval_request,
    "decision": decision,
    "decision_over_http": decision_over_http,
    "guarded_call": guarded_call,
    "mails": mails,
    "message": message,
    "first_message": first_message,
    "claim": claim,
    "policy_apply": policy_apply,
}
