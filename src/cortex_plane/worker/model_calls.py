"""The conversation with the model: one request, its streamed answer, its time limits, and what it costs.

Chunks of the answer are appended as events while it is streamed. No step waits for a chunk or depends on one: they are
collected for a moment and appended in the background, and a chunk that cannot be appended is dropped. An answer that is
complete within that moment has no chunks. Once the step is recorded its chunks are deleted; until then readers skip them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import structlog

from cortex_plane.agents.model.completions import (
    ModelError,
    ModelRequest,
    ModelUsage,
    Response,
    StopReason,
    TextChunk,
    Turn,
    heard,
    tokens,
)
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model import usage as usage_model
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.events import EventType
from cortex_plane.sessions.rules import Thread
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.calls import storable
from cortex_plane.worker.ends import Ended, JobCancelled, JobFailed, JobPaused, JobSleeps
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.models.backends import Answering, cost_micros
from cortex_plane.worker.session_gates import SessionGates

log = structlog.get_logger()

RAISE = "Raise `{setting}` in the agent's resource limits, then `cortex job resubmit` the job."
FLUSH_SECONDS = 0.1
MOST_CHARACTERS = 16_000
"""Of one chunk."""
FORGET_SECONDS = (0.5, 2.0, 10.0)
"""After the answer: when its chunks are looked for, until they are gone."""

_tasks: set[asyncio.Task[None]] = set()
"""Kept from the garbage collector; each ends by itself."""


class ModelConversation:
    """What the model was sent and answered, and what that cost."""

    def __init__(self, lease: Lease, gates: SessionGates) -> None:
        self._lease, self._gates = lease, gates
        self.turns = Thread()
        """As far as no memory covers them."""
        self.model_calls: list[usage_model.ModelCall] = []
        """Requests whose usage is not written yet."""
        self._reserved: dict[object, usage_model.Spent] = {}
        """What each request that is not answered yet will cost at least."""
        self._job_spent: usage_model.Spent | None = None
        """With the calls whose usage is not written yet; None until a budget needs it."""
        self._timers: set[ResponseTimer] = set()
        self._interruption: str | None = None
        """Why the job is to stop."""
        self.last_seconds = float("inf")
        """How long the last answer took."""

    def request(self, turns: Sequence[Turn], notice: str = "") -> ModelRequest:
        config = self._lease.assignment.model_config
        return ModelRequest(
            model=config["model"],
            system_prompt=self._gates.system_prompt(self._lease.prompt),
            turns=turns,
            tools=self._lease.toolbox.specs,
            temperature=config.get("temperature"),
            max_tokens=config.get("max_tokens"),
            settings=config,
            turn_index=self._lease.progress.iterations,
            org_id=self._lease.assignment.org_id,
            notice=notice,
        )

    def check_limits(self) -> None:
        """Ends the attempt where the job has reached a limit of its agent."""
        progress = self._lease.progress
        refusal = self._lease.limits.refuse_request(
            progress.iterations + len(self._reserved), progress.prompt_tokens + progress.completion_tokens
        )
        if refusal is not None:
            raise Ended(JobFailed(*refusal))

    async def ask(self, request: ModelRequest, *, purpose: str = "step", step: int | None = None) -> Response:
        """``purpose``: only answers that the agent gives are streamed to readers. ``step``: which one asks, where several
        do at once. Raises `ModelError`. The usage goes with the next write, also where the request failed."""
        lease = self._lease
        step = lease.progress.step if step is None else step
        # Counted from before the request until its answer is counted: branches of a job ask at the same time.
        key = object()
        self._reserved[key] = usage_model.Spent()
        try:
            answering = await lease.worker.backends.answering(request)
            await self._afford(key, request, answering)
            return await self._answer(answering, request, purpose, step)
        finally:
            del self._reserved[key]

    async def _answer(self, answering: Answering, request: ModelRequest, purpose: str, step: int) -> Response:
        chunks = Chunks(self._lease, step, silent=purpose not in ("step", "model"))
        start = ticks()
        reached("model:before")
        try:
            response = await self._stream(answering, request, chunks)
        except (ModelError, asyncio.CancelledError) as error:
            await self._count_unfinished(answering, request, purpose, step, chunks, ticks() - start)
            if self._lease.cancel_requested:
                raise Ended(JobCancelled()) from error
            if self._lease.is_overdue and isinstance(error, ModelError):
                raise Ended(JobPaused()) from error
            raise
        reached("model:after")
        self.last_seconds = ticks() - start
        cost = await self._count(answering, response.usage, purpose, step, self.last_seconds)
        if response.model != answering.label or response.cost_micros != cost:
            response = replace(response, model=answering.label, cost_micros=cost)
        if response.stop_reason is StopReason.REFUSAL and not (response.text or "").strip():
            self.add_tokens(response.usage)
            raise _refusal(response)
        return response

    async def _stream(self, answering: Answering, request: ModelRequest, chunks: Chunks) -> Response:
        """The response at the end of a stream. Raises `ModelError` where the stream stops before it."""
        limits, response = self._lease.limits.resources, None
        seconds = min(limits.call_timeout_seconds, limits.step_timeout_seconds, self._lease.limits.job_seconds_left())
        pieces = aiter(answering.backend.stream(request))
        now = asyncio.get_running_loop().time
        if self._interruption is not None:
            raise ModelError(self._interruption)
        timer = ResponseTimer(seconds, limits.chunk_timeout_seconds)
        self._timers.add(timer)
        try:
            with timer:
                async for piece in pieces:
                    timer.heard_at = now()
                    if isinstance(piece, TextChunk):
                        chunks.add(piece.text)
                    elif isinstance(piece, ModelUsage):
                        chunks.usage = piece
                    else:
                        response = piece
        finally:
            self._timers.discard(timer)
            chunks.end(complete=response is not None)
            if response is None and isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if response is None:
            raise ModelError("The model's answer ended before it was complete.")
        return response

    def interrupt(self, why: str) -> None:
        """The job is to stop: the attempt does not wait for an answer of the model; for a call of a tool it does."""
        self._interruption = why
        for timer in self._timers:
            timer.stop(why)

    def commit(self, calls: Sequence[usage_model.ModelCall]) -> None:
        """Their usage is written."""
        self.model_calls = [call for call in self.model_calls if call not in calls]

    def add_tokens(self, usage: ModelUsage) -> None:
        self._lease.progress.prompt_tokens += usage.prompt_tokens
        self._lease.progress.completion_tokens += usage.completion_tokens

    async def _count(
        self, answering: Answering, usage: ModelUsage, purpose: str, step: int, seconds: float, estimated: bool = False
    ) -> int | None:
        cost = await cost_micros(answering.model, usage)
        call = usage_model.ModelCall(
            id=new_id(),
            step_index=step,
            purpose=purpose,
            model=answering.label or answering.model,
            usage=usage,
            cost_micros=cost,
            seconds=seconds,
            estimated=estimated,
        )
        self.model_calls.append(call)
        if self._job_spent is not None:
            self._job_spent += call.spent
        return cost

    async def _count_unfinished(
        self, answering: Answering, request: ModelRequest, purpose: str, step: int, chunks: Chunks, seconds: float
    ) -> None:
        """An answer that broke off costs what was streamed: by the provider's count where there is one."""
        if chunks.usage is None and not chunks.characters:
            return
        usage = chunks.usage or ModelUsage(
            prompt_tokens=usage_model.estimated_prompt(replace(request, model=answering.model)), completion_tokens=0
        )
        usage = replace(usage, completion_tokens=max(usage.completion_tokens, tokens(chunks.characters)))
        self.add_tokens(usage)
        await self._count(answering, usage, purpose, step, seconds, estimated=True)

    async def _afford(self, key: object, request: ModelRequest, answering: Answering) -> None:
        """Ends the attempt where the next request is over the budget of the job, or over its agent's budget of the day."""
        limits, lease = self._lease.limits.resources, self._lease
        by_cost = limits.cost_budget_usd is not None or limits.daily_cost_budget_usd is not None
        daily = limits.daily_token_budget is not None or limits.daily_cost_budget_usd is not None
        if limits.token_budget is None and not by_cost and not daily:
            return
        least = await _estimate(request, answering, by_cost)
        today, seconds = (
            await jobs_store.spent_today(lease.db, lease.assignment) if daily else (usage_model.Spent(), 0.0)
        )
        by_job = await self._spent_by_job()
        # From here until it is reserved nothing is awaited, so that each of several requests sees those before it.
        under_way = sum(self._reserved.values(), usage_model.Spent())
        if (why := usage_model.over_job(limits, by_job + under_way, least)) is not None:
            raise Ended(JobFailed(why, RAISE.format(setting="token_budget" if "tokens" in why else "cost_budget_usd")))
        if daily:
            self._afford_today(today + under_way + self._unwritten(), least, seconds)
        self._reserved[key] = least

    def _afford_today(self, spent: usage_model.Spent, least: usage_model.Spent, day_seconds: float) -> None:
        limits = self._lease.limits.resources
        why = usage_model.over_day(limits, spent, least)
        if why is None:
            return
        setting = "daily_token_budget" if "tokens" in why else "daily_cost_budget_usd"
        if usage_model.alone_over_day(limits, least):
            message = f"The next prompt alone has about {least.tokens} tokens, more than the agent's budget of a day."
            raise Ended(JobFailed(message, RAISE.format(setting=setting)))
        event = {"message": f"{why} The job goes on with the next day of UTC.", "budget": setting}
        fact = self._lease.fact("budget_spent", budget=setting, reason=why)
        write = StepWrite(events=[(EventType.BUDGET_SPENT, event)], facts=[fact])
        raise Ended(JobSleeps(day_seconds, "budget_spent", write))

    async def _spent_by_job(self) -> usage_model.Spent:
        """Read once per attempt: no other attempt spends for a job that is leased. Its checkpoint counts tokens too, and
        less where an attempt ended without one."""
        limits, lease = self._lease.limits.resources, self._lease
        if limits.token_budget is None and limits.cost_budget_usd is None:
            return usage_model.Spent()
        if self._job_spent is None:
            earlier = await jobs_store.spent_by_job(lease.db, lease.assignment)
            if self._job_spent is None:
                self._job_spent = earlier + self._unwritten()
        count = lease.progress.prompt_tokens + lease.progress.completion_tokens
        return replace(self._job_spent, tokens=max(self._job_spent.tokens, count))

    def _unwritten(self) -> usage_model.Spent:
        return sum((call.spent for call in self.model_calls), usage_model.Spent())


