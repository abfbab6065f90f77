"""One lease of a code agent's job: its function runs from the top, over its recorded operations, to where it cannot go on.

Branches of one job share its lease. Whatever ends the lease is therefore put off until no branch runs any more: operations
under way are finished and recorded, and one write says where the job goes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.jobs.model.checkpoints import CheckpointStatus, Phase
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus
from cortex_plane.jobs.rules import Assignment, StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, ErrorClass, StepFailed, StepNotDone, TooLarge
from cortex_plane.sessions.rules import SessionMessage
from cortex_plane.worker.attempt import StepWriter
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.calls import Call, merge_writes, outcome_write, reply_digest, storable
from cortex_plane.worker.code.context import CodeAgent, Context
from cortex_plane.worker.code.journal import JournalEntries, JournalWriter
from cortex_plane.worker.code.operations import Unwind, last_round, with_ask
from cortex_plane.worker.code.performer import CodeParts, Performer
from cortex_plane.worker.effects import CallLedger, RequestCards
from cortex_plane.worker.ends import (
    Ended,
    EndWriter,
    JobCancelled,
    JobFailed,
    JobHeld,
    JobPaused,
    JobRetried,
    LastWrite,
)
from cortex_plane.worker.lease import Lease, WorkerContext
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.resume import resume
from cortex_plane.worker.session_gates import SessionGates
from cortex_plane.worker.tools.tool import encode_result

log = structlog.get_logger()

MAX_JOB_RESULT = 1024 * 1024
Answer = tuple[str | None, Sequence[SessionMessage]]
"""The reply of a function in a conversation, and the messages that arrived meanwhile."""
UNWINDING_SECONDS = 5.0
"""How long a function may take to get out of the way."""


class CodeAttempt:
    """One lease of one job of an agent that is a function of its app."""

    def __init__(self, worker: WorkerContext, assignment: Assignment) -> None:
        self.lease = Lease(worker, assignment)
        self.lease.toolbox = with_ask(self.lease.toolbox)
        self.gates = SessionGates(self.lease, runs_code=True)
        self.authorizer = CallAuthorizer(self.lease, self.gates)
        self.conversation = ModelConversation(self.lease, self.gates)
        self.cards = RequestCards(self.lease, self.gates, self.conversation, self.authorizer.demands)
        self.journal = JournalWriter(self.lease, StepWriter(self.lease, self.gates, self.conversation))
        self.ledger = CallLedger(self.lease, self.gates, self.authorizer, self.cards, self.journal)
        self.entries = JournalEntries(self.lease, self.journal)
        self.calls: dict[UUID, Call] = {}
        """Calls that were sent, or are to be."""
        self._parts = CodeParts(
            self.lease, self.gates, self.authorizer, self.conversation, self.ledger, self.journal,
            self.entries, self.calls,
        )  # fmt: skip

    async def run(self) -> None:
        """Until the lease is given up. Raises `WriteFailed` where even that could not be written."""
        await EndWriter(self.lease, self.journal).run(self._loop)

    def interrupt(self) -> None:
        self.lease.cancel_requested = True
        self.conversation.interrupt("The job was cancelled.")

    def cut(self) -> None:
        self.lease.cut()
        self.conversation.interrupt("The job was paused.")

    async def _loop(self) -> None:
        lease = self.lease
        point = await resume(lease, self.gates, self.authorizer)
        self.journal.state = lease.state
        self.conversation.turns = point.turns
        entries, signals = await workers.list_past_entries(lease.db, lease.assignment)
        function = self._function()
        progress = lease.progress
        progress.phase = Phase.MODEL
        self.entries.count = 1 + max((entry.position for entry in entries), default=-1)
        number, messages = last_round(entries), point.messages
        rows = {call.step_index: call for call in point.calls}
        while True:
            performer = Performer(self._parts, entries, signals, rows, number)
            answer, messages = await self._round(performer, function, messages)
            # New messages arrived: the function begins again with them.
            number += 1
            begin, write = self.entries.new_round(number, read_to=progress.message_seq)
            entries = [*entries, begin]
            progress.message_seq = max(message.seq for message in messages)
            self.gates.add_messages(messages)
            await self.journal.write(merge_writes(write, StepWrite(reply=answer)))

    def _function(self) -> CodeAgent:
        agents = self.lease.app.agents
        name = self.lease.limits.skills.run or ""
        if name not in agents:
            names = ", ".join(f"`{agent}`" for agent in sorted(agents)) or "none"
            self._hold_changed_code(f"the app `{self.lease.app.name}` has no agent `{name}`; it has {names}")
        return agents[name]

    async def _round(self, performer: Performer, function: CodeAgent, messages: Sequence[SessionMessage]) -> Answer:
        assignment = self.lease.assignment
        ctx = Context(
            performer, payload=self._payload(performer, messages), job_id=assignment.job_id,
            session_id=assignment.session_id, agent=assignment.agent, config=self.lease.config,
        )  # fmt: skip
        await self._parts.evaluate_gates()
        self.journal.playing = True
        try:
            result, error = await self._play(performer, performer.play(function, ctx, performer.prefix))
        finally:
            self.journal.playing = False
            performer.closed = True
            await performer.close()
            await self.journal.stop_flushing()
        return await self._end(performer, result, error)

    def _payload(self, performer: Performer, messages: Sequence[SessionMessage]) -> dict[str, Any]:
        """In a conversation: with the messages that no earlier round answered."""
        assignment = self.lease.assignment
        if assignment.kind is not JobKind.CONVERSATION:
            return assignment.payload
        since = max(performer.read_to + 1, int(assignment.payload.get("message_seq", 0)))
        texts = [message.text for message in messages if message.role == "user" and message.seq >= since]
        return {**assignment.payload, "text": "\n".join(texts)}

    async def _play(self, performer: Performer, function: Any) -> tuple[Any, BaseException | None]:
        """What the function returned or raised, once nothing of it runs any more."""
        task = asyncio.ensure_future(function)
        try:
            await asyncio.wait([task], timeout=max(0.0, self.lease.limits.job_seconds_left()))
            if not task.done():
                self.journal.stop.failures.append(JobFailed(*self.lease.limits.out_of_time))
                task.cancel()
                await asyncio.wait([task], timeout=UNWINDING_SECONDS)
            await performer.quiet()
        except asyncio.CancelledError:
            task.cancel()
            await performer.close()
            await asyncio.wait([task], timeout=UNWINDING_SECONDS)
            raise
        if not task.done():
            log.warning("an agent does not stop", job_id=str(self.lease.assignment.job_id))
            return None, Unwind()
        if task.cancelled():
            return None, asyncio.CancelledError("the function was cancelled")
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)

    async def _end(self, performer: Performer, result: Any, error: BaseException | None) -> Answer:
        stop = self.journal.stop
        if stop.error is not None:
            raise stop.error
        if performer.mismatch is not None:
            self._hold_changed_code(performer.mismatch)
        if stop.failures:
            raise Ended(self._all_failures())
        if stop.holds:
            raise Ended(JobHeld(stop.holds[0].hold, stop.holds[0].event, _merge_all(stop.holds)))
        if stop.cancelled or (self.lease.cancel_requested and isinstance(error, Unwind)):
            raise Ended(JobCancelled())
        if stop.hand_back is not None:
            raise Ended(stop.hand_back)
        if (stop.waiting or stop.held_back) and error is None:
            self._hold_changed_code(
                "the function returned although an operation had not ended; let what `ctx` raises pass, and never"
                " catch BaseException"
            )
        if stop.waiting:
            await self._park()
        if stop.held_back or (isinstance(error, Unwind) and self.journal.held):
            raise Ended(JobPaused())
        if error is not None:
            self._raise_end(performer, error)
        return await self._complete(performer, result)

    def _hold_changed_code(self, reason: str) -> NoReturn:
        """A deploy must not fail parked work: a job that the code does not fit waits for an operator."""
        why = storable(f"the code differs from what was recorded: {reason}")[:2000]
        log.warning("code changed", job_id=str(self.lease.assignment.job_id), reason=why)
        raise Ended(JobHeld(Hold.CODE_CHANGED, {"why": why}))

    def _all_failures(self) -> JobFailed:
        stop = self.journal.stop
        write = _merge_all(stop.failures)
        for hold in stop.holds:
            call = self.calls.get(UUID(hold.event["call"])) if "call" in hold.event else None
            if call is not None:
                call.fail(call.error or "nobody knows whether it happened")
                if self.gates.bound is not None:
                    self.gates.bound.end_calls([call])
                write = merge_writes(write, outcome_write(call))
        first = stop.failures[0]
        return JobFailed(first.message, first.remedy, write, first.keep_checkpoint)

    async def _park(self) -> NoReturn:
        """Waiting holds nothing. People come first: other waits are looked at when they have decided."""
        stop = self.journal.stop
        if stop.awaiting:
            write = self.cards.suspend(stop.awaiting, stop.terms, StepWrite())
            await self.ledger.write(stop.awaiting, write)
            raise Ended
        wake = min(stop.wakes, default=None)
        reason = ", ".join(dict.fromkeys(stop.reasons))[:200]
        delay = None if wake is None else max(0.0, (wake - self.lease.time.now()).total_seconds())
        events = [("status", {"status": JobStatus.SLEEPING, "reason": reason})]
        facts = [self.lease.fact("job_sleeps", reason=reason)]
        write = StepWrite(status=JobStatus.SLEEPING, delay_seconds=delay, events=events, facts=facts)
        write.more = {"waits": stop.waits} if stop.waits else {}
        raise Ended(LastWrite(write))

    def _raise_end(self, performer: Performer, error: BaseException) -> NoReturn:
        """How the attempt ends where the function raised."""
        entry = performer.scopes.unvisited()
        name = type(error).__name__
        if entry is not None:
            self._hold_changed_code(f"expected {entry.kind} `{entry.key}`, and the code raised {name}: {error}")
        self.entries.failures.clear()
        if isinstance(error, ModelError):
            raise Ended(JobRetried(error.error_class, str(error), retry_after=error.retry_after))
        message = f"The agent's function raised {error if isinstance(error, StepFailed) else f'{name}: {error}'}"
        if isinstance(error, CortexError) and (not isinstance(error, StepFailed) or isinstance(error, StepNotDone)):
            raise Ended(JobFailed(message, "Correct its code, or catch it there; then `cortex job resubmit` it."))
        raise Ended(JobRetried(ErrorClass.INFRASTRUCTURE, message))

    async def _complete(self, performer: Performer, result: Any) -> Answer:
        """Ends the job, unless new messages arrived in its conversation: then the answer goes with the next write."""
        lease = self.lease
        if performer.unawaited:
            names = ", ".join(operation.what for operation in performer.unawaited[:3])
            raise Ended(JobFailed(f"The agent's function never awaited: {names}.", "Write `await` before it."))
        self.entries.record_caught("")
        questions = self.gates.bound.session.state.asks if self.gates.bound is not None else ()
        if questions:
            message = f"The agent's function returned, and the gate `{questions[0].gate}` still waits for its answer."
            hint = "Answer it there with `await ctx.answer(…)`, then `cortex job resubmit` it."
            raise Ended(JobFailed(message, hint))
        try:
            text, content = _result(result)
        except CortexError as error:
            message = f"The agent's function returned what cannot be stored: {error.message}"
            raise Ended(JobFailed(message, error.hint)) from error
        reply = (text.strip() or None) if lease.assignment.kind is JobKind.CONVERSATION else None
        while not await self._write_completion(reply, content):
            since, newest = lease.progress.message_seq, lease.newest_message
            messages = await workers.messages_between(lease.db, lease.assignment, since, newest)
            if any(message.role == "user" for message in messages):
                return reply, messages
            lease.progress.message_seq = lease.newest_message  # the new messages are this job's own
        raise Ended

    async def _write_completion(self, reply: str | None, result: bytes) -> bool:
        """False where a message arrived that the function has not read: nothing was written then."""
        progress = self.lease.progress
        progress.status, progress.phase = CheckpointStatus.COMPLETED, Phase.DONE
        facts = [self.lease.fact("job_completed", **reply_digest(reply))]
        write = StepWrite(reply=reply, status=JobStatus.COMPLETED, result=result, facts=facts)
        write.events = [("completion", {"step": progress.step}), ("status", {"status": JobStatus.COMPLETED})]
        outcome = await self.journal.write(write)
        progress.status, progress.phase = CheckpointStatus.IN_PROGRESS, Phase.MODEL
        return outcome.status is JobStatus.COMPLETED


def _merge_all(ends: Sequence[JobFailed | JobHeld]) -> StepWrite:
    return functools.reduce(merge_writes, (end.write for end in ends if end.write is not None), StepWrite())


def _result(value: Any) -> tuple[str, bytes]:
    """What a function returned, as a text and as the job's result, which is always an object."""
    content = encode_result(value)
    if len(content) > MAX_JOB_RESULT:
        raise TooLarge(f"it is {len(content)} bytes; the limit is {MAX_JOB_RESULT}.")
    plain = orjson.loads(content)
    if isinstance(plain, dict):
        text = plain.get("text")
        return (text if isinstance(text, str) else content.decode()), content
    if isinstance(plain, str):
        return plain, canonical({"text": plain})
    return ("" if plain is None else content.decode()), canonical({} if plain is None else {"value": plain})
