"""A job whose checkpoint cannot be trusted: whatever it does at that moment, it fails, and everybody is told why."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, RecordResult
from cortex_plane.approvals.verbs import decisions
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, CorruptionType
from cortex_plane.jobs.model.jobs import Cancellation, Job, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.notify.model.notifications import Alert
from cortex_plane.sessions.model.sessions import SessionDraft
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from tests.approvals.test_http_approvals import Door
from tests.channels.behaviour import PUBLIC_URL, drain, link
from tests.channels.postbox import Postbox, connect
from tests.dashboard.test_dashboard_approvals import shown as read
from tests.fixtures.approvals import Shipping, decide, pending, ship, shown, waiting
from tests.fixtures.credentials import by_token, form_of, link_for, token_for
from tests.fixtures.people import World
from tests.fixtures.visitors import Visitor
from tests.fixtures.webhooks import System, decision
from tests.fixtures.workers import actions, call, chains_whole, job_of, make_agent, moves, submit, turn, until, working
from tests.worker.test_notifier import notifier

C, S = CorruptionType, JobStatus

DAMAGE: dict[str, tuple[str, CorruptionType]] = {
    "a text as crc": ("checkpoint = jsonb_set(checkpoint, '{crc32}', '\"many\"')", C.CRC_NOT_A_NUMBER),
    "a fraction as crc": ("checkpoint = jsonb_set(checkpoint, '{crc32}', '1.5')", C.CRC_MISMATCH),
    "a huge crc": ("checkpoint = jsonb_set(checkpoint, '{crc32}', '1e30')", C.CRC_MISMATCH),
    "a null as crc": ("checkpoint = jsonb_set(checkpoint, '{crc32}', 'null')", C.CRC_NOT_A_NUMBER),
    "no crc": ("checkpoint = checkpoint - 'crc32'", C.MISSING_FIELD),
    "a text as step": (
        "checkpoint = jsonb_set(checkpoint, '{memory_context,working_data,$plane,step}', '\"one\"')", C.CRC_MISMATCH,
    ),
    "a list as memory context": ("checkpoint = jsonb_set(checkpoint, '{memory_context}', '[]')", C.CRC_MISMATCH),
    "a list": ("checkpoint = '[]'", C.NOT_AN_OBJECT),
    "a json null": ("checkpoint = 'null'", C.NOT_AN_OBJECT),
    "a memory of nothing": ("memory = '{}', checkpoint = jsonb_set(checkpoint, '{step_index}', '7')", C.CRC_MISMATCH),
    "another mac": ("checkpoint_mac = sha256(checkpoint_mac)", C.MAC_MISMATCH),
    "nothing": ("checkpoint = null, checkpoint_mac = null", C.CHECKPOINT_MISSING),
}  # fmt: skip


async def damage(admin: asyncpg.Connection, id: UUID, name: str) -> CorruptionType:
    change, kind = DAMAGE[name]
    await admin.execute(f"update job set {change} where id = $1", id)
    return kind


class Counted(Meters):
    def __init__(self) -> None:
        self.corruptions: list[tuple[UUID, str]] = []

    def corrupt(self, org_id: UUID, kind: str) -> None:
        self.corruptions.append((org_id, kind))


async def failed_openly(world: World, id: UUID, kind: CorruptionType, logs: list[Any], counted: Counted) -> Job:
    """FAILED, and history, log, metric and trail say that and what kind of corruption it is."""
    job = await until(world, id, S.FAILED)
    last = (await jobs.history(world.db, world.admin.actor, id))[-1]
    assert last.metadata["corruption_detected"] is True
    assert last.metadata["corruption_type"] == kind
    assert last.metadata["error"] == job.error_message
    assert (job.error_message or "").startswith("Checkpoint corruption detected: ")
    (line,) = [line for line in logs if line.get("jobId") == str(id)]
    assert (line["log_level"], line["agentId"], line["corruptionType"]) == ("error", str(job.agent_id), kind)
    assert (world.org_id, kind) in counted.corruptions
    assert "checkpoint_corrupt" in await actions(world, job)
    return job


# Every state that a job can stand in -----------------------------------------------------------------------------


class Desk:
    """Jobs in every state, and the code that goes on with them."""

    def __init__(self) -> None:
        self.shipping = Shipping()
        self.app = self.shipping.app
        self.ran: list[str] = []

        @self.app.agent
        async def sleeper(ctx: Context) -> None:
            await ctx.step("plan", self._plan)
            await ctx.sleep(3600)
            self.ran.append("after the sleep")

    async def _plan(self) -> str:
        self.ran.append("plan")
        return "planned"

    async def job_in(self, world: World, status: JobStatus, admin: asyncpg.Connection, number: int) -> UUID:
        """A job that stands in this state, and that nobody runs."""
        slug = f"{status.lower().replace('_', '-')}-{number}"
        if status is S.SLEEPING:
            id = await submit(world, await make_agent(world, [], slug=slug, run="sleeper"))
        elif status is S.PAUSED:
            agent = await make_agent(world, [turn(call("look")), turn(ship())], slug=slug)
            id = await submit(world, agent)
            async with working(world.db, self.holding(world, id)):
                await until(world, id, S.PAUSED)
            return id
        else:
            id = await submit(world, await make_agent(world, [turn(ship())], slug=slug))
        if status is S.PENDING:
            await admin.execute(
                """update job j set checkpoint = o.checkpoint, checkpoint_mac = o.checkpoint_mac from job o
                where j.id = $1 and o.checkpoint is not null""", id,
            )  # fmt: skip
            return id
        async with working(world.db, self.app):
            await until(world, id, S.SLEEPING if status is S.SLEEPING else S.WAITING_FOR_APPROVAL)
        return id

    def holding(self, world: World, id: UUID) -> App:
        app = App("tests")

        @app.tool(read_only=True)
        async def look() -> str:
            await steering.pause(world.db, world.admin.actor, id, Pause())
            return "seen"

        @app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
        async def ship(version: str, to: str = "production") -> str:
            """Ship a version."""
            return "never"

        return app


@pytest.mark.proves("S1.200", "S1.5")
@pytest.mark.parametrize("status", [S.PENDING, S.RUNNING, S.PAUSED, S.SLEEPING])
async def test_a_job_with_a_corrupt_checkpoint_fails_with_its_next_attempt(
    strict: World, admin: asyncpg.Connection, status: JobStatus
) -> None:
    desk, kinds = Desk(), dict[UUID, CorruptionType]()
    if status is S.PENDING:
        await waiting(strict, Shipping(), slug="source")
    names = [*DAMAGE] if status is not S.PENDING else [name for name in DAMAGE if name != "nothing"]
    if status in (S.PAUSED, S.RUNNING, S.PENDING):
        names = [name for name in names if name in ("a text as crc", "a list", "another mac", "nothing")]
    ids = [await desk.job_in(strict, status, admin, number) for number in range(len(names))]
    for id, name in zip(ids, names, strict=True):
        if status is S.RUNNING:
            await decide(strict, (await pending(strict, id))[0])
        assert (await job_of(strict, id)).status is status
        kinds[id] = await damage(admin, id, name)
    for id in ids:
        if status is S.PAUSED:
            await steering.resume(strict.db, strict.admin.actor, id, Resumption())
        if status is S.SLEEPING:
            await admin.execute("update job set runnable_at = plane_now() where id = $1", id)
    desk.ran.clear()
    counted = Counted()
    with capture_logs() as logs, metered(counted):
        async with working(strict.db, desk.app):
            for id, kind in kinds.items():
                await failed_openly(strict, id, kind, logs, counted)
    assert desk.ran == desk.shipping.shipped == [], "nothing was done, and nothing from the start"
    assert await chains_whole(strict)


FIELDS = (
    "checkpoint_id", "agent_id", "schema_version", "step_index", "step_id", "status", "created_at", "crc32", "active_tools",
    "execution_log", "memory_context", "memory_context,conversation_summary", "memory_context,accumulated_facts",
    "memory_context,working_data", "memory_context,token_usage", "memory_context,system_prompt_hash",
)  # fmt: skip
TYPES = ("null", '"text"', "1.5", "true", "[]", "{}")
STATES = (S.PENDING, S.RUNNING, S.WAITING_FOR_APPROVAL, S.PAUSED, S.SLEEPING)


@pytest.mark.proves("S1.200")
@pytest.mark.parametrize("status", STATES)
async def test_each_field_with_a_wrong_type_fails_a_job_in_any_state(
    strict: World, admin: asyncpg.Connection, http: httpx.AsyncClient, status: JobStatus
) -> None:
    """Another type in each state: over all states each field has most of them."""
    desk, door = Desk(), Door(http, strict.admin)
    if status is S.PENDING:
        await waiting(strict, Shipping(), slug="source")
    ids = {await desk.job_in(strict, status, admin, number): field for number, field in enumerate(FIELDS)}
    cards = dict[UUID, Any]()
    for number, (id, field) in enumerate(ids.items()):
        if status is S.RUNNING:
            await decide(strict, (await pending(strict, id))[0])
        assert (await job_of(strict, id)).status is status
        if status is S.WAITING_FOR_APPROVAL:
            cards[id] = await door.card(id)
        path, first = field.split(","), number + STATES.index(status)
        is_type = await admin.fetchval("select jsonb_typeof(checkpoint #> $2) from job where id = $1", id, path)
        assert is_type is not None, field
        values = [TYPES[(first + more) % len(TYPES)] for more in range(2)]
        for value in values:
            if await admin.fetchval("select jsonb_typeof($1::jsonb)", value) != is_type:
                await admin.execute(
                    "update job set checkpoint = jsonb_set(checkpoint, $2, $3::jsonb) where id = $1", id, path, value
                )
                break
    desk.ran.clear()
    desk.shipping.shipped.clear()
    for id in ids:
        if status is S.PAUSED:
            await steering.resume(strict.db, strict.admin.actor, id, Resumption())
        if status is S.SLEEPING:
            await admin.execute("update job set runnable_at = plane_now() where id = $1", id)
    counted = Counted()
    with capture_logs() as logs, metered(counted):
        for id, card in cards.items():
            answer = await door.decide(card, "approved")
            assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint_corrupt"), ids[id]
        async with working(strict.db, desk.app):
            for id, field in ids.items():
                await until(strict, id, S.FAILED)
                last = (await jobs.history(strict.db, strict.admin.actor, id))[-1]
                await failed_openly(strict, id, CorruptionType(last.metadata["corruption_type"]), logs, counted)
                assert last.previous_status is (S.RUNNING if status is not S.WAITING_FOR_APPROVAL else status), field
    assert desk.ran == desk.shipping.shipped == []
    assert len(counted.corruptions) == len(FIELDS)


async def test_a_job_that_has_not_begun_has_no_checkpoint_and_runs(strict: World) -> None:
    """A job that was handed back before its first step, too."""
    id = await submit(strict, await make_agent(strict, [turn(call("look"))], slug="early"))
    async with working(strict.db, Shipping().app):
        await until(strict, id, S.COMPLETED)


# Deciding ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.203")
@pytest.mark.parametrize("choice", ["approved", "denied"])
async def test_a_decision_on_a_corrupt_job_says_what_happened(
    strict: World, http: httpx.AsyncClient, admin: asyncpg.Connection, choice: str
) -> None:
    shipping, door = Shipping(), Door(http, strict.admin)
    agent = await make_agent(strict, [turn(ship())], slug="shipper")
    # Whether somebody forged one is found by the worker, which has the key for certain.
    ids = {name: await submit(strict, agent) for name in DAMAGE if name != "another mac"}
    async with working(strict.db, shipping.app):
        for id in ids.values():
            await until(strict, id, S.WAITING_FOR_APPROVAL)
    counted = Counted()
    for name, id in ids.items():
        card = await door.card(id)
        kind = await damage(admin, id, name)
        before = await admin.fetchrow("select checkpoint, checkpoint_mac from job where id = $1", id)
        with capture_logs() as logs, metered(counted):
            answer = await door.decide(card, choice)
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (409, "checkpoint_corrupt"), (name, problem)
            assert "Nothing was decided" in problem["detail"]
            assert f"job {id}" in problem["detail"]
            assert "cortex job resubmit" in problem["hint"]
            await failed_openly(strict, id, kind, logs, counted)
        assert await admin.fetchrow("select checkpoint, checkpoint_mac from job where id = $1", id) == before
        request = await shown(strict, UUID(card["approval"]["id"]))
        assert request.status is ApprovalStatus.CANCELLED
        assert "Checkpoint corruption detected" in (request.resolution_reason or "")
        again = await door.decide(card, choice)
        assert again.status_code == 409
    async with working(strict.db, shipping.app):
        assert shipping.shipped == []
    assert await admin.fetchval("select count(*) from approval_grant") == 0
    assert await chains_whole(strict)


@pytest.mark.proves("S1.203")
async def test_every_surface_reports_a_corrupt_checkpoint(
    strict: World, http: httpx.AsyncClient, admin: asyncpg.Connection
) -> None:
    async def over(door: str, asked: Approval) -> str:
        if door == "dashboard":
            visitor = await Visitor.log_in(http, strict)
            page = await visitor.get(f"/approvals/{asked.id}")
            await damage(admin, corrupt, "a fraction as crc")
            answer = await visitor.submit(page, f"/approvals/{asked.id}/decide", decision="denied", reason="no")
        elif door == "link":
            link = await link_for(strict, asked)
            form = form_of(await http.get(link))
            await damage(admin, corrupt, "a fraction as crc")
            answer = await http.post(link, data=form)
        elif door == "token":
            token = await token_for(strict, asked.id, strict.admin.actor)
            await damage(admin, corrupt, "a fraction as crc")
            answer = await by_token(http, token)
        else:
            system = await System.connected(strict)
            await system.knows(strict.admin, "ada@corp")
            await damage(admin, corrupt, "a fraction as crc")
            answer = await system.send(http, decision(asked))
        assert answer.status_code == 409, (door, answer.status_code, read(answer))
        return answer.text

    for door in ("dashboard", "link", "token", "webhook"):
        corrupt, (asked,) = await waiting(strict, Shipping(), slug=door)
        assert "checkpoint of job" in await over(door, asked), door
        assert (await until(strict, corrupt, S.FAILED)).error_message is not None
        assert (await shown(strict, asked.id)).status is ApprovalStatus.CANCELLED
    assert await chains_whole(strict)


async def test_the_others_who_wait_for_the_same_request_are_decided(strict: World, admin: asyncpg.Connection) -> None:
    shipping = Shipping()
    agent = await make_agent(strict, [turn(ship())], slug="shipper", limits={"max_concurrent_jobs": 5})
    session = await session_lifecycle.create(strict.db, strict.admin.actor, SessionDraft(agent="shipper"))
    ids = [await submit(strict, agent, session_id=session.id) for _ in range(2)]
    async with working(strict.db, shipping.app):
        for id in ids:
            await until(strict, id, S.WAITING_FOR_APPROVAL)
        (asked,) = await pending(strict)
        assert asked.invocations == 2
        await damage(admin, ids[0], "a text as crc")
        assert (await decide(strict, asked)).result is RecordResult.OK
        assert (await until(strict, ids[0], S.FAILED)).error_message is not None
        await until(strict, ids[1], S.COMPLETED)
    assert shipping.shipped == ["1.0 to production"]
    assert await chains_whole(strict)


async def test_whoever_may_not_decide_ends_no_job(strict: World, admin: asyncpg.Connection) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    await damage(admin, id, "a fraction as crc")
    stranger = await strict.person(Role.APPROVER)
    with pytest.raises(Exception, match="decide this") as refused:
        await decide(strict, asked, by=stranger)
    assert not isinstance(refused.value, CheckpointCorrupt)
    assert (await job_of(strict, id)).status is S.WAITING_FOR_APPROVAL


async def test_what_does_not_read_the_checkpoint_is_not_stopped_by_it(strict: World, admin: asyncpg.Connection) -> None:
    (expiring, (due,)), (cancelled, _) = [await waiting(strict, Shipping(), slug=slug) for slug in ("one", "two")]
    for id in (expiring, cancelled):
        await damage(admin, id, "a text as crc")
    await admin.execute(
        """update approval_request set deadline = plane_now() - interval '1 second', remind_at = null,
        next_action_at = plane_now() - interval '1 second' where id = $1""", due.id,
    )  # fmt: skip
    acted = await decisions.act_when_due(strict.db, scheduler_actor(strict.org_id, new_id(), "test"), due.id)
    assert acted is not None
    assert acted.what == "expired"
    assert (await job_of(strict, expiring)).status is S.FAILED
    await steering.cancel(strict.db, strict.admin.actor, cancelled, Cancellation())
    assert (await moves(strict, cancelled))[-1] == "CANCELLED"


# Operators -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.204")
async def test_operators_and_admins_are_alerted_on_their_channels(strict: World, admin: asyncpg.Connection) -> None:
    connection = await connect(strict)
    people = {
        "ops@example.com": await strict.person(Role.OPERATOR, name="Olga"),
        "root@example.com": strict.admin,
        "mem@example.com": await strict.person(Role.MEMBER, name="Max"),
        "gone@example.com": await strict.person(Role.OPERATOR, name="Gus"),
    }
    for address, person in people.items():
        await link(admin, strict, connection, person, address)
    await admin.execute(
        "update user_account set deactivated_at = plane_now() where id = $1", people["gone@example.com"].member_id
    )
    id, (asked,) = await waiting(strict, Shipping())
    await damage(admin, id, "a text as crc")
    post = Postbox()
    await drain(notifier(strict.db, post))
    post.received.clear()
    with pytest.raises(CheckpointCorrupt):
        await decide(strict, asked)
    await drain(notifier(strict.db, post))
    alerts = {each.target.address: each.content for each in post.received if isinstance(each.content, Alert)}
    assert set(alerts) == {"ops@example.com", "root@example.com"}
    alert = alerts["ops@example.com"]
    assert (alert.alert, alert.job_id, alert.agent) == ("checkpoint_corrupt", id, "shipper")
    assert alert.corruption_type == C.CRC_NOT_A_NUMBER
    assert alert.url == f"{PUBLIC_URL.rstrip('/')}/jobs/{id}"
    assert "Checkpoint corruption detected" in alert.message
    assert await admin.fetchval("select count(*) from notification where kind = 'alert' and status = 'delivered'") == 2


async def test_a_worker_alerts_them_too(strict: World, admin: asyncpg.Connection) -> None:
    await link(admin, strict, await connect(strict), strict.admin, "root@example.com")
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping)
    await decide(strict, asked)
    await damage(admin, id, "nothing")
    async with working(strict.db, shipping.app):
        await until(strict, id, S.FAILED)
    assert await admin.fetchval("select count(*) from notification where kind = 'alert'") == 1
    assert shipping.shipped == []
