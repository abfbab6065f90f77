"""Where a job stands while an attempt moves it on. Changed in place, and sealed as a checkpoint with every write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from cortex_plane.jobs.model.checkpoints import (
    ActiveTool,
    Checkpoint,
    CheckpointStatus,
    Cursor,
    LogEntry,
    Phase,
    TokenUsage,
    log_with,
)


@dataclass(slots=True)
class Progress:
    agent_id: UUID
    prompt_hash: str
    step: int = 0
    phase: Phase = Phase.MODEL
    message_seq: int = 0
    iterations: int = 0
    invocation: UUID | None = None
    gates: Mapping[str, int] = field(default_factory=dict)
    window_step: int = 0
    window_seq: int = 0
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    last_step: int = 0
    last_step_id: str = "start"
    active_tools: tuple[ActiveTool, ...] = ()
    working_data: Mapping[str, bytes] = field(default_factory=dict)
    accumulated_facts: tuple[str, ...] = ()
    conversation_summary: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    log: tuple[LogEntry, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Progress:
        cursor, usage = checkpoint.cursor, checkpoint.token_usage
        return cls(
            agent_id=checkpoint.agent_id,
            prompt_hash=checkpoint.system_prompt_hash,
            step=cursor.step,
            phase=cursor.phase,
            message_seq=cursor.message_seq,
            iterations=cursor.iterations,
            invocation=cursor.invocation,
            gates=cursor.gates,
            window_step=cursor.window_step,
            window_seq=cursor.window_seq,
            status=checkpoint.status,
            last_step=checkpoint.step_index,
            last_step_id=checkpoint.step_id,
            active_tools=checkpoint.active_tools,
            working_data=checkpoint.working_data,
            accumulated_facts=checkpoint.accumulated_facts,
            conversation_summary=checkpoint.conversation_summary,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            log=checkpoint.execution_log,
        )

    def checkpoint(self, id: UUID, at: datetime) -> Checkpoint:
        return Checkpoint(
            checkpoint_id=id,
            agent_id=self.agent_id,
            created_at=at,
            step_index=self.last_step,
            step_id=self.last_step_id,
            status=self.status,
            cursor=Cursor(
                step=self.step,
                phase=self.phase,
                message_seq=self.message_seq,
                iterations=self.iterations,
                invocation=self.invocation,
                gates=self.gates,
                window_step=self.window_step,
                window_seq=self.window_seq,
            ),
            system_prompt_hash=self.prompt_hash,
            active_tools=self.active_tools,
            working_data=self.working_data,
            accumulated_facts=self.accumulated_facts,
            conversation_summary=self.conversation_summary,
            token_usage=TokenUsage(
                prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens
            ),
            execution_log=self.log,
        )

    def finished(self, entry: LogEntry) -> None:
        self.last_step, self.last_step_id = entry.step_index, entry.step_id
        self.log = log_with(self.log, entry)
