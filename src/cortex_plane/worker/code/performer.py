"""Performs the operations of a code agent that are not recorded yet, in the lease of its attempt.

Tools go through the same authorization and the same ledger as those that a model calls.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

import orjson

from cortex_plane.agents.model.completions import AssistantTurn, CallRequest, ModelError, UserTurn, provider_name
from cortex_plane.agents.model.tools import MIN_TIMEOUT
from cortex_plane.db.crash_points import reached
from cortex_plane.gates.model.gates import PLANE_TOOLS
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, ToolCall
from cortex_plane.jobs.model.journal import EntryKind, EntryStatus, JournalEntry
from cortex_plane.jobs.rules import NewStep, StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import (
    ContextMisused,
    CortexError,
    StepFailed,
    StepNotDone,
    TooLarge,
    ToolDenied,
    ToolFailed,
    WaitTimeout,
)
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.rules import recorded_form
from cortex_plane.worker import calls as step_calls
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.code import operations
from cortex_plane.worker.code.context import FAILURES, Decision, JournalReplay, decode_result
from cortex_plane.worker.code.journal import JournalEntries, JournalWriter, OperationRecord
from cortex_plane.worker.code.steps import step_call, warn_undeclared
from cortex_plane.worker.effects import CallLedger
from cortex_plane.worker.ends import Ended, JobFailed, JobPaused
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import CallStopped, CallTimeout, ticks
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.session_gates import SessionGates
from cortex_plane.worker.tools.tool import encode_result, run_function

MAX_PAUSE = 60.0
LOOK_SECONDS = 0.5
PASSED_ON: tuple[type[BaseException], ...] = (
    *FAILURES.values(),
    ContextMisused,
    operations.Unwind,
    asyncio.CancelledError,
)
"""What an operation raises in the agent's function. Anything else ends the attempt."""


@dataclass(frozen=True, slots=True)
class CodeParts:
    """The objects of an attempt that operations use."""

    lease: Lease
    gates: SessionGates
    authorizer: CallAuthorizer
    conversation: ModelConversation
    ledger: CallLedger
    journal: JournalWriter
    entries: JournalEntries
    calls: dict[UUID, step_calls.Call]

    async def evaluate_gates(self) -> None:
        if await self.gates.evaluate():
            await self.journal.write(StepWrite())

    async def fetch(self, result_id: UUID) -> bytes:
        """A result that is stored apart."""
        lease = self.lease
        content = self.journal.results.get(result_id)
        if content is None:
            content = await workers.stored_result(lease.db, lease.assignment, result_id)
        if content is None:
            raise RuntimeError(f"The result {result_id} of job {lease.assignment.job_id} is gone.")
        return content


