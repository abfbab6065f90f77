"""The last look before a call that a person approved is sent: whether its receipt says so, and is true.

The rows of an approval, its grant or a standing approval could have been written by anybody who can write to the database. A receipt could not:
it is signed with a key that only the plane can open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from cortex_plane.db.vault import Vault
from cortex_plane.proof.model import Fact
from cortex_plane.proof.verbs.receipts import receipt_fault
from cortex_plane.worker.calls import Call

if TYPE_CHECKING:
    from cortex_plane.worker.opening import Opening

log = structlog.get_logger()


def refusal(attempt: Opening, call: Call, *, sent: bool) -> str | None:
    """Why an approved call must not be sent; None where its receipt is true. ``sent``: it was, in time, before."""
    given = attempt.given
    stamp = attempt.receipts.get(call.id)
    why = receipt_fault(
        Vault(attempt.host.master_key),
        stamp,
        org_id=given.org_id,
        call_id=call.id,
        tool_name=call.name,
        tool_digest=call.digest,
        input_hash=call.input_hash,
        now=None if sent else attempt.time.now(),
    )
    if why is not None:
        log.error("receipt refused", job_id=str(given.job_id), call=str(call.id), tool=call.name, reason=why)
    return why


def standing_refused(attempt: Opening, call: Call, standing_id: UUID, why: str) -> Fact:
    """A standing approval that nobody gave covers nothing; somebody should hear of it all the same."""
    log.error(
        "standing approval refused", job_id=str(attempt.given.job_id), call=str(call.id), tool=call.name,
        standing=str(standing_id), reason=why,
    )  # fmt: skip
    return attempt.fact(
        "receipt_refused", call=str(call.id), tool=call.name, standing=str(standing_id), reason=why
    )
