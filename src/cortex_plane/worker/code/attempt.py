"""One lease of a code agent's job: its function runs from the top, over what was recorded, to where it cannot go on.

Branches of one job share its lease. Whatever ends the lease is therefore put off until no branch does anything any more:
what is under way is finished and recorded, and one write says where the job goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.completions import ModelError
from cortex_plane.jobs.model.checkpoints import CheckpointStatus, Phase
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus
from cortex_plane.jobs.model.journal import StepFailed
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, ErrorClass, TooLarge
from cortex_plane.sessions.rules import SessionMessage
from cortex_plane.worker import step_events
from cortex_plane.worker.approval_requests import park
from cortex_plane.worker.calls import Call, outcome_of, storable, together
from cortex_plane.worker.code.context import CodeAgent, Context
from cortex_plane.worker.code.journal import Failure, Held, JournalWriter
from cortex_plane.worker.code.operations import Unwind, last_round
from cortex_plane.worker.code.performer import Performer
from cortex_plane.worker.lease import Ended
from cortex_plane.worker.tools.tool import encode_result

log = structlog.get_logger()

MAX_JOB_RESULT = 1024 * 1024
Answered = tuple[str | None, Sequence[SessionMessage]]
"""What a function answered in a conversation, and what was said to it meanwhile."""
UNWINDING_SECONDS = 5.0
"""How long a function may take to get out of the way."""


class CodeAttempt(JournalWriter):
    # The function ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        past = await self.open()
        entries, arrived = await workers.list_past_entries(self.host.db, self.given)
        function = await self._function()
        self.at.phase = Phase.MODEL
        self.operations = 1 + max((entry.position for entry in entries), default=-1)
        number = last_round(entries)
        said: Sequence[SessionMessage] = past.said
        while True:
            performer = Performer(
                self, entries, arrived, {call.step_index: call for call in past.calls}, number
            )
            answer, said = await self._round(performer, function, said)
            # Somebody had said more: the function begins again with that.
            number += 1
            begun, write = performer.new_round(number, heard=self.at.message_seq)
            entries = [*entries, begun]
            self.at.message_seq = max(each.seq for each in said)
            self.hear(said)
            await self.write(together(write, StepWrite(reply=answer)))

    async def _function(self) -> CodeAgent:
        agents = self.host.apps[self.given.app].agents
        name = self.limits.skills.run or ""
        if name not in agents:
            known = ", ".join(f"`{each}`" for each in sorted(agents)) or "none"
            await self._code_changed(f"the app `{self.given.app}` has no agent `{name}`; it has {known}")
        return agents[name]

    async def _round(
        self, performer: Performer, function: CodeAgent, said: Sequence[SessionMessage]
    ) -> Answered:
        ctx = Context(
            performer, payload=self._payload(performer, said), job_id=self.given.job_id,
            session_id=self.given.session_id, agent=self.given.agent,
        )  # fmt: skip
        await self.look()
        self._playing = True
        try:
            result, error = await self._played(performer, performer.play(function, ctx, performer.prefix))
        finally:
            self._playing = False
            performer.closed = True
            await performer.close()
            await self._stop_flushing()
        return await self._end(performer, result, error)

    def _payload(self, performer: Performer, said: Sequence[SessionMessage]) -> dict[str, Any]:
        """Of a conversation: with what people said and nobody answered."""
        if self.given.kind is not JobKind.CONVERSATION:
            return self.given.payload
        since = max(performer.heard_to + 1, int(self.given.payload.get("message_seq", 0)))
        texts = [each.text for each in said if each.role == "user" and each.seq >= since]
        return {**self.given.payload, "text": "\n".join(texts)}

    async def _played(self, performer: Performer, running: Any) -> tuple[Any, BaseException | None]:
        """What the function returned or raised, once nothing of it runs any more."""
        task = asyncio.ensure_future(running)
        try:
            left = max(0.0, self.job_seconds_left())
            done, _ = await asyncio.wait([task], timeout=left)
            if not done:
                self.ends.failures.append(Failure(*self.ran_too_long, None))
                task.cancel()
                await asyncio.wait([task], timeout=UNWINDING_SECONDS)
            await performer.quiet()
        except asyncio.CancelledError:
            task.cancel()
            await performer.close()
            await asyncio.wait([task], timeout=UNWINDING_SECONDS)
            raise
        if not task.done():
            log.warning("an agent does not stop", job_id=str(self.given.job_id))
            return None, Unwind()
        if task.cancelled():
            return None, asyncio.CancelledError("the function was cancelled")
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)

    # Its end ---------------------------------------------------------------------------------------------------

    async def _end(self, performer: Performer, result: Any, error: BaseException | None) -> Answered:
        ends = self.ends
        if ends.error is not None:
            raise ends.error
        if performer.mismatch is not None:
            await self._code_changed(performer.mismatch)
        if ends.failures:
            await self._fail_all()
        if ends.holds:
            await self._hold_all()
        if ends.cancelled or (self.cancel_requested and isinstance(error, Unwind)):
            await self.end_cancelled()
        if ends.handed_back is not None:
            hand_back = self.hand_back_counted if ends.hand_back_counts else self.hand_back
            await hand_back(ends.handed_back)
            raise Ended
        if (ends.waiting or ends.held_back) and error is None:
            await self._code_changed(
                "the function returned although an operation had not ended; let what `ctx` raises pass, and never"
                " catch BaseException"
            )
        if ends.waiting:
            await self._park()
        if ends.held_back or (isinstance(error, Unwind) and self.held):
            await self._pause()
        if error is not None:
            await self._raised(performer, error)
        return await self._returned(performer, result)

    async def _code_changed(self, reason: str) -> NoReturn:
        """A deploy must not fail parked work: what does not fit waits for an operator."""
        said = storable(f"the code differs from what was recorded: {reason}")[:2000]
        log.warning("code changed", job_id=str(self.given.job_id), reason=said)
        await self.hold(Hold.CODE_CHANGED, {"why": said})

    async def _fail_all(self) -> NoReturn:
        first = self.ends.failures[0]
        write = StepWrite()
        for failure in self.ends.failures:
            write = together(write, failure.write or StepWrite())
        for held in self.ends.holds:
            call = self._call_of(held)
            if call is not None:
                call.fail(call.error or "nobody knows whether it happened")
                if self.gates is not None:
                    self.gates.happened([call])
                write = together(write, outcome_of(call))
        await self.fail(first.message, first.remedy, write, keep_checkpoint=first.keep_checkpoint)

    def _call_of(self, held: Held) -> Call | None:
        return self.calls.get(UUID(held.event["call"])) if "call" in held.event else None

    async def _hold_all(self) -> NoReturn:
        first = self.ends.holds[0]
        write = StepWrite()
        for held in self.ends.holds:
            write = together(write, held.write or StepWrite())
        await self.hold(first.hold, first.event, write)

    async def _park(self) -> NoReturn:
        """Waiting holds nothing. People come first: whatever else it waits for is looked at when they have decided."""
        ends = self.ends
        if ends.awaiting:
            await park(self, ends.awaiting, ends.terms, StepWrite())
        now = self.time.now()
        wake = min(ends.wakes, default=None)
        reason = ", ".join(dict.fromkeys(ends.reasons))[:200]
        await self.write(
            StepWrite(
                status=JobStatus.SLEEPING,
                delay_seconds=None if wake is None else max(0.0, (wake - now).total_seconds()),
                more={"waits": ends.waits} if ends.waits else {},
                events=[("status", {"status": JobStatus.SLEEPING, "reason": reason})],
                facts=[self.fact("job_sleeps", reason=reason)],
            )
        )
        raise Ended

    async def _pause(self) -> NoReturn:
        await self.write(
            StepWrite(
                status=JobStatus.PAUSED,
                events=[("status", {"status": JobStatus.PAUSED}), ("session_paused", {"reason": "held"})],
                facts=[self.fact("job_paused")],
            )
        )
        raise Ended

    async def _raised(self, performer: Performer, error: BaseException) -> NoReturn:
        left = performer.scopes.unvisited()
        name = type(error).__name__
        if left is not None:
            await self._code_changed(
                f"expected {left.kind} `{left.key}`, and the code raised {name}: {error}"
            )
        performer.drop_failures()
        if isinstance(error, ModelError):
            await self.retry(error.error_class, str(error), wished=error.retry_after)
        if isinstance(error, CortexError) and not isinstance(error, StepFailed):
            await self.fail(
                f"The agent's function raised {name}: {error}",
                "Correct its code, or catch it there; then `cortex job resubmit` it.",
            )
        message = str(error) if isinstance(error, StepFailed) else f"{name}: {error}"
        await self.retry(ErrorClass.INFRASTRUCTURE, f"The agent's function raised {message}")

    async def _returned(self, performer: Performer, result: Any) -> Answered:
        """Ends the job, unless somebody said more in its conversation: then the answer goes with the next write."""
        if performer.unawaited:
            never = ", ".join(operation.what for operation in performer.unawaited[:3])
            await self.fail(f"The agent's function never awaited: {never}.", "Write `await` before it.")
        performer.keep_failures()
        asked = self.gates.state.asks if self.gates is not None else ()
        if asked:
            await self.fail(
                f"The agent's function returned, and the gate `{asked[0].gate}` still waits for its answer.",
                "Answer it there with `await ctx.answer(…)`, then `cortex job resubmit` it.",
            )
        try:
            text, encoded = _result(result)
        except CortexError as error:
            await self.fail(
                f"The agent's function returned what cannot be stored: {error.message}", error.hint
            )
        reply = (text.strip() or None) if self.given.kind is JobKind.CONVERSATION else None
        while not await self._completed(reply, encoded):
            said = await workers.messages_between(
                self.host.db, self.given, self.at.message_seq, self.unread_to
            )
            if any(each.role == "user" for each in said):
                return reply, said
            self.at.message_seq = self.unread_to  # nobody but this job itself said anything
        raise Ended

    async def _completed(self, reply: str | None, result: bytes) -> bool:
        """False where somebody said something that it has not read: nothing was written then."""
        self.at.status, self.at.phase = CheckpointStatus.COMPLETED, Phase.DONE
        written = await self.write(
            StepWrite(
                reply=reply,
                status=JobStatus.COMPLETED,
                result=result,
                events=[("completion", {"step": self.at.step}), ("status", {"status": JobStatus.COMPLETED})],
                facts=[self.fact("job_completed", **step_events.replied(reply))],
            )
        )
        self.at.status, self.at.phase = CheckpointStatus.IN_PROGRESS, Phase.MODEL
        return written.status is JobStatus.COMPLETED


def _result(value: Any) -> tuple[str, bytes]:
    """What a function returned, as a text and as the job's result, which is always an object."""
    encoded = encode_result(value)
    if len(encoded) > MAX_JOB_RESULT:
        raise TooLarge(f"it is {len(encoded)} bytes; the limit is {MAX_JOB_RESULT}.")
    plain = orjson.loads(encoded)
    if isinstance(plain, dict):
        text = plain.get("text")
        return (text if isinstance(text, str) else encoded.decode()), encoded
    if isinstance(plain, str):
        return plain, canonical({"text": plain})
    return ("" if plain is None else encoded.decode()), canonical({} if plain is None else {"value": plain})
