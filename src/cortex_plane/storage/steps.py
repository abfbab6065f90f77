"""Steps, tool calls and their results in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.conversations import Said, StepRow
from cortex_plane.domain.effects import Answer, CallStatus, ToolCall
from cortex_plane.domain.jobs import Step
from cortex_plane.domain.receipts import Stamp
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import Database, Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import one

queries = Queries("steps")


async def said(tx: Transaction, session_id: UUID, above: int, up_to: int) -> list[Said]:
    return [parse(Said, row) for row in await tx.rows(queries.said, session_id, above, up_to)]


async def past(
    db: Database, org_id: UUID, job_id: UUID, session_id: UUID, read_to: int | None, fresh: bool
) -> tuple[list[Said], list[StepRow], list[ToolCall], dict[UUID, Stamp]]:
    """What a job heard, said and did so far, and the receipts of its calls that somebody approved."""
    (row,) = await db.call("job_past", org_id, job_id, session_id, read_to, fresh)
    return (
        [parse(Said, each) for each in row["said"]],
        [parse(StepRow, each) for each in row["steps"]],
        [parse(ToolCall, each) for each in row["calls"]],
        {UUID(call): _stamp(each) for call, each in row["receipts"].items()},
    )


def _stamp(kept: dict[str, str]) -> Stamp:
    return Stamp(
        body=bytes.fromhex(kept["body"]),
        signature=bytes.fromhex(kept["signature"]),
        key_id=UUID(kept["key_id"]),
        public_key=bytes.fromhex(kept["public_key"]),
        sealed=bytes.fromhex(kept["sealed"]),
    )


async def open_calls(tx: Transaction, job_id: UUID) -> list[ToolCall]:
    """Calls that were written down and have no outcome."""
    return [parse(ToolCall, row) for row in await tx.rows(queries.open_calls, job_id)]


async def last_calls(tx: Transaction, job_id: UUID) -> list[ToolCall]:
    return [parse(ToolCall, row) for row in await tx.rows(queries.last_calls, job_id)]


async def get_call(tx: Transaction, job_id: UUID, call_id: UUID) -> ToolCall | None:
    return one(ToolCall, await tx.row(queries.get_call, job_id, call_id))


async def answer(tx: Transaction, call_id: UUID, status: CallStatus, given: Answer, by: str) -> bool:
    """False: somebody answered before."""
    error = f"settled by {by}: {given.note or 'given up'}" if status is CallStatus.FAILED else None
    result = given.result if given.result is not None else {"confirmed_by": by, "note": given.note}
    kept = result if status is CallStatus.COMPLETED else None
    return await tx.value(queries.answer, call_id, status, kept, error, by) is not None


async def list_steps(tx: Transaction, job_id: UUID, above: int, limit: int) -> list[Step]:
    return [parse(Step, row) for row in await tx.rows(queries.list_steps, job_id, above, limit)]


async def stored_result(tx: Transaction, job_id: UUID, id: UUID) -> bytes | None:
    content: bytes | None = await tx.value(queries.stored_result, job_id, id)
    return content
