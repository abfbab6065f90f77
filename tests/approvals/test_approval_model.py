"""Hypothesis plays with requests, people, operators and the clock; the database must always be where the model is.

A short form runs with every `make test`, the long one with `make soak`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cortex_plane.approvals.model.approvals import Choice, DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, Pause, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import CortexError, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import Termination
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.acceptance.test_campaign import INVARIANTS
from tests.approvals.approval_model import CLEARANCES, POLICIES, RULES, Job, Model, Request
from tests.approvals.test_approval_races import PROMISES
from tests.fixtures.approvals import decide, shown
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.servers import TestServer
from tests.fixtures.warm_databases import WarmDatabases
from tests.fixtures.workers import call, make_agent, turn, working

T = TypeVar("T")
EXAMPLES = int(os.environ.get("CORTEX_MODEL_EXAMPLES", "300"))
START = datetime(2026, 3, 15, 12, tzinfo=UTC)
ROLES = {"Boss": (Role.ADMIN, Role.APPROVER), "Low": (Role.APPROVER,), "High": (Role.APPROVER,),
         "Op": (Role.OPERATOR,), "Mem": (Role.MEMBER,)}  # fmt: skip

# What an agent sends in its one response: some of it twice.
SCRIPTS: dict[str, list[tuple[str, str]]] = {
    "one": [("ship", "1")],
    "twice": [("ship", "1"), ("ship", "1")],
    "both": [("ship", "1"), ("tell", "1")],
    "three": [("tell", "1"), ("ship", "1"), ("ship", "2")],
    "told": [("tell", "1"), ("tell", "2")],
    "signed": [("sign", "1")],
    "sealed": [("sign", "1"), ("ship", "1")],
}
BUSY = "select count(*) from job where runnable_at is not null or worker_id is not null"
SNAPSHOT = {
    "requests": """
        select id, status, version, invocations, reminded_at is not null, arguments ->> 'version', escalation_level
        from approval_request""",
    "votes": "select approval_id, version, member, decision from approval_vote",
    "delegations": "select approval_id, from_member from approval_delegation",
    "jobs": "select id, status, open_approvals, holds <> '{}' from job",
    "calls": "select job_id, position, status, arguments ->> 'version' from tool_call where status <> 'intended'",
    "grants": """
        select c.job_id, c.position, g.approval_id, g.consumed_at is not null
        from approval_grant g join tool_call c on c.id = g.call_id""",
}


class Approvals(RuleBasedStateMachine):
    runner: asyncio.Runner
    databases: WarmDatabases
    server: TestServer
    begins_with: str | None = None
    """What is asked for before anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(START)
        self.shipped: Counter[tuple[UUID, str, str]] = Counter()
        self.run(self._set_up())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    async def _set_up(self) -> None:
        self.warm = await self.databases.take(self.server)
        self.db, self.admin = await self.warm.database(), await self.warm.admin()
        self.clock = await Clock.install(self.admin, START)
        self.world = await World.create(self.db, "acme", policies=None)
        self.people: dict[str, Person] = {"Ada": self.world.admin}
        for person, roles in ROLES.items():
            self.people[person] = await self.world.person(*roles, name=person, clearance=CLEARANCES[person])
        await apply_policies(self.db, self.world.admin.actor, POLICIES)
        self.app = App("tests")

        @self.app.tool(timeout=5, on_uncertain="retry_with_key")
        async def ship(version: str, ctx: ToolContext) -> str:
            self.shipped[ctx.job_id, "ship", version] += 1
            return "out"

        @self.app.tool(timeout=5, on_uncertain="retry_with_key")
        async def tell(version: str, ctx: ToolContext) -> str:
            self.shipped[ctx.job_id, "tell", version] += 1
            return "told"

        @self.app.tool(timeout=5, on_uncertain="retry_with_key")
        async def sign(version: str, ctx: ToolContext) -> str:
            self.shipped[ctx.job_id, "sign", version] += 1
            return "signed"

        for slug, script in SCRIPTS.items():
            if self.begins_with not in (None, slug):
                continue
            calls = [call(tool, version=version) for tool, version in script]
            await make_agent(self.world, [turn(*calls)], slug=slug)

    # Jobs ------------------------------------------------------------------------------------------------------

    async def _submit(self, slug: str, owner: str, session: UUID | None) -> None:
        draft = JobDraft(agent=slug, session_id=session, payload={"text": "go"})
        job = await jobs.submit(self.db, self.people[owner].actor, draft)
        self.model.submit(job.id, job.session_id, owner, SCRIPTS[slug])
        self.agents[job.session_id] = slug

    async def _work(self) -> None:
        self.model.work()
        async with working(self.db, self.app), asyncio.timeout(30):
            while await self.admin.fetchval(BUSY):  # noqa: ASYNC110 -- the worker is done when it is
                await asyncio.sleep(0.005)
        known = {request.id for request in self.model.requests if request.id is not None}
        rows = await self.admin.fetch(
            "select id, session_id, tool_name, arguments ->> 'version' as version from approval_request"
            " where id <> all ($1)",
            list(known),
        )
        for row in rows:
            (request,) = [
                r for r in self.model.requests
                if r.id is None and (r.session, r.tool, r.arguments) == tuple(row)[1:]
            ]  # fmt: skip
            request.id = row["id"]

    @initialize()
    def no_sessions(self) -> None:
        self.agents: dict[UUID, str] = {}
        if self.begins_with is not None:
            self.run(self._submit(self.begins_with, "Ada", None))
            self.run(self._work())

    @rule(
        slug=st.sampled_from([*sorted(SCRIPTS), "signed", "sealed", "signed"]), owner=st.sampled_from(["Ada", "Boss"])
    )
    def ask(self, slug: str, owner: str) -> None:
        self.run(self._submit(slug, owner, None))
        self.run(self._work())

    @precondition(lambda self: self._open_sessions())
    @rule(n=st.integers(0, 99))
    def ask_in_the_same_session(self, n: int) -> None:
        session = self._open_sessions()[n % len(self._open_sessions())]
        owner = next(job.owner for job in self.model.jobs if job.session == session)
        self.run(self._submit(self.agents[session], owner, session))
        self.run(self._work())

    def _open_sessions(self) -> list[UUID]:
        return [session for session in self.agents if session not in self.model.ended_sessions]

    @rule()
    def run_a_worker(self) -> None:
        self.run(self._work())

    # People ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.requests)
    @rule(
        n=st.integers(0, 99),
        person=st.sampled_from(["Ada", "Boss", "High", "High", "Boss", "Low", "Op", "Mem"]),
        choice=st.sampled_from([Choice.APPROVED, Choice.APPROVED, Choice.APPROVED, Choice.DENIED]),
        open_only=st.booleans(),
    )
    def decide(self, n: int, person: str, choice: Choice, open_only: bool) -> None:
        self._decide(self._request(n, open_only), person, choice)

    @precondition(lambda self: self.model.requests)
    @rule(
        n=st.integers(0, 99), person=st.sampled_from(["Boss", "High", "Low"]), edited=st.sampled_from(["e", "f", "?"])
    )
    def approve_edited(self, n: int, person: str, edited: str) -> None:
        request = self._request(n, open_only=True)
        told = self.model.decide(request, person, Choice.APPROVED, edited=edited)
        arguments = {"version": 7 if edited == "?" else edited}
        assert self._told(request, person, Choice.APPROVED, arguments=arguments) == told

    @precondition(lambda self: any(r.version > 1 and r.status == "pending" for r in self.model.requests))
    @rule(n=st.integers(0, 99), person=st.sampled_from(["Boss", "High"]))
    def decide_what_was_seen_before(self, n: int, person: str) -> None:
        changed = [r for r in self.model.requests if r.version > 1 and r.status == "pending"]
        request = changed[n % len(changed)]
        told = self.model.decide(request, person, Choice.APPROVED, stale=True)
        assert self._told(request, person, Choice.APPROVED, version=request.version - 1) == told

    @precondition(lambda self: self._open(2))
    @rule(
        n=st.integers(0, 99),
        person=st.sampled_from(["Boss", "High", "Low", "Op", "Mem"]),
        how=st.sampled_from(["approve"] * 4 + ["edit", "edit", "deny"]),
    )
    def vote(self, n: int, person: str, how: str) -> None:
        some = self._open(2)
        request = some[n % len(some)]
        if how == "edit":
            told = self.model.decide(request, person, Choice.APPROVED, edited="ef"[n % 2])
            arguments = {"version": "ef"[n % 2]}
            assert self._told(request, person, Choice.APPROVED, arguments=arguments) == told
        else:
            self._decide(request, person, Choice.DENIED if how == "deny" else Choice.APPROVED)

    @precondition(lambda self: self._open(2))
    @rule(n=st.integers(0, 99))
    def all_vote(self, n: int) -> None:
        """Everybody who could, one after the other: the last ones are late."""
        some = self._open(2)
        request = some[n % len(some)]
        for person in sorted(self.model.able(request)):
            self._decide(request, person, Choice.APPROVED)
        assert request.status == "approved"

    @precondition(lambda self: self.model.requests)
    @rule(
        n=st.integers(0, 99),
        person=st.sampled_from(["Boss", "High", "Low", "Ada", "Mem", "Op"]),
        to=st.sampled_from(["Mem", "Op", "High", "Low", "Boss", "Mem"]),
    )
    def hand_on(self, n: int, person: str, to: str) -> None:
        self._hand_on(self._request(n, open_only=n % 5 > 0), person, to)

    @precondition(lambda self: any(r.said_yes() for r in self._open(2)))
    @rule(n=st.integers(0, 99), to=st.sampled_from(["Mem", "Op"]))
    def hand_on_after_a_vote(self, n: int, to: str) -> None:
        voted = [r for r in self._open(2) if r.said_yes()]
        request = voted[n % len(voted)]
        self._hand_on(request, min(request.said_yes()), to)

    def _hand_on(self, request: Request, person: str, to: str) -> None:
        told = self.model.delegate(request, person, to)

        async def delegate() -> str:
            assert request.id is not None
            draft = DelegationDraft(to=self.people[to].member_id, reason="you know better")
            try:
                await approvals.delegate(self.db, self.people[person].actor, request.id, draft)
            except NotFound:
                return "not_found"
            except CortexError as error:
                return error.code
            return "delegated"

        assert self.run(delegate()) == told

    def _open(self, quorum: int) -> list[Request]:
        return [
            r for r in self.model.requests if r.status == "pending" and RULES[r.tool].quorum == quorum
        ]  # fmt: skip

    def _request(self, n: int, open_only: bool) -> Request:
        some = [r for r in self.model.requests if r.status == "pending"] if open_only else []
        some = some or self.model.requests
        return some[n % len(some)]

    def _decide(self, request: Request, person: str, choice: Choice) -> None:
        told = self.model.decide(request, person, choice)
        assert self._told(request, person, choice) == told

    def _told(self, request: Request, person: str, choice: Choice, **more: Any) -> str:
        async def ask() -> str:
            assert request.id is not None
            approval = await shown(self.world, request.id)
            try:
                return (await decide(self.world, approval, choice, self.people[person], **more)).result.value
            except NotFound:
                return "not_found"
            except CortexError as error:
                return error.code

        return self.run(ask())

    # Operators -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(n=st.integers(0, 99))
    def hold(self, n: int) -> None:
        job = self._job(n)
        told = self.model.hold(job)
        assert self._steered(steering.pause(self.db, self.people["Op"].actor, job.id, Pause())) == told

    @precondition(lambda self: any(job.held for job in self.model.jobs))
    @rule(n=st.integers(0, 99))
    def resume(self, n: int) -> None:
        held = [job for job in self.model.jobs if job.held]
        job = held[n % len(held)]
        told = self.model.resume(job)
        assert self._steered(steering.resume(self.db, self.people["Op"].actor, job.id, Resumption())) == told

    @precondition(lambda self: len(self.model.jobs) > 1)
    @rule(n=st.integers(0, 99))
    def cancel(self, n: int) -> None:
        job = self._job(n)
        told = self.model.cancel(job)
        assert self._steered(steering.cancel(self.db, self.people["Op"].actor, job.id, Cancellation())) == told

    @precondition(lambda self: len(self._open_sessions()) > 1)
    @rule(n=st.integers(0, 99))
    def terminate(self, n: int) -> None:
        session = self._open_sessions()[n % len(self._open_sessions())]
        self.model.terminate(session)

        async def end() -> None:
            await session_lifecycle.terminate(self.db, self.people["Ada"].actor, session, Termination())

        self.run(end())

    def _job(self, n: int) -> Job:
        return self.model.jobs[n % len(self.model.jobs)]

    def _steered(self, verb: Awaitable[Any]) -> str:
        async def steer() -> str:
            try:
                return "changed" if (await verb).changed else "unchanged"
            except CortexError as error:
                return error.code

        return self.run(steer())

    # Time ------------------------------------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([7, 100, 100, 23 * 60]))
    def time_passes(self, minutes: int) -> None:
        self.model.now += timedelta(minutes=minutes)

        async def tick() -> list[UUID]:
            await self.clock.set(self.model.now)
            await deadlines.tick(self.db, new_id(), "s")
            rows = await self.admin.fetch(
                "select approval_id from approval_event where event_type = 'expired' order by id"
            )
            return [row[0] for row in rows]

        expired = self.run(tick())
        # Which of several that are due at the same moment comes first is the database's choice.
        self.model.tick(lambda request: expired.index(request.id) if request.id in expired else len(expired))

    # Always ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_where_the_model_is(self) -> None:
        model = self.model
        wanted: dict[str, set[tuple[Any, ...]]] = {
            "requests": {
                (r.id, r.status, r.version, len(r.calls), r.reminded, r.arguments, r.level)
                for r in model.requests
            },
            "votes": {(r.id, *vote, said) for r in model.requests for vote, said in r.votes.items()},
            "delegations": {(r.id, person) for r in model.requests for person in r.delegated},
            "jobs": {(j.id, j.status, len(model.open_requests(j)), j.held) for j in model.jobs},
            "calls": {(j.id, c.position, c.status, c.version) for j in model.jobs for c in j.calls},
            "grants": {
                (j.id, c.position, request, used)
                for j in model.jobs for c in j.calls for request, (_, used) in c.grants.items()
            },
        }  # fmt: skip

        async def look() -> dict[str, set[tuple[Any, ...]]]:
            return {name: {tuple(row) for row in await self.admin.fetch(query)} for name, query in SNAPSHOT.items()}

        found = self.run(look())
        for name in SNAPSHOT:
            assert found[name] == wanted[name], name
        assert self.shipped == model.shipped

    def teardown(self) -> None:
        async def finish() -> tuple[list[str], list[Any]]:
            # Here time passes: what was approved and not sent in time is asked for again.
            kept = {k: q for k, q in PROMISES.items() if k != "a job that left the waiting more than once"}
            broken = [name for name, q in (INVARIANTS | kept).items() if await self.admin.fetch(q)]
            faults = (await audit.verify(self.db, self.world.admin.actor)).faults
            await self.db.hints.close()
            await self.databases.give_back(self.warm)
            return broken, faults

        assert self.run(finish()) == ([], [])


