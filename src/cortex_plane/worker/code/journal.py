"""The journal of a code agent's attempt: its branches share one lease, so their records are written together.

An operation is written before it has effects and after it. Its outcome goes with the next write, at the latest as soon as the
function waits for anything else. So nothing begins before everything that came before it is durable, and steps one after the
other cost one commit each. An end of the attempt in one branch is put off until no branch runs any more (`StopReasons`).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.approvals.verbs.approval_requests import Possible
from cortex_plane.jobs.model.journal import MAX_ENTRIES, EntryKind, EntryStatus, JournalEntry, digest, scope_of
from cortex_plane.jobs.model.state import NO_ENTRIES, Entries, apply_changes
from cortex_plane.jobs.rules import StepWrite, WriteResult
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import ContextMisused, CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.worker.attempt import StepWriter, is_applied
from cortex_plane.worker.calls import Call, merge_writes
from cortex_plane.worker.code.context import describe_error
from cortex_plane.worker.code.operations import PlannedOperation, Unwind
from cortex_plane.worker.ends import End, Ended, JobCancelled, JobFailed, JobHandedBack, JobHeld, JobPaused, JobSleeps
from cortex_plane.worker.lease import CheckpointTooLarge, Lease
from cortex_plane.worker.limits import ticks


@dataclass(slots=True)
class StopReasons:
    """Why an agent's function cannot go on: collected from all its branches, and written once when none of them runs."""

    error: BaseException | None = None
    """The attempt is over, and nothing can be written; or something broke that is not the agent's."""
    failures: list[JobFailed] = field(default_factory=list)
    holds: list[JobHeld] = field(default_factory=list)
    hand_back: JobHandedBack | None = None
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
        return bool(self.error or self.failures or self.hand_back or self.cancelled)

    @property
    def waiting(self) -> bool:
        return bool(self.awaiting or self.wakes or self.waits)

    def __bool__(self) -> bool:
        return self.now or self.waiting or bool(self.holds)


NOTHING = StepWrite()
FLUSH_SECONDS = 0.001
"""Time enough for a function to come to its next operation, which writes what is recorded anyway."""


def _merged(first: StepWrite, then: StepWrite) -> StepWrite:
    """Most records come alone."""
    if first is NOTHING:
        return then
    return first if then is NOTHING else merge_writes(first, then)


