"""A play of `test_four_eyes_model.py`: random humans shape calls, decide about them, settle them, and what is sent is checked."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, ModelConfig, ResourceLimits
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDecision,
    Channel,
    Choice,
    DelegationDraft,
    EffectAnswer,
    StandingDraft,
)
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.calls.model import CallDraft, IntentDraft, OutcomeDraft, OutcomeStatus
from cortex_plane.calls.verbs import calls, deadlines, outcomes
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import CallStatus, Verdict
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import CortexError, Unauthenticated
from cortex_plane.kernel.fields import Risk, adapter
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs import webhooks
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.sessions.model.sessions import InboundMessage, MessageDraft, SessionChange, SessionDraft, SessionKind
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import AbsenceDraft
from cortex_plane.tenancy.verbs import frame, logins, orgs
from tests.approvals.four_eyes_ledger import Call, Credential, Question, Thread
from tests.approvals.four_eyes_people import POLICIES, ROLES, Stage, nothing
from tests.approvals.four_eyes_plot import Plot
from tests.fixtures.stages import PATIENT
from tests.fixtures.tool_confirmations import DIGEST
from tests.fixtures.webhooks import System, decision
from tests.fixtures.workers import turn, working

SCHEMA = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
SOURCES = ("clerk", "clerk", "mover", "waiter")
BUSY = "select count(*) from job where runnable_at <= plane_now() or worker_id is not null"
NEWS = """
    select i.approval_id, r.kind, i.call_id, c.job_id, c.tool_name, r.arguments ->> 'n' as argument, r.approvers::text,
      r.required_clearance
    from approval_invocation i join approval_request r on r.id = i.approval_id join tool_call c on c.id = i.call_id
    where r.status = 'pending' order by r.requested_at, i.approval_id"""
SENT = """
    select c.job_id, c.tool_name, c.arguments ->> 'n' as argument,
      array(select g.approval_id from approval_grant g where g.call_id = c.id) as granted,
      array(select s.approval_id from standing_use u join standing_approval s on s.id = u.standing_id where u.call_id = c.id)
        as standing
    from tool_call c where c.id = $1"""
VERSION = "select version from approval_request where id = $1"
ENDED = "select id from job where status in ('FAILED', 'CANCELLED') and kind <> 'external' order by finished_at, id"
JOB = (
    "select j.session_id, j.kind, j.agent_version, a.slug from job j join agent a on a.id = j.agent_id where j.id = $1"
)
PENDING = "select id from approval_request where status = 'pending' and kind = $1 order by requested_at, id"

DULL = (
    "none", "forbidden", "not_a_person", "approval_not_found", "session_not_found", "job_not_found", "not_resubmittable",
    "call_not_begun", "call_not_found", "not_its_agent", "call_settled", "call_awaiting", "call_refused", "job_finished", "not_your_absence",
)  # fmt: skip
"""Why acts are refused that are not worth a line."""


class Play(Stage):
    """Runs acts, and tells what was sent against the rule."""

    async def run(self, steps: int) -> list[str]:
        """What was done. The last entry says what was sent against the rule, where something was."""
        plot = Plot(self)
        for _ in range(10 * steps):
            if len(self.story) >= steps:
                break
            human, act = plot.next()
            own = [each for each in self.credentials if each.holder == human][-6:]
            if act in (self.vote, self.settle, self.delegate):  # programs decide nothing
                own = [each for each in own if each.account is not None]
            if not own:  # somebody else is in their place
                continue
            who = self.chance.choice(own)
            try:
                told = await act(await self._actor(who), who)
            except Unauthenticated:
                self.credentials.remove(who)
                continue
            except CortexError as error:
                if error.code in DULL:
                    continue
                told = f"{act.__name__}: refused, {error.code}"
            else:
                plot.done.add(act)
            self.story.append(f"{human} as {who.label}: {told}")
            broken = await self._look()
            if broken is not None:
                return [*self.story, f"BROKEN: {broken}"]
        return self.story

    async def _actor(self, who: Credential) -> Actor:
        if who.secret.startswith("cortex_session"):
            return await logins.authenticate_session(self.db, who.secret)
        return await frame.authenticate_key(self.db, who.secret)

    # What shapes calls --------------------------------------------------------------------------------------------

    async def submit(self, by: Actor, who: Credential) -> str:
        known = [id for id, thread in self.ledger.threads.items() if thread.opener is None]
        if known and self.chance.random() < 0.4:
            session = self._some(known)
            return await self._submit(by, who, self.ledger.threads[session].agent, session)
        return await self._submit(by, who, self.chance.choice(SOURCES))

    async def await_payee(self, by: Actor, who: Credential) -> str:
        """What asks for nothing before a signal came."""
        return await self._submit(by, who, "waiter")

    async def _submit(self, by: Actor, who: Credential, slug: str, session: UUID | None = None) -> str:
        order = next(self.numbers)
        payload = {"text": "go", "order": order}
        job = await jobs.submit(self.db, by, JobDraft(agent=slug, session_id=session, payload=payload))
        if slug == "waiter":
            self.orders.append(order)
        await self._know_job(job.id, who.holder)
        return f"submits {_short(job.id)} of {slug} in {_short(job.session_id)}, order {order}"

    async def resubmit(self, by: Actor, who: Credential) -> str:
        old = self._some([row["id"] for row in await self.admin.fetch(ENDED)])
        job = await jobs.resubmit(self.db, by, old)
        await self._know_job(job.id, who.holder, *self.ledger.jobs[old].submitters)
        return f"submits {_short(old)} again as {_short(job.id)}"

    async def message(self, by: Actor, who: Credential) -> str:
        session = self._some([id for id, thread in self.ledger.threads.items() if thread.opener is None])
        sent = await sessions.post_message(self.db, by, session, MessageDraft(text="Go on."))
        await self._wrote(sent.session_id, sent.job_id, who)
        return f"writes to {_short(session)}, read by {_short(sent.job_id)}"

    async def bring(self, by: Actor, who: Credential) -> str:
        """A program hands over what it says that somebody else wrote."""
        author = self.chance.choice(list(self.mains))
        inbound = InboundMessage(external_user_id=f"chat-{author}", agent=self.chance.choice(SOURCES), text="Go.")
        sent = await sessions.ingest_message(self.db, by, self.world.connection.id, inbound)
        await self._wrote(sent.session_id, sent.job_id, who)
        return f"brings a message of {author} to {_short(sent.session_id)}, read by {_short(sent.job_id)}"

    async def _wrote(self, session: UUID, job: UUID, who: Credential) -> None:
        await self._know_job(job)
        self.ledger.threads[session].wrote.append(who.holder)

    async def signal(self, by: Actor, who: Credential) -> str:
        payload = f"signal {next(self.numbers)}"
        order = self._some(self.orders)
        await steering.send_signal(self.db, by, SignalDraft(name="payee", key=f"order-{order}", payload=payload))
        self.ledger.signals[payload] = who.holder
        return f"sends {payload} for order {order}"

    async def write_context(self, by: Actor, who: Credential) -> str:
        session = self._some(list(self.ledger.threads))
        change = SessionChange(context={"payee": next(self.numbers)})
        await sessions.update_session(self.db, by, session, change, None)
        self.ledger.threads[session].context.add(who.holder)
        return f"writes the context of {_short(session)}"

    async def rewrite(self, by: Actor, who: Credential) -> str:
        slug = self.chance.choice(SOURCES)
        if slug == "waiter":
            limits = {"max_concurrent_jobs": 10 + next(self.numbers) % 90}
            change = AgentChange(resource_limits=adapter(ResourceLimits).validate_python(limits))
        else:
            script = [*self.script(self.chance.choices(["refund", "ship"], [3, 1], k=2)), turn(text="done")]
            script[-1]["text"] = f"done {next(self.numbers)}"
            change = AgentChange(
                model_config=adapter(ModelConfig).validate_python({"model": "scripted", "script": script})
            )
        agent = await agents.update_agent(self.db, by, slug, change, None)
        self.ledger.agents[slug, agent.config_version] = who.holder
        return f"writes version {agent.config_version} of {slug}"

    async def ask(self, by: Actor, who: Credential) -> str:
        """A call of an agent that runs elsewhere. Staff asks in sessions of others too."""
        known = [id for id, thread in self.ledger.threads.items() if thread.opener is not None]
        if known and self.chance.random() < 0.6:
            session = self._some(known)
        else:
            draft = SessionDraft(agent="clerk", kind=SessionKind.EXTERNAL)
            session = (await session_lifecycle.create(self.db, by, draft)).id
            self.ledger.threads[session] = Thread("clerk", opener=who.holder)
        tool = self.chance.choice(["refund", "refund", "ship"])
        arguments = {"n": str(self.chance.randint(1, 2))}
        wanted = CallDraft(tool=tool, arguments=arguments, parameters=SCHEMA, key=f"key-{next(self.numbers)}")
        made = await calls.authorize_call(self.db, by, session, wanted)
        await self._know_job(made.job_id, str(self.ledger.threads[session].opener))
        self.ledger.calls[made.id] = Call(made.job_id, tool, asker=who.holder)
        self.elsewhere[made.id] = who
        return f"asks for {tool} {_short(made.id)} from elsewhere, in {_short(session)}: {made.status}"

    async def change_policies(self, by: Actor, who: Credential) -> str:
        roles = self.chance.choice(ROLES)
        await policies.apply_policies(self.db, by, PolicyFile(text=POLICIES.format(roles=roles)))
        self.ledger.rules.append(who.holder)
        return f"applies policies for {roles}"

    async def confirm(self, by: Actor, who: Credential) -> str:
        risk = self.chance.choice([Risk.MEDIUM, Risk.HIGH])
        draft = ConfirmationDraft(tool="refund", app="office", digest=DIGEST, risk=risk)
        await agents.confirm_tool(self.db, by, draft)
        self.ledger.rules.append(who.holder)
        return f"confirms that refund has {risk} risk"

    async def cancel(self, by: Actor, who: Credential) -> str:
        job = self._some(list(self.ledger.jobs))
        await steering.cancel(self.db, by, job, Cancellation())
        return f"cancels {_short(job)}"

    # Deciding -----------------------------------------------------------------------------------------------------

    async def vote(self, by: Actor, who: Credential) -> str:
        card = await self._card("call", by)
        how = self.chance.choices(["yes", "edit", "no", "standing"], [10, 2, 2, 3])[0]
        more: dict[str, Any] = {}
        if how == "edit":
            more["arguments"] = {"n": f"edit {next(self.numbers)}"}
        elif how == "no":
            more["reason"] = "Do something else."
        elif how == "standing":
            more["standing"] = StandingDraft(calls=self.chance.randint(1, 3))
        choice = Choice.DENIED if how == "no" else Choice.APPROVED
        said = ApprovalDecision(decision=choice, version=card.version, input_hash=card.input_hash, **more)
        receipt = await decisions.decide(self.db, by, card.id, said, Channel.API)
        self._voted(card, who.holder, how)
        return f"says {how} to {card.tool_name} {_short(card.id)}: {receipt.approval.status}"

    async def vote_by_hook(self, by: Actor, who: Credential) -> str:
        """In the name of somebody who is mapped there."""
        hooks = [hook for hook in self.hooks if hook.holder == who.holder and hook.names]
        hook = self._some(hooks)
        name = self.chance.choice(list(hook.names))
        card = await self._card("call", self.world.admin.actor)
        how = "no" if self.chance.random() < 0.2 else "yes"
        choice = Choice.DENIED if how == "no" else Choice.APPROVED
        body = orjson.dumps(decision(card, name, choice, reason="Do something else."))
        headers = System(self.world, hook.id, hook.secret).headers(body, at=await self._now())
        answer = await webhooks.receive(self.db, hook.id, headers, body)
        self._voted(card, who.holder, how)
        return f"says {how} to {card.tool_name} {_short(card.id)} through {hook.label} as {name}: {answer.status}"

    def _voted(self, card: Approval, human: str, how: str) -> None:
        if how == "no":
            self.ledger.gave_reason(card.id, human)
        elif how == "edit":
            self.ledger.edited(card.id, human, card.version + 1)
        else:
            self.ledger.requests[card.id].yes[card.version].add(human)
        if how == "standing":
            self.ledger.standing[card.id] = human

    async def settle(self, by: Actor, who: Credential) -> str:
        card = await self._card("uncertain_effect", by)
        verdict = self.chance.choices(list(Verdict), [2, 8, 1])[0]
        receipt = await settlements.answer(self.db, by, card.id, EffectAnswer(verdict=verdict), Channel.API)
        assert by.user_account_id is not None
        ended = receipt.approval.status != "pending"
        self.ledger.answered(card.id, by.user_account_id, verdict, who.holder, ended=ended)
        return f"answers {verdict} about {card.tool_name} {_short(card.id)}: {receipt.approval.status}"

    async def delegate(self, by: Actor, who: Credential) -> str:
        card, to = await self._card("call", by), self.chance.choice(list(self.accounts))
        await approvals.delegate(self.db, by, card.id, DelegationDraft(to=to))
        return f"hands {_short(card.id)} to {self.accounts[to]}"

    async def be_absent(self, by: Actor, who: Credential) -> str:
        absent, to = self.chance.choice(list(self.accounts)), self.chance.choice(list(self.accounts))
        draft = AbsenceDraft(delegate_id=to, ends_at=await self._now() + timedelta(hours=9), member_id=absent)
        await orgs.create_absence(self.db, by, draft)
        return f"says that {self.accounts[absent]} is absent, and {self.accounts[to]} stands in"

    # Running ------------------------------------------------------------------------------------------------------

    async def work(self, by: Actor, who: Credential) -> str:
        """A worker, until nothing moves."""
        if not await self.admin.fetchval(BUSY):
            raise nothing()
        self.ledger.run()
        before = len(self.sent)
        async with working(self.db, self.app, settings=PATIENT), asyncio.timeout(120):
            while await self.admin.fetchval(BUSY):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.005)
        return f"(a worker ran, and sent {len(self.sent) - before})"

    async def begin(self, by: Actor, who: Credential) -> str:
        id = self._some(list(self.elsewhere))
        seen = await calls.get_call(self.db, by, id)
        began = await calls.begin_call(self.db, by, id, IntentDraft(input_hash=seen.input_hash))
        self.ledger.calls[id].begun_by = {who.holder}
        if seen.status is not CallStatus.INTENDED and began.status is CallStatus.INTENDED:
            self.sent.append(id)
        return f"begins {seen.tool} {_short(id)}: {began.status}"

    async def doubt(self, by: Actor, who: Credential) -> str:
        id = self._some([id for id, asker in self.elsewhere.items() if asker is who])
        told = await outcomes.settle_call(
            self.db, by, id, OutcomeDraft(status=OutcomeStatus.UNKNOWN, error="no answer")
        )
        return f"does not know what became of {_short(id)}: {told.status}"

    async def wait(self, by: Actor, who: Credential) -> str:
        await self.clock.advance(timedelta(hours=30))
        await deadlines.tick(self.db, new_id(), "scheduler")
        return "(30 hours pass)"

    # Looking ------------------------------------------------------------------------------------------------------

    async def _look(self) -> str | None:
        """Write down what is asked for, and check what was sent."""
        for row in await self.admin.fetch(NEWS):
            await self._know_call(row["call_id"], row["job_id"], row["tool_name"])
            if row["kind"] == "uncertain_effect":
                self.ledger.questions.setdefault(row["approval_id"], Question(row["call_id"]))
            else:
                terms = (row["approvers"], row["required_clearance"])
                self.ledger.asked(row["approval_id"], row["call_id"], terms, row["argument"])
        while self.sent:
            id = self.sent.pop(0)
            row = await self.admin.fetchrow(SENT, id)
            assert row is not None
            await self._know_call(id, row["job_id"], row["tool_name"])
            by, standing = self.ledger.permit(id, {*row["granted"]}, {*row["standing"]})
            version = await self.admin.fetchval(VERSION, by) or 0
            broken = self.ledger.sent(id, by, version, standing, row["argument"])
            if broken is not None:
                return f"{broken} ({_short(id)})"
        return None

    async def _know_call(self, id: UUID, job: UUID, tool: str) -> None:
        if id not in self.ledger.calls:
            self.ledger.calls[id] = Call(job, tool)

    async def _know_job(self, id: UUID, *submitters: str) -> None:
        row = await self.admin.fetchrow(JOB, id)
        assert row is not None
        self.ledger.add_job(
            id, row["session_id"], row["slug"], row["agent_version"], *submitters, conversation=row["kind"] == "conversation"
        )  # fmt: skip

    async def _card(self, kind: str, by: Actor) -> Approval:
        id = self._some([row["id"] for row in await self.admin.fetch(PENDING, kind)])
        return (await approvals.get_approval(self.db, by, id)).approval

    def _some(self, values: list[Any]) -> Any:
        """The last, or one of the last few."""
        if not values:
            raise nothing()
        return values[-1] if self.chance.random() < 0.5 else self.chance.choice(values[-4:])

    async def _now(self) -> datetime:
        now: datetime = await self.admin.fetchval("select plane_now()")
        return now


def _short(id: UUID) -> str:
    return str(id)[-4:]
