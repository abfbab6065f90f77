"""The agent loop of one attempt: from the claim to the write that ends the lease.

A step is one response of the model with all its calls resolved. Every arrow below is one commit, and a worker that
dies between two of them leaves the job exactly where the last one put it:

    model ──▶ response recorded, first intent ──▶ outcome, next intent ──▶ … ──▶ step done ──▶ model …
                                                                                    └──▶ completed

Decide first (pure), write after (one call); nothing is sent that was not written before.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import structlog

from cortex_plane.domain.agents import PromptChange, SkillSettings
from cortex_plane.domain.attempts import Assignment, NewStep, Write, Written
from cortex_plane.domain.canonical import canonical
from cortex_plane.domain.checkpoint_recovery import CheckpointCorrupt, open_sealed
from cortex_plane.domain.checkpoints import (
    CheckpointStatus,
    LogEntry,
    Phase,
)
from cortex_plane.domain.conversations import rebuilt, requests_of, spoken
from cortex_plane.domain.effects import CallStatus, ToolCall
from cortex_plane.domain.errors import CortexError, Unavailable
from cortex_plane.domain.jobs import Hold, JobKind, JobStatus
from cortex_plane.domain.models import (
    AssistantTurn,
    ModelError,
    Request,
    Response,
    ToolTurn,
    Turn,
)
from cortex_plane.domain.retry import ErrorClass, classify
from cortex_plane.operations import attempts
from cortex_plane.operations.authorize import authorize
from cortex_plane.operations.verbs import new_id
from cortex_plane.runtime.calls import (
    Call,
    CallKind,
    Pending,
    Toolbox,
    authorized,
    groups,
    planned,
    recorded_form,
    restored,
    summary,
)
from cortex_plane.runtime.clock import ticks
from cortex_plane.runtime.effects import perform, read
from cortex_plane.runtime.lease import PREVIEW, Abandoned, Ended, Host, Lease, Lost
from cortex_plane.runtime.progress import Progress
from cortex_plane.runtime.tools.app import App
from cortex_plane.storage.crash_points import reached

log = structlog.get_logger()


class Attempt(Lease):
    """One lease of one job, from the claim to its end."""

    def __init__(self, host: Host, given: Assignment) -> None:
        super().__init__(host, given)
        self.step_started = self.started
        self.cancel_requested = False
        self.turns: list[Turn] = []
        self.toolbox = _toolbox(host.apps[given.app], self.limits.skills)
        self._interruptible: asyncio.Task[Response] | None = None

    # The loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the lease is given up. Raises ``Abandoned`` where even that could not be written."""
        try:
            await self._run()
        except Ended:
            pass
        except Lost:
            log.warning("job lost", job_id=str(self.given.job_id), epoch=self.given.epoch)
        except Abandoned:
            raise
        except asyncio.CancelledError:
            await self.hand_back("the worker stops")
            raise
        except Unavailable as error:
            raise Abandoned(str(error)) from error
        except Exception as error:
            log.exception("attempt failed", job_id=str(self.given.job_id))
            message = f"{type(error).__name__}: {error}"
            await self.quietly(self.retry(ErrorClass.INFRASTRUCTURE, message, keep_checkpoint=True))

    async def _run(self) -> None:
        past = await self._open()
        steps = {step.step_index: step for step in past.steps}
        if self.at.phase is Phase.TOOLS:
            recorded = steps[self.at.step].response
            mine = [call for call in past.calls if call.step_index == self.at.step]
            calls = self._restore(recorded, mine)
            await self._check_code(calls)
            self.turns.append(AssistantTurn(text=recorded["text"], calls=requests_of(recorded)))
            await self._resolve(calls, Write())
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
            said = await attempts.messages_between(
                self.host.db, self.given, self.at.message_seq, self.unread_to
            )
            self.turns += spoken(said, self.given.job_id)
            self.at.message_seq = self.unread_to

    async def _step(self) -> None:
        self.step_started = ticks()
        await self.check_limits()
        try:
            response = await self._ask()
        except ModelError as error:
            kind = ErrorClass.PERMANENT if error.code == "unknown_model" else classify(error.status)
            await self.retry(kind, str(error))
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
        self.turns.append(AssistantTurn(text=response.text, calls=response.calls))
        if not response.calls:
            await self._answer(response.text or "", step)
            return
        calls = [
            planned(position, request, new_id(), self.toolbox)
            for position, request in enumerate(response.calls)
        ]
        for call in calls:
            if call.kind is not CallKind.REFUSED:
                authorized(
                    call,
                    authorize(read_only=call.kind is CallKind.READ, side_effects=self.host.side_effects),
                )
        self.at.phase = Phase.TOOLS
        # What only reads is told once, when it is done; what acts is on the trail before it does.
        acts = any(call.kind is CallKind.EFFECT for call in calls)
        said = [summary(call) for call in calls]
        facts = [self.fact("step_responded", step=step.index, calls=said)] if acts else []
        # What was said stands in the step: an event only points at it.
        told = [{"id": str(call.id), "tool": call.name} for call in calls]
        events = [("step", {"step": step.index, "calls": told})]
        await self._resolve(calls, Write(step=step, facts=facts, events=events))

    # The model -------------------------------------------------------------------------------------------------

    async def _ask(self) -> Response:
        config = self.given.model_config
        backend = self.host.backends.find(config["model"])
        request = Request(
            model=config["model"],
            system_prompt=self.prompt,
            turns=self.turns,
            tools=self.toolbox.specs,
            temperature=config.get("temperature"),
            max_tokens=config.get("max_tokens"),
            settings=config,
            turn_index=self.at.iterations,
        )
        limits = self.limits.resources
        seconds = min(limits.call_timeout_seconds, limits.step_timeout_seconds, self.job_seconds_left())

        async def listen() -> Response:
            response = None
            pieces = aiter(backend.stream(request))
            try:
                while True:
                    async with asyncio.timeout(limits.chunk_timeout_seconds) as silence:
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    if isinstance(piece, Response):
                        response = piece
            except TimeoutError:
                if not silence.expired():
                    raise
                said = f"The model was silent for {limits.chunk_timeout_seconds} s."
                raise ModelError(said, status=408) from None
            finally:
                if isinstance(pieces, AsyncGenerator):
                    await pieces.aclose()
            if response is None:
                raise ModelError("The model's answer ended before it was complete.")
            return response

        reached("model:before")
        self._interruptible = asyncio.ensure_future(listen())
        try:
            async with asyncio.timeout(seconds):
                response = await self._interruptible
        except TimeoutError:
            raise ModelError(f"The model did not answer within {seconds:.0f} s.", status=408) from None
        except asyncio.CancelledError:
            if self.cancel_requested:
                await self.end_cancelled()
            raise
        finally:
            self._interruptible.cancel()
            self._interruptible = None
        reached("model:after")
        return response

    def interrupt(self) -> None:
        """Somebody cancelled the job. An answer of the model is not waited for; a call of a tool is."""
        self.cancel_requested = True
        if self._interruptible is not None:
            self._interruptible.cancel()

    async def _answer(self, text: str, step: NewStep) -> None:
        """A response without calls ends the job, unless somebody said something meanwhile."""
        conversation = self.given.kind is JobKind.CONVERSATION
        reply = text if conversation else None
        fact = self.fact("step_completed", step=step.index, calls=[])
        event = ("step", {"step": step.index, "calls": []})
        spoke = [("message", {"role": "assistant"})] if conversation else []
        self._log_step(step.index, "answer", text, 0)
        self.at.status, self.at.phase = CheckpointStatus.COMPLETED, Phase.DONE
        written = await self.write(
            Write(
                step=step,
                done_step=step.index,
                reply=reply,
                status=JobStatus.COMPLETED,
                result=canonical({"text": text}),
                events=[("status", {"status": JobStatus.COMPLETED}), event, *spoke],
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
                Write(step=step, done_step=step.index, reply=reply, events=[event, *spoke], facts=[fact])
            )
        )

    # The calls of a step ---------------------------------------------------------------------------------------

    async def _resolve(self, calls: list[Call], due: Write) -> None:
        """Run what is not settled. ``due`` is what must be durable before anything is sent."""
        index = self.at.step
        pending = Pending(due, index)
        pending.new(*(call for call in calls if call.settled and not call.written))
        for group in groups(calls):
            if group[0].kind is CallKind.EFFECT:
                call = group[0]
                is_new = call.status is None
                if is_new:
                    call.status = CallStatus.INTENDED
                    pending.new(call)
                await perform(self, call, calls, pending.take(), new=is_new)
                pending.settled.append(call)
            else:
                # The response before anything else; and what an effect did does not wait for others to read.
                if pending.due.step is not None or pending.settled:
                    await self.write_calls(calls, pending.take())
                await asyncio.gather(*(read(self, call, index) for call in group))
                pending.new(*group)
            pending.stored += self.take_stored()
            if self.limits.per_call:
                await self.write_calls(calls, pending.take())
        await self._end_step(calls, pending.take(), index)

    async def write_calls(self, calls: Sequence[Call], write: Write) -> Written:
        self.at.active_tools = tuple(call.shown() for call in calls)
        return await self.write(write)

    async def _end_step(self, calls: Sequence[Call], write: Write, index: int) -> None:
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        outcome = "; ".join(f"{call.name}: {call.status}" for call in calls)
        self._log_step(index, names, outcome, len(calls))
        self.at.active_tools = tuple(call.shown(whole=False) for call in calls)
        self.at.phase, self.at.step, self.at.invocation = Phase.MODEL, index + 1, None
        said = [{"id": str(call.id), "tool": call.name, "status": str(call.status)} for call in calls]
        acts = any(call.kind is CallKind.EFFECT for call in calls)
        proof = said if acts else [{**summary(call), "status": str(call.status)} for call in calls]
        self.turns.append(ToolTurn(tuple(call.told() for call in calls)))
        write.done_step = index
        ended = [{"id": str(call.id), "status": str(call.status)} for call in calls]
        write.events = [*write.events, ("step_completed", {"step": index, "calls": ended})]
        write.facts = [*write.facts, self.fact("step_completed", step=index, calls=proof)]
        await self._done(await self.write(write))

    async def _done(self, written: Written) -> None:
        """A step is durable: does anybody want the job to stop here?"""
        if written.cancelled:
            await self.end_cancelled()
        if written.held:
            await self.write(
                Write(
                    status=JobStatus.PAUSED,
                    events=[("status", {"status": JobStatus.PAUSED}), ("session_paused", {"reason": "held"})],
                    facts=[self.fact("job_paused")],
                )
            )
            raise Ended

    # State -----------------------------------------------------------------------------------------------------

    async def _open(self) -> attempts.Past:
        """Where the job stopped; whatever does not fit ends it, and nothing is repaired."""
        given = self.given
        action = "job_started" if given.checkpoint is None else "job_resumed"
        self.notes.append(self.fact(action, epoch=given.epoch, worker=self.host.worker_name))
        if given.checkpoint is not None:
            try:
                opened = open_sealed(
                    given.checkpoint, mac=given.checkpoint_mac, job_id=given.job_id, agent_id=given.agent_id,
                    key=self.key,
                )  # fmt: skip
            except CheckpointCorrupt as error:
                log.error(
                    "checkpoint corrupt", jobId=str(given.job_id), agentId=str(given.agent_id),
                    corruptionType=error.corruption_type, error=error.message,
                )  # fmt: skip
                await self._fail_unopened(error)
            self.at = Progress.of(opened)
        past = await attempts.past(self.host.db, given, self.at.message_seq)
        by_step: dict[int, list[ToolCall]] = {}
        for call in past.calls:
            by_step.setdefault(call.step_index, []).append(call)
        self.turns = rebuilt(
            given.kind, given.job_id, given.payload, past.said, past.steps, by_step, self.at.step
        )
        await self._check_prompt()
        return past

    async def _fail_unopened(self, error: CheckpointCorrupt) -> NoReturn:
        """The checkpoint stays as it was found: the next write leaves it alone."""
        message = f"Checkpoint corruption detected: {error.message} (job {self.given.job_id}, not resumed) {error.hint}"
        facts = [self.fact("checkpoint_corrupt", type=error.corruption_type, error=error.message)]
        await self.write(
            Write(
                status=JobStatus.FAILED,
                error=message,
                events=[("status", {"status": JobStatus.FAILED, "error": message[:PREVIEW]})],
                facts=facts,
            ),
            keep_checkpoint=True,
        )
        raise Ended

    async def _check_prompt(self) -> None:
        if self.at.prompt_hash == self.prompt_hash:
            return
        change = self.limits.on_prompt_change
        self.notes.append(self.fact("prompt_changed", decision=change))
        if change is PromptChange.FAIL:
            await self.fail(
                "The agent's prompt changed since the job began.",
                "`cortex job resubmit` starts it again with the new prompt.",
            )
        self.at.prompt_hash = self.prompt_hash
        if change is PromptChange.HOLD:
            # Whoever resumes it says that the new prompt is fine: it is the one that is kept.
            await self.hold(Hold.PROMPT_CHANGED, {"prompt": "changed"})

    def _restore(self, recorded: dict[str, Any], rows: Sequence[ToolCall]) -> list[Call]:
        """The calls of a step that an earlier attempt began."""
        ids = [tool.invocation_id for tool in self.at.active_tools]
        known = {row.position: row for row in rows}
        calls = []
        for position, request in enumerate(requests_of(recorded)):
            row = known.get(position)
            call = planned(position, request, row.id if row else ids[position], self.toolbox)
            if row is not None:
                restored(call, row)
            elif call.kind is CallKind.REFUSED:
                # What was refused then has its row. This one was fine, so it is the code that changed.
                call.status = None
            else:
                read_only = call.kind is CallKind.READ
                authorized(call, authorize(read_only=read_only, side_effects=self.host.side_effects))
            calls.append(call)
        return calls

    async def _check_code(self, calls: Sequence[Call]) -> None:
        """A deploy must not fail parked work: a call whose tool is gone waits for an operator."""
        gone = [call.name for call in calls if call.tool is None and not call.settled]
        if gone:
            await self.hold(Hold.CODE_CHANGED, {"tools": gone})

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


@functools.lru_cache(maxsize=256)
def _toolbox(app: App, skills: SkillSettings) -> Toolbox:
    """The same for every job of an agent version, and not cheap: schemas and digests of all its tools."""
    tools = {t.provider_name: t for t in app.tools.values() if skills.tools is None or t.name in skills.tools}
    return Toolbox(
        tools=tools,
        specs=[tool.spec for tool in tools.values()],
        digests={version.name: version.digest for version in app.versions},
        side_effect_tools=skills.side_effect_tools,
    )
