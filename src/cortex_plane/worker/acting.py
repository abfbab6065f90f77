"""A job that calls tools: what agents that follow a model and agents that are written as code have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import NoReturn

import structlog

from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import SETTLED
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.kernel.errors import Conflict, ErrorClass, Unavailable
from cortex_plane.worker.calls import Call, without_intents
from cortex_plane.worker.lease import CheckpointTooLarge, Ended, Lost, WorkerContext, WriteFailed
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
