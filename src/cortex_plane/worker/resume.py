"""Resumes a job: from its checkpoint, with its messages, its past steps, and what became of its calls meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cortex_plane.agents.model.agents import PromptChange
from cortex_plane.agents.model.completions import Turn, UserTurn
from cortex_plane.jobs.model.checkpoints import (
    CheckpointCorrupt,
    CheckpointStatus,
    Phase,
    Progress,
    current_tools,
    missing_checkpoint,
    open_sealed,
)
from cortex_plane.jobs.model.effects import ToolCall
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.store import PastSteps
from cortex_plane.jobs.verbs import steering, workers
from cortex_plane.sessions.rules import SessionMessage, Thread, opening, rebuilt, requests_of
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.calls import Call, CallKind, plan_call
from cortex_plane.worker.ends import Ended, JobFailed, JobHeld, LastWrite, failure_events
from cortex_plane.worker.gate_code import with_gate_tools
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.session_gates import SessionGates


@dataclass(frozen=True, slots=True)
class ResumePoint:
    messages: Sequence[SessionMessage]
    turns: Thread
    """As far as no memory covers them."""
    calls: Sequence[ToolCall]
    response: dict[str, Any] | None
    """Of the current step, where an earlier attempt recorded it."""
    read_to: int
    """The last message that the model had been sent for that response."""


async def resume(lease: Lease, gates: SessionGates, authorizer: CallAuthorizer) -> ResumePoint:
    """Load where the job stopped. A checkpoint that does not fit ends the job; nothing is repaired."""
    assignment = lease.assignment
    action = "job_started" if assignment.checkpoint is None else "job_resumed"
    lease.notes.append(lease.fact(action, epoch=assignment.epoch, worker=lease.worker.worker_name))
    if assignment.checkpoint is not None:
        lease.progress = _open_checkpoint(lease)
        lease.state = lease.progress.working_data
        # What was sealed by an earlier release has its memory in the checkpoint: the first write puts it beside.
        lease.stored_memory = None if any(lease.progress.memory) else lease.progress.memory
    elif assignment.epoch > 1 and await steering.has_begun(lease.db, assignment.org_id, assignment.job_id):
        raise _corrupted(lease, missing_checkpoint())
    past = await _read_past(lease)
    progress = lease.progress
    tool_ids = {tool.invocation_id for tool in progress.active_tools}
    progress.active_tools = current_tools(
        progress.active_tools, [call for call in past.calls if call.id in tool_ids],
        with_results=progress.phase is Phase.TOOLS,
    )  # fmt: skip
    authorizer.receipts, authorizer.refusals = past.receipts, past.turned_down
    turns = _turns(lease, past)
    await gates.load(past.messages)
    # Before the model is asked for anything: its answer is lost where the job is held.
    await authorizer.policies_at(lease.policies_version)
    if gates.bound is not None:
        lease.toolbox = with_gate_tools(lease.toolbox)
    _check_prompt(lease)
    step = next((step for step in past.steps if step.step_index == lease.progress.step), None)
    response, read_to = (None, 0) if step is None else (step.response, step.message_seq)
    return ResumePoint(messages=past.messages, turns=turns, calls=past.calls, response=response, read_to=read_to)


def _open_checkpoint(lease: Lease) -> Progress:
    assignment = lease.assignment
    try:
        progress = open_sealed(
            assignment.checkpoint or "", mac=assignment.checkpoint_mac, job_id=assignment.job_id,
            agent_id=assignment.agent_id, key=lease.key,
        )  # fmt: skip
    except CheckpointCorrupt as error:
        raise _corrupted(lease, error) from error
    if progress.status is CheckpointStatus.AWAITING_APPROVAL:
        progress.status = CheckpointStatus.IN_PROGRESS
    return progress


def _corrupted(lease: Lease, error: CheckpointCorrupt) -> Ended:
    """The end of the job. What was found stays as it is."""
    assignment = lease.assignment
    steering.log_corruption(assignment.org_id, assignment.agent_id, {assignment.job_id: error})
    message = steering.failure_message(assignment.job_id, error)
    write = StepWrite(
        status=JobStatus.FAILED, error=message, events=failure_events(message),
        facts=[lease.fact("checkpoint_corrupt", **steering.corruption_fact(error))],
        more={"corruption": {"type": error.corruption_type}},
    )  # fmt: skip
    return Ended(LastWrite(write, keep_checkpoint=True))


async def _read_past(lease: Lease) -> PastSteps:
    """Messages, steps and calls, as far as the job's memory does not cover them."""
    assignment, progress = lease.assignment, lease.progress
    if assignment.checkpoint is None:
        progress.message_seq = assignment.message_seq if (assignment.kind is JobKind.CONVERSATION) else 0
    past = await workers.list_past_steps(
        lease.db, assignment, progress.message_seq, progress.window_step, progress.window_seq
    )
    if past.memory is not None:
        progress.window_seq = past.memory["message_seq"]
        progress.conversation_summary = past.memory["summary"]
        progress.accumulated_facts = tuple(past.memory["facts"])
    return past


def _turns(lease: Lease, past: PastSteps) -> Thread:
    by_step: dict[int, list[ToolCall]] = {}
    for call in past.calls:
        by_step.setdefault(call.step_index, []).append(call)
    first: Turn | None = None if past.asked is None else UserTurn(past.asked)
    if lease.assignment.kind is JobKind.TASK:
        first = opening(lease.assignment.payload)
    return rebuilt(lease.assignment.job_id, past.messages, past.steps, by_step, lease.progress.step, first)


def _check_prompt(lease: Lease) -> None:
    change = lease.limits.skills.on_prompt_change
    if lease.progress.system_prompt_hash == lease.prompt_hash:
        return
    lease.notes.append(lease.fact("prompt_changed", decision=change))
    if change is PromptChange.FAIL:
        remedy = "`cortex job resubmit` starts it again with the new prompt."
        raise Ended(JobFailed("The agent's prompt changed since the job began.", remedy))
    lease.progress.system_prompt_hash = lease.prompt_hash
    if change is PromptChange.HOLD:
        # A resume confirms the new prompt: its hash is the one that is kept.
        raise Ended(JobHeld(Hold.PROMPT_CHANGED, {"prompt": "changed"}))


async def restore_calls(
    lease: Lease, gates: SessionGates, authorizer: CallAuthorizer, response: dict[str, Any], ledger: Sequence[ToolCall]
) -> list[Call]:
    """The calls of a step that an earlier attempt began. ``ledger``: its rows."""
    step = lease.progress.step
    ids = [tool.invocation_id for tool in lease.progress.active_tools]
    rows = {row.position: row for row in ledger}
    calls, new_calls = [], []
    for position, request in enumerate(requests_of(response, rows)):
        row = rows.get(position)
        call = plan_call(position, request, row.id if row else ids[position], lease.toolbox, step)
        calls.append(call)
        if row is None or await authorizer.restore_call(call, row):
            new_calls.append(call)
    gates.restore_judged(new_calls)
    await authorizer.authorize(new_calls)
    gates.mark_judged()
    for call in new_calls:
        if call.kind is CallKind.REFUSED:
            # A call that was refused then has its row. This one was fine, so it is the code that changed.
            call.status = None
    # A deploy must not fail parked work: a call whose tool is gone waits for an operator.
    if names := [call.name for call in calls if call.tool is None and not call.settled]:
        raise Ended(JobHeld(Hold.CODE_CHANGED, {"tools": names}))
    return calls
