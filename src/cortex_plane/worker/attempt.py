"""The agent loop of one attempt: from the claim to the write that ends the lease.

A step is one response of the model with all its calls resolved. Every arrow below is one commit, and a worker that
dies between two of them leaves the job exactly where the last one put it:

    model ──▶ response recorded, first intent ──▶ outcome, next intent ──▶ … ──▶ step done ──▶ model …
                                                                                    └──▶ completed

`Attempt` holds one object for each part of a step:

    model       `ModelConversation.ask` (model_calls.py) sends the turns and streams the response
    authorize   `CallAuthorizer.authorize` (authorization.py) judges each call by gates (session_gates.py) and policies
    approval    `RequestCards.suspend` (effects.py) asks people; the job gives up its lease
    intent,     `CallLedger.perform` (effects.py) writes the intent, runs the tool, and settles an outcome that
    effect      nobody knows
    outcome     `_finish_step` below puts results, events and facts into one write
    checkpoint  `StepWriter.write` below, `Lease.commit` (lease.py): one fenced and numbered commit

Decide first (pure), write after (one call); nothing is sent that was not written before. `Attempt.run` resumes from the
checkpoint (resume.py), then repeats `_step` until a part raises `Ended` with how the attempt ends (ends.py).
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.agents import CheckpointGranularity
from cortex_plane.gates.model.gates import GateInput
from cortex_plane.jobs.model.checkpoints import CheckpointStatus, Phase, Progress
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobKind, JobStatus
from cortex_plane.jobs.rules import Assignment, NewStep, StepWrite, WriteResult
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.sessions.rules import heard, merge_assistant_turns, recorded_form, requests_of
from cortex_plane.worker import calls as step_calls
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.context_window import ContextWindow
from cortex_plane.worker.effects import CallLedger, RequestCards, awaiting_calls
from cortex_plane.worker.ends import Ended, EndWriter, JobCancelled, JobFailed, JobHandedBack, JobPaused, JobRetried
from cortex_plane.worker.lease import UNSURE, CheckpointTooLarge, Lease, WorkerContext, WriteFailed
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.resume import ResumePoint, restore_calls, resume
from cortex_plane.worker.session_gates import AttemptGates, SessionGates

GATE_TRIES = 20
"""How often a write is tried while other attempts of the same session write first."""
IN_A_ROW = 3
"""So many tries follow at once; then each waits for a random moment."""
Commit = Callable[[StepWrite, bool], Coroutine[Any, Any, WriteResult]]
GATES_CHANGED = "gates_changed"
STOPPED_AT_BOUNDARY = "stopped_at_boundary"
FRESH_SECONDS = 0.1
"""How old the last look at holds may be where the model is asked before the next one: a hold that came since costs its response."""
UNGOVERNED = {"revision": 0, "atlases": 0}
"""What an attempt without atlases has evaluated."""


class StepWriter:
    """Turns the step that an attempt computed into one durable write, or raises: nothing goes on without its write."""

    def __init__(self, lease: Lease, gates: SessionGates, conversation: ModelConversation) -> None:
        self._lease, self._gates, self._conversation = lease, gates, conversation
        self._deferred: tuple[StepWrite, Progress] | None = None
        """The end of a step that goes with the next write, and where the job stood then."""
        self._flush: asyncio.Task[tuple[WriteResult, Progress]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def defer(self, step: StepWrite, seconds: float) -> None:
        """Write it with the next write, or by itself where none comes in time: at once with 0."""
        self._deferred = step, copy.copy(self._lease.progress)
        if seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start_flush)
        else:
            self._start_flush()

    @property
    def is_flushing(self) -> bool:
        return self._flush is not None

    async def flush(self) -> tuple[WriteResult, Progress] | None:
        """What was deferred is durable when this returns, with where the job stood then; None where there was nothing, or another
        write had it."""
        self._stop_timer()
        self._start_flush()
        if self._flush is None:
            return None
        try:
            end = await self._flush
        finally:
            self._flush = None
        if self._lease.is_cut_off:
            self._lease.is_cut_off = False
            raise asyncio.CancelledError
        return end

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start_flush(self) -> None:
        if self._deferred is not None and self._flush is None:
            self._flush = asyncio.get_running_loop().create_task(self._write_deferred())
            self._flush.add_done_callback(self._stop_model)

    def _stop_model(self, flush: asyncio.Task[tuple[WriteResult, Progress]]) -> None:
        """Nobody waits for a response that would be thrown away."""
        if flush.cancelled():
            return
        if flush.exception() is not None:
            self._conversation.interrupt("The end of the last step could not be written.")
        elif flush.result()[0].held or flush.result()[0].cancelled:
            self._conversation.interrupt("The job stops after its last step.")

    async def _write_deferred(self) -> tuple[WriteResult, Progress]:
        if self._deferred is None:
            raise AssertionError("somebody else wrote what was deferred")
        step, progress = self._deferred
        try:
            result = await self._lease.commit(step.copy(), progress=progress)
        except CheckpointTooLarge:
            self._deferred = None  # its outcomes are in the error
            raise
        self._deferred = None
        return result, progress

    async def write(
        self, step: StepWrite, *, keep_checkpoint: bool = False, commit: Commit | None = None
    ) -> WriteResult:
        """An attempt that is cancelled during a write learns first what became of it (`Lease.commit`)."""
        lease = self._lease
        if lease.is_unsure:
            raise WriteFailed(UNSURE)
        try:
            if self._deferred is not None or self._flush is not None:
                return await self._write_with_deferred(step, keep_checkpoint)
            return await (commit or self.commit)(step, keep_checkpoint)
        finally:
            if lease.is_cut_off:
                lease.is_cut_off = False
                raise asyncio.CancelledError

    async def _write_with_deferred(self, step: StepWrite, keep_checkpoint: bool) -> WriteResult:
        """One commit for the end of a step and what comes next; two where the next write is about something else."""
        deferred, goes_on = self._deferred, step.step is not None and step.status in (None, JobStatus.COMPLETED)
        self._stop_timer()
        if self._flush is None and deferred is not None and not keep_checkpoint and goes_on:
            both = step_calls.merge_writes(deferred[0], step)
            both.past_boundary = True
            try:
                result = await self.commit(both, keep_checkpoint)
            except Conflict as error:
                if error.code != STOPPED_AT_BOUNDARY:
                    raise
            except CheckpointTooLarge:
                self._deferred = None  # the outcomes of both are in the error
                raise
            else:
                if is_applied(both, result):
                    self._deferred = None
                return result
        end = await self.flush()
        if end is not None and goes_on and (end[0].held or end[0].cancelled):
            self._lease.progress = end[1]  # the step that follows is not recorded
            check_hold(self._lease, end[0])
        return await self.commit(step, keep_checkpoint)

    async def commit(self, step: StepWrite, keep_checkpoint: bool) -> WriteResult:
        """The step with its usage, the state of the gates, and the sealed checkpoint."""
        usage = tuple(self._conversation.model_calls)
        # A copy: where the write is refused, the caller goes on from the step as it was.
        write = step.copy()
        if usage:
            write.more = {**step.more, "usage": [call.row() for call in usage]}
        gates = self._gates.bound
        if gates is not None:
            result = await self._commit_with_gates(gates, write, keep_checkpoint)
        else:
            if step.reads:
                write.more = {**write.more, "gates": UNGOVERNED}
            result = await self._lease.commit(write, keep_checkpoint=keep_checkpoint)
        if usage and is_applied(step, result):
            self._conversation.commit(usage)
        return result

    async def _commit_with_gates(self, gates: AttemptGates, step: StepWrite, keep_checkpoint: bool) -> WriteResult:
        """The gates' state goes with it, also where the checkpoint stays as it was: it did happen."""
        if step.dispatches and not gates.allows_write(step):
            raise Conflict("The gates of this session changed since this call was let through.", code=GATES_CHANGED)
        evaluations = tuple(gates.session.evaluations)
        for tries in range(1, GATE_TRIES + 1):
            changes = gates.changes_for(step, evaluations)
            write = step.copy()
            write.more = {**step.more, "gates": changes.more} if changes.more else step.more
            traces = [self._lease.fact(trace.type, **trace.payload) for trace in changes.traces]
            write.facts, write.events = [*traces, *step.facts], [*changes.events, *step.events]
            try:
                result = await self._lease.commit(write, keep_checkpoint=keep_checkpoint)
            except Conflict as error:
                if error.code != GATES_CHANGED or tries == GATE_TRIES:
                    raise
                if tries > IN_A_ROW:
                    await asyncio.sleep(random.random() * tries / 100)  # noqa: S311 -- jitter
                await self._gates.reload(gates)
                if (step.dispatches or step.reads) and (gates.session.unmet or not gates.allows_write(step)):
                    raise
                continue
            if is_applied(step, result):
                gates.commit(changes)
            return result
        raise AssertionError("the last try returns or raises")

    def drop_recorded(self) -> None:
        self._stop_timer()
        self._deferred = None
        self._lease.notes = []
        if self._gates.bound is not None:
            self._gates.bound.drop()

    def drop_usage(self) -> None:
        self._conversation.model_calls = []