def _play(server: TestServer, examples: int, steps: int, *, derandomize: bool, **changes: Any) -> None:
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=derandomize, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    databases = WarmDatabases()
    with asyncio.Runner() as runner:
        shared = {"runner": runner, "databases": databases, "server": server}
        machine = type("Machine", (Approvals,), {**shared, **changes})
        try:
            run_state_machine_as_test(machine, settings=chosen)
        finally:
            runner.run(databases.close())


VOTING: dict[str, Any] = {
    "begins_with": "signed",
    **dict.fromkeys(("ask", "hold", "resume", "cancel", "terminate", "decide", "approve_edited")),
}
"""Only what several people do to one request: without the other rules each step is about that."""


@pytest.mark.proves("D.206")
def test_votes_delegation_and_escalation_follow_their_model(server: TestServer) -> None:
    _play(server, 6, 50, derandomize=True, **VOTING)


@pytest.mark.soak
def test_votes_delegation_and_escalation_follow_their_model_for_long(server: TestServer) -> None:
    _play(server, EXAMPLES, 40, derandomize=False, **VOTING)


@pytest.mark.proves("D.106")
def test_the_lifecycle_follows_its_model(server: TestServer) -> None:
    _play(server, 6, 40, derandomize=True)


@pytest.mark.soak
def test_the_lifecycle_follows_its_model_for_long(server: TestServer) -> None:
    _play(server, EXAMPLES, 40, derandomize=False)
