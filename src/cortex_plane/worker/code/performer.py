"""Performs the operations of a code agent that are not recorded yet, in the lease of its attempt."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.completions import AssistantTurn, CallRequest, ModelError, UserTurn
from cortex_plane.agents.model.tools import provider_name
from cortex_plane.db.crash_points import reached
from cortex_plane.gates.model.gates import PLANE_TOOLS
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, ToolCall
from cortex_plane.jobs.model.journal import (
    MAX_ENTRIES,
    ContextMisused,
    EntryKind,
    EntryStatus,
    JournalEntry,
    StepFailed,
    ToolDenied,
    ToolFailed,
    WaitTimeout,
    digest,
    scope_of,
)
from cortex_plane.jobs.rules.attempts import NewStep, StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.rules import recorded_form
from cortex_plane.worker import step_events
from cortex_plane.worker.approval_requests import terms_of
from cortex_plane.worker.calls import Call, CallKind, PendingWrite, plan_call, storable, summary, together
from cortex_plane.worker.code.context import FAILURES, Decision, JournalReplay, decoded, described
from cortex_plane.worker.code.operations import (
    ModelWish,
    PlannedOperation,
    Scope,
    SleepWish,
    StepWish,
    ToolWish,
    Unwind,
    ValueWish,
    WaitWish,
    round_prefix,
)
from cortex_plane.worker.effects import Stopped, TimedOut, perform, read, within
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.tools.tool import encode_result, run_function

if TYPE_CHECKING:
    from cortex_plane.jobs.model.effects import ToolCall
    from cortex_plane.worker.code.attempt import CodeAttempt


MAX_PAUSE = 60.0
LOOK_SECONDS = 0.5
FOR_THE_AGENT = (*FAILURES.values(), ContextMisused)


class Performer(JournalReplay):
    def __init__(
        self,
        attempt: CodeAttempt,
        entries: Iterable[JournalEntry],
        arrived: Mapping[str, Any],
        calls: Mapping[int, ToolCall],
        number: int = 0,
    ) -> None:
        entries = list(entries)
        super().__init__(entries)
        self.prefix = round_prefix(number)
        begun = next((entry for entry in entries if f"{entry.key}/" == self.prefix), None)
        self.heard_to: int = begun.result["heard"] if begun is not None else 0
        """The messages that an earlier round answered."""
        self.attempt = attempt
        self.calls = calls
        """The rows of the ledger, by the position of their operation."""
        self._arrived = arrived
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._failed: dict[str, StepWrite] = {}
        """What went wrong and the agent may catch: recorded once it went on, and forgotten where it did not."""

    # Player ----------------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        if self.mismatch is not None:
            raise Unwind
        self.attempt.boundary()

    @property
    def stopped(self) -> bool:
        return bool(self.attempt.ends) or self.attempt.held

    def now(self) -> datetime:
        return self.attempt.time.now()

    def under_way(self, key: str) -> bool:
        return key in self._running

    async def result_of(self, entry: JournalEntry) -> Any:
        return entry.result if entry.result_id is None else await self.fetched(entry.result_id)

    async def fetched(self, result_id: UUID) -> Any:
        content = self.attempt.whole.get(result_id)
        if content is None:
            content = await workers.stored_result(self.attempt.host.db, self.attempt.given, result_id)
        if content is None:
            raise RuntimeError(f"The result {result_id} of job {self.attempt.given.job_id} is gone.")
        return orjson.loads(content)

    async def live(self, scope: Scope, key: str, entry: JournalEntry | None, wish: PlannedOperation) -> Any:
        """In a task of its own: whoever stops waiting for it does not cut it."""
        self._caught(scope)
        task = asyncio.create_task(self._guarded(self._performed(key, entry, wish)))
        self._running[key] = task
        task.add_done_callback(functools.partial(self._over, key, scope))
        return await asyncio.shield(task)

    def _over(self, key: str, scope: Scope, task: asyncio.Task[Any]) -> None:
        self._running.pop(key, None)
        if scope.busy == key:
            scope.busy = None
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits for it any more

    async def _guarded(self, performed: Coroutine[Any, Any, Any]) -> Any:
        """What is not for the agent to catch ends the attempt instead."""
        try:
            return await performed
        except (Unwind, asyncio.CancelledError):
            raise
        except BaseException as error:
            if isinstance(error, FOR_THE_AGENT):
                raise
            self.attempt.ends.error = self.attempt.ends.error or error
            raise Unwind from None

    async def _performed(self, key: str, entry: JournalEntry | None, wish: PlannedOperation) -> Any:
        match wish:
            case StepWish():
                return await self._step(key, wish)
            case ToolWish():
                return await call(self, key, entry, wish)
            case ModelWish():
                return await self._model(key, wish)
            case SleepWish():
                return self._sleep(key, entry, wish)
            case WaitWish():
                return self._wait(key, entry, wish)
            case ValueWish():
                return self._value(key, wish, wish.make())
        return self._value(key, wish, None)

    async def quiet(self) -> None:
        """Until nothing is under way that the function does not wait for any more."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    async def close(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=5)

    # Recording -------------------------------------------------------------------------------------------------

    def position(self, entry: JournalEntry | None = None) -> int:
        """Its place among all operations of the job."""
        if entry is not None:
            return entry.position
        attempt = self.attempt
        if attempt.operations >= MAX_ENTRIES:
            raise ContextMisused(
                f"The job has more than {MAX_ENTRIES} operations, all of which are read whenever it goes on.",
                hint="Do more in one step, or submit several jobs.",
            )
        attempt.at.step = attempt.operations
        attempt.operations += 1
        return attempt.at.step

    def entry(
        self,
        key: str,
        position: int,
        wish: PlannedOperation,
        status: EntryStatus,
        result: bytes | None = None,
        error: CortexError | None = None,
    ) -> StepWrite:
        """A write that holds one entry; a large result beside it."""
        attempt = self.attempt
        row: dict[str, Any] = {
            "key": key, "position": position, "kind": wish.kind, "name": wish.name, "input_hash": wish.input_hash,
            "status": status,
        }  # fmt: skip
        write = StepWrite(more={"journal": [row]})
        if error is not None:
            row["error"] = described(error)
        if result is not None and len(result) <= attempt.host.inline_result_bytes:
            row["result"] = orjson.Fragment(result)
        elif result is not None:
            id = new_id()
            row["result_id"] = str(id)
            row["result"] = {"bytes": len(result), "stored_result": str(id)}
            attempt.whole[id] = result
            write.stored = ((id, result),)
        return write

    def done(
        self,
        key: str,
        position: int,
        wish: PlannedOperation,
        began: float,
        write: StepWrite,
        said: str,
        **more: Any,
    ) -> StepWrite:
        """An operation that is over: the entry with what readers and the trail are told of it."""
        attempt = self.attempt
        attempt.log_operation(position, wish.kind, key, said, began)
        write.done_step = position
        write.facts = [
            *write.facts,
            attempt.fact("step_completed", step=position, key=key, kind=wish.kind, **more),
        ]
        return write

    def _value(self, key: str, wish: PlannedOperation, value: Any) -> Any:
        result = encode_result(value)
        self.attempt.record(self.entry(key, self.position(), wish, EntryStatus.DONE, result))
        return decoded(wish.kind, wish.name, orjson.loads(result), key)

    def new_round(self, number: int, heard: int) -> tuple[JournalEntry, StepWrite]:
        """The function begins again. What came before is not looked at any more."""
        wish = PlannedOperation(kind=EntryKind.VALUE, name="round", input_hash=digest(b"[]"))
        key, position, kept = f"/{number}", self.position(), {"heard": heard}
        entry = JournalEntry(
            key=key, position=position, kind=wish.kind, name=wish.name, input_hash=wish.input_hash,
            status=EntryStatus.DONE, result=kept, created_at=self.now(),
        )  # fmt: skip
        return entry, self.entry(key, position, wish, EntryStatus.DONE, canonical(kept))

    # Failures that the agent may catch -------------------------------------------------------------------------

    def failed(self, key: str, position: int, wish: PlannedOperation, error: CortexError) -> None:
        self._failed[key] = self.entry(key, position, wish, EntryStatus.FAILED, error=error)

    def _caught(self, scope: Scope) -> None:
        """The agent went on in this branch: whatever failed in it, or in those that it gathered, was caught."""
        for key in [key for key in self._failed if scope_of(key).startswith(scope.prefix)]:
            self.attempt.record(self._failed.pop(key))

    def keep_failures(self) -> None:
        for write in self._failed.values():
            self.attempt.record(write)
        self._failed = {}

    def drop_failures(self) -> None:
        self._failed = {}

    # Operations ------------------------------------------------------------------------------------------------

    async def _step(self, key: str, wish: StepWish) -> Any:
        position, began = self.position(), ticks()
        await self.attempt.flush()
        self.boundary()
        for tries in range(wish.retries + 1):
            reached("step:before")
            try:
                value = await self._called(wish)
                result = encode_result(value)
                break
            except Exception as error:
                # What the job's own time cut off did not fail, and is not for the agent to catch.
                await self.attempt.check_time()
                if tries < wish.retries:
                    await self._pause(self.attempt.limits.backoff.delay(tries, random.random()))  # noqa: S311 -- jitter
                    continue
                raised = _step_failed(wish, error)
                self.failed(key, position, wish, raised)
                raise raised from error
        reached("step:after")
        most = self.attempt.host.max_result_bytes
        if len(result) > most:
            large = StepFailed(
                f"The step `{wish.name}` returned {len(result)} bytes; the limit is {most}.",
                hint="Store it elsewhere and return a reference.",
            )
            self.failed(key, position, wish, large)
            raise large
        write = self.entry(key, position, wish, EntryStatus.DONE, result)
        said = result[:200].decode(errors="ignore")
        self.attempt.record(self.done(key, position, wish, began, write, said))
        return orjson.loads(result)

    async def _pause(self, seconds: float) -> None:
        """Before a step is tried again: whoever cancels or holds the job, or stops the worker, does not wait for all of it."""
        until = ticks() + min(MAX_PAUSE, seconds)
        while (left := until - ticks()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))
            self.boundary()
        await self.attempt.write(StepWrite())  # says whether somebody holds it by now
        self.boundary()

    async def _called(self, wish: StepWish) -> Any:
        own = wish.timeout or float(self.attempt.limits.resources.step_timeout_seconds)
        seconds = min(own, max(0.0, self.attempt.job_seconds_left()))
        try:
            return await within(seconds, run_function(functools.partial(wish.function, *wish.arguments), {}))
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # It ends its step, never the worker around it.
            raise Stopped(f"{type(error).__name__}: {error}") from error

    async def _model(self, key: str, wish: ModelWish) -> str:
        attempt, began = self.attempt, ticks()
        await attempt.flush()
        self.boundary()
        await attempt.check_limits()
        await attempt.look()
        position = self.position()
        request = attempt.request([UserTurn(wish.prompt)])
        request = replace(
            request,
            tools=(),
            system_prompt=request.system_prompt if wish.system is None else attempt.prompted(wish.system),
            temperature=request.temperature if wish.temperature is None else wish.temperature,
            max_tokens=request.max_tokens if wish.max_tokens is None else wish.max_tokens,
        )
        try:
            response = await attempt.ask(request, purpose="model", step=position)
        except ModelError as error:
            error.message = storable(error.message)
            self.failed(key, position, wish, error)
            raise
        text, usage = response.text or "", response.usage
        attempt.at.prompt_tokens += usage.prompt_tokens
        attempt.at.completion_tokens += usage.completion_tokens
        attempt.at.iterations += 1
        try:
            recorded = canonical({**recorded_form(response), "text": text, "calls": []})
        except CortexError as error:
            await attempt.fail(f"The model's response cannot be stored: {error.message}", error.hint)
        attempt.turns.append(AssistantTurn(text=text), step=position, seq=attempt.at.message_seq)
        write = self.entry(key, position, wish, EntryStatus.DONE)
        write.step = NewStep(
            index=position, message_seq=attempt.at.message_seq, response=recorded,
            prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, seconds=ticks() - began,
        )  # fmt: skip
        write.events = step_events.by(response, step_events.said(position, text))
        await attempt.write(self.done(key, position, wish, began, write, text[:200]))
        return text

    def _sleep(self, key: str, entry: JournalEntry | None, wish: SleepWish) -> None:
        now, position = self.now(), self.position(entry)
        if entry is not None:
            until = datetime.fromisoformat(entry.result["until"])
        elif wish.until is not None:
            until = wish.until
        else:
            until = now + timedelta(seconds=wish.seconds or 0.0)
        over = until <= now
        if over or entry is None:
            status = EntryStatus.DONE if over else EntryStatus.OPEN
            write = self.entry(key, position, wish, status, canonical({"until": until.isoformat()}))
            self.attempt.record(self.done(key, position, wish, ticks(), write, "slept") if over else write)
        if not over:
            self.attempt.wait_until(until, f"sleeps until {until.isoformat(timespec='seconds')}")

    def _wait(self, key: str, entry: JournalEntry | None, wish: WaitWish) -> Any:
        now, position, attempt = self.now(), self.position(entry), self.attempt
        if entry is None:
            until = None if wish.timeout is None else now + timedelta(seconds=wish.timeout)
            kept = {"key": wish.key, "until": until.isoformat() if until else None}
            attempt.record(self.entry(key, position, wish, EntryStatus.OPEN, canonical(kept)))
        else:
            said = entry.result["until"]
            until = None if said is None else datetime.fromisoformat(said)
        if key in self._arrived:
            payload = self._arrived[key]
            write = self.entry(key, position, wish, EntryStatus.DONE, canonical(payload))
            attempt.record(self.done(key, position, wish, ticks(), write, "arrived"))
            return payload
        if until is not None and until <= now:
            late = WaitTimeout(f"Nobody sent `{wish.name}` with the key `{wish.key}` in time.")
            write = self.entry(key, position, wish, EntryStatus.FAILED, error=late)
            attempt.record(self.done(key, position, wish, ticks(), write, "timed out"))
            raise late
        attempt.ends.waits.append({"entry": key, "name": wish.name, "key": wish.key})
        return attempt.wait_until(until, f"waits for `{wish.name}`")


