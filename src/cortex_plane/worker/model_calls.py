"""Asking the model: one request, its answer as it is spoken, the times within which it must come, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cortex_plane.agents.model.completions import (
    ModelError,
    Request,
    Response,
    StopReason,
    Turn,
    Usage,
    tokens,
)
from cortex_plane.db.crash_points import reached
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.usage import ModelCall, Spent, estimated_prompt
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker import spending
from cortex_plane.worker.chunks import Chunks, heard
from cortex_plane.worker.clock import ticks
from cortex_plane.worker.lease import WorkerContext
from cortex_plane.worker.models.backends import Answering
from cortex_plane.worker.models.prices import cost_micros
from cortex_plane.worker.opening import Opening


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

    def request(self, turns: Sequence[Turn]) -> Request:
        """What the agent's own model is asked next."""
        config = self.given.model_config
        return Request(
            model=config["model"],
            system_prompt=self.prompted(self.prompt),
            turns=turns,
            tools=self.toolbox.specs,
            temperature=config.get("temperature"),
            max_tokens=config.get("max_tokens"),
            settings=config,
            turn_index=self.at.iterations,
        )

    async def ask(self, request: Request, *, purpose: str = "step", step: int | None = None) -> Response:
        """``purpose``: what the answer is for; only what the agent says is told while it is spoken. ``step``: which one asks,
        where several do at once. Raises `ModelError`.

        Whatever was spent goes with the next write, also where nothing came of it.
        """
        request = replace(request, org_id=self.given.org_id)
        step = self.at.step if step is None else step
        with spending.question(self) as asked:
            answering = await self.host.backends.answering(request)
            await spending.afford(self, asked, request, answering)
            return await self._answered(answering, request, purpose, step)

    async def _answered(self, answering: Answering, request: Request, purpose: str, step: int) -> Response:
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

    async def _heard(self, answering: Answering, request: Request, chunks: Chunks) -> Response:
        limits = self.limits.resources
        seconds = min(limits.call_timeout_seconds, limits.step_timeout_seconds, self.job_seconds_left())
        speaking = aiter(answering.backend.stream(request))
        task = asyncio.ensure_future(heard(speaking, limits.chunk_timeout_seconds, chunks))
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
        usage: Usage,
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
        self, answering: Answering, request: Request, purpose: str, step: int, chunks: Chunks, seconds: float
    ) -> None:
        """An answer that broke off is paid for as far as it came: by the provider's count where there is one."""
        if chunks.spent is None and not chunks.characters:
            return
        known = chunks.spent or Usage(
            prompt_tokens=estimated_prompt(replace(request, model=answering.model)), completion_tokens=0
        )
        said = max(known.completion_tokens, tokens(chunks.characters))
        usage = replace(known, completion_tokens=said)
        self._tally(usage)
        await self._count(answering, usage, purpose, step, seconds, estimated=True)

    def _tally(self, usage: Usage) -> None:
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
