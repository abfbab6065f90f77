"""Rows of an org in every table, and ways to look at them from inside and from behind row-level security."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.completions import ModelUsage
from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice, DelegationDraft
from cortex_plane.approvals.verbs import approvals, credentials, decisions
from cortex_plane.calls.model import CallDraft, OutcomeDraft, OutcomeStatus, ResolutionRequest
from cortex_plane.calls.verbs import calls, outcomes, resolutions
from cortex_plane.gates.model.atlases import AtlasHandover
from cortex_plane.gates.verbs import atlases, session_lifecycle
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, JobStatus
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.model.usage import ModelCall
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.notify import store as notify_store
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind, SessionStateDraft
from cortex_plane.sessions.verbs import events, states
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import ModelKeyDraft, Provider
from cortex_plane.tenancy.model.identities import LinkDraft
from cortex_plane.tenancy.model.orgs import AbsenceDraft, Role
from cortex_plane.tenancy.verbs import keys, links, logins, orgs
from cortex_plane.tenancy.verbs.frame import RequestRates
from tests.fixtures.atlases import plain, publish
from tests.fixtures.notifications import dead_letter
from tests.fixtures.people import World
from tests.fixtures.standing_approvals import given_standing
from tests.fixtures.tool_confirmations import confirmed, offered
from tests.storage.leases import Held, call, ledger, make_worker, step

# Tables that belong to no org, each with its reason. A test proves that nothing in them could name one.
NOT_A_TENANTS = {
    "schema_migration": "what was applied to this database",
    "worker": "processes of the platform, which run jobs of every org",
    "notifier": "processes of the platform, which send messages of every org",
    "tool_version": "the code that workers loaded",
    "tool_server": "programs of the platform beside its workers",
    "plane_key": "the fingerprint of the key that the whole plane signs with",
    "credential_key": "what recognises the credentials of every org, sealed",
    "platform_policy": "rows that limit every org, written by whoever migrates",
    "platform_policy_version": "how often those rows have changed",
}


async def populate(world: World) -> None:
    """At least one row in every table of the org. The job that was claimed for it is handed back."""
    await world.say("Hello")
    once = IdempotencyKey(key=f"{world.org_id}", fingerprint=bytes(32))
    await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug), once)
    held = await Held.claim_of(world.db, await make_worker(world.db), world.org_id)
    large = (new_id(), b"large")
    refused = call(position=1, status="rejected", verdict=None)
    await world.db.call("append_chunks", world.org_id, held.given.job_id, held.worker, held.given.epoch, 0, ["hm"])
    await held.write(StepWrite(step=step(), **ledger(call(), refused), dispatches=True, stored=(large,)))
    assert await events.append_chunks(world.db, held.given, held.worker, 1, ["I "])
    await _spend(world, held)
    memory = {"message_seq": 1, "summary": "They said hello.", "facts": ["It was polite."]}
    await held.write(StepWrite(more={"memory": memory}))
    entry = {"key": "plan#0", "position": 0, "kind": "step", "name": "plan", "input_hash": "ab" * 32, "status": "open"}
    await held.write(StepWrite(more={"journal": [entry]}))
    await held.write(StepWrite(status=JobStatus.RUNNING))
    await _approve_one(world)
    await _go_away(world)
    await _link(world)
    await agents_store.publish_tools(world.db, [offered()], world.org_id)
    await _chat(world)
    await _hear(world)
    await _signal(world)
    await _call_elsewhere(world)
    await confirmed(world)
    await _govern(world)
    await RequestRates(1).take(world.db, world.admin.actor)
    await audit.make_root(world.db, world.org_id)
    await logins.issue_enrolment_code(
        world.db, world.admin.actor, (await world.person(Role.MEMBER, name="New")).member_id
    )
    for _ in range(2):
        link = await logins.issue_own_login_link(world.db, world.admin.actor)
        await logins.log_in(world.db, link.url_path.rpartition("/")[2])


async def _signal(world: World) -> None:
    """A signal, and a job that waited for it. It is over afterwards."""
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    worker = await make_worker(world.db)
    while (held := await Held.claim_of(world.db, worker, world.org_id)).given.job_id != job.id:
        await held.write(StepWrite(status=JobStatus.PAUSED, hold="code_changed"))
    wait = {"entry": "paid#0", "name": "paid", "key": "order-1"}
    await held.write(StepWrite(status=JobStatus.SLEEPING, delay_seconds=None, more={"waits": [wait]}))
    await steering.send_signal(
        world.db, world.admin.actor, SignalDraft(name="paid", key="order-1", payload={"amount": 3})
    )
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())


async def _govern(world: World) -> None:
    """An atlas, a session that is bound to it, what its gates remember, and a minute in which a call ran."""
    await publish(world, plain("com.example.governed", "1.0.0"))
    handover = AtlasHandover(member_id=world.admin.member_id)
    await atlases.hand_over_atlas(world.db, world.admin.actor, "com.example.governed", handover)
    other = await world.person(Role.STEWARD, name="Another steward")
    assert (await publish(world, plain("com.example.governed", "2.0.0"), other.actor)).waits is not None
    draft = SessionDraft(agent=world.agent.slug, atlases=["com.example.governed"])
    session = await session_lifecycle.create(world.db, world.admin.actor, draft)
    gates = {"revision": 0, "state": {"executed": 1}, "minutes": {"com.example.governed": 9}}
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("select record_gates($1, $2, $3, plane_now())", world.org_id, session.id, gates)


async def _call_elsewhere(world: World) -> None:
    """A call of an agent that runs elsewhere, under a resolution: allowed, and not begun; and one that two processes asked for."""
    draft = SessionDraft(agent=world.agent.slug, kind=SessionKind.EXTERNAL)
    session = await session_lifecycle.create(world.db, world.admin.actor, draft)
    await states.save_session_state(
        world.db, world.admin.actor, session.id, SessionStateDraft(text="a run", replaces=0)
    )
    asked = CallDraft(tool="pay.out", parameters={"type": "object"}, key="order-1")
    allowed = await calls.authorize_call(world.db, world.admin.actor, session.id, asked)
    request = ResolutionRequest(action="pay.out")
    given = await resolutions.resolve(world.db, world.admin.actor, session.id, request)
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("select execute_resolution($1, $2, $3, plane_now())", world.org_id, given.id, allowed.id)
    for name in ("first", "second"):
        draft_of_one = CallDraft(tool="pay.out", key=name, runner=name, sender=name, dispatch=True)
        call = await calls.authorize_call(world.db, world.admin.actor, session.id, draft_of_one)
    await outcomes.settle_call(world.db, world.admin.actor, call.id, OutcomeDraft(status=OutcomeStatus.COMPLETED))


async def _spend(world: World, held: Held) -> None:
    """A key of the org's own, and an answer that was paid for with it."""
    await keys.put_model_key(
        world.db, world.admin.actor, Provider.ANTHROPIC, ModelKeyDraft(key="sk-ant-of-the-org-0001")
    )
    asked = ModelCall(
        id=new_id(), step_index=0, purpose="step", model="anthropic:m", estimated=False, seconds=1.0,
        usage=ModelUsage(prompt_tokens=10, completion_tokens=5), cost_micros=7,
    )  # fmt: skip
    await held.write(StepWrite(more={"usage": [asked.row()]}))


