"""Watching a job from outside: asking again and again, and telling what is new."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from rich.console import Console
from rich.text import Text

from cortex_plane.adapters.cli.output import COLOURS, short, tell
from cortex_plane.adapters.cli.plane import collect
from cortex_plane.adapters.cli.receipts import standing
from cortex_plane.client import Client
from cortex_plane.domain.effects import Question, Verdict
from cortex_plane.domain.errors import Unavailable
from cortex_plane.domain.jobs import TERMINAL, Hold, Job, JobStatus, Step, StepCall
from cortex_plane.domain.values import to_json

ARGUMENTS, RESULT, SAID = 80, 100, 200
"""How much of each is shown on a line."""


@dataclass(frozen=True, slots=True)
class Look:
    job: Job
    steps: Sequence[Step]
    questions: Sequence[Question]


async def watch(plane: Client, job_id: UUID, interval: float, as_json: bool) -> Job:
    """Until the job ends. A plane that is away for a while is waited for; one that was never there is not."""
    told = _Told(as_json)
    look = await _look(plane, job_id, -1)
    while True:
        told.tell(look)
        if look.job.status in TERMINAL:
            return look.job
        await asyncio.sleep(interval)
        look = await _look_patiently(plane, job_id, told.whole, interval)


async def _look(plane: Client, job_id: UUID, above: int) -> Look:
    # The job first: whatever it says of its end, its steps are there by then.
    job = await plane.jobs.get(job_id)
    steps = await collect(plane.jobs.steps(job_id, above=above))
    asks = Hold.UNCERTAIN_EFFECT in job.holds
    return Look(job, steps, await plane.jobs.questions(job_id) if asks else [])


async def _look_patiently(plane: Client, job_id: UUID, above: int, interval: float) -> Look:
    warned = False
    while True:
        try:
            return await _look(plane, job_id, above)
        except Unavailable as error:
            if not warned:
                Console(stderr=True, highlight=False, soft_wrap=True).print(
                    f"{error.message} Waiting for it.", markup=False, style="dim"
                )
            warned = True
            await asyncio.sleep(max(interval, 0.1))


class _Told:
    """What was told already, so that everything is told once."""

    def __init__(self, as_json: bool) -> None:
        self.whole = -1
        """The last step that cannot change any more, because there is one after it."""
        self._as_json = as_json
        self._lines: set[Any] = set()
        self._standing: Any = None

    def tell(self, look: Look) -> None:
        for step in look.steps:
            self._tell_step(step)
        if look.steps:
            self.whole = look.steps[-1].step_index - 1
        self._tell_job(look.job)
        for question in look.questions:
            if self._is_new(("question", question.call_id, question.attempt)):
                self._tell_question(question)

    def _is_new(self, line: Any) -> bool:
        known = line in self._lines
        self._lines.add(line)
        return not known

    def _tell_step(self, step: Step) -> None:
        if self._as_json:
            if self._is_new(to_json(step)):
                _write("step", step)
            return
        if self._is_new((step.step_index, "said")) and step.text:
            tell(step_line(step))
        for call in step.calls:
            if self._is_new((call.id, call.status, call.attempt)):
                tell(call_line(step.step_index, call))

    def _tell_job(self, job: Job) -> None:
        now = (job.status, tuple(job.holds), job.pending_pause, job.pending_cancel, job.retry_count)
        if now == self._standing:
            return
        self._standing = now
        if self._as_json:
            _write("job", job)
        else:
            tell(job_line(job))

    def _tell_question(self, question: Question) -> None:
        if self._as_json:
            _write("question", question)
        else:
            for line in question_lines(question):
                tell(line)


def _write(kind: str, value: Any) -> None:
    sys.stdout.write(orjson.dumps({kind: orjson.Fragment(to_json(value))}).decode() + "\n")
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
        (job.status, COLOURS.get(job.status, "")), *(f"  {part}" for part in (*standing(job), *_about(job)))
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
