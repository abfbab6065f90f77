"""Jobs that wait for a decision and could not go on after it, because their checkpoints cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from cortex_plane.approvals import rules as approval_rules
from cortex_plane.approvals.rules import LockedApproval
from cortex_plane.db.database import Transaction
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt
from cortex_plane.jobs.verbs import corruption
from cortex_plane.kernel.errors import CortexError
from cortex_plane.tenancy.model.access import Actor


async def fail_corrupt_jobs(tx: Transaction, row: LockedApproval, actor: Actor) -> dict[UUID, CheckpointCorrupt]:
    """They fail before anything is decided for them. A request that nobody else waits for is cancelled."""
    corrupt, session_id = approval_rules.corrupt_jobs(row), row.approval.session_id
    for job_id, fault in corrupt.items():
        if session_id is not None:  # a change of rules has neither session nor jobs
            await corruption.fail_corrupt_job(tx, actor, session_id, job_id, fault)
    return corrupt


def refuse_decision(org_id: UUID, row: LockedApproval, corrupt: Mapping[UUID, CheckpointCorrupt]) -> CortexError | None:
    """After the commit: log them. Why nothing was decided; None where no job was corrupt."""
    agent_id = row.approval.agent_id
    for job_id, fault in corrupt.items():
        if agent_id is not None:
            corruption.log_corruption(org_id, job_id, agent_id, fault)
    return approval_rules.corruption_refusal(row, corrupt)
