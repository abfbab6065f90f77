"""Sending calls: intent before, outcome after, and how an uncertain outcome is settled.

One window remains: between the last look at the clock and the moment the tool acts. A worker that is stopped exactly there,
for longer than its lease and the tool's timeout together, acts late. `retry_with_key` is safe even then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.tools import DidNotHappen, Happened, OnUncertain, ToolError
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, Settlement, settlement
from cortex_plane.jobs.model.jobs import Hold
from cortex_plane.jobs.rules import StepWrite, WriteResult
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.approval_requests import RequestCards
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.calls import Call, PendingWrite, WriteBlobs, outcome_write, storable, without_intents
from cortex_plane.worker.ends import Ended, JobFailed, JobHandedBack, JobHeld, JobSleeps, Writer
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import AttemptLimits, CallStopped, CallTimeout, ticks, within
from cortex_plane.worker.session_gates import SessionGates
from cortex_plane.worker.tools.tool import ToolContext, encode_result

log = structlog.get_logger()

MAX_PAUSE = 2.0
MAX_SENDS = 3
"""After so many uncertain ends of one call a person is asked, whatever the tool declares."""
CHANGE_CODES = ("policy_changed", "grant_refused", "gates_changed", "atlas_rate_limited")
"""The write is refused because what authorised its calls has changed."""


class CallLedger:
    """Writes the calls of an attempt and sends them: no call is sent before its intent is durable."""

    def __init__(
        self,
        lease: Lease,
        limits: AttemptLimits,
        gates: SessionGates,
        authorizer: CallAuthorizer,
        cards: RequestCards,
        writer: Writer,
    ) -> None:
        self._lease, self._limits, self._gates = lease, limits, gates
        self._authorizer, self._cards, self._writer = authorizer, cards, writer
        self._results: list[tuple[UUID, bytes]] = []
        """Results that are stored apart from their rows, with the next write."""

    # Writes ----------------------------------------------------------------------------------------------------

    async def write(self, calls: Sequence[Call], step: StepWrite) -> WriteResult:
        """A write with calls. Where what authorised them has changed, the attempt gives way."""
        self._lease.progress.active_tools = tuple(call.active_tool() for call in calls)
        try:
            return await self._writer.write(step)
        except Conflict as error:
            if error.code not in CHANGE_CODES:
                raise
            conflict = error
        is_rate_limit = conflict.code == "atlas_rate_limited"
        return await self.give_way(calls, step, conflict.message, is_rate_limit=is_rate_limit)

    async def give_way(
        self, calls: Sequence[Call], step: StepWrite, why: str, *, is_rate_limit: bool = False
    ) -> NoReturn:
        """Nothing is sent or requested on old terms. Outcomes are kept, and the next attempt judges the calls again."""
        self._lease.progress.status = CheckpointStatus.IN_PROGRESS
        self._gates.forget([call for call in calls if call.status not in SETTLED])
        await self._writer.write(without_intents(step))
        if is_rate_limit:
            # Counted over all sessions, by the minute of the database: with the next minute it is judged again.
            now = self._lease.time.now()
            raise Ended(JobSleeps(60 - now.second - now.microsecond / 1e6 + 0.01, why))
        raise Ended(JobHandedBack(why, after_conflict=True))

    def take_results(self) -> list[tuple[UUID, bytes]]:
        results, self._results = self._results, []
        return results

    # Calls -----------------------------------------------------------------------------------------------------

    async def read(self, call: Call) -> None:
        """A call without side effects: any failure is an answer for the model."""
        reached("tool:before")
        try:
            value = await within(call.code.timeout_seconds, call.code.call(call.values, self._context(call)))
        except Exception as error:
            call.fail(_describe(call, error))
        else:
            self._complete(call, value)
        reached("tool:after")

    async def perform(self, call: Call, calls: Sequence[Call], pending: PendingWrite) -> None:
        """A call with side effects, until it is settled. ``pending``: what must be durable before it is sent."""
        is_new = call.status in (None, CallStatus.APPROVED)
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
            due.dispatches = True
            if not await self._send(call, calls, due):
                await self._settle(call, calls, is_over=True)
            return
        if due.calls or due.outcomes:
            await self.write(calls, due)
        if call.status is CallStatus.CLEARED:
            if not await self._send_again(call, calls):
                await self._settle(call, calls, is_over=True)
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
        fact = self._lease.fact("receipt_refused", call=str(call.id), tool=call.name, reason=why)
        write.facts = [*write.facts, fact]
        raise Ended(
            JobFailed(
                f"`{call.name}` was not sent: {why}. Somebody may have written to the database behind the plane's back.",
                "Look at `cortex audit verify`; then `cortex job resubmit` asks again.",
                write,
            )
        )

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
            certain = await self._dispatch(call, result)
            if certain is not None:
                return certain
            # Nothing was sent, and the lease is still ours, or the next write says so.
            call.attempt += 1
            intent = StepWrite(again=(call.id,), dispatches=True)
        if trouble is not None:
            call.error = trouble
            return False
        call.fail("not sent: this worker is held up again and again")
        return True

    async def _send_again(self, call: Call, calls: Sequence[Call], trouble: str | None = None) -> bool:
        """The same call with the same key: only after it is safe to do so."""
        call.attempt += 1
        call.status = CallStatus.INTENDED
        fact = self._lease.fact("call_sent_again", call=str(call.id), tool=call.name, attempt=call.attempt)
        return await self._send(call, calls, StepWrite(again=(call.id,), dispatches=True, facts=[fact]), trouble)

    async def _dispatch(self, call: Call, intent: WriteResult) -> bool | None:
        """True: the outcome is known. False: it is not. None: it was too late to send."""
        before = intent.dispatch_before or intent.now
        # Counted from before the write went out, so this is never later than the database's deadline.
        last_moment = intent.sent + (before - intent.now).total_seconds()
        call.settle_after = before + timedelta(seconds=call.code.timeout_seconds)
        context = self._context(call)
        reached("tool:before")
        if ticks() >= last_moment:
            # By now somebody else may be settling it.
            return None
        try:
            value = await within(call.code.timeout_seconds, call.code.call(call.values, context))
        except ToolError as error:
            call.fail(_describe(call, error))
        except Exception as error:
            if not self._lease.toolbox.has_side_effects(call.code):
                # It only reads, and has a row because it uses something up: any failure is an answer for the model.
                call.fail(_describe(call, error))
                return True
            call.timed_out = isinstance(error, CallTimeout)
            # It may have happened before it went wrong. Only ToolError says that it did not.
            call.error = _describe(call, error)
            job_id = str(self._lease.assignment.job_id)
            log.warning("uncertain effect", job_id=job_id, tool=call.name, error=call.error)
            return False
        else:
            self._complete(call, value)
        reached("tool:after")
        return True

    # Uncertain outcomes ----------------------------------------------------------------------------------------

    async def _settle(self, call: Call, calls: Sequence[Call], *, is_over: bool) -> None:
        """Find out, or let somebody decide. ``is_over``: the call ended in this process, so nobody can be sending it."""
        on_uncertain = call.on_uncertain or OnUncertain.ASK_HUMAN
        trouble = call.error
        while True:
            now = self._lease.time.now()
            # It is over in this process, not in the world: a probe that comes too early would find nothing yet.
            is_safe = is_over and on_uncertain is not OnUncertain.PROBE
            safe_at = now if is_safe or call.settle_after is None else call.settle_after
            choice, did_not_happen = settlement(on_uncertain, safe_at, now), False
            if on_uncertain is OnUncertain.PROBE and call.timed_out and not call.code.is_async:
                # A thread that timed out may act at any time: no probe is conclusive.
                choice = Settlement.ASK_HUMAN
            if choice is Settlement.WAIT:
                seconds = (safe_at - now).total_seconds() + 0.01
                raise Ended(JobSleeps(seconds, "an effect is uncertain"))
            if call.attempt >= MAX_SENDS and choice in (Settlement.SEND_AGAIN, Settlement.PROBE):
                choice = Settlement.ASK_HUMAN
            if choice is Settlement.PROBE:
                answer = await self._probe(call)
                if isinstance(answer, Happened):
                    call.error, call.settled_by = None, "probe"
                    self._complete(call, answer.result)
                    return
                did_not_happen = isinstance(answer, DidNotHappen)
                choice = Settlement.SEND_AGAIN if did_not_happen else Settlement.ASK_HUMAN
            if choice is Settlement.SEND_AGAIN and not await self._authorizer.may_be_sent_again(call):
                # Its authorization does not hold any more. The answer of a person says whether it needs a new one.
                choice = Settlement.ASK_HUMAN
            if choice is Settlement.ASK_HUMAN:
                call.status, call.error = CallStatus.UNCERTAIN, trouble
                write = outcome_write(call)
                write.requests = (self._cards.uncertain_effect(call),)
                event = {"call": str(call.id), "tool": call.name}
                raise Ended(JobHeld(Hold.UNCERTAIN_EFFECT, event, write))
            if choice is Settlement.FAIL:
                call.fail(trouble or "the worker stopped while it was under way")
                self._gates.end_calls(calls)
                raise Ended(
                    JobFailed(
                        f"Nobody knows whether `{call.name}` happened, and it declares on_uncertain=fail.",
                        "Look at the outside world, then `cortex job resubmit` it or not.",
                        outcome_write(call),
                    )
                )
            if is_over and not did_not_happen:
                pause = self._limits.backoff.delay(call.attempt, random.random())  # noqa: S311 -- jitter
                await asyncio.sleep(min(MAX_PAUSE, pause))
            call.error = None
            earlier = None if did_not_happen else trouble or "the worker stopped while it was under way"
            if await self._send_again(call, calls, earlier):
                return
            is_over, trouble = True, call.error

    async def _probe(self, call: Call) -> Happened | DidNotHappen | None:
        reached("probe:before")
        answer: Happened | DidNotHappen | None = None
        try:
            probe = call.code.ask_probe(call.values, self._context(call))
            answer = await within(call.code.timeout_seconds, probe)
        except Exception as error:
            job_id = str(self._lease.assignment.job_id)
            log.warning("probe failed", job_id=job_id, tool=call.name, error=_describe(call, error))
        reached("probe:after")
        return answer

    # Results ---------------------------------------------------------------------------------------------------

    def _complete(self, call: Call, value: Any) -> None:
        """It happened, whatever it returned: a result that cannot be stored does not undo it."""
        call.status, call.error = CallStatus.COMPLETED, None
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
        assignment = self._lease.assignment
        return ToolContext(
            org_id=assignment.org_id,
            session_id=assignment.session_id,
            job_id=assignment.job_id,
            agent_id=assignment.agent_id,
            invocation_id=call.id,
            step=call.step,
            attempt=call.attempt,
        )


def _describe(call: Call, error: Exception) -> str:
    if isinstance(error, ToolError):
        return storable(str(error))
    if isinstance(error, CallTimeout):
        return f"`{call.name}` did not answer within {call.code.timeout_seconds:g} s."
    if isinstance(error, CallStopped):
        return storable(f"`{call.name}` raised {error}")
    return storable(f"`{call.name}` raised {type(error).__name__}: {str(error)[:2000]}")
