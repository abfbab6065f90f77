"""Asking the model: one request, its streamed answer, its time limits, and what it costs.

Chunks of the answer are appended as events while it is streamed. No step waits for a chunk or depends on one: they are
collected for a moment and appended in the background, and a chunk that cannot be appended is dropped. An answer that is
complete within that moment has no chunks. Once the step is recorded its chunks are deleted; until then readers skip them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

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
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.usage import (
    ModelCall,
    OpenModelCall,
    Spent,
    alone_over_day,
    estimated_prompt,
    over_day,
    over_job,
)
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.events import EventType
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.calls import storable
from cortex_plane.worker.lease import WorkerContext
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.models.backends import Answering
from cortex_plane.worker.models.prices import cost_micros
from cortex_plane.worker.resume import Opening


class Voice(Opening):
    """A leased job that speaks with its model."""

    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self.cancel_requested = False
        self.model_calls: list[ModelCall] = []
        """What the model was asked and no write has told yet."""
        self.job_spent: Spent | None = None
        """With the calls that no write has told yet; None until somebody needs it."""
        self._interruptible: set[asyncio.Task[Response]] = set()

    def request(self, turns: Sequence[Turn]) -> ModelRequest:
        """What the agent's own model is asked next."""
        config = self.given.model_config
        return ModelRequest(
            model=config["model"],
            system_prompt=self.prompted(self.prompt),
            turns=turns,
            tools=self.toolbox.specs,
            temperature=config.get("temperature"),
            max_tokens=config.get("max_tokens"),
            settings=config,
            turn_index=self.at.iterations,
        )

    async def ask(self, request: ModelRequest, *, purpose: str = "step", step: int | None = None) -> Response:
        """``purpose``: what the answer is for; only what the agent says is told while it is spoken. ``step``: which one asks,
        where several do at once. Raises `ModelError`.

        Whatever was spent goes with the next write, also where nothing came of it.
        """
        request = replace(request, org_id=self.given.org_id)
        step = self.at.step if step is None else step
        with open_model_call(self) as asked:
            answering = await self.host.backends.answering(request)
            await afford(self, asked, request, answering)
            return await self._answered(answering, request, purpose, step)

    async def _answered(
        self, answering: Answering, request: ModelRequest, purpose: str, step: int
    ) -> Response:
        chunks = Chunks(self.host, self.given, step, told=purpose in ("step", "model"))
        started = ticks()
        reached("model:before")
        try:
            response = await self._heard(answering, request, chunks)
        except (ModelError, asyncio.CancelledError) as error:
            await self._count_unfinished(answering, request, purpose, step, chunks, ticks() - started)
            if self.cancel_requested and isinstance(error, asyncio.CancelledError):
                await self.end_cancelled()
            raise
        reached("model:after")
        cost = await self._count(answering, response.usage, purpose, step, ticks() - started)
        response = replace(response, model=answering.label, cost_micros=cost)
        if response.stop_reason is StopReason.REFUSAL and not (response.text or "").strip():
            self._tally(response.usage)
            raise _refused(response)
        return response

    async def _heard(self, answering: Answering, request: ModelRequest, chunks: Chunks) -> Response:
        limits = self.limits.resources
        seconds = min(limits.call_timeout_seconds, limits.step_timeout_seconds, self.job_seconds_left())
        speaking = aiter(answering.backend.stream(request))
        task = asyncio.ensure_future(read_stream(speaking, limits.chunk_timeout_seconds, chunks))
        self._interruptible.add(task)
        try:
            async with asyncio.timeout(seconds):
                return await task
        except TimeoutError:
            raise ModelError(f"The model did not answer within {seconds:.0f} s.", status=408) from None
        finally:
            task.cancel()
            self._interruptible.discard(task)

    # What it costs -----------------------------------------------------------------------------------------------

    async def _count(
        self,
        answering: Answering,
        usage: ModelUsage,
        purpose: str,
        step: int,
        seconds: float,
        *,
        estimated: bool = False,
    ) -> int | None:
        cost = await cost_micros(answering.model, usage)
        self.model_calls.append(
            ModelCall(
                id=new_id(),
                step_index=step,
                purpose=purpose,
                model=answering.label or answering.model,
                usage=usage,
                cost_micros=cost,
                seconds=seconds,
                estimated=estimated,
            )
        )
        if self.job_spent is not None:
            self.job_spent += self.model_calls[-1].spent
        return cost

    async def _count_unfinished(
        self,
        answering: Answering,
        request: ModelRequest,
        purpose: str,
        step: int,
        chunks: Chunks,
        seconds: float,
    ) -> None:
        """An answer that broke off is paid for as far as it came: by the provider's count where there is one."""
        if chunks.spent is None and not chunks.characters:
            return
        known = chunks.spent or ModelUsage(
            prompt_tokens=estimated_prompt(replace(request, model=answering.model)), completion_tokens=0
        )
        said = max(known.completion_tokens, tokens(chunks.characters))
        usage = replace(known, completion_tokens=said)
        self._tally(usage)
        await self._count(answering, usage, purpose, step, seconds, estimated=True)

    def _tally(self, usage: ModelUsage) -> None:
        """Of what nobody gets to see; whoever uses an answer counts it."""
        self.at.prompt_tokens += usage.prompt_tokens
        self.at.completion_tokens += usage.completion_tokens

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        """What was spent since the last write goes with it."""
        told = tuple(self.model_calls)
        if told:
            write.more = {**write.more, "usage": [call.row() for call in told]}
        written = await super().write(write, keep_checkpoint=keep_checkpoint)
        if write.status is not JobStatus.COMPLETED or written.status is JobStatus.COMPLETED:
            self.model_calls = [call for call in self.model_calls if call not in told]
        return written

    def interrupt(self) -> None:
        """Somebody cancelled the job. An answer of the model is not waited for; a call of a tool is."""
        self.cancel_requested = True
        for task in self._interruptible:
            task.cancel()