async def _hear(world: World) -> None:
    """An event from another system, and its answer."""
    async with world.db.transaction(world.org_id) as tx:
        await notify_store.claim_webhook(tx, world.connection.id, "evt-1", bytes(32))
        await notify_store.answer_webhook(tx, world.connection.id, "evt-1", {"result": "OK"})


async def _link(world: World) -> None:
    """A code that nobody has typed yet, one that was typed wrong, and somebody who logs in at a vendor."""
    async with world.db.transaction(world.org_id) as tx:
        member, session = world.admin.member_id, new_id()
        await tenancy_store.begin_account_link(tx, world.connection.id, member, session, new_id(), "state")
    await links.issue_link_code(world.db, world.admin.actor)
    wrong = LinkDraft(code="0000000000", external_user_id="u-1")
    with contextlib.suppress(InvalidInput):
        await links.redeem_link_code(world.db, world.service.actor, world.connection.id, wrong)


async def _chat(world: World) -> None:
    """Somebody in a chat, what they did there, a message that asked them for words, and a process that listens."""
    async with world.db.transaction(world.org_id) as tx:
        where = (world.org_id, world.connection.id)
        await tx.rows(
            "insert into channel_event (org_id, connection_id, event_id, lane, payload) values ($1, $2, 'e-1', 1, '{}')",
            *where,
        )
        await tx.rows(notify_store.queries.upsert_chat, world.org_id, new_id(), world.connection.id, "c-1", "u-1", None)
        await tx.rows(notify_store.queries.insert_prompt, *where, "c-1", "m-1", "u-1", "c1:d:x:1")
        await tx.rows(
            "insert into channel_listener (org_id, connection_id, leased_until) values ($1, $2, plane_now())", *where
        )


