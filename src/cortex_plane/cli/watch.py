"""`cortex job watch`: what happens in a job, line by line, as it happens."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from rich.console import Console
from rich.text import Text

from cortex_plane.cli.terminal import COLOURS, job_standing, print_json, print_line, short
from cortex_plane.client import Client
from cortex_plane.gates.rules.prompts import NewsKind, news
from cortex_plane.jobs.model.effects import Question, Verdict
from cortex_plane.jobs.model.jobs import Hold, Job, JobStatus, Step, StepCall
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.sessions.model.events import Event, EventType

T = TypeVar("T")

ARGUMENTS, RESULT, TEXT, GATE = 80, 100, 200, 600
"""Characters of each that a line shows."""
_GATE_COLOURS = {
    NewsKind.ASKED: "magenta", NewsKind.PASSED: "green", NewsKind.BLOCKED: "red", NewsKind.REFUSED: "red", NewsKind.SKIPPED: "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Snapshot:
    job: Job
    steps: Sequence[Step]
    questions: Sequence[Question]


async def watch(plane: Client, job_id: UUID, interval: float, as_json: bool) -> Job:
    """Print what happens until the job ends. Waits for a plane that goes away, but not for one that was never there."""
    events = plane.jobs.events(job_id, on_lost=_warn_unavailable)
    if as_json:
        async for event in events:
            print_json(event)
            sys.stdout.flush()
        return await _retry(lambda: plane.jobs.get(job_id), interval)
    printer = _Printer()
    async for batch in _batches(events):
        # Events say that something is new; the steps have it in full.
        snapshot = await _retry(lambda: _read_snapshot(plane, job_id, printer.final), interval)
        printer.print(snapshot, batch)
    snapshot = await _retry(lambda: _read_snapshot(plane, job_id, printer.final), interval)
    printer.print(snapshot, [])
    return snapshot.job


async def _batches(events: AsyncIterator[Event]) -> AsyncIterator[list[Event]]:
    """Events that arrive while a batch is printed form the next one: a fast job costs few reads."""
    queue: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for event in events:
                queue.put_nowait(event)
        finally:
            queue.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        is_last = False
        while not is_last:
            batch = [await queue.get()]
            while not queue.empty():
                batch.append(queue.get_nowait())
            is_last = None in batch
            new = [event for event in batch if event is not None]
            if any(event.type != EventType.TEXT_CHUNK for event in new):
                yield new
        await reader
    finally:
        reader.cancel()


async def _read_snapshot(plane: Client, job_id: UUID, above: int) -> _Snapshot:
    # The job first: when it says that it ended, all its steps are there.
    job = await plane.jobs.get(job_id)
    steps = [step async for step in plane.jobs.steps(job_id, above=above)]
    return _Snapshot(job, steps, await plane.jobs.questions(job_id) if Hold.UNCERTAIN_EFFECT in job.holds else [])


async def _retry(read: Callable[[], Awaitable[T]], interval: float) -> T:
    first = True
    while True:
        try:
            return await read()
        except Unavailable as error:
            if first:
                _warn_unavailable(error)
            first = False
            await asyncio.sleep(max(interval, 0.1))


def _warn_unavailable(error: CortexError) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"{error.message} Waiting for it.", markup=False, style="dim"
    )


class _Printer:
    """Prints each thing once."""

    def __init__(self) -> None:
        self.final = -1
        """The last step that cannot change any more, because there is one after it."""
        self._printed: set[Any] = set()
        self._standing: Any = None

    def print(self, snapshot: _Snapshot, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in (EventType.MESSAGE, EventType.TOOL_CALL):
                self._print_steps(snapshot, event.data.get("step", -1))
            if (line := event_line(event)) is not None:
                print_line(line)
        if snapshot.steps:
            last = snapshot.steps[-1].step_index
            self._print_steps(snapshot, last)
            self.final = last - 1
        self._print_job(snapshot.job)
        if snapshot.job.status is JobStatus.WAITING_FOR_APPROVAL:
            for event in _open_requests(events):
                for line in approval_lines(event):
                    print_line(line)
        for question in snapshot.questions:
            if self._is_new(("question", question.call_id, question.attempt)):
                for line in question_lines(question):
                    print_line(line)

    def _is_new(self, key: Any) -> bool:
        is_new = key not in self._printed
        self._printed.add(key)
        return is_new

    def _print_steps(self, snapshot: _Snapshot, last: int) -> None:
        for step in snapshot.steps:
            if step.step_index > last:
                continue
            if self._is_new((step.step_index, "text")) and step.text:
                print_line(Text.assemble((f"{step.step_index:>4}  ", "dim"), short(step.text, TEXT)))
            for call in step.calls:
                if self._is_new((call.id, call.status, call.attempt)):
                    print_line(call_line(step.step_index, call))

    def _print_job(self, job: Job) -> None:
        standing = (job.status, tuple(job.holds), job.pending_pause, job.pending_cancel, job.retry_count)
        if standing != self._standing:
            self._standing = standing
            parts = (f"  {part}" for part in (*job_standing(job), *_job_details(job)))
            print_line(Text.assemble((job.status, COLOURS.get(job.status, "")), *parts))


def _open_requests(events: Sequence[Event]) -> list[Event]:
    """Requests for approval that no event among these ends."""
    ends = {EventType.APPROVAL_DECIDED, EventType.APPROVAL_EXPIRED, EventType.APPROVAL_CANCELLED}
    endings = {event.data.get("approval_id") for event in events if event.type in ends}
    requests = [event for event in events if event.type == EventType.APPROVAL_REQUESTED]
    return [event for event in requests if event.data.get("approval_id") not in endings]


def call_line(step_index: int, call: StepCall) -> Text:
    again = f" (attempt {call.attempt})" if call.attempt > 1 else ""
    return Text.assemble(
        (f"{step_index:>4}  ", "dim"),
        f"{short(call.tool_name, TEXT)} {short(call.arguments, ARGUMENTS)}  ",
        (call.status, COLOURS.get(call.status, "")),
        f"{again}  {outcome(call)}",
    )


def outcome(call: StepCall) -> str:
    by = f"  (settled by {short(call.settled_by, 50)})" if call.settled_by else ""
    if call.error is not None:
        return short(call.error, RESULT) + by
    return (short(call.result, RESULT) if call.status == "completed" else "") + by


def _job_details(job: Job) -> list[str]:
    match job.status:
        case JobStatus.PENDING if not job.holds:
            return [f"waits for a worker that has loaded the app {job.app}"]
        case JobStatus.COMPLETED:
            return [short(job.result, TEXT)] if job.result is not None else []
        case JobStatus.RETRY if job.next_retry_at:
            when = f"retry {job.retry_count} of {job.max_retries} at {job.next_retry_at:%H:%M:%S}"
            return [f"{when}: {short(job.error_message or '', TEXT)}"]
        case JobStatus.SLEEPING if job.wake_at:
            return [f"until {job.wake_at:%H:%M:%S}"]
        case JobStatus.FAILED | JobStatus.CANCELLED:
            return [short(job.error_message or "", 1000)]
    return []


def event_line(event: Event) -> str | Text | None:
    """A line for an event that neither the job nor its steps show."""
    data = event.data
    gate = news(event.type, data)
    if gate is not None:
        return Text.assemble("      ", (short(gate.line, GATE), _GATE_COLOURS.get(gate.kind, "")))
    match event.type:
        case EventType.WORKER_LOST:
            return f"      its worker {short(data.get('worker', ''), 80)} is gone; another one takes it over"
        case EventType.BUDGET_SPENT:
            return f"      {short(data.get('message', ''), TEXT)}"
        case EventType.APPROVAL_DECIDED:
            by = f" by {short(data['by'], 80)}" if data.get("by") else ""
            return f"      {short(data.get('decision', 'decided'), 40)}{by}: {_about_approval(event)}"
        case EventType.APPROVAL_EXPIRED:
            return f"      nobody decided in time: {_about_approval(event)}"
        case EventType.APPROVAL_REMINDED:
            return f"      still waits for a decision: {_about_approval(event)}"
    return None


def _about_approval(event: Event) -> str:
    tool = f"{short(event.data['tool'], 80)}, " if event.data.get("tool") else ""
    return f"{tool}approval {event.data.get('approval_id')}"


def approval_lines(event: Event) -> list[str | Text]:
    """The request, and the exact commands that decide it."""
    id = event.data.get("approval_id")
    tool = short(event.data.get("tool", "a call"), 80)
    return [
        Text(f"{tool} waits for a person's decision (approval {id}):", style="bold"),
        *(f"  cortex approval {verb} {id}" for verb in ("show", "approve", "deny")),
    ]


def question_lines(question: Question) -> list[str | Text]:
    """The question, and the exact commands that answer it."""
    command = f"cortex job settle {question.job_id} {question.call_id}"
    return [
        Text(short(question.text, 1000), style="bold"),
        f"  step {question.step_index}, called with {short(question.arguments, 1000)}",
        *([f"  {short(question.error, 1000)}"] if question.error else []),
        *(f"  {command} {verdict}" for verdict in Verdict),
    ]
