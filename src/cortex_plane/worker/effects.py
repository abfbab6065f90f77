"""Sending calls: the request to people where one is needed, intent before, outcome after, and how doubts are settled.

All calls of a response that need approval are requested together, in the commit that records the response; nothing of
that response runs before all of them are decided.

One window remains: between the last look at the clock and the moment the tool acts. A worker that is stopped exactly there,
for longer than its lease and the tool's timeout together, acts late. `retry_with_key` is safe even then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.completions import AssistantTurn, UserTurn
from cortex_plane.agents.model.tools import DidNotHappen, Happened, OnUncertain, ToolError
from cortex_plane.approvals.model.approvals import NewRequest
from cortex_plane.approvals.model.questions import ASK_PERSON
from cortex_plane.approvals.verbs.approval_requests import SETTLERS, Possible, feasible_terms, nobody_can, require_terms
from cortex_plane.calls.rules.pipeline import call_fact, call_request, standing_fact
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import MAX_SENDS, SETTLED, CallStatus, Settlement, doubt, settlement
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.rules import StepWrite, WriteResult
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OnDeny, PolicyRow
from cortex_plane.sessions.rules import Thread
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.calls import Call, PendingWrite, WriteBlobs, outcome_write, storable, without_intents
from cortex_plane.worker.ends import Ended, JobFailed, JobHandedBack, JobHeld, JobPaused, JobSleeps, Writer
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import CallStopped, CallTimeout, CallTooLate, ticks, within
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.session_gates import SessionGates
from cortex_plane.worker.tools.tool import StateRoom, ToolContext, ToolState, encode_result

log = structlog.get_logger()

MAX_PAUSE = 2.0
SHOWN_TEXT = 4000
"""Characters of the conversation on a card."""
CHANGE_CODES = ("policy_changed", "grant_refused", "gates_changed", "atlas_rate_limited")
"""The write is refused because what authorised its calls has changed."""


def awaiting_calls(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.status is CallStatus.AWAITING]


class RequestCards:
    """The cards by which people are asked about the calls of one attempt."""

    def __init__(
        self, lease: Lease, gates: SessionGates, conversation: ModelConversation, demands: Mapping[UUID, PolicyRow]
    ) -> None:
        self._lease, self._gates, self._conversation, self._demands = lease, gates, conversation, demands

    async def feasible_terms(self, call: Call, due: StepWrite) -> Possible | None:
        """The terms by which people can decide a call; None where nobody can, and then the call is refused at once."""
        lease, decision, times = self._lease, call.decision, self._lease.limits.skills.approval
        again = call.id if call.asked_before else None
        seq = lease.progress.message_seq
        possible = await feasible_terms(lease.db, lease.assignment, decision, times, seq, again=again)
        if possible.terms is not None:
            return possible
        message = nobody_can(call.name, decision, possible.excluded)
        if require_terms(decision).on_deny is OnDeny.FAIL:
            remedy = (
                "Make somebody an approver with `cortex member update`, or correct the policy with `cortex policy apply`;"
                " then `cortex job resubmit` it."
            )
            raise Ended(JobFailed(message, remedy, StepWrite(step=due.step, facts=due.facts, events=due.events)))
        call.status, call.error = CallStatus.REJECTED, f"{message} Do not send it again; go another way."
        return None

    def suspend(self, calls: Sequence[Call], terms: Mapping[UUID, Possible], due: StepWrite) -> StepWrite:
        """The write that asks: the job gives up its lease until all of the calls are decided."""
        progress, awaiting = self._lease.progress, awaiting_calls(calls)
        progress.status, progress.invocation = CheckpointStatus.AWAITING_APPROVAL, awaiting[0].id
        pending = PendingWrite(due)
        pending.new(*(call for call in calls if call.status is not None and not call.has_row))
        write = pending.take()
        if self._gates.bound is not None:
            for call in awaiting:
                self._gates.bound.add_request(call)
        write.requests = tuple(self._approval(call, terms[call.id]) for call in awaiting)
        write.status = JobStatus.WAITING_FOR_APPROVAL
        # Of several versions at most one holds: no version has the name of all of them, so they are judged again.
        write.policies = " ".join(sorted({call.policies for call in awaiting if call.policies is not None})) or None
        ids = [str(call.id) for call in awaiting]
        write.events = [
            *write.events,
            ("status", {"status": JobStatus.WAITING_FOR_APPROVAL, "open_approvals": len(awaiting)}),
            ("session_paused", {"reason": "approval", "pause_source": "approval", "calls": ids}),
        ]
        write.facts = [*write.facts, self._lease.fact("session_suspended", calls=ids)]
        return write

    def _approval(self, call: Call, possible: Possible) -> NewRequest:
        if possible.terms is None:
            raise AssertionError("a request needs somebody who can decide it")
        agent, demand = self._lease.assignment.agent, self._demands.get(call.id)
        wish = f"{agent} wants to call {call.name}" if demand is None else f"{agent} asks: {demand.action}"
        summary = f"{agent} asks a question" if call.name == ASK_PERSON else wish
        return self._request(
            call, summary=summary, rule=call.rule, terms=possible.terms, ruling=call.ruling,
            reason=call.decision.reason, changed_by=possible.changed_by,
        )  # fmt: skip

    def uncertain_effect(self, call: Call) -> NewRequest:
        request = self._request(
            call, summary=f"Nobody knows whether {call.code.label} of {self._lease.assignment.agent} happened",
            rule="on_uncertain", terms=SETTLERS, question=doubt(call.code.label, call.error), is_doubt=True,
        )  # fmt: skip
        return replace(request, tool_digest=call.sent_digest or call.digest, risk=call.code.risk)

    def _request(self, call: Call, **card: Any) -> NewRequest:
        turns, policies = self._conversation.turns, call.policies or self._lease.policies_version
        says, asked_for = _last_text(turns, AssistantTurn), _last_text(turns, UserTurn)
        return call_request(new_id(), call, call.step, policies=policies, says=says, asked_for=asked_for, **card)


def _last_text(turns: Thread, kind: type[AssistantTurn | UserTurn]) -> str | None:
    turn = next((turn for turn in reversed(turns) if isinstance(turn, kind)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None and turn.text else None


class CallLedger:
    """Writes the calls of an attempt and sends them: no call is sent before its intent is durable."""

    def __init__(
        self, lease: Lease, gates: SessionGates, authorizer: CallAuthorizer, cards: RequestCards, writer: Writer
    ) -> None:
        self._lease, self._gates, self._authorizer, self.cards, self._writer = lease, gates, authorizer, cards, writer
        self._results: list[tuple[UUID, bytes]] = []
        """Results that are stored apart from their rows, with the next write."""
        self.room = StateRoom(lambda: self._writer.state)

    async def write(self, calls: Sequence[Call], step: StepWrite) -> WriteResult:
        """A write with calls. Where what authorised them has changed, the attempt gives way."""
        self._lease.progress.active_tools = tuple(call.active_tool() for call in calls)
        try:
            return await self._writer.write(step)
        except Conflict as error:
            if error.code not in CHANGE_CODES:
                raise
            conflict = error
        return await self.give_way(calls, step, conflict.message, conflict.code == "atlas_rate_limited")

    async def give_way(self, calls: Sequence[Call], step: StepWrite, why: str, is_rate_limit: bool = False) -> NoReturn:
        """Nothing is sent or requested on old terms. Outcomes are kept, and the next attempt judges the calls again."""
        self._lease.progress.status = CheckpointStatus.IN_PROGRESS
        self._gates.forget([call for call in calls if call.status not in SETTLED])
        await self._writer.write(without_intents(step))
        if is_rate_limit:
            # Counted over all sessions, by the minute of the database: with the next minute it is judged again.
            now = self._lease.time.now()
            raise Ended(JobSleeps(60 - now.second - now.microsecond / 1e6 + 0.01, why))
        raise Ended(JobHandedBack(why, counted=True))

    def take_results(self) -> list[tuple[UUID, bytes]]:
        """Results to store with the outcomes of the calls that are over. They are recorded before another call is sent."""
        if self.room.states:
            self.room.release()
        results, self._results = self._results, []
        return results

    async def read(self, call: Call) -> None:
        """A call without side effects: any failure is an answer for the model."""
        context = self._context(call)
        reached("tool:before")
        try:
            value = await self._lease.within(call.code.timeout_seconds, call.code.call(call.values, context))
        except Exception as error:
            if self._lease.is_overdue:
                raise Ended(JobPaused()) from error
            call.fail(_describe(call, error))
        else:
            self._complete(call, value, context)
        finally:
            context.state.close(succeeded=call.status is CallStatus.COMPLETED)
        reached("tool:after")

    async def perform(self, call: Call, calls: Sequence[Call], pending: PendingWrite) -> None:
        """A call with side effects, until it is settled. ``pending``: what must be durable before it is sent."""
        is_new = call.status in (None, CallStatus.APPROVED)
        if is_new or call.status is CallStatus.CLEARED:
            if self._lease.is_overdue:
                # The write records the response, and the next attempt finds its calls here.
                self._lease.progress.active_tools = tuple(each.active_tool() for each in calls)
                raise Ended(JobPaused(pending.take()))
            if (refusal := self._lease.limits.refuse_time()) is not None:
                if not is_new:
                    call.fail("not sent again: the time of its job is over")
                    pending.settled.append(call)
                raise Ended(JobFailed(*refusal, pending.take()))
        if call.status is CallStatus.APPROVED:
            call.has_grant = True
            pending.granted.append(call)
        elif is_new:
            pending.new(call)
        if is_new:
            call.status = CallStatus.INTENDED
        due = pending.take()
        if is_new:
            if call.has_grant:
                self._require_receipt(call, due)
            elif call.authorization is not None and (use := call.authorization.leaning) is not None:
                due.facts = [*due.facts, standing_fact(self._lease.fact, call, use)]
            due.dispatches = True
            if not await self._send(call, calls, due):
                await self._settle(call, calls, is_over=not call.code.is_under_way(call.id))
            return
        if due.calls or due.outcomes:
            await self.write(calls, due)
        if call.status is CallStatus.CLEARED:
            if not await self._send_again(call, calls):
                await self._settle(call, calls, is_over=not call.code.is_under_way(call.id))
            return
        await self._settle(call, calls, is_over=False)

    def _require_receipt(self, call: Call, due: StepWrite) -> None:
        """Without a true receipt an approved call is not sent: the job fails. Earlier outcomes are kept."""
        why = self._authorizer.receipt_refusal(call, is_resend=False)
        if why is None:
            return
        call.status, call.error = CallStatus.REJECTED, f"not sent: {why}"
        write = without_intents(due)
        write.outcomes = orjson.dumps([*orjson.loads(write.outcomes or b"[]"), call.outcome(WriteBlobs())])
        write.facts = [*write.facts, call_fact(self._lease.fact, "receipt_refused", call, reason=why)]
        message = (
            f"`{call.name}` was not sent: {why}. Somebody may have written to the database behind the plane's back."
        )
        raise Ended(JobFailed(message, "Look at `cortex audit verify`; then `cortex job resubmit` asks again.", write))

    async def _send(self, call: Call, calls: Sequence[Call], intent: StepWrite, trouble: str | None = None) -> bool:
        """Write the intent, then send. True: the outcome is known. ``trouble``: how an earlier sending went wrong."""
        self._lease.progress.invocation = call.id
        for _ in range(MAX_SENDS):
            intent.policies = call.policies
            result = await self.write(calls, intent)
            if result.cancelled:
                again = "not sent again: the job was cancelled, and nobody knows whether it happened before"
                call.fail("not sent: the job was cancelled" if trouble is None else f"{again} ({trouble})")
                return True
            if (why := self._reason_not_to_send()) is not None:
                if trouble is None:
                    call.fail(f"not sent: {why}")
                else:
                    call.error = trouble
                return trouble is None
            if (certain := await self._dispatch(call, result)) is not None:
                return certain
            # Nothing was sent, and the lease is still ours, or the next write says so.
            call.attempt += 1
            intent = self._intent(call)
        if trouble is not None:
            call.error = trouble
            return False
        call.fail("not sent: this worker is held up again and again")
        return True

    def _reason_not_to_send(self) -> str | None:
        """What came up while the intent was being written."""
        if self._lease.is_overdue:
            return "the job was paused"
        return None if self._lease.limits.refuse_time() is None else "the time of its job was over"

    async def _send_again(self, call: Call, calls: Sequence[Call], trouble: str | None = None) -> bool:
        """The same call with the same key: only after it is safe to do so."""
        call.attempt += 1
        call.status = CallStatus.INTENDED
        fact = call_fact(self._lease.fact, "call_sent_again", call, attempt=call.attempt)
        intent = self._intent(call)
        intent.facts = [fact]
        return await self._send(call, calls, intent, trouble)

    def _intent(self, call: Call) -> StepWrite:
        """The write after which a call may be sent again."""
        use = self._authorizer.standing_uses.get(call.id)
        return StepWrite(intents=orjson.dumps([call.intent(use=use)]), dispatches=True)

    async def _dispatch(self, call: Call, intent: WriteResult) -> bool | None:
        """True: the outcome is known. False: it is not. None: it was too late to send."""
        before = intent.dispatch_before or intent.now
        # Counted from before the write went out, so this is never later than the database's deadline.
        last_moment = intent.sent_at + (before - intent.now).total_seconds()
        call.settle_after = before + timedelta(seconds=call.code.timeout_seconds)
        context = self._context(call)
        reached("tool:before")
        if ticks() >= last_moment:
            # By now somebody else may be settling it.
            return None
        try:
            sending = call.code.send(call.values, context, last_moment)
            value = await self._lease.within(call.code.timeout_seconds, sending)
        except ToolError as error:
            call.fail(_describe(call, error))
        except CallTooLate:
            return None
        except Exception as error:
            if not self._lease.toolbox.has_side_effects(call.code):
                if self._lease.is_overdue:
                    raise Ended(JobPaused()) from error
                # It only reads, and has a row because it uses something up: any failure is an answer for the model.
                call.fail(_describe(call, error))
                return True
            call.timed_out = isinstance(error, CallTimeout)
            # It may have happened before it went wrong. Only ToolError says that it did not.
            call.error = _describe(call, error)
            log.warning("uncertain effect", job_id=str(self._lease.assignment.job_id), tool=call.name, error=call.error)
            return False
        else:
            self._complete(call, value, context)
        finally:
            context.state.close(succeeded=call.status is CallStatus.COMPLETED)
        reached("tool:after")
        return True

    async def _settle(self, call: Call, calls: Sequence[Call], *, is_over: bool) -> None:
        """Find out, or let somebody decide. ``is_over``: the call ended in the process that ran it, so nobody can be sending it."""
        on_uncertain = call.on_uncertain or OnUncertain.ASK_HUMAN
        trouble = call.error
        while True:
            now = self._lease.time.now()
            # It is over in this process, not in the world: a probe that comes too early would find nothing yet.
            is_safe = is_over and on_uncertain is not OnUncertain.PROBE
            safe_at = now if is_safe or call.settle_after is None else call.settle_after
            choice, did_not_happen = settlement(on_uncertain, safe_at, now, call.attempt), False
            if on_uncertain is OnUncertain.PROBE and call.timed_out and not call.code.is_async:
                # A thread that timed out may act at any time: no probe is conclusive.
                choice = Settlement.ASK_HUMAN
            if self._lease.is_overdue and choice not in (Settlement.ASK_HUMAN, Settlement.FAIL):
                # The intent stays without an outcome: whoever goes on settles it.
                raise Ended(JobPaused())
            if choice is Settlement.WAIT:
                raise Ended(JobSleeps((safe_at - now).total_seconds() + 0.01, "an effect is uncertain"))
            if choice is Settlement.PROBE:
                context = self._context(call)
                answer = await self._probe(call, context)
                if isinstance(answer, Happened):
                    call.error, call.settled_by = None, "probe"
                    self._complete(call, answer.result, context)
                    return
                did_not_happen = isinstance(answer, DidNotHappen)
                choice = Settlement.SEND_AGAIN if did_not_happen else Settlement.ASK_HUMAN
            if choice is Settlement.SEND_AGAIN and (refusal := self._lease.limits.refuse_time()) is not None:
                if did_not_happen:
                    call.fail("not sent again: the time of its job is over")
                else:
                    call.status, call.error = CallStatus.UNCERTAIN, trouble
                self._gates.end_calls(calls)
                raise Ended(JobFailed(*refusal, outcome_write(call)))
            if choice is Settlement.SEND_AGAIN and not await self._authorizer.may_be_sent_again(call):
                # Its authorization does not hold any more. The answer of a person says whether it needs a new one.
                choice = Settlement.ASK_HUMAN
            if choice is Settlement.ASK_HUMAN:
                call.status, call.error = CallStatus.UNCERTAIN, trouble
                write = outcome_write(call)
                write.requests = (self.cards.uncertain_effect(call),)
                raise Ended(JobHeld(Hold.UNCERTAIN_EFFECT, {"call": str(call.id), "tool": call.name}, write))
            if choice is Settlement.FAIL:
                call.fail(trouble or "the worker stopped while it was under way")
                self._gates.end_calls(calls)
                message = f"Nobody knows whether `{call.code.label}` happened, and it declares on_uncertain=fail."
                remedy = "Look at the outside world, then `cortex job resubmit` it or not."
                raise Ended(JobFailed(message, remedy, outcome_write(call)))
            if is_over and not did_not_happen:
                pause = self._lease.limits.backoff.delay(call.attempt, random.random())  # noqa: S311 -- jitter
                await asyncio.sleep(min(MAX_PAUSE, pause))
            call.error = None
            earlier = None if did_not_happen else trouble or "the worker stopped while it was under way"
            if await self._send_again(call, calls, earlier):
                return
            is_over, trouble = not call.code.is_under_way(call.id), call.error

    async def _probe(self, call: Call, context: ToolContext) -> Happened | DidNotHappen | None:
        reached("probe:before")
        answer: Happened | DidNotHappen | None = None
        try:
            # Also where the time of the job is over.
            probe = call.code.ask_probe(call.values, context)
            answer = await within(call.code.timeout_seconds, probe, self._lease.calls)
        except Exception as error:
            if self._lease.is_overdue:
                raise Ended(JobPaused()) from error
            job_id = str(self._lease.assignment.job_id)
            log.warning("probe failed", job_id=job_id, tool=call.name, error=_describe(call, error))
        finally:
            context.state.close(succeeded=isinstance(answer, Happened))
        reached("probe:after")
        return answer

    def _complete(self, call: Call, value: Any, context: ToolContext) -> None:
        """It happened, whatever it returned: a result that cannot be stored does not undo it."""
        call.status, call.error = CallStatus.COMPLETED, None
        call.state, call.end_reason = context.state.changes, context.state.end_reason
        try:
            self._store_result(call, encode_result(value))
        except CortexError as error:
            call.result = orjson.dumps({"unstorable": error.message})

    def _store_result(self, call: Call, result: bytes) -> None:
        """In the row while it is small, by reference where it is not."""
        worker = self._lease.worker
        if len(result) <= worker.inline_result_bytes:
            call.result = result
            return
        preview: dict[str, Any] = {"bytes": len(result), "preview": result[:2000].decode(errors="ignore")}
        if len(result) > worker.max_result_bytes:
            preview["dropped"] = f"larger than {worker.max_result_bytes} bytes, so it was not kept"
        else:
            call.result_id = new_id()
            preview["stored_result"] = str(call.result_id)
            self._results.append((call.result_id, result))
        call.result = canonical(preview)

    def _context(self, call: Call) -> ToolContext:
        assignment, state = self._lease.assignment, ToolState()
        state.entries, state.room = self._lease.state, self.room
        return ToolContext(
            org_id=assignment.org_id,
            session_id=assignment.session_id,
            job_id=assignment.job_id,
            agent_id=assignment.agent_id,
            invocation_id=call.id,
            step=call.step,
            attempt=call.attempt,
            state=state,
            config=self._lease.config,
            session_context=assignment.session_context,
        )


def _describe(call: Call, error: Exception) -> str:
    if isinstance(error, ToolError):
        return storable(str(error))
    if isinstance(error, CallTimeout) and str(error):
        return f"`{call.name}` {error}."
    if isinstance(error, CallTimeout):
        return f"`{call.code.label}` did not answer within {call.code.timeout_seconds:g} s."
    if isinstance(error, CallStopped):
        return storable(f"`{call.code.label}` raised {error}")
    return storable(f"`{call.code.label}` raised {type(error).__name__}: {str(error)[:2000]}")