def _refused(response: Response) -> ModelError:
    why = f": {response.refusal[:500]}" if response.refusal else "."
    return ModelError(
        f"The model refused to answer{why}",
        code="model_refused",
        hint="Look at what it was asked; another prompt or another model may answer. Then `cortex job resubmit` the job.",
    )


log = structlog.get_logger()

FLUSH_SECONDS = 0.1
FLUSH_CHARACTERS = 2000
MOST_CHARACTERS = 16_000
"""Of one chunk."""
FORGET_SECONDS = (0.5, 2.0, 10.0)
"""After the answer: when its chunks are looked for, until they are gone."""

_tasks: set[asyncio.Task[None]] = set()
"""Kept from the garbage collector; each ends by itself."""


async def read_stream(
    pieces: AsyncIterator[TextChunk | ModelUsage | Response], silence_seconds: float, chunks: Chunks
) -> Response:
    """The response at the end of a stream; a model that falls silent gives none."""
    response = None
    try:
        while True:
            async with asyncio.timeout(silence_seconds) as silence:
                piece = await anext(pieces, None)
            if piece is None:
                break
            if isinstance(piece, Response):
                response = piece
            elif isinstance(piece, ModelUsage):
                chunks.spent = piece
            else:
                chunks.add(piece.text)
    except TimeoutError:
        if not silence.expired():
            raise
        raise ModelError(f"The model was silent for {silence_seconds} s.", status=408) from None
    finally:
        chunks.end(complete=response is not None)
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
    if response is None:
        raise ModelError("The model's answer ended before it was complete.")
    return response


class Chunks:
    """The chunks of one step of one attempt."""

    def __init__(self, host: WorkerContext, given: Assignment, step: int, *, told: bool = True) -> None:
        """Not ``told``: they are counted alone."""
        self.spent: ModelUsage | None = None
        """What the provider counted so far, where it says so while it speaks."""
        self.characters = 0
        self._silent = not told
        self._host = host
        self._given = given
        self._step = step
        self._text: list[str] = []
        self._size = 0
        self._due = asyncio.Event()
        self._over = False
        self._complete = False
        self._told = False
        self._flushing: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        if not text or self._over:
            return
        self.characters += len(text)
        if self._silent:
            return
        self._text.append(text)
        self._size += len(text)
        if self._size >= FLUSH_CHARACTERS:
            self._due.set()
        if self._flushing is None:
            self._flushing = _in_background(self._flush())

    def end(self, *, complete: bool) -> None:
        """What was not told yet need not be: the step tells all of it, or nobody will have it."""
        self._over, self._complete = True, complete
        self._due.set()

    async def _flush(self) -> None:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._due.wait()
            if self._over or not await self._append():
                break
        if self._told:
            await self._forget()

    async def _append(self) -> bool:
        text, self._text, self._size = storable("".join(self._text)), [], 0
        self._due.clear()
        if not text:
            return True
        texts = [text[at : at + MOST_CHARACTERS] for at in range(0, len(text), MOST_CHARACTERS)]
        try:
            told = await events.append_chunks(
                self._host.db, self._given, self._host.worker_id, self._step, texts
            )
        except CortexError as error:
            # The next one is tried again: a gap in the text is gone with the step.
            log.info("chunk lost", job_id=str(self._given.job_id), error=str(error))
            return True
        self._told = self._told or told
        return told

    async def _forget(self) -> None:
        if not self._complete:
            with contextlib.suppress(CortexError):
                await events.void_chunks(self._host.db, self._given, self._step)
            return
        for seconds in FORGET_SECONDS:
            await asyncio.sleep(seconds)
            with contextlib.suppress(CortexError):
                if await events.drop_chunks(self._host.db, self._given, self._step):
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


