"""What people approved before: the standing approval that covers a call, and the receipt of its own grant. Wherever the call runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

import structlog

from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.calls.rules.pipeline import Facts
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.gates.rules.authorization import Authorization, CallJob, UnsentCall
from cortex_plane.proof.rules.receipts import Stamp, why_not_sent
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Fact

log = structlog.get_logger()


async def cover_call(
    db: Database, job: CallJob, call: UnsentCall, authorization: Authorization, fact: Facts, *, read_only: bool,
    reserved: Mapping[UUID, int] = MappingProxyType({}), read_to: int = 0, askers: Sequence[UUID] = (),
) -> tuple[Authorization, list[Fact]]:  # fmt: skip
    """With the standing approval that the call may use, if it needs a person's yes and nobody said no; and the facts about those
    whose receipts are not true: they cover nothing, and that is on the audit trail. ``reserved``: see `standing_approvals.cover`."""
    answer, refusals = await standing_approvals.cover(
        db, job, call, read_only, authorization, db.vault, reserved, read_to, askers
    )
    for refusal in refusals:
        log.error("standing approval refused", job_id=str(job.job_id), **refusal)
    return answer, [fact("receipt_refused", **refusal) for refusal in refusals]


def receipt_fault(
    vault: Vault, org_id: UUID, call: UnsentCall, stamp: Stamp | None, now: datetime | None
) -> str | None:
    """Why an approved call must not be sent; None if its receipt is true. ``now``: None where it was sent, in time, before."""
    fault = receipts.stamp_fault(vault, org_id, stamp)
    if fault is None and stamp is not None:
        fault = why_not_sent(
            stamp, org_id=org_id, call_id=call.id, tool_name=call.name, tool_digest=call.digest,
            input_hash=call.input_hash, now=now,
        )  # fmt: skip
    if fault is not None:
        log.error("receipt refused", call=str(call.id), tool=call.name, reason=fault)
    return fault
