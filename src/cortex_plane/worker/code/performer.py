"""Performing the operations of a code agent that were not recorded yet, in the lease of its attempt."""

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

from cortex_plane.agents.model.completions import AssistantTurn, ModelError, UserTurn
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs.model.journal import (
    MAX_ENTRIES,
    ContextMisused,
    EntryKind,
    EntryStatus,
    JournalEntry,
    StepFailed,
    WaitTimeout,
    digest,
    scope_of,
)
from cortex_plane.jobs.rules.attempts import NewStep, StepWrite
from cortex_plane.jobs.verbs import attempts
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.rules import recorded_form
from cortex_plane.worker import step_events
from cortex_plane.worker.calls import storable
from cortex_plane.worker.clock import ticks
from cortex_plane.worker.code import tools
from cortex_plane.worker.code.journal_replay import FAILURES, JournalReplay, decoded, described
from cortex_plane.worker.code.scopes import Scope, Unwind, round_prefix
from cortex_plane.worker.code.wishes import (
    ModelWish,
    PlannedOperation,
    SleepWish,
    StepWish,
    ToolWish,
    ValueWish,
    WaitWish,
)
from cortex_plane.worker.effects import Stopped, TimedOut, within
from cortex_plane.worker.tools.results import encode_result
from cortex_plane.worker.tools.tool import run_function

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
            content = await attempts.stored_result(self.attempt.host.db, self.attempt.given, result_id)
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
                return await tools.call(self, key, entry, wish)
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