def _step_failed(wish: StepWish, error: Exception) -> StepFailed:
    if isinstance(error, TimedOut):
        return StepFailed(f"The step `{wish.name}` did not end in time.")
    if isinstance(error, Stopped):
        return StepFailed(storable(f"The step `{wish.name}` raised {error}")[:4000])
    if isinstance(error, CortexError) and error.code == "unstorable_result":
        reason = error.message.removeprefix("What the tool returned cannot be stored: ")
        return StepFailed(storable(f"What the step `{wish.name}` returned cannot be stored: {reason}")[:4000])
    return StepFailed(storable(f"The step `{wish.name}` raised {type(error).__name__}: {error}")[:4000])


async def call(performer: Performer, key: str, entry: JournalEntry | None, wish: ToolWish) -> Any:
    """One call, from where it stands to its end."""
    attempt, began = performer.attempt, ticks()
    position = performer.position(entry)
    row = performer.calls.get(position) if entry is not None else None
    made = _planned(performer, position, wish, row)
    if wish.demand is not None:
        attempt.demands[made.id] = wish.demand
    # Where the code is the same, it is a person's edit that it refuses: that is a failure like any other.
    edited = row is not None and row.status is CallStatus.APPROVED and attempt.is_the_code_of(row)
    if row is not None and made.tool is None and row.status not in SETTLED and not edited:
        performer.mismatch = (
            f"the tool `{wish.tool}` of `{key}` is gone, or does not take its arguments any more"
        )
        raise Unwind
    if row is None or await attempt.restore_call(made, row):
        await attempt.look()
        await attempt.authorize([made])
    open_entry = performer.entry(key, position, wish, EntryStatus.OPEN) if entry is None else StepWrite()
    if made.status is CallStatus.AWAITING:
        await _ask(performer, made, open_entry)
    if made.settled and made.name in PLANE_TOOLS and made.tool is not None:
        return _told(performer, key, position, wish, made)
    if made.settled:
        return _refused(performer, key, position, wish, made)
    told = StepWrite(facts=[attempt.fact("step_responded", step=position, key=key, calls=[summary(made)])])
    told.events = step_events.called(position, None, [made])
    if made.kind is CallKind.READ:
        await attempt.flush()
        if attempt.gates is not None and attempt.gates.urgent:
            await attempt.write(StepWrite())
        performer.boundary()
        if attempt.gates is not None and not attempt.gates.allow([made]):
            await attempt.give_way([made], StepWrite(), "The gates of this session changed meanwhile.")
        await read(attempt, made)
        pending = PendingWrite(together(open_entry, StepWrite(events=told.events)))
        pending.new(made)
    else:
        await _performed(performer, made, together(open_entry, told if row is None else StepWrite()))
        if wish.kind is EntryKind.APPROVAL and made.granted and not attempt.cancel_requested:
            # With its intent the grant is used up, and there is nothing to send: a slow worker changes nothing of the yes.
            made.status, made.error, made.result = CallStatus.COMPLETED, None, b'{"approved":true}'
        pending = PendingWrite(StepWrite())
        pending.settled.append(made)
    if attempt.gates is not None:
        attempt.gates.happened([made])
    write = pending.take()
    write.stored = (*write.stored, *attempt.take_stored())
    write.events = [*write.events, *step_events.settled(position, [made])]
    said = f"{made.name}: {made.status}"
    attempt.record(performer.done(key, position, wish, began, write, said, calls=[step_events.outcome(made)]))
    if attempt.cancel_requested and made.status is CallStatus.FAILED:
        attempt.ends.cancelled = True
        raise Unwind
    return await _outcome(performer, wish, entry, made)


