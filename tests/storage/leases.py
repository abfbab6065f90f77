"""Queues, workers and claims for tests that talk to the durable core directly, without a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import Agent, AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.approvals.model.approvals import ApprovalKind, NewRequest
from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.checkpoints import CheckpointStatus, Progress, seal
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules import Assignment, NewStep, StepWrite, WriteResult
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OWNER_DECIDES, Terms
from cortex_plane.tenancy.model.access import Fact, worker_actor
from tests.fixtures.people import World

LEASE = timedelta(seconds=30)
APP = "plane"


async def make_agent(world: World, slug: str, limit: int = 5) -> Agent:
    draft = AgentDraft(
        name=slug, slug=slug, role="Tester", team="main", model_config=ModelConfig(model="scripted"),
        resource_limits=ResourceLimits(max_concurrent_jobs=limit),
    )  # fmt: skip
    return await agents.create_agent(world.db, world.admin.actor, draft)


async def queue(
    admin: asyncpg.Connection,
    world: World,
    count: int = 1,
    *,
    agent: Agent | None = None,
    session: UUID | None = None,
    **columns: Any,
) -> list[UUID]:
    """Jobs straight into the table: each in a session of its own unless one is given. Columns as they are named."""
    agent_id = (agent or world.agent).id
    sessions = [session] * count if session else [new_id() for _ in range(count)]
    if session is None:
        await admin.execute(
            "insert into session (org_id, id, kind, agent_id, status, opened_by)"
            " select $1, s, 'programmatic', $2, 'ACTIVE', $1 from unnest($3::uuid[]) s",
            world.org_id, agent_id, sessions,
        )  # fmt: skip
        await admin.execute(
            "insert into session_head (org_id, session_id) select $1, s from unnest($2::uuid[]) s",
            world.org_id, sessions,
        )  # fmt: skip
    made = [new_id() for _ in range(count)]
    names = "".join(f", {name}" for name in columns)
    places = "".join(f", ${n}" for n in range(5, 5 + len(columns)))
    await admin.execute(
        f"insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload{names})"
        f" select $1, j, s, $2, 1, 'task', '{{}}'{places} from unnest($3::uuid[], $4::uuid[]) q (j, s)",
        world.org_id, agent_id, made, sessions, *columns.values(),
    )  # fmt: skip
    return made


async def make_worker(db: Database, *, lease: timedelta = LEASE, name: str = "w") -> UUID:
    id = new_id()
    await jobs_store.register_worker(db, id, name, "host", 1, [APP], 8, lease)
    return id


async def claim(
    db: Database, worker: UUID, wanted: int = 1, *, after: UUID = NOBODY, apps: Sequence[str] = (APP,)
) -> list[Assignment]:
    claimed, _ = await jobs_store.claim_jobs(db, worker, apps, wanted, after)
    return claimed


@dataclass
class Held:
    """A lease as a worker keeps it: every write carries its number."""

    db: Database
    worker: UUID
    given: Assignment
    number: int = field(default=0)
    dispatch_seconds: float = 2.0

    @classmethod
    async def claim(cls, db: Database, worker: UUID) -> Held:
        (given,) = await claim(db, worker)
        return cls(db, worker, given, given.write_seq)

    @classmethod
    async def claim_of(cls, db: Database, worker: UUID, org: UUID) -> Held:
        """The next job of this org, whoever else has some: the one before it was served last."""
        (given,) = await claim(db, worker, after=UUID(int=org.int - 1))
        return cls(db, worker, given, given.write_seq)

    async def write(self, write: StepWrite | None = None, **changes: Any) -> WriteResult | None:
        """The next write; whoever changes worker, epoch or number says so."""
        sent = {"worker": self.worker, "epoch": self.given.epoch, "number": self.number + 1, **changes}
        write = write or StepWrite()
        write = replace(write, policies=write.policies or self.given.policies)
        given = replace(self.given, epoch=sent["epoch"])
        written = await jobs_store.advance_job(
            self.db, given, sent["worker"], sent["number"], write, self.dispatch_seconds
        )
        if written is not None and sent["number"] == self.number + 1:
            self.number += 1
        return written

    async def ask(self, *calls: dict[str, Any], terms: Terms = OWNER_DECIDES, **more: Any) -> list[UUID]:
        """Let go of the job and ask for these calls; the requests, in the calls' order."""
        requests = tuple(request_for(each, terms) for each in calls)
        awaiting = [
            {**each, "status": "awaiting", "verdict": "requires_approval", "on_uncertain": None} for each in calls
        ]
        progress = Progress(
            self.given.agent_id,
            "0" * 64,
            status=CheckpointStatus.AWAITING_APPROVAL,
            checkpoint_id=new_id(),
            created_at=self.given.now,
        )
        key = self.db.vault.checkpoint_key(self.given.org_id)
        sealed = seal(progress, job_id=self.given.job_id, key=key)
        write = StepWrite(
            step=step(), **ledger(*awaiting), status=JobStatus.WAITING_FOR_APPROVAL, requests=requests,
            policies=self.given.policies, asked_by=worker_actor(self.given.org_id, self.worker, "w"),
            **{"checkpoint": sealed.stored, "mac": sealed.mac, **more},
        )  # fmt: skip
        written = await steps.advance(self.db, self.given, self.worker, self.number + 1, write, self.dispatch_seconds)
        assert written is not None
        return [request.id for request in requests]

    @property
    def fact(self) -> Fact:
        actor = worker_actor(self.given.org_id, self.worker, "w")
        return Fact.of(actor, "job_handed_back", job=str(self.given.job_id))


def step(index: int = 0, message_seq: int = 0) -> NewStep:
    return NewStep(
        {"text": "hm", "calls": []},
        index=index,
        message_seq=message_seq,
        prompt_tokens=3,
        completion_tokens=4,
        seconds=0,
    )


def call(**changes: Any) -> dict[str, Any]:
    """An authorised intent, as the runtime writes one."""
    fields: dict[str, Any] = {
        "id": str(new_id()), "step": 0, "position": 0, "tool": "send", "digest": "ab" * 32,
        "arguments": {"to": "Ada"}, "input_hash": "cd" * 32, "read_only": False, "on_uncertain": "ask_human",
        "verdict": "allow", "rule": "default", "timeout_seconds": 10.0,
        "status": "intended",
    }  # fmt: skip
    return {**fields, **changes}


def request_for(call: dict[str, Any], terms: Terms = OWNER_DECIDES) -> NewRequest:
    return NewRequest(
        id=new_id(), kind=ApprovalKind.CALL, call_id=UUID(call["id"]), step_index=call["step"],
        tool_name=call["tool"], tool_digest=call["digest"], arguments=orjson.dumps(call["arguments"]),
        input_hash=call["input_hash"], risk="high", summary=f"somebody wants to call {call['tool']}",
        agent_says=None, asked_for=None, question=None, rule="default", policy_version="0.1", terms=terms,
    )  # fmt: skip


def ledger(*given: dict[str, Any]) -> dict[str, Any]:
    """These calls as the parts of a ``Write``: what may be large stands beside the rows, which name it by number."""
    results = [each["result"] for each in given if "result" in each]
    rows = [{**each, "arguments": n} for n, each in enumerate(given, 1)]
    for n, row in enumerate((row for row in rows if "result" in row), 1):
        row["result"] = n
    return {
        "calls": orjson.dumps(rows),
        "arguments": tuple(orjson.dumps(each["arguments"]).decode() for each in given),
        "results": tuple(orjson.dumps(result).decode() for result in results),
    }