async def _estimate(request: ModelRequest, answering: Answering, by_cost: bool) -> usage_model.Spent:
    """The least that the next prompt may cost: earlier turns may be read from the provider's cache."""
    request = replace(request, model=answering.model)
    prompt = usage_model.estimated_prompt(request)
    if not by_cost:
        return usage_model.Spent(tokens=prompt, cost_micros=0)
    cache_tokens = max(0, prompt - tokens(heard(request))) if request.turn_index > 0 else 0
    least = ModelUsage(prompt_tokens=prompt, completion_tokens=0, cache_read_tokens=cache_tokens)
    cost = await cost_micros(answering.model, least)
    if cost is None:
        raise ModelError(
            f"The price of `{answering.model}` is not known, so its cost cannot be kept within a budget.",
            code="unknown_price",
            hint="Limit the agent by `token_budget` or `daily_token_budget` instead, or name a model with a known price.",
        )
    return usage_model.Spent(tokens=prompt, cost_micros=cost)


def _refusal(response: Response) -> ModelError:
    why = f": {response.refusal[:500]}" if response.refusal else "."
    return ModelError(
        f"The model refused to answer{why}",
        code="model_refused",
        hint="Look at what it was asked; another prompt or another model may answer. Then `cortex job resubmit` the job.",
    )