def _planned(performer: Performer, position: int, wish: ToolWish, row: ToolCall | None) -> Call:
    arguments = row.arguments if row is not None and row.edited else wish.arguments
    request = CallRequest(id=f"call-{position}", name=provider_name(wish.tool), arguments=arguments)
    return plan_call(0, request, row.id if row is not None else new_id(), performer.attempt.toolbox, position)


async def _ask(performer: Performer, made: Call, open_entry: StepWrite) -> None:
    """People must decide: it waits, unless nobody could."""
    attempt = performer.attempt
    terms = await terms_of(attempt, made, StepWrite())
    if terms is None:
        return
    attempt.record(open_entry)
    attempt.ends.awaiting.append(made)
    attempt.ends.terms[made.id] = terms
    raise Unwind


def _told(performer: Performer, key: str, position: int, wish: ToolWish, made: Call) -> Any:
    """What gates said to the agent: nothing was sent, and it is recorded like a call."""
    pending = PendingWrite(performer.entry(key, position, wish, EntryStatus.DONE, made.result))
    if not made.written:
        pending.new(made)
    write = pending.take()
    write.events = [*step_events.called(position, None, [made]), *step_events.settled(position, [made])]
    performer.attempt.record(
        performer.done(key, position, wish, ticks(), write, f"{made.name}: {made.status}")
    )
    return orjson.loads(made.result or b"null")


