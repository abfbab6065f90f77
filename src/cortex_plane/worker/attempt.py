"""The agent loop of one attempt: from the claim to the write that ends the lease.

A step is one response of the model with all its calls resolved. Every arrow below is one commit, and a worker that
dies between two of them leaves the job exactly where the last one put it:

    model ──▶ response recorded, first intent ──▶ outcome, next intent ──▶ … ──▶ step done ──▶ model …
                                                                                    └──▶ completed

Decide first (pure), write after (one call); nothing is sent that was not written before.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import structlog

from cortex_plane.agents.model.completions import AssistantTurn, ModelError, Response, StopReason, ToolTurn
from cortex_plane.jobs.model.checkpoints import CheckpointStatus, LogEntry, Phase
from cortex_plane.jobs.model.effects import SETTLED, CallStatus
from cortex_plane.jobs.model.jobs import JobKind, JobStatus
from cortex_plane.jobs.rules.attempts import Assignment, NewStep, StepWrite, WriteResult
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, ErrorClass, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.sessions.rules import as_sent, heard, merge_assistant_turns, recorded_form, requests_of
from cortex_plane.worker import step_events
from cortex_plane.worker.approval_requests import ask
from cortex_plane.worker.calls import (
    Call,
    CallKind,
    PendingWrite,
    groups,
    plan_call,
    summary,
    without_intents,
)
from cortex_plane.worker.context_window import compact, window
from cortex_plane.worker.effects import perform, read
from cortex_plane.worker.lease import CheckpointTooLarge, Ended, Lost, WorkerContext, WriteFailed
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.model_calls import Voice

log = structlog.get_logger()


OVERTAKEN = ("policy_changed", "grant_refused", "gates_changed", "atlas_rate_limited")
"""What was decided by does not hold any more."""
LAST_WRITE_SECONDS = 3.0
"""How long whoever is stopped waits for the write that it has under way."""


class Acting(Voice):
    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self._unsure = False
        """Nobody knows whether the last write was made, so no other may follow it."""

    async def run(self) -> None:
        """Until the lease is given up. Raises ``Abandoned`` where even that could not be written."""
        try:
            await self._run()
        except Ended:
            pass
        except Lost:
            log.warning("job lost", job_id=str(self.given.job_id), epoch=self.given.epoch)
        except WriteFailed:
            raise
        except asyncio.CancelledError:
            await self._stop()
            raise
        except Unavailable as error:
            raise WriteFailed(str(error)) from error
        except CheckpointTooLarge as error:
            await self.quietly(self.end_overgrown(error))
        except Exception as error:
            log.exception("attempt failed", job_id=str(self.given.job_id))
            await self._try_again(f"{type(error).__name__}: {error}")

    async def _stop(self) -> None:
        try:
            await self.hand_back("the worker stops")
        except Exception as error:
            raise WriteFailed(str(error)) from error

    async def _try_again(self, message: str) -> None:
        """What cannot be written must not come back for ever: then it is dropped, and the try is counted all the same."""
        for drop in (self.drop_recorded, self._drop_counted):
            try:
                await self.quietly(self.retry(ErrorClass.INFRASTRUCTURE, message, keep_checkpoint=True))
                return
            except WriteFailed:
                raise
            except Exception:
                log.exception("dropped what cannot be written", job_id=str(self.given.job_id))
                drop()
        await self.quietly(self.retry(ErrorClass.INFRASTRUCTURE, message, keep_checkpoint=True))

    def drop_recorded(self) -> None:
        """Forget what was to go with the next write. What was sent is in the ledger, and is settled from there."""
        self.notes = []
        if self.gates is not None:
            self.gates.drop()

    def _drop_counted(self) -> None:
        self.model_calls = []

    @abstractmethod
    async def _run(self) -> None: ...

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        """Once it is under way it is made or refused: whoever is stopped meanwhile hears of it before they go."""
        if self._unsure:
            raise WriteFailed("nobody knows whether the last write was made")
        writing = asyncio.ensure_future(self._written(write, keep_checkpoint))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing], timeout=LAST_WRITE_SECONDS)
            if not writing.done():
                self._unsure = True
                writing.cancel()
            elif not writing.cancelled():
                writing.exception()  # seen
            raise

    async def _written(self, write: StepWrite, keep_checkpoint: bool) -> WriteResult:
        return await super().write(write, keep_checkpoint=keep_checkpoint)

    async def write_calls(self, calls: Sequence[Call], write: StepWrite) -> WriteResult:
        self.at.active_tools = tuple(call.shown() for call in calls)
        try:
            return await self.write(write)
        except Conflict as error:
            if error.code not in OVERTAKEN:
                raise
            overtaken = error
        limited = overtaken.code == "atlas_rate_limited"
        return await self.give_way(calls, write, overtaken.message, limited=limited)

    async def give_way(
        self, calls: Sequence[Call], write: StepWrite, why: str, *, limited: bool = False
    ) -> NoReturn:
        """What no longer holds is neither sent nor asked for. The rest is kept, and the next attempt looks again."""
        self.at.status = CheckpointStatus.IN_PROGRESS
        self.forget([call for call in calls if call.status not in SETTLED])
        await self.write(without_intents(write))
        if limited:
            # Counted over all sessions, by the minute of the database: with the next one it is judged again.
            now = self.time.now()
            await self.sleep(60 - now.second - now.microsecond / 1e6 + 0.01, why)
        await self.hand_back_counted(why)
        raise Ended

    def summary_of(self, call: Call) -> str:
        """What people are asked, in one line."""
        return f"{self.given.agent} wants to call {call.name}"


class Attempt(Acting):
    """One lease of one job, from the claim to its end."""

    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self.step_started = self.started

    # The loop --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        past = await self.open()
        steps = {step.step_index: step for step in past.steps}
        if self.at.phase is Phase.TOOLS:
            recorded = steps[self.at.step].response
            mine = [call for call in past.calls if call.step_index == self.at.step]
            calls = await self.restore(recorded, mine)
            await self.check_code(calls)
            sent = as_sent(requests_of(recorded), {call.position: call for call in mine})
            read_to = steps[self.at.step].message_seq
            self.turns.append(
                AssistantTurn(text=recorded["text"], calls=sent), step=self.at.step, seq=read_to
            )
            await self._resolve(calls, StepWrite())
        while True:
            await self._boundary()
            await self._step()

    async def _boundary(self) -> None:
        """Between two steps: the safe place to stop, and to hear what was said meanwhile."""
        if self.cancel_requested:
            await self.end_cancelled()
        if self.host.stopping.is_set():
            await self.hand_back("the worker stops")
            raise Ended
        if self.given.kind is JobKind.CONVERSATION and self.unread_to > self.at.message_seq:
            said = await workers.messages_between(
                self.host.db, self.given, self.at.message_seq, self.unread_to
            )
            self.turns.extend(heard(said, self.given.job_id))
            self.hear(said)
            self.at.message_seq = self.unread_to

    async def _step(self) -> None:
        self.step_started = ticks()
        await self.check_limits()
        looked = await self.look()
        if looked is not None:
            await self._done(looked)
        try:
            if await self._made_room():
                return
            told = window(self)
            request = self.request(told if self.gates is None else merge_assistant_turns(told))
            response = await self.ask(replace(request, notice=self.notice))
        except ModelError as error:
            if self.gates is not None:
                self.gates.went_wrong(str(error))
            await self.retry(error.error_class, str(error), wished=error.retry_after)
        self.at.prompt_tokens += response.usage.prompt_tokens
        self.at.completion_tokens += response.usage.completion_tokens
        self.at.iterations += 1
        if not response.calls and not (response.text or "").strip():
            await self.fail(
                "The model returned nothing: neither text nor a call.",
                "Look at the agent's prompt and model, then `cortex job resubmit` it.",
            )
        try:
            recorded = canonical(recorded_form(response))
        except CortexError as error:
            await self.fail(f"The model's response cannot be stored: {error.message}", error.hint)
        step = NewStep(
            index=self.at.step,
            message_seq=self.at.message_seq,
            response=recorded,
            prompt_tokens=response.usage.prompt_tokens,
            completion_tokens=response.usage.completion_tokens,
            seconds=ticks() - self.step_started,
        )
        said_now = AssistantTurn(text=response.text, calls=response.calls)
        self.turns.append(said_now, step=self.at.step, seq=self.at.message_seq)
        if not response.calls:
            if self.gates is not None and self.gates.state.asks:
                await self._unheeded(response, step)
            else:
                await self._answer(response, step)
            return
        calls = [
            plan_call(position, request, new_id(), self.toolbox, self.at.step)
            for position, request in enumerate(response.calls)
        ]
        await self.authorize(calls)
        self.tell_once()
        if self.gates is not None:
            self.gates.unanswered()
        self.at.phase = Phase.TOOLS
        # What only reads is told once, when it is done; what acts is on the trail before it does.
        acts = any(call.kind is CallKind.EFFECT for call in calls)
        said = [summary(call) for call in calls]
        facts = [self.fact("step_responded", step=step.index, calls=said)] if acts else []
        events = step_events.by(response, step_events.called(step.index, response.text, calls))
        due = StepWrite(step=step, facts=facts, events=events)
        if self.gates is not None and self.gates.shut is not None:
            await self._shut(calls, due)
        await self._resolve(calls, due)

    async def _shut(self, calls: Sequence[Call], due: StepWrite) -> None:
        """The agent is out of tries: nothing of its response is sent, and all of it is kept."""
        pending = PendingWrite(due)
        pending.new(*(call for call in calls if call.settled))
        await self.require_open(pending.take())

    async def _unheeded(self, response: Response, step: NewStep) -> None:
        """A text is no answer to a question of a gate: it is kept, ends nothing, and the model is asked again."""
        if self.gates is not None:
            self.gates.begin()
            self.gates.unanswered()
        text = response.text or ""
        self._log_step(step.index, "unanswered", text, 0)
        self.at.step = step.index + 1
        write = StepWrite(
            step=step,
            done_step=step.index,
            events=step_events.by(response, step_events.said(step.index, text)),
            facts=[self.fact("step_completed", step=step.index, calls=[])],
        )
        await self.require_open(write)
        await self._done(await self.write(write))

    async def _made_room(self) -> bool:
        """Whether something was compacted: it took a while, so the boundary is looked at again."""
        written = await compact(self)
        if written is not None:
            await self._done(written)
        return written is not None

    async def _answer(self, response: Response, step: NewStep) -> None:
        """A response without calls ends the job, unless somebody said something meanwhile."""
        text = response.text or ""
        cut = {"truncated": True} if response.stop_reason is StopReason.MAX_TOKENS else {}
        conversation = self.given.kind is JobKind.CONVERSATION
        reply = text if conversation else None
        fact = self.fact("step_completed", step=step.index, calls=[], **step_events.replied(reply))
        self._log_step(step.index, "answer", text, 0)
        self.at.status, self.at.phase = CheckpointStatus.COMPLETED, Phase.DONE
        written = await self.write(
            StepWrite(
                step=step,
                done_step=step.index,
                reply=reply,
                status=JobStatus.COMPLETED,
                result=canonical({"text": text, **cut}),
                events=step_events.by(response, step_events.completed(step.index, text)),
                facts=[self.fact("job_completed"), fact],
            )
        )
        if written.status is JobStatus.COMPLETED:
            raise Ended
        # Nothing was written: somebody wrote to the session while the model spoke. Keep the answer and go on.
        self.at.status, self.at.phase, self.at.step = (
            CheckpointStatus.IN_PROGRESS,
            Phase.MODEL,
            step.index + 1,
        )
        await self._done(
            await self.write(
                StepWrite(
                    step=step,
                    done_step=step.index,
                    reply=reply,
                    events=step_events.by(response, step_events.said(step.index, text)),
                    facts=[fact],
                )
            )
        )

    # The calls of a step ---------------------------------------------------------------------------------------

    async def _resolve(self, calls: list[Call], due: StepWrite) -> None:
        """Run what is not settled. ``due`` is what must be durable before anything is sent."""
        index = self.at.step
        if any(call.status is CallStatus.AWAITING for call in calls):
            await ask(self, calls, due)
        pending = PendingWrite(due)
        pending.new(*(call for call in calls if call.settled and not call.written))
        for group in groups(calls):
            self.happened(calls, group[0].position)
            if group[0].kind is CallKind.EFFECT:
                call = group[0]
                is_new = call.status in (None, CallStatus.APPROVED)
                if call.status is CallStatus.APPROVED:
                    call.granted = True
                    pending.granted.append(call)
                elif is_new:
                    pending.new(call)
                if is_new:
                    call.status = CallStatus.INTENDED
                await perform(self, call, calls, pending.take(), new=is_new)
                pending.settled.append(call)
            else:
                # The response before anything else; and what an effect did does not wait for others to read.
                if pending.due.step is not None or pending.settled:
                    await self.write_calls(calls, replace(pending.take(), reads=True))
                if self.gates is not None and not self.gates.allow(group):
                    # What ran before them in the same response shut a gate. Of an effect the write that sends it says so.
                    await self.give_way(calls, pending.take(), "The gates of this session changed meanwhile.")
                await asyncio.gather(*(read(self, call) for call in group))
                pending.new(*group)
            pending.stored += self.take_stored()
            if self.limits.per_call:
                await self.write_calls(calls, pending.take())
        await self._end_step(calls, pending.take(), index)

    async def _end_step(self, calls: Sequence[Call], write: StepWrite, index: int) -> None:
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        outcome = "; ".join(f"{call.name}: {call.status}" for call in calls)
        self._log_step(index, names, outcome, len(calls))
        self.at.active_tools = tuple(call.shown(whole=False) for call in calls)
        self.at.phase, self.at.step, self.at.invocation = Phase.MODEL, index + 1, None
        said = [step_events.outcome(call) for call in calls]
        acts = any(call.kind is CallKind.EFFECT for call in calls)
        proof = said if acts else [{**summary(call), **told} for call, told in zip(calls, said, strict=True)]
        self.turns.append(ToolTurn(tuple(call.told() for call in calls)), step=index)
        self.happened(calls)
        write.done_step = index
        write.events = [*write.events, *step_events.settled(index, calls)]
        write.facts = [*write.facts, self.fact("step_completed", step=index, calls=proof)]
        await self._done(await self.write(write))

    async def _done(self, written: WriteResult) -> None:
        """A step is durable: does anybody want the job to stop here?"""
        if written.cancelled:
            await self.end_cancelled()
        if written.held:
            meters().suspended(self.given.org_id, written.held_seconds or 0.0)
            await self.write(
                StepWrite(
                    status=JobStatus.PAUSED,
                    events=[("status", {"status": JobStatus.PAUSED}), ("session_paused", {"reason": "held"})],
                    facts=[self.fact("job_paused")],
                )
            )
            raise Ended

    # The log -----------------------------------------------------------------------------------------------------

    def _log_step(self, index: int, step_id: str, summary: str, calls: int) -> None:
        now = self.time.now()
        entry = LogEntry(
            step_index=index,
            step_id=step_id[:100] or "answer",
            started_at=now - timedelta(seconds=ticks() - self.step_started),
            finished_at=now,
            result_summary=summary[:200],
            tool_calls=calls,
        )
        self.at.finished(entry)
