"""Steps, tool calls and their results in SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import one
from cortex_plane.jobs.model.effects import Answer, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import Step
from cortex_plane.kernel.values import parse
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.sessions.rules.conversations import SessionMessage, StepRow

queries = Queries(__file__)


async def said(tx: Transaction, session_id: UUID, above: int, up_to: int) -> list[SessionMessage]:
    return [parse(SessionMessage, row) for row in await tx.rows(queries.said, session_id, above, up_to)]


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has said and done so far, as far as no memory covers it."""

    said: list[SessionMessage] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    receipts: dict[UUID, Stamp] = field(default_factory=dict)
    """By call: of those that somebody approved and that may still be sent."""
    turned_down: set[tuple[str, str]] = field(default_factory=set)
    """Tool and arguments' digest of every call that a person said no to."""
    memory: dict[str, Any] | None = None
    """Of the session, where the job has not begun yet: message_seq, summary, facts."""
    asked: str | None = None
    """The newest user message that is covered."""


async def past(
    db: Database,
    org_id: UUID,
    job_id: UUID,
    session_id: UUID,
    read_to: int | None,
    fresh: bool,
    window_step: int = 0,
    window_seq: int = 0,
) -> Past:
    (row,) = await db.call("job_past", org_id, job_id, session_id, read_to, fresh, window_step, window_seq)
    return Past(
        said=[parse(SessionMessage, each) for each in row["said"]],
        steps=[parse(StepRow, each) for each in row["steps"]],
        calls=[parse(ToolCall, each) for each in row["calls"]],
        receipts={UUID(call): _stamp(each) for call, each in row["receipts"].items()},
        turned_down={(tool, digest) for tool, digest in row["turned_down"]},
        memory=row["memory"],
        asked=row["asked"],
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


async def answer(tx: Transaction, call_id: UUID, status: CallStatus, given: Answer, by: str) -> Any:
    """Returns the result that the call has from now on; None where it has none."""
    error = f"settled by {by}: {given.note or 'given up'}" if status is CallStatus.FAILED else None
    result = given.result if given.result is not None else {"confirmed_by": by, "note": given.note}
    kept = result if status is CallStatus.COMPLETED else None
    await tx.rows(queries.answer, call_id, status, kept, error, by)
    return kept


async def list_steps(tx: Transaction, job_id: UUID, above: int, limit: int) -> list[Step]:
    return [parse(Step, row) for row in await tx.rows(queries.list_steps, job_id, above, limit)]


async def stored_result(tx: Transaction, job_id: UUID, id: UUID) -> bytes | None:
    content: bytes | None = await tx.value(queries.stored_result, job_id, id)
    return content