def _refused(performer: Performer, key: str, position: int, wish: ToolWish, made: Call) -> Any:
    """Never sent: not allowed, or not a call that the tool takes."""
    said = made.error or "It was refused."
    denied = made.kind is not CallKind.REFUSED
    error: CortexError | None = ToolDenied(said) if denied else ToolFailed(said)
    gates, ruling = performer.attempt.gates, made.ruling
    if gates is not None and ruling is not None and ruling.verdict is PolicyVerdict.DENY:
        error = gates.closed(made, ruling) or error
    decision: Decision | None = None
    if wish.kind is EntryKind.APPROVAL:
        decision, error = Decision(approved=False, reason=said), None
    pending = PendingWrite(StepWrite())
    if not made.written:
        pending.new(made)
    write = pending.take()
    result = canonical({"approved": False, "reason": said, "by": None}) if decision is not None else None
    status = EntryStatus.FAILED if error is not None else EntryStatus.DONE
    write = together(write, performer.entry(key, position, wish, status, result, error))
    write.events = [*step_events.called(position, None, [made]), *step_events.settled(position, [made])]
    performer.attempt.record(
        performer.done(key, position, wish, ticks(), write, f"{made.name}: {made.status}")
    )
    if error is not None:
        raise error
    return decision


async def _performed(performer: Performer, made: Call, due: StepWrite) -> None:
    attempt = performer.attempt
    performer.boundary()
    pending = PendingWrite(due)
    is_new = made.status in (None, CallStatus.APPROVED)
    if made.status is CallStatus.APPROVED:
        made.granted = True
        pending.granted.append(made)
    elif is_new:
        pending.new(made)
    if is_new:
        made.status = CallStatus.INTENDED
    attempt.calls[made.id] = made
    await perform(attempt, made, [made], pending.take(), new=is_new)


async def _outcome(performer: Performer, wish: ToolWish, entry: JournalEntry | None, made: Call) -> Any:
    if made.status is not CallStatus.COMPLETED:
        said = made.error or f"`{made.name}` failed."
        raise ToolDenied(said) if made.status is CallStatus.REJECTED else ToolFailed(said)
    if wish.kind is EntryKind.APPROVAL:
        return Decision(**entry.result) if entry is not None and entry.result else Decision(approved=True)
    if made.result_id is not None:
        return await performer.fetched(made.result_id)
    return orjson.loads(made.result or b"null")