RAISE = "Raise `{setting}` in the agent's resource limits, then `cortex job resubmit` the job."


@contextmanager
def open_model_call(voice: Voice) -> Iterator[OpenModelCall]:
    """Counted from before it is asked until whoever asked counts the answer: branches of a job ask at the same time."""
    asked = OpenModelCall()
    voice.asking.append(asked)
    try:
        yield asked
    finally:
        voice.asking.remove(asked)


async def afford(voice: Voice, asked: OpenModelCall, request: ModelRequest, answering: Answering) -> None:
    """Ends the attempt where the next call would be too much; without a budget it costs nothing to ask."""
    limits = voice.limits.resources
    by_cost = limits.cost_budget_usd is not None or limits.daily_cost_budget_usd is not None
    daily = limits.daily_token_budget is not None or limits.daily_cost_budget_usd is not None
    if limits.token_budget is None and not by_cost and not daily:
        return
    due = await _estimate(request, answering, by_cost)
    today, seconds_left = await workers.spent_today(voice.host.db, voice.given) if daily else (Spent(), 0.0)
    so_far = await _so_far(voice)
    # From here until it is reserved nothing is awaited, so that of several questions each sees those before it.
    under_way = sum((each.least for each in voice.asking), Spent())
    why = over_job(limits, so_far + under_way, due)
    if why is not None:
        setting = "token_budget" if "tokens" in why else "cost_budget_usd"
        await voice.fail(why, RAISE.format(setting=setting))
    if daily:
        await _afford_today(voice, today + under_way + _unwritten(voice), due, seconds_left)
    asked.least = due


async def _afford_today(voice: Voice, spent: Spent, due: Spent, seconds_left: float) -> None:
    limits = voice.limits.resources
    why = over_day(limits, spent, due)
    if why is None:
        return
    setting = "daily_token_budget" if "tokens" in why else "daily_cost_budget_usd"
    if alone_over_day(limits, due):
        await voice.fail(
            f"The next prompt alone has about {due.tokens} tokens, more than the agent's budget of a day.",
            RAISE.format(setting=setting),
        )
    await _sleep(voice, why, setting, seconds_left)


async def _sleep(voice: Voice, why: str, setting: str, seconds: float) -> NoReturn:
    told = {"message": f"{why} The job goes on with the next day of UTC.", "budget": setting}
    fact = voice.fact("budget_spent", budget=setting, reason=why)
    await voice.sleep(
        seconds, "budget_spent", StepWrite(events=[(EventType.BUDGET_SPENT, told)], facts=[fact])
    )


async def _estimate(request: ModelRequest, answering: Answering, by_cost: bool) -> Spent:
    """The least that the next prompt may take: what was sent before may be read from the provider's cache."""
    asked = replace(request, model=answering.model)
    prompt = estimated_prompt(asked)
    if not by_cost:
        return Spent(tokens=prompt, cost_micros=0)
    cached = max(0, prompt - tokens(heard(asked))) if request.turn_index > 0 else 0
    least = ModelUsage(prompt_tokens=prompt, completion_tokens=0, cache_read_tokens=cached)
    cost = await cost_micros(answering.model, least)
    if cost is None:
        raise ModelError(
            f"The price of `{answering.model}` is not known, so its cost cannot be kept within a budget.",
            code="unknown_price",
            hint="Limit the agent by `token_budget` or `daily_token_budget` instead, or name a model with a known price.",
        )
    return Spent(tokens=prompt, cost_micros=cost)


async def _so_far(voice: Voice) -> Spent:
    """By the job. Read once per attempt: nobody else spends for a job that is leased.

    Its checkpoint counts tokens too, and less where an attempt ended without one.
    """
    limits = voice.limits.resources
    if limits.token_budget is None and limits.cost_budget_usd is None:
        return Spent()
    if voice.job_spent is None:
        written = await workers.spent_by_job(voice.host.db, voice.given)
        if voice.job_spent is None:
            voice.job_spent = written + _unwritten(voice)
    counted = voice.at.prompt_tokens + voice.at.completion_tokens
    return replace(voice.job_spent, tokens=max(voice.job_spent.tokens, counted))


def _unwritten(voice: Voice) -> Spent:
    return sum((call.spent for call in voice.model_calls), Spent())