class JournalWriter:
    """Serialises the writes of all branches: one `StepWriter` under a lock, with the records that are due."""

    def __init__(self, lease: Lease, steps: StepWriter) -> None:
        self._lease, self._steps = lease, steps
        self.stop = StopReasons()
        self.held = False
        self.playing = False
        """The function runs: records are written in the background, and ends are put off."""
        self.results: dict[UUID, bytes] = {}
        """Results that are stored apart, until they are written."""
        self.state: Entries = NO_ENTRIES
        """The agent's state with everything that was recorded."""
        self._due = NOTHING
        """What is recorded and not yet written."""
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def record(self, write: StepWrite) -> None:
        """Durable with the next write, which comes at the latest when the function waits for something else."""
        self._due = _merged(self._due, write)
        if write.state is not None:
            self.state = apply_changes(self.state, write.state)
        self._set_timer()

    def _set_timer(self) -> None:
        if self.playing and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_soon)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _has_due(self) -> bool:
        due = self._due
        return bool(due.more or due.calls or due.outcomes or due.stored)

    async def flush(self) -> None:
        """Everything that was recorded so far is durable."""
        if self._has_due or self._lock.locked():
            async with self._lock:
                if self._has_due:
                    await self._steps.write(NOTHING, commit=self._commit)

    def _flush_soon(self) -> None:
        self._timer = None
        if self._flushing is not None and not self._flushing.done():
            self._set_timer()
        elif self._has_due:
            self._flushing = asyncio.create_task(self._flush_recorded())

    async def _flush_recorded(self) -> None:
        try:
            await self.flush()
        except Unwind:
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Nobody waits for this task: whatever it is, it ends the attempt as in an operation.
            self.stop.error = self.stop.error or error

    async def stop_flushing(self) -> None:
        self._stop_timer()
        if self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    async def write(self, step: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        async with self._lock:
            if keep_checkpoint and self._has_due:
                # What is recorded goes with a checkpoint of its own: state, and the first entries of a job, need one.
                with contextlib.suppress(CheckpointTooLarge):  # then its outcomes go with the write that ends the job
                    await self._steps.write(NOTHING, commit=self._commit)
            return await self._steps.write(step, keep_checkpoint=keep_checkpoint, commit=self._commit)

    async def _commit(self, step: StepWrite, keep_checkpoint: bool) -> WriteResult:
        self._stop_timer()
        due, self._due = self._due, NOTHING
        whole = _merged(due, step)
        try:
            result = await self._steps.commit(whole, keep_checkpoint)
        except CheckpointTooLarge as error:
            # Outcomes go with the write that ends the job, once; events and facts are too much.
            self._due, error.outcomes = merge_writes(error.outcomes, self._due), StepWrite()
            raise
        except BaseException:
            self._due = _merged(due, self._due)
            raise
        if is_applied(step, result):
            for id, _ in whole.stored:
                self.results.pop(id, None)
        else:
            self._due = _merged(due, self._due)
        self.held = self.held or result.held
        self._lease.cancel_requested = self._lease.cancel_requested or result.cancelled
        if result.held and self.playing:
            meters().suspended(self._lease.assignment.org_id, result.held_seconds or 0.0)
        return result

    def drop_recorded(self) -> None:
        self._steps.drop_recorded()
        self._due, self.results = NOTHING, {}

    def drop_usage(self) -> None:
        self._steps.drop_usage()

    def put_off(self, end: End) -> None:
        """An operation ends the attempt: noted until no branch runs any more."""
        stop = self.stop
        match end:
            case JobFailed():
                stop.failures.append(end)
            case JobHeld():
                stop.holds.append(end)
            case JobHandedBack():
                stop.hand_back = end
            case JobCancelled():
                stop.cancelled = True
            case JobPaused():
                stop.held_back = self.held = True
            case JobSleeps():
                if end.write is not None and end.reason not in stop.reasons:
                    self.record(end.write)
                stop.wakes.append(self._lease.time.now() + timedelta(seconds=max(0.0, end.seconds)))
                stop.reasons.append(end.reason)
            case _:
                stop.error = stop.error or Ended(end)

    def boundary(self) -> None:
        """Between two operations: the safe place to stop."""
        stop = self.stop
        if stop.now or self.held:
            stop.held_back = stop.held_back or self.held
            raise Unwind
        if self._lease.cancel_requested:
            stop.cancelled = True
            raise Unwind
        if self._lease.worker.stopping.is_set():
            stop.hand_back = JobHandedBack("the worker stops")
            raise Unwind


class JournalEntries:
    """The entries of one job: where its next operation stands, and failures that its agent may still catch."""

    def __init__(self, lease: Lease, journal: JournalWriter) -> None:
        self.lease, self.journal = lease, journal
        self.count = 0
        """How many operations the job has begun so far, in all its attempts."""
        self.failures: dict[str, StepWrite] = {}
        """Failures that the agent may catch: recorded once it went on, and dropped where it did not."""

    def next_position(self) -> int:
        """The place of a new operation among all operations of the job."""
        if self.count >= MAX_ENTRIES:
            raise ContextMisused(
                f"The job has more than {MAX_ENTRIES} operations, all of which are read whenever it goes on.",
                hint="Do more in one step, or submit several jobs.",
            )
        self.lease.progress.step = self.count
        self.count += 1
        return self.lease.progress.step

    def begin(self, key: str, operation: PlannedOperation, entry: JournalEntry | None = None) -> OperationRecord:
        """``entry``: it was begun before."""
        return OperationRecord(self, key, self.next_position() if entry is None else entry.position, operation, ticks())

    def new_round(self, number: int, read_to: int) -> tuple[JournalEntry, StepWrite]:
        """The function begins again. Entries of earlier rounds are not replayed any more."""
        operation = PlannedOperation(kind=EntryKind.VALUE, name="round", input_hash=digest(b"[]"))
        record, result = self.begin(f"/{number}", operation), {"heard": read_to}
        entry = JournalEntry(
            key=record.key, position=record.position, kind=operation.kind, name=operation.name,
            input_hash=operation.input_hash, status=EntryStatus.DONE, result=result,
            created_at=self.lease.time.now(),
        )  # fmt: skip
        return entry, record.entry(EntryStatus.DONE, canonical(result))

    def record_caught(self, prefix: str) -> None:
        """The agent went on in this branch: every failure in it, or in those that it gathered, was caught."""
        for key in [key for key in self.failures if scope_of(key).startswith(prefix)]:
            self.journal.record(self.failures.pop(key))


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """An operation that is performed now, and the writes that record it."""

    entries: JournalEntries
    key: str
    position: int
    operation: PlannedOperation
    start: float

    def entry(self, status: EntryStatus, result: bytes | None = None, error: CortexError | None = None) -> StepWrite:
        """A write that holds its entry; a large result beside it."""
        operation, entries = self.operation, self.entries
        row: dict[str, Any] = {
            "key": self.key, "position": self.position, "kind": operation.kind, "name": operation.name,
            "input_hash": operation.input_hash, "status": status, "seconds": max(0.0, ticks() - self.start),
        }  # fmt: skip
        write = StepWrite(more={"journal": [row]})
        if error is not None:
            row["error"] = describe_error(error)
        if result is not None and len(result) <= entries.lease.worker.inline_result_bytes:
            row["result"] = orjson.Fragment(result)
        elif result is not None:
            id = new_id()
            row["result_id"] = str(id)
            row["result"] = {"bytes": len(result), "stored_result": str(id)}
            entries.journal.results[id] = result
            write.stored = ((id, result),)
        return write

    def finish(self, write: StepWrite, **fact: Any) -> StepWrite:
        """It is over: its entry with its audit fact."""
        lease, kind = self.entries.lease, self.operation.kind
        lease.progress.end_step(self.position, self.key[-100:])
        write.done_step = self.position
        write.facts = [*write.facts, lease.fact("step_completed", step=self.position, key=self.key, kind=kind, **fact)]
        return write

    def done(self, write: StepWrite, **fact: Any) -> None:
        self.entries.journal.record(self.finish(write, **fact))

    def fail(self, error: CortexError) -> None:
        """With an error that the agent may catch."""
        self.entries.failures[self.key] = self.entry(EntryStatus.FAILED, error=error)
