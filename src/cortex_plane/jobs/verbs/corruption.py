"""A job whose checkpoint cannot be trusted fails. Nothing of it is repaired; its history, the log, a metric and operators are told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import structlog

from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt
from cortex_plane.jobs.rules import Assignment
from cortex_plane.jobs.store import queries
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.meters import meters
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor

log = structlog.get_logger()


def log_corruption(org_id: UUID, job_id: UUID, agent_id: UUID, error: CheckpointCorrupt) -> None:
    log.error(
        "checkpoint corrupt", jobId=str(job_id), agentId=str(agent_id), corruptionType=error.corruption_type,
        error=error.message,
    )  # fmt: skip
    meters().corrupt(org_id, error.corruption_type)


def failure_message(job_id: UUID, error: CheckpointCorrupt) -> str:
    return f"Checkpoint corruption detected: {error.message} (job {job_id}, not resumed) {error.hint}"


def corruption_fact(error: CheckpointCorrupt) -> dict[str, Any]:
    """For the audit entry `checkpoint_corrupt`."""
    return {"type": error.corruption_type, "error": error.message}


async def has_begun(db: Database, assignment: Assignment) -> bool:
    """Whether there are steps, calls or a memory of a job, which only a write with a checkpoint makes."""
    async with db.transaction(assignment.org_id) as tx:
        return bool(await tx.value(queries.has_begun, assignment.job_id))


async def fail_corrupt_job(tx: Transaction, actor: Actor, session_id: UUID, id: UUID, error: CheckpointCorrupt) -> None:
    """Under the lock of the job, which nobody runs: it fails, and the approvals that are for it alone are cancelled."""
    message = failure_message(id, error)
    await tx.rows(queries.report_corruption, tx.org, id, error.corruption_type, message)
    await steering.fail_job(
        tx, actor, session_id, id, message,
        more=[Fact.of(actor, "checkpoint_corrupt", job=str(id), **corruption_fact(error))],
    )  # fmt: skip