async def _go_away(world: World) -> None:
    away = await world.person(Role.MEMBER, name="Away")
    delegate = world.admin.actor.user_account_id
    assert delegate is not None
    async with world.db.transaction(world.org_id) as tx:
        now: datetime = await tx.value("select plane_now()")
    draft = AbsenceDraft(member_id=away.actor.user_account_id, delegate_id=delegate, ends_at=now + timedelta(days=1))
    await orgs.create_absence(world.db, world.admin.actor, draft)


async def _approve_one(world: World) -> None:
    """A request with its vote and its grant. Its job is over afterwards."""
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    worker = await make_worker(world.db)
    while (held := await Held.claim_of(world.db, worker, world.org_id)).given.job_id != job.id:
        await held.write(StepWrite(status=JobStatus.PAUSED, hold="code_changed"))
    sent = call()
    (id,) = await held.ask(sent)
    await _credentials_for(world, id)
    await dead_letter(world, id)
    taker = await world.person(Role.ADMIN, name="Taker")
    await approvals.delegate(world.db, world.admin.actor, id, DelegationDraft(to=taker.member_id))
    decision = ApprovalDecision(decision=Choice.APPROVED, version=1, input_hash=call()["input_hash"])
    await decisions.decide(world.db, taker.actor, id, decision, Channel.API)
    standing = UUID(await given_standing(world, id, world.admin.actor))
    async with world.db.transaction(world.org_id) as tx:
        await tx.call("use_standing", world.org_id, held.given.session_id, standing, UUID(sent["id"]), 1)
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())


async def _credentials_for(world: World, approval_id: UUID) -> None:
    """A token for the request, and the secret that signs its links."""
    approval = (await approvals.get_approval(world.db, world.admin.actor, approval_id)).approval
    member_id = world.admin.actor.user_account_id
    assert approval.deadline is not None
    assert member_id is not None
    async with world.db.transaction(world.org_id) as tx:
        _, row = credentials.draft_token(
            tx, approval_id=approval_id, member_id=member_id, notification_id=None, version=approval.version,
            input_hash=approval.input_hash, expires_at=approval.deadline,
        )  # fmt: skip
        await approvals_store.insert_tokens(tx, [row])
        await credentials.signing_secret(world.db, tx)


async def tables(admin: asyncpg.Connection, *, partitions: bool = False) -> list[str]:
    """The tenants' tables; partitions are left out, because their parents show the same rows."""
    rows = await admin.fetch(
        """
        select relname::text from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname <> all ($1::text[])
          and ($2 or not relispartition)
        order by relname
        """,
        list(NOT_A_TENANTS),
        partitions,
    )
    return [row["relname"] for row in rows]


def org_column(table: str) -> str:
    return "id" if table == "org" else "org_id"


async def digest(admin: asyncpg.Connection, names: list[str], org: UUID | None = None) -> dict[str, str]:
    """One text per table that changes with every write to a row of the org (of any org without one)."""
    found: dict[str, str] = json.loads(await admin.fetchval(digests(names, org)))
    return found


def digests(names: list[str], org: UUID | None) -> str:
    """The query for it: one object."""
    parts = [
        f"""
        select '{name}', coalesce(md5(string_agg(t.xmin::text || t::text, ',' order by t::text)), 'empty')
        from {name} t {f"where {org_column(name)} = '{org}'" if org else ""}
        """
        for name in names
    ]
    return f"select jsonb_object_agg(name, digest) from ({' union all '.join(parts)}) as each (name, digest)"


@asynccontextmanager
async def inside(connection: asyncpg.Connection, org: UUID) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of the org, as the plane opens them."""
    async with connection.transaction():
        await connection.execute("select set_config('app.org_id', $1, true)", str(org))
        yield connection