def is_applied(step: StepWrite, result: WriteResult) -> bool:
    """Whether a write was made: a completion is refused where a newer message arrived."""
    return step.status is not JobStatus.COMPLETED or result.status is JobStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class ResponseStep:
    """One response of the model, with its planned and authorised calls."""

    record: NewStep
    response: completions.Response
    calls: Sequence[step_calls.Call] = ()

    @property
    def text(self) -> str:
        return self.response.text or ""


class Attempt:
    """One lease of one job of an agent that follows its model."""

    def __init__(self, worker: WorkerContext, assignment: Assignment) -> None:
        self.lease = Lease(worker, assignment)
        self.gates = SessionGates(self.lease, runs_code=False)
        self.authorizer = CallAuthorizer(self.lease, self.gates)
        self.conversation = ModelConversation(self.lease, self.gates)
        self.window = ContextWindow(self.lease, self.gates, self.conversation)
        self.cards = RequestCards(self.lease, self.gates, self.conversation, self.authorizer.demands)
        self.writer = StepWriter(self.lease, self.gates, self.conversation)
        self.ledger = CallLedger(self.lease, self.gates, self.authorizer, self.cards, self.writer)
        self.step_start = self.lease.limits.start

    async def run(self) -> None:
        """Until the lease is given up. Raises `WriteFailed` where even that could not be written."""
        await EndWriter(self.lease, self.writer).run(self._loop)

    def interrupt(self) -> None:
        """Somebody cancelled the job."""
        self.lease.cancel_requested = True
        self.conversation.interrupt("The job was cancelled.")

    def cut(self) -> None:
        """Somebody paused the job, and it should hold by now."""
        self.lease.cut()
        self.conversation.interrupt("The job was paused.")

    async def _loop(self) -> None:
        point = await resume(self.lease, self.gates, self.authorizer)
        self.conversation.turns = point.turns
        if self.lease.progress.phase is Phase.TOOLS:
            await self._resume_step(point)
        while True:
            await self._boundary()
            await self._step()

    async def _resume_step(self, point: ResumePoint) -> None:
        """The step whose response an earlier attempt recorded."""
        step, response = self.lease.progress.step, point.response
        if response is None:
            raise RuntimeError(f"The response of step {step} is not recorded.")
        if self.gates.bound is not None and self.gates.bound.session.unmet:
            # The session was bound to more atlases since: gates that fire at a start come before anything is sent.
            await self._evaluate_gates()
        rows = [call for call in point.calls if call.step_index == step]
        calls = await restore_calls(self.lease, self.gates, self.authorizer, response, rows)
        requests = requests_of(response, {row.position: row for row in rows})
        turn = completions.AssistantTurn(text=response["text"], calls=requests)
        self.conversation.turns.append(turn, step=step, seq=point.read_to)
        await self._resolve(calls, StepWrite())

    async def _boundary(self) -> None:
        """Between two steps: the safe place to stop, and to read new messages."""
        lease = self.lease
        if lease.cancel_requested:
            raise Ended(JobCancelled())
        if lease.worker.stopping.is_set():
            raise Ended(JobHandedBack("the worker stops"))
        read_to, newest = lease.progress.message_seq, lease.newest_message
        if newest > read_to:
            messages = await workers.messages_between(lease.db, lease.assignment, read_to, newest)
            if lease.assignment.kind is not JobKind.CONVERSATION:
                messages = workers.words_for(lease.assignment, messages)
            self.conversation.turns.extend(heard(messages, lease.assignment.job_id))
            self.gates.add_messages(messages)
            lease.progress.message_seq = lease.newest_message

    async def _step(self) -> None:
        """One response of the model, and everything that follows from it."""
        self.step_start = ticks()
        self.conversation.check_limits()
        if (result := await self._evaluate_gates()) is not None:
            check_hold(self.lease, result)
        try:
            if (memory := await self.window.compact()) is not None:
                # It took a while, so the boundary comes first.
                check_hold(self.lease, await self.writer.write(memory))
                return
            turns = self.window.turns()
            if self.gates.bound is not None and self.conversation.turns.has_monologue:
                turns = merge_assistant_turns(turns)
            request = self.conversation.request(turns, self.gates.notice)
            response = await self._ask(request)
        except completions.ModelError as error:
            if self.gates.bound is not None:
                self.gates.bound.session.boundary(GateInput(now=self.lease.time.now(), errors=(str(error),)))
            raise Ended(JobRetried(error.error_class, str(error), retry_after=error.retry_after)) from error
        step = await self._plan_step(response)
        if not step.calls:
            if self.gates.bound is not None and self.gates.bound.session.state.asks:
                await self._ignore_text(step)
            else:
                await self._answer(step)
            return
        self.lease.progress.phase = Phase.TOOLS
        # A step that only reads has one audit fact, when it is done; one that acts is on the trail before it acts.
        acts = any(call.kind is step_calls.CallKind.EFFECT for call in step.calls)
        calls = [step_calls.call_summary(call) for call in step.calls]
        index = step.record.index
        facts = [self.lease.fact("step_responded", step=index, calls=calls)] if acts else []
        events = step_calls.with_model(response, step_calls.call_events(index, response.text, step.calls))
        due = StepWrite(step=step.record, facts=facts, events=events)
        if self.gates.bound is not None and self.gates.bound.session.shut is not None:
            # The agent is out of tries: nothing of its response is sent, and all of it is kept.
            pending = step_calls.PendingWrite(due)
            pending.new(*(call for call in step.calls if call.settled))
            self.gates.require_open(pending.take())
        await self._resolve(step.calls, due)

    async def _ask(self, request: completions.ModelRequest) -> completions.Response:
        """The end of the last step may wait for this response meanwhile, and is written by itself where it takes too long."""
        try:
            response = await self.conversation.ask(request)
        except completions.ModelError:
            await self._check_flush()  # it may be why the model was interrupted
            raise
        await self._check_flush()
        return response

    async def _check_flush(self) -> None:
        if self.writer.is_flushing and (end := await self.writer.flush()) is not None:
            check_hold(self.lease, end[0])

    async def _evaluate_gates(self) -> WriteResult | None:
        """A trace that must be durable before anything else happens is written here."""
        return await self.writer.write(StepWrite()) if await self.gates.evaluate() else None

    async def _plan_step(self, response: completions.Response) -> ResponseStep:
        """The response as it is recorded, with its calls planned and authorised. Nothing is written yet."""
        progress = self.lease.progress
        self.conversation.add_tokens(response.usage)
        progress.iterations += 1
        if not response.calls and not (response.text or "").strip():
            remedy = "Look at the agent's prompt and model, then `cortex job resubmit` it."
            raise Ended(JobFailed("The model returned nothing: neither text nor a call.", remedy))
        calls = [
            step_calls.plan_call(position, request, new_id(), self.lease.toolbox, progress.step)
            for position, request in enumerate(response.calls)
        ]
        try:
            record = NewStep(
                recorded_form(response), index=progress.step, message_seq=progress.message_seq,
                prompt_tokens=response.usage.prompt_tokens, completion_tokens=response.usage.completion_tokens,
                seconds=ticks() - self.step_start, in_rows=step_calls.with_exact_rows(calls),
            )  # fmt: skip
        except CortexError as error:
            raise Ended(JobFailed(f"The model's response cannot be stored: {error.message}", error.hint)) from error
        turn = completions.AssistantTurn(text=response.text, calls=response.calls)
        self.conversation.turns.append(turn, step=progress.step, seq=progress.message_seq)
        if not response.calls:
            return ResponseStep(record, response)
        await self.authorizer.authorize(calls)
        self.gates.mark_judged()
        if self.gates.bound is not None:
            self.gates.bound.count_unanswered()
        return ResponseStep(record, response, calls)

    async def _ignore_text(self, step: ResponseStep) -> None:
        """A text is no answer to a question of a gate: it is kept, ends nothing, and the model is asked again."""
        if self.gates.bound is not None:
            self.gates.bound.begin_response()
            self.gates.bound.count_unanswered()
        index = step.record.index
        self.lease.progress.end_step(index, "unanswered")
        self.lease.progress.step = index + 1
        events = step_calls.with_model(step.response, step_calls.text_events(index, step.text))
        facts = [self.lease.fact("step_completed", step=index, calls=[])]
        write = StepWrite(step=step.record, done_step=index, events=events, facts=facts)
        self.gates.require_open(write)
        check_hold(self.lease, await self.writer.write(write))

    async def _answer(self, step: ResponseStep) -> None:
        """A response without calls ends the job, unless a newer message arrived."""
        progress, index, text = self.lease.progress, step.record.index, step.text
        cut = {"truncated": True} if step.response.stop_reason is completions.StopReason.MAX_TOKENS else {}
        reply = text if self.lease.assignment.kind is JobKind.CONVERSATION else None
        fact = self.lease.fact("step_completed", step=index, calls=[], **step_calls.reply_digest(reply))
        progress.end_step(index, "answer")
        progress.status, progress.phase = CheckpointStatus.COMPLETED, Phase.DONE
        events = step_calls.with_model(step.response, step_calls.completion_events(index, text))
        write = StepWrite(step=step.record, done_step=index, reply=reply, events=events)
        write.status, write.result = JobStatus.COMPLETED, canonical({"text": text, **cut})
        write.facts = [self.lease.fact("job_completed"), fact]
        result = await self.writer.write(write)
        if result.status is JobStatus.COMPLETED:
            raise Ended
        # Nothing was written: a message arrived while the model answered. Keep the answer and go on.
        progress.status, progress.phase, progress.step = CheckpointStatus.IN_PROGRESS, Phase.MODEL, index + 1
        events = step_calls.with_model(step.response, step_calls.text_events(index, text))
        write = StepWrite(step=step.record, done_step=index, reply=reply, events=events, facts=[fact])
        check_hold(self.lease, await self.writer.write(write))

    async def _resolve(self, calls: Sequence[step_calls.Call], due: StepWrite) -> None:
        """Run the calls that are not settled. ``due`` is what must be durable before anything is sent."""
        if any(call.status is CallStatus.AWAITING for call in calls):
            await self._request_approvals(calls, due)
        pending = step_calls.PendingWrite(due)
        pending.new(*(call for call in calls if call.settled and not call.has_row))
        for group in step_calls.group_calls(calls):
            self.gates.end_calls(calls, group[0].position)
            if group[0].kind is step_calls.CallKind.EFFECT:
                await self.ledger.perform(group[0], calls, pending)
                pending.settled.append(group[0])
            else:
                # The response comes first; and the outcome of an effect does not wait for reads.
                if pending.due.step is not None or pending.settled:
                    write = pending.take()
                    write.reads = True
                    await self.ledger.write(calls, write)
                if self.gates.bound is not None and not self.gates.bound.allows_calls(group):
                    # A call before them in the same response shut a gate. For an effect the write that sends it checks that.
                    await self.ledger.give_way(calls, pending.take(), "The gates of this session changed meanwhile.")
                if len(group) == 1:
                    await self.ledger.read(group[0])
                else:
                    await asyncio.gather(*(self.ledger.read(call) for call in group))
                pending.new(*group)
            pending.stored += self.ledger.take_results()
            if self.lease.limits.skills.checkpoint_granularity is CheckpointGranularity.PER_TOOL_CALL:
                await self.ledger.write(calls, pending.take())
        await self._finish_step(calls, pending.take())

    async def _request_approvals(self, calls: Sequence[step_calls.Call], due: StepWrite) -> None:
        """Ends the attempt; returns only where nobody can decide, and the model is told."""
        terms = {}
        for call in awaiting_calls(calls):
            if (possible := await self.cards.feasible_terms(call, due)) is not None:
                terms[call.id] = possible
        if awaiting_calls(calls):
            await self.ledger.write(calls, self.cards.suspend(calls, terms, due))
            raise Ended

    async def _finish_step(self, calls: Sequence[step_calls.Call], write: StepWrite) -> None:
        progress = self.lease.progress
        index = progress.step
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        progress.end_step(index, names[:100] or "answer")
        progress.active_tools = tuple(call.active_tool(with_result=False) for call in calls)
        progress.phase, progress.step, progress.invocation = Phase.MODEL, index + 1, None
        outcomes = [step_calls.call_outcome(call) for call in calls]
        if not any(call.kind is step_calls.CallKind.EFFECT for call in calls):
            outcomes = [{**step_calls.call_summary(call), **entry} for call, entry in zip(calls, outcomes, strict=True)]
        self.conversation.turns.append(completions.ToolTurn(tuple(call.call_result() for call in calls)), step=index)
        self.gates.end_calls(calls)
        write.done_step = index
        write.events = [*write.events, *step_calls.result_events(index, calls)]
        write.facts = [*write.facts, self.lease.fact("step_completed", step=index, calls=outcomes)]
        if write.step is None and self._may_ask_meanwhile():
            self.writer.defer(write, self._defer_seconds(calls))
        else:
            check_hold(self.lease, await self.writer.write(write))

    def _may_ask_meanwhile(self) -> bool:
        """Whether the model may be asked while the end of this step is being written. A conversation reads new messages first."""
        return (
            self.lease.assignment.kind is not JobKind.CONVERSATION
            and self.lease.limits.skills.checkpoint_granularity is CheckpointGranularity.PER_STEP
            and self.lease.is_fresh(FRESH_SECONDS)
            and self.gates.bound is None
            and not self.lease.worker.stopping.is_set()
        )

    def _defer_seconds(self, calls: Sequence[step_calls.Call]) -> float:
        """How long the outcomes wait for the next response: where they are lost, each call may be sent again by itself. A model that
        takes longer is not waited for."""
        seconds = self.lease.worker.defer_seconds
        may_wait = (
            self.lease.limits.skills.defer_outcomes
            and self.conversation.last_seconds <= seconds
            and all(call.kind is step_calls.CallKind.READ or call.may_be_repeated for call in calls)
        )
        return seconds if may_wait else 0.0


def check_hold(lease: Lease, result: WriteResult) -> None:
    """A step is durable: does anybody want the job to stop here?"""
    if result.cancelled:
        raise Ended(JobCancelled())
    if result.held:
        meters().suspended(lease.assignment.org_id, result.held_seconds or 0.0)
        raise Ended(JobPaused())
