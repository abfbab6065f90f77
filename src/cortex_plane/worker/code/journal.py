"""A lease that several branches of one function share: what they record is written together, and what ends it is put off.

An operation is written before it has effects and after it. Its outcome goes with the next write, at the latest as soon as the
function waits for anything else. So nothing begins before everything that came before it is durable, and steps one after the
other cost one commit each.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from cortex_plane.approvals.verbs.approval_requests import Possible
from cortex_plane.gates.rules.authorization import Authorization, authorize
from cortex_plane.jobs.model.checkpoints import LogEntry
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.model.journal import EntryKind
from cortex_plane.jobs.rules.attempts import Assignment, StepWrite, WriteResult
from cortex_plane.kernel.meters import meters
from cortex_plane.policies.model.policies import OnDeny, PolicyVerdict
from cortex_plane.policies.rules.terms import both_terms
from cortex_plane.worker.attempt import Acting
from cortex_plane.worker.calls import Call, storable, together
from cortex_plane.worker.code.operations import ASK, Unwind, with_ask
from cortex_plane.worker.lease import CheckpointTooLarge, WorkerContext
from cortex_plane.worker.limits import ticks


class JournalWriter(Acting, ABC):
    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        super().__init__(host, given)
        self.toolbox = with_ask(self.toolbox)
        self.ends = StopReasons()
        self.held = False
        self.operations = 0
        """How many the job has begun so far, in all its attempts."""
        self.demands: dict[UUID, Any] = {}
        """By call: what the agent asks of people beyond the policies."""
        self.whole: dict[UUID, bytes] = {}
        """Results that are kept apart, until they are written."""
        self.calls: dict[UUID, Call] = {}
        """Those that were sent, or are to be."""
        self._due = StepWrite()
        """What is recorded and not yet written."""
        self._pen = asyncio.Lock()
        self._playing = False
        self._flushing: asyncio.Task[None] | None = None

    # Ends that are put off -------------------------------------------------------------------------------------

    async def fail(
        self, message: str, remedy: str, write: StepWrite | None = None, *, keep_checkpoint: bool = False
    ) -> NoReturn:
        if self._playing:
            self.ends.failures.append(Failure(message, remedy, write, keep_checkpoint))
            raise Unwind
        await super().fail(message, remedy, write, keep_checkpoint=keep_checkpoint)

    async def hold(self, hold: Hold, event: dict[str, Any], write: StepWrite | None = None) -> NoReturn:
        if self._playing:
            self.ends.holds.append(Held(hold, event, write))
            raise Unwind
        await super().hold(hold, event, write)

    async def sleep(self, seconds: float, reason: str, told: StepWrite | None = None) -> NoReturn:
        if self._playing:
            if told is not None and reason not in self.ends.reasons:
                self.record(told)
            self.wait_until(self.time.now() + timedelta(seconds=max(0.0, seconds)), reason)
        await super().sleep(seconds, reason, told)

    def wait_until(self, wake: datetime | None, reason: str) -> NoReturn:
        if wake is not None:
            self.ends.wakes.append(wake)
        self.ends.reasons.append(reason)
        raise Unwind

    async def hand_back(self, reason: str) -> None:
        if self._playing:
            self.ends.handed_back = reason
            raise Unwind
        await super().hand_back(reason)

    async def hand_back_counted(self, reason: str) -> None:
        if self._playing:
            self.ends.handed_back, self.ends.hand_back_counts = reason, True
            raise Unwind
        await super().hand_back_counted(reason)

    async def end_cancelled(self) -> NoReturn:
        if self._playing:
            self.ends.cancelled = True
            raise Unwind
        await super().end_cancelled()

    def boundary(self) -> None:
        """Between two operations: the safe place to stop."""
        if self.ends.now or self.held:
            self.ends.held_back = self.ends.held_back or self.held
            raise Unwind
        if self.cancel_requested:
            self.ends.cancelled = True
            raise Unwind
        if self.host.stopping.is_set():
            self.ends.handed_back = "the worker stops"
            raise Unwind

    # Writing ---------------------------------------------------------------------------------------------------

    def record(self, write: StepWrite) -> None:
        """Durable with the next write, which comes at the latest when the function waits for something else."""
        self._due = together(self._due, write)
        if self._playing and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush_soon())

    @property
    def has_due(self) -> bool:
        due = self._due
        return bool(due.more or due.calls or due.outcomes or due.stored)

    async def flush(self) -> None:
        """Everything that was recorded so far is durable."""
        if self.has_due or self._pen.locked():
            async with self._pen:
                if self.has_due:
                    await super().write(StepWrite())

    async def _flush_soon(self) -> None:
        # So many turns of the loop are enough for the function to come to its next operation, which writes it anyway.
        for _ in range(10):
            await asyncio.sleep(0)
        try:
            await self.flush()
        except Unwind:
            pass
        except Exception as error:
            self.ends.error = self.ends.error or error

    async def _stop_flushing(self) -> None:
        if self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        async with self._pen:
            return await super().write(write, keep_checkpoint=keep_checkpoint)

    async def _written(self, write: StepWrite, keep_checkpoint: bool) -> WriteResult:
        due, self._due = self._due, StepWrite()
        whole = together(due, write)
        try:
            written = await super()._written(whole, keep_checkpoint)
        except CheckpointTooLarge as error:
            # What was done goes with the write that ends the job, once; what was only said of it is too much.
            self._due, error.kept = together(error.kept, self._due), StepWrite()
            raise
        except BaseException:
            self._due = together(due, self._due)
            raise
        if write.status is JobStatus.COMPLETED and written.status is not JobStatus.COMPLETED:
            self._due = together(due, self._due)
        else:
            for id, _ in whole.stored:
                self.whole.pop(id, None)
        self.held = self.held or written.held
        self.cancel_requested = self.cancel_requested or written.cancelled
        if written.held and self._playing:
            meters().suspended(self.given.org_id, written.held_seconds or 0.0)
        return written

    def drop_recorded(self) -> None:
        super().drop_recorded()
        self._due, self.whole = StepWrite(), {}

    def keep_result(self, call: Call, result: bytes) -> None:
        super().keep_result(call, result)
        if call.result_id is not None:
            self.whole[call.result_id] = result

    def log_operation(self, position: int, kind: EntryKind, key: str, outcome: str, began: float) -> None:
        now = self.time.now()
        self.at.finished(
            LogEntry(
                step_index=position,
                step_id=key[-100:],
                started_at=now - timedelta(seconds=max(0.0, ticks() - began)),
                finished_at=now,
                result_summary=storable(outcome)[:200],
                tool_calls=int(kind in (EntryKind.TOOL, EntryKind.APPROVAL)),
            )
        )

    # Permission ------------------------------------------------------------------------------------------------

    async def judged(self, call: Call, *, new: bool = False) -> Authorization:
        """A question to people is always one, whatever policies say of its name; they say who decides."""
        answer = await super().judged(call, new=new)
        demand = self.demands.get(call.id)
        if call.name != ASK or demand is None:
            return answer
        policies = await self.policies_at(call.policies or self.policies_version)
        asked = authorize(policies, self._facts(call), [demand])
        terms = asked.decision.terms
        if terms is None or answer.verdict is PolicyVerdict.DENY:
            return answer if answer.verdict is PolicyVerdict.DENY else asked
        if answer.decision.terms is not None:
            terms, _ = both_terms(terms, {}, answer.decision.terms, "")
        terms = replace(
            terms, on_deny=OnDeny.CONTINUE, standing=False, action=demand.action, details=demand.details
        )
        return replace(asked, decision=replace(asked.decision, terms=terms))

    def was_turned_down(self, call: Call) -> bool:
        """A question may be asked again after a no: nothing is sent by it, and its agent decides what a no means."""
        return call.name != ASK and super().was_turned_down(call)

    def summary_of(self, call: Call) -> str:
        if call.name != ASK:
            return super().summary_of(call)
        return f"{self.given.agent} asks: {self.demands[call.id].action}"


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    remedy: str
    write: StepWrite | None
    keep_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    hold: Hold
    event: dict[str, Any]
    write: StepWrite | None


@dataclass(slots=True)
class StopReasons:
    error: BaseException | None = None
    """The attempt is over, and nothing can be written; or something broke that is not the agent's."""
    failures: list[Failure] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    handed_back: str | None = None
    hand_back_counts: bool = False
    """The worker does not stop: something changed meanwhile."""
    cancelled: bool = False
    awaiting: list[Call] = field(default_factory=list)
    terms: dict[UUID, Possible] = field(default_factory=dict)
    wakes: list[datetime] = field(default_factory=list)
    waits: list[dict[str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """What it sleeps for."""
    held_back: bool = False
    """An operation did not begin, because somebody holds the job."""

    @property
    def now(self) -> bool:
        """Nothing may begin any more, in any branch."""
        return bool(self.error or self.failures or self.handed_back or self.cancelled)

    @property
    def waiting(self) -> bool:
        return bool(self.awaiting or self.wakes or self.waits)

    def __bool__(self) -> bool:
        return self.now or self.waiting or bool(self.holds)