class Performer(JournalReplay):
    def __init__(
        self,
        parts: CodeParts,
        entries: Iterable[JournalEntry],
        signals: Mapping[str, Any],
        rows: Mapping[int, ToolCall],
        number: int = 0,
    ) -> None:
        """``rows``: of the ledger, by the position of their operation. ``number``: of the round."""
        entries = list(entries)
        super().__init__(entries, parts.fetch)
        self.prefix = operations.round_prefix(number)
        begin = next((entry for entry in entries if f"{entry.key}/" == self.prefix), None)
        self.read_to: int = begin.result["heard"] if begin is not None else 0
        """The messages that an earlier round answered."""
        self._parts, self._journal, self._entries = parts, parts.journal, parts.entries
        self._rows, self._signals = rows, signals
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def boundary(self) -> None:
        if self.mismatch is not None:
            raise operations.Unwind
        self._journal.boundary()

    @property
    def stopped(self) -> bool:
        return bool(self._journal.stop) or self._journal.held

    def now(self) -> datetime:
        return self._parts.lease.time.now()

    def session_context(self) -> dict[str, Any]:
        return self._parts.lease.assignment.session_context

    def under_way(self, key: str) -> bool:
        return key in self._tasks

    async def live(
        self, scope: operations.Scope, key: str, entry: JournalEntry | None, operation: operations.PlannedOperation
    ) -> Any:
        """In a task of its own, which ends also where the function stops waiting for it."""
        self._entries.record_caught(scope.prefix)
        task = asyncio.create_task(self._guard(self._perform(key, entry, operation)))
        self._tasks[key] = task
        task.add_done_callback(functools.partial(self._over, key, scope))
        return await asyncio.shield(task)

    def _over(self, key: str, scope: operations.Scope, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(key, None)
        if scope.busy == key:
            scope.busy = None
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more

    async def _guard(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """An error that is not for the agent to catch ends the attempt instead."""
        try:
            return await operation
        except PASSED_ON:
            raise
        except BaseException as error:
            if isinstance(error, Ended) and error.end is not None:
                self._journal.put_off(error.end)
            else:
                self._journal.stop.error = self._journal.stop.error or error
            raise operations.Unwind from None

    async def _perform(self, key: str, entry: JournalEntry | None, operation: operations.PlannedOperation) -> Any:
        match operation:
            case operations.PlannedStep():
                # One that is open was begun as a call, whatever the code says now.
                if entry is None and (operation.repeatable or self._may_be_repeated(operation)):
                    return await self._step(key, operation)
                return await self._settled_step(key, entry, operation)
            case operations.PlannedToolCall():
                return await self._call(key, entry, operation)
            case operations.PlannedModelCall():
                return await self._model(key, operation)
            case operations.PlannedSleep():
                return self._sleep(key, entry, operation)
            case operations.PlannedWait():
                return self._wait(key, entry, operation)
            case operations.PlannedValue():
                return self._value(key, operation, operation.make())
            case operations.PlannedStateRead():
                content = self._journal.state.get(operation.key)
                return self._value(key, operation, [] if content is None else [orjson.loads(content)])
            case operations.PlannedStateChange():
                return self._change_state(key, operation)
        return self._value(key, operation, None)

    async def quiet(self) -> None:
        """Until nothing is under way that the function does not wait for any more."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    def _value(self, key: str, operation: operations.PlannedOperation, value: Any) -> Any:
        result = encode_result(value)
        self._journal.record(self._entries.begin(key, operation).entry(EntryStatus.DONE, result))
        return decode_result(operation.kind, operation.name, orjson.loads(result), key)

    async def _step(self, key: str, operation: operations.PlannedStep) -> Any:
        limits, record = self._parts.lease.limits, self._entries.begin(key, operation)
        await self._journal.flush()
        self.boundary()
        for tries in range(operation.retries + 1):
            reached("step:before")
            try:
                result = encode_result(await self._call_function(operation))
                break
            except Exception as error:
                if self._parts.lease.is_overdue:
                    raise Ended(JobPaused()) from error
                # A step that the job's own time cut off did not fail, and is not for the agent to catch.
                if (refusal := limits.refuse_time()) is not None:
                    raise Ended(JobFailed(*refusal)) from error
                if tries < operation.retries:
                    await self._pause(limits.backoff.delay(tries, random.random()))  # noqa: S311 -- jitter
                    continue
                failure = _step_failed(operation, error)
                record.fail(failure)
                raise failure from error
        reached("step:after")
        most = self._parts.lease.worker.max_result_bytes
        if len(result) > most:
            failure = StepFailed(
                f"The step `{operation.name}` returned {len(result)} bytes; the limit is {most}.",
                hint="Store it elsewhere and return a reference.",
            )
            record.fail(failure)
            raise failure
        record.done(record.entry(EntryStatus.DONE, result))
        return orjson.loads(result)

    def _may_be_repeated(self, operation: operations.PlannedStep) -> bool:
        """A step that declares nothing, of an agent that was made by an earlier release."""
        if operation.on_uncertain is not None:
            return False
        assignment = self._parts.lease.assignment
        if assignment.repeats_steps:
            warn_undeclared(assignment.agent, operation.name)
            return True
        if operation.retries:
            raise ContextMisused(
                f"The step `{operation.name}` has `retries`, and does not say that it may run again.",
                hint="Pass `repeatable=True` as well.",
            )
        return False

    async def _settled_step(self, key: str, entry: JournalEntry | None, operation: operations.PlannedStep) -> Any:
        """Written before and after, and settled like a call of a tool."""
        limits, record = self._parts.lease.limits, self._entries.begin(key, operation, entry)
        row = self._rows.get(record.position) if entry is not None else None
        own = operation.timeout or float(limits.resources.step_timeout_seconds)
        seconds = min(own, max(MIN_TIMEOUT, limits.job_seconds_left()))
        call = step_call(operation, record.position, row.id if row is not None else new_id(), seconds)
        return await CodeCall(self._parts, self.boundary, record, operation, call).run(entry, row)

    def _change_state(self, key: str, operation: operations.PlannedStateChange) -> None:
        """Its entry and the change are one write."""
        record, changes = self._entries.begin(key, operation), {operation.key: operation.value}
        room = self._parts.ledger.room
        with room.lock:
            if operation.value is not None:
                try:
                    room.require(changes, operation.key)
                except TooLarge as error:
                    record.fail(error)
                    raise
            write = record.entry(EntryStatus.DONE)
            write.state = changes
            self._journal.record(write)

    async def _pause(self, seconds: float) -> None:
        """Before a step is tried again. A cancellation, a hold or the end of the worker does not wait for all of it."""
        until = ticks() + min(MAX_PAUSE, seconds)
        while (rest := until - ticks()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, rest))
            self.boundary()
        await self._journal.write(StepWrite())  # its result says whether somebody holds the job by now
        self.boundary()

    async def _call_function(self, operation: operations.PlannedStep) -> Any:
        limits = self._parts.lease.limits
        seconds = operation.timeout or float(limits.resources.step_timeout_seconds)
        function = functools.partial(operation.function, *operation.arguments)
        try:
            return await self._parts.lease.within(seconds, run_function(function, {}))
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # It ends its step, never the worker around it.
            raise CallStopped(f"{type(error).__name__}: {error}") from error

    async def _model(self, key: str, operation: operations.PlannedModelCall) -> str:
        parts, start = self._parts, ticks()
        conversation, gates, progress = parts.conversation, parts.gates, parts.lease.progress
        await self._journal.flush()
        self.boundary()
        conversation.check_limits()
        await parts.evaluate_gates()
        record = self._entries.begin(key, operation)
        position = record.position
        request = conversation.request([UserTurn(operation.prompt)])
        system = operation.system
        request = replace(
            request,
            tools=(),
            system_prompt=request.system_prompt if system is None else gates.system_prompt(system),
            temperature=request.temperature if operation.temperature is None else operation.temperature,
            max_tokens=request.max_tokens if operation.max_tokens is None else operation.max_tokens,
        )
        try:
            response = await conversation.ask(request, purpose="model", step=position)
        except ModelError as error:
            error.message = step_calls.storable(error.message)
            record.fail(error)
            raise
        text, usage = response.text or "", response.usage
        conversation.add_tokens(usage)
        progress.iterations += 1
        try:
            step = NewStep(
                {**recorded_form(response), "text": text, "calls": []}, index=position, message_seq=progress.message_seq,
                prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, seconds=ticks() - start,
            )  # fmt: skip
        except CortexError as error:
            raise Ended(JobFailed(f"The model's response cannot be stored: {error.message}", error.hint)) from error
        conversation.turns.append(AssistantTurn(text=text), step=position, seq=progress.message_seq)
        write = record.entry(EntryStatus.DONE)
        write.step = step
        write.events = step_calls.with_model(response, step_calls.text_events(position, text))
        await self._journal.write(record.finish(write))
        return text

    def _sleep(self, key: str, entry: JournalEntry | None, operation: operations.PlannedSleep) -> None:
        now, record = self.now(), self._entries.begin(key, operation, entry)
        if entry is not None:
            until = datetime.fromisoformat(entry.result["until"])
        else:
            until = operation.until or now + timedelta(seconds=operation.seconds or 0.0)
        result = canonical({"until": until.isoformat()})
        if until <= now:
            record.done(record.entry(EntryStatus.DONE, result))
            return
        if entry is None:
            self._journal.record(record.entry(EntryStatus.OPEN, result))
        self._wait_until(until, f"sleeps until {until.isoformat(timespec='seconds')}")

    def _wait(self, key: str, entry: JournalEntry | None, operation: operations.PlannedWait) -> Any:
        now, record = self.now(), self._entries.begin(key, operation, entry)
        if entry is None:
            until = None if operation.timeout is None else now + timedelta(seconds=operation.timeout)
            wait = {"key": operation.key, "until": until.isoformat() if until else None}
            self._journal.record(record.entry(EntryStatus.OPEN, canonical(wait)))
        else:
            deadline = entry.result["until"]
            until = None if deadline is None else datetime.fromisoformat(deadline)
        if key in self._signals:
            payload = self._signals[key]
            record.done(record.entry(EntryStatus.DONE, canonical(payload)))
            return payload
        if until is not None and until <= now:
            late = WaitTimeout(f"Nobody sent `{operation.name}` with the key `{operation.key}` in time.")
            record.done(record.entry(EntryStatus.FAILED, error=late))
            raise late
        self._journal.stop.waits.append({"entry": key, "name": operation.name, "key": operation.key})
        return self._wait_until(until, f"waits for `{operation.name}`")

    def _wait_until(self, wake: datetime | None, reason: str) -> NoReturn:
        stop = self._journal.stop
        if wake is not None:
            stop.wakes.append(wake)
        stop.reasons.append(reason)
        raise operations.Unwind

    async def _call(self, key: str, entry: JournalEntry | None, operation: operations.PlannedToolCall) -> Any:
        record = self._entries.begin(key, operation, entry)
        position = record.position
        row = self._rows.get(position) if entry is not None else None
        arguments = row.arguments if row is not None and row.edited else operation.arguments
        request = CallRequest(id=f"call-{position}", name=provider_name(operation.tool), arguments=arguments)
        id = row.id if row is not None else new_id()
        call = step_calls.plan_call(0, request, id, self._parts.lease.toolbox, position)
        if operation.demand is not None:
            self._parts.authorizer.demands[call.id] = operation.demand
        # Where the code is the same, it is a person's edit that it refuses: that is a failure like any other.
        is_edit = row is not None and row.status is CallStatus.APPROVED and self._parts.authorizer.has_same_code(row)
        if row is not None and call.tool is None and row.status not in SETTLED and not is_edit:
            self.mismatch = f"the tool `{operation.tool}` of `{key}` is gone, or does not take its arguments any more"
            raise operations.Unwind
        return await CodeCall(self._parts, self.boundary, record, operation, call).run(entry, row)


@dataclass(frozen=True, slots=True)
class CodeCall:
    """One call of a code agent: the same authorization and ledger as a call of a model, recorded in the journal."""

    parts: CodeParts
    boundary: Callable[[], None]
    record: OperationRecord
    operation: operations.PlannedToolCall | operations.PlannedStep
    call: step_calls.Call

    async def run(self, entry: JournalEntry | None, row: ToolCall | None) -> Any:
        parts, call, operation, record = self.parts, self.call, self.operation, self.record
        gates, journal = parts.gates, parts.journal
        if row is None or await parts.authorizer.restore_call(call, row):
            await parts.evaluate_gates()
            await parts.authorizer.authorize([call])
        begin = record.entry(EntryStatus.OPEN) if entry is None else StepWrite()
        if call.status is CallStatus.AWAITING:
            await self._request_approval(begin)
        if call.settled:
            return self._settled()
        events = step_calls.call_events(self.record.position, None, [call])
        if call.kind is step_calls.CallKind.READ:
            await journal.flush()
            if gates.bound is not None and gates.bound.session.urgent:
                await journal.write(StepWrite())
            self.boundary()
            if gates.bound is not None and not gates.bound.allows_calls([call]):
                await parts.ledger.give_way([call], StepWrite(), "The gates of this session changed meanwhile.")
            await parts.ledger.read(call)
            pending = step_calls.PendingWrite(step_calls.merge_writes(begin, StepWrite(events=events)))
            pending.new(call)
        else:
            calls = [step_calls.call_summary(call)]
            fact = parts.lease.fact("step_responded", step=record.position, key=record.key, calls=calls)
            due = step_calls.merge_writes(begin, StepWrite(facts=[fact], events=events) if row is None else StepWrite())
            self.boundary()
            parts.calls[call.id] = call
            await parts.ledger.perform(call, [call], step_calls.PendingWrite(due))
            if operation.kind is EntryKind.APPROVAL and call.has_grant and not parts.lease.cancel_requested:
                # Its intent uses up the grant, and there is nothing to send: a slow worker does not change the decision.
                call.status, call.error, call.result = CallStatus.COMPLETED, None, b'{"approved":true}'
            pending = step_calls.PendingWrite(StepWrite())
            pending.settled.append(call)
        if gates.bound is not None:
            gates.bound.end_calls([call])
        write = pending.take()
        write.events = [*write.events, *step_calls.result_events(self.record.position, [call])]
        with parts.ledger.room.lock:  # tools in other threads must count its changes exactly once
            results = parts.ledger.take_results()
            journal.results.update(results)
            write.stored = (*write.stored, *results)
            record.done(write, calls=[step_calls.call_outcome(call)])
        if parts.lease.cancel_requested and call.status is CallStatus.FAILED:
            journal.stop.cancelled = True
            raise operations.Unwind
        return await self._outcome(entry)

    async def _request_approval(self, begin: StepWrite) -> None:
        """People must decide: the call waits, unless nobody can."""
        terms = await self.parts.ledger.cards.feasible_terms(self.call, StepWrite())
        if terms is None:
            return
        journal = self.parts.journal
        journal.record(begin)
        journal.stop.awaiting.append(self.call)
        journal.stop.terms[self.call.id] = terms
        raise operations.Unwind

    def _settled(self) -> Any:
        """Never sent: an answer to gates, not allowed, or not a call that the tool takes. Recorded like any call."""
        call, operation = self.call, self.operation
        entry = self.record.entry
        error: CortexError | None = None
        value: Any
        is_answer = call.status is CallStatus.ANSWERED and call.error is None
        if is_answer or (call.name in PLANE_TOOLS and call.tool is not None):
            value = orjson.loads(call.result or b"null")
            write = entry(EntryStatus.DONE, call.result)
        elif operation.kind is EntryKind.APPROVAL:
            value = Decision(approved=False, reason=self._refusal)
            write = entry(EntryStatus.DONE, canonical({"approved": False, "reason": self._refusal, "by": None}))
        else:
            value, error = None, self._denial()
            write = entry(EntryStatus.FAILED, error=error)
        pending = step_calls.PendingWrite(StepWrite())
        if not call.has_row:
            pending.new(call)
        write = step_calls.merge_writes(pending.take(), write)
        write.events = [
            *step_calls.call_events(self.record.position, None, [call]),
            *step_calls.result_events(self.record.position, [call]),
        ]
        self.record.done(write)
        if error is not None:
            raise error
        return value

    @property
    def _refusal(self) -> str:
        return self.call.error or "It was refused."

    def _denial(self) -> CortexError:
        call, gates = self.call, self.parts.gates.bound
        if call.status is CallStatus.ANSWERED:
            return ToolDenied(self._refusal, code="tool_answered", answer=orjson.loads(call.result or b"null"))
        error = ToolFailed(self._refusal) if call.kind is step_calls.CallKind.REFUSED else ToolDenied(self._refusal)
        if gates is not None and call.ruling is not None and call.ruling.verdict is PolicyVerdict.DENY:
            return gates.gate_closed(call, call.ruling) or error
        return error

    async def _outcome(self, entry: JournalEntry | None) -> Any:
        call = self.call
        if call.status is not CallStatus.COMPLETED:
            error = call.error or f"`{call.name}` failed."
            if self.operation.kind is EntryKind.STEP:
                raise StepNotDone(error)
            raise ToolDenied(error) if call.status is CallStatus.REJECTED else ToolFailed(error)
        if self.operation.kind is EntryKind.APPROVAL:
            result = entry.result if entry is not None else None
            return Decision(**result) if result else Decision(approved=True)
        if call.result_id is not None:
            return orjson.loads(await self.parts.fetch(call.result_id))
        return orjson.loads(call.result or b"null")


def _step_failed(operation: operations.PlannedStep, error: Exception) -> StepFailed:
    name = operation.name
    if isinstance(error, CallTimeout):
        return StepFailed(f"The step `{name}` did not end in time.")
    message = f"The step `{name}` raised {error}"
    if isinstance(error, CortexError) and error.code == "unstorable_result":
        message = error.message.replace("What the tool returned", f"What the step `{name}` returned", 1)
    elif not isinstance(error, CallStopped):
        message = f"The step `{name}` raised {type(error).__name__}: {error}"
    return StepFailed(step_calls.storable(message)[:4000])
