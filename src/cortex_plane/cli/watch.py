"""Watching a job from outside: hearing that something is new, and telling what."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from rich.console import Console
from rich.text import Text

from cortex_plane.cli.output import COLOURS, short, tell
from cortex_plane.cli.plane import collect
from cortex_plane.cli.steering import job_standing
from cortex_plane.client import Client
from cortex_plane.gates.rules.prompts import Kind, news
from cortex_plane.jobs.model.effects import Question, Verdict
from cortex_plane.jobs.model.jobs import Hold, Job, JobStatus, Step, StepCall
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.fields import to_json
from cortex_plane.sessions.model.events import Event, EventType

T = TypeVar("T")

ARGUMENTS, RESULT, SAID = 80, 100, 200
"""How much of each is shown on a line."""
GATE = 600
_GATES = {
    Kind.ASKED: "magenta", Kind.PASSED: "green", Kind.BLOCKED: "red", Kind.REFUSED: "red", Kind.SKIPPED: "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    job: Job
    steps: Sequence[Step]
    questions: Sequence[Question]


async def watch(plane: Client, job_id: UUID, interval: float, as_json: bool) -> Job:
    """Until the job ends. A plane that is away for a while is waited for; one that was never there is not."""
    events = plane.jobs.events(job_id, on_lost=_away)
    if as_json:
        async for event in events:
            _write(event)
        return await _patiently(lambda: plane.jobs.get(job_id), interval)
    told = _Told()
    async for batch in _batches(events):
        # The events say that something is new; the steps say what, in full.
        look = await _patiently(lambda: _look(plane, job_id, told.whole), interval)
        told.tell(look, batch)
    look = await _patiently(lambda: _look(plane, job_id, told.whole), interval)
    told.tell(look, [])
    return look.job


async def _batches(events: AsyncIterator[Event]) -> AsyncIterator[list[Event]]:
    """Whatever came while the last batch was told: a fast job costs few looks."""
    waiting: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for event in events:
                waiting.put_nowait(event)
        finally:
            waiting.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        over = False
        while not over:
            batch = [await waiting.get()]
            while not waiting.empty():
                batch.append(waiting.get_nowait())
            over = None in batch
            new = [event for event in batch if event is not None]
            if any(event.type != EventType.TEXT_CHUNK for event in new):
                yield new
        await reading
    finally:
        reading.cancel()


async def _look(plane: Client, job_id: UUID, above: int) -> Look:
    # The job first: whatever it says of its end, its steps are there by then.
    job = await plane.jobs.get(job_id)
    steps = await collect(plane.jobs.steps(job_id, above=above))
    asks = Hold.UNCERTAIN_EFFECT in job.holds
    return Look(job, steps, await plane.jobs.questions(job_id) if asks else [])


async def _patiently(look: Callable[[], Awaitable[T]], interval: float) -> T:
    warned = False
    while True:
        try:
            return await look()
        except Unavailable as error:
            if not warned:
                _away(error)
            warned = True
            await asyncio.sleep(max(interval, 0.1))


def _away(error: CortexError) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"{error.message} Waiting for it.", markup=False, style="dim"
    )


class _Told:
    """What was told already, so that everything is told once."""

    def __init__(self) -> None:
        self.whole = -1
        """The last step that cannot change any more, because there is one after it."""
        self._lines: set[Any] = set()
        self._standing: Any = None

    def tell(self, look: Look, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in (EventType.MESSAGE, EventType.TOOL_CALL):
                self._tell_steps(look, event.data.get("step", -1))
            line = event_line(event)
            if line is not None:
                tell(line)
        if look.steps:
            self._tell_steps(look, look.steps[-1].step_index)
            self.whole = look.steps[-1].step_index - 1
        self._tell_job(look.job)
        if look.job.status is JobStatus.WAITING_FOR_APPROVAL:
            for event in _undecided(events):
                for command in approval_lines(event):
                    tell(command)
        for question in look.questions:
            if self._is_new(("question", question.call_id, question.attempt)):
                for answer in question_lines(question):
                    tell(answer)

    def _is_new(self, line: Any) -> bool:
        known = line in self._lines
        self._lines.add(line)
        return not known

    def _tell_steps(self, look: Look, last: int) -> None:
        for step in look.steps:
            if step.step_index <= last:
                self._tell_step(step)

    def _tell_step(self, step: Step) -> None:
        if self._is_new((step.step_index, "said")) and step.text:
            tell(step_line(step))
        for call in step.calls:
            if self._is_new((call.id, call.status, call.attempt)):
                tell(call_line(step.step_index, call))

    def _tell_job(self, job: Job) -> None:
        now = (job.status, tuple(job.holds), job.pending_pause, job.pending_cancel, job.retry_count)
        if now != self._standing:
            self._standing = now
            tell(job_line(job))


def _undecided(events: Sequence[Event]) -> list[Event]:
    """Requests that nothing among these events has decided."""
    over = {EventType.APPROVAL_DECIDED, EventType.APPROVAL_EXPIRED, EventType.APPROVAL_CANCELLED}
    decided = {event.data.get("approval_id") for event in events if event.type in over}
    return [
        event
        for event in events
        if event.type == EventType.APPROVAL_REQUESTED and event.data.get("approval_id") not in decided
    ]


def _write(event: Event) -> None:
    sys.stdout.write(to_json(event).decode() + "\n")
    sys.stdout.flush()


# One line each -----------------------------------------------------------------------------------------------


def step_line(step: Step) -> Text:
    return Text.assemble((f"{step.step_index:>4}  ", "dim"), short(step.text or "", SAID))


def call_line(step_index: int, call: StepCall) -> Text:
    again = f" (attempt {call.attempt})" if call.attempt > 1 else ""
    return Text.assemble(
        (f"{step_index:>4}  ", "dim"),
        f"{short(call.tool_name, SAID)} {short(call.arguments, ARGUMENTS)}  ",
        (call.status, COLOURS.get(call.status, "")),
        f"{again}  {outcome(call)}",
    )


def outcome(call: StepCall) -> str:
    by = f"  (settled by {short(call.settled_by, 50)})" if call.settled_by else ""
    if call.error is not None:
        return short(call.error, RESULT) + by
    return (short(call.result, RESULT) if call.status == "completed" else "") + by


def job_line(job: Job) -> Text:
    return Text.assemble(
        (job.status, COLOURS.get(job.status, "")),
        *(f"  {part}" for part in (*job_standing(job), *_about(job))),
    )


def _about(job: Job) -> list[str]:
    match job.status:
        case JobStatus.PENDING if not job.holds:
            return [f"waits for a worker that has loaded the app {job.app}"]
        case JobStatus.COMPLETED:
            return [short(job.result, SAID)] if job.result is not None else []
        case JobStatus.RETRY if job.next_retry_at:
            when = f"retry {job.retry_count} of {job.max_retries} at {job.next_retry_at:%H:%M:%S}"
            return [f"{when}: {short(job.error_message or '', SAID)}"]
        case JobStatus.SLEEPING if job.wake_at:
            return [f"until {job.wake_at:%H:%M:%S}"]
        case JobStatus.FAILED | JobStatus.CANCELLED:
            return [short(job.error_message or "", 1000)]
    return []


def event_line(event: Event) -> str | Text | None:
    """What neither the job nor its steps tell."""
    data = event.data
    gate = news(event.type, data)
    if gate is not None:
        return Text.assemble("      ", (short(gate.line, GATE), _GATES.get(gate.kind, "")))
    match event.type:
        case EventType.WORKER_LOST:
            return f"      its worker {short(data.get('worker', ''), 80)} is gone; another one takes it over"
        case EventType.BUDGET_SPENT:
            return f"      {short(data.get('message', ''), SAID)}"
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
    """What is asked, and the exact commands that decide it."""
    id = event.data.get("approval_id")
    tool = short(event.data.get("tool", "a call"), 80)
    return [
        Text(f"{tool} waits for a person's decision (approval {id}):", style="bold"),
        *(f"  cortex approval {verb} {id}" for verb in ("show", "approve", "deny")),
    ]


def question_lines(question: Question) -> list[str | Text]:
    """The question, and the exact commands that answer it."""
    lines: list[str | Text] = [
        Text(short(question.text, 1000), style="bold"),
        f"  step {question.step_index}, called with {short(question.arguments, 1000)}",
    ]
    if question.error:
        lines.append(f"  {short(question.error, 1000)}")
    command = f"cortex job settle {question.job_id} {question.call_id}"
    return [*lines, *(f"  {command} {verdict}" for verdict in Verdict)]