class ResponseTimer:
    """Ends the wait for a response that is late, or whose model falls silent: one timer, however many chunks there are."""

    def __init__(self, seconds: float, silence_seconds: float) -> None:
        self._seconds, self._silence_seconds = seconds, silence_seconds
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        """When the last chunk came. The timer moves when it rings, not with every chunk."""
        self._end = self.heard_at + seconds
        self._stopped: str | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a response is waited for by a task")
        self._task, self._cancelling = task, task.cancelling()
        self._set()

    def stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = reason
            self._task.cancel()

    def _set(self) -> None:
        self._timer = self._loop.call_at(min(self._end, self.heard_at + self._silence_seconds), self._ring)

    def _ring(self) -> None:
        now = self._loop.time()
        if now >= self._end:
            self.stop(f"The model did not answer within {self._seconds:.0f} s.")
        elif now >= self.heard_at + self._silence_seconds:
            self.stop(f"The model was silent for {self._silence_seconds} s.")
        else:
            self._set()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        # Where somebody else cancelled the task too, it stays cancelled.
        if self._stopped is not None and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ModelError(self._stopped, status=408) from None


class Chunks:
    def __init__(self, lease: Lease, step: int, *, silent: bool = False) -> None:
        """``silent``: they are only counted."""
        self.usage: ModelUsage | None = None
        """The provider's count so far, where it streams one."""
        self.characters = 0
        self._silent, self._lease, self._step = silent, lease, step
        self._text: list[str] = []
        self._over = self._complete = False
        self._ended = asyncio.Event()
        self._has_events = False
        self._timer: asyncio.TimerHandle | None = None
        """Begins to append; an answer that is complete before has no chunks."""

    def add(self, text: str) -> None:
        if not text or self._over:
            return
        self.characters += len(text)
        if self._silent:
            return
        self._text.append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, lambda: _in_background(self._flush()))

    def end(self, *, complete: bool) -> None:
        """Text that was not appended yet need not be: the step has all of it, or the answer failed."""
        self._over, self._complete = True, complete
        if self._timer is not None:
            self._timer.cancel()
            self._ended.set()

    async def _flush(self) -> None:
        while not self._over and await self._append():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._ended.wait()
        if self._has_events:
            await self._forget()

    async def _append(self) -> bool:
        lease = self._lease
        text, self._text = storable("".join(self._text)), []
        if not text:
            return True
        texts = [text[at : at + MOST_CHARACTERS] for at in range(0, len(text), MOST_CHARACTERS)]
        try:
            is_ours = await events.append_chunks(lease.db, lease.assignment, lease.worker.worker_id, self._step, texts)
        except CortexError as error:
            # The next chunk is tried again: a gap in the text is gone with the step.
            log.info("chunk lost", job_id=str(lease.assignment.job_id), error=str(error))
            return True
        self._has_events = self._has_events or is_ours
        return is_ours

    async def _forget(self) -> None:
        lease = self._lease
        if not self._complete:
            with contextlib.suppress(CortexError):
                await events.void_chunks(lease.db, lease.assignment, self._step)
            return
        for seconds in FORGET_SECONDS:
            await asyncio.sleep(seconds)
            with contextlib.suppress(CortexError):
                if await events.drop_chunks(lease.db, lease.assignment, self._step):
                    return


def _in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_task_done)
    return task


def _task_done(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.error("chunks failed", error=repr(task.exception()))
