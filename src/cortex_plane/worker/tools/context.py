"""What a tool is told about the call it serves."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """Given to every parameter annotated with it; the model neither sees nor sends it."""

    org_id: UUID
    session_id: UUID
    job_id: UUID
    agent_id: UUID
    invocation_id: UUID
    step: int
    attempt: int

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this one call: pass it on to whoever must do the thing only once."""
        return str(self.invocation_id)
