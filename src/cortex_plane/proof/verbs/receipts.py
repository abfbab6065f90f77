"""Receipts: signed in the transaction that decides, shown to whoever sees the approval."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals.model.approvals import Channel, Choice
from cortex_plane.approvals.model.standing_approvals import StandingApproval
from cortex_plane.approvals.store import approvals
from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import NotFound
from cortex_plane.proof.model.audit import Receipt
from cortex_plane.proof.model.signing import fingerprint, to_base64
from cortex_plane.proof.rules.receipts import Decided, Stamp, receipt_body, why_not_sent
from cortex_plane.proof.store import receipts
from cortex_plane.proof.verbs import signing
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, verb


async def write(
    db: Database,
    tx: Transaction,
    decided: Decided,
    *,
    actor: Actor,
    decision: Choice,
    channel: Channel,
    calls: Sequence[UUID],
    standing: StandingApproval | None = None,
) -> None:
    """Sign what was decided, and the yes to more calls that came with it, in the transaction that closed the approval."""
    key = await signing.signer(db, tx, decided.active_key)
    body = receipt_body(
        tx.org,
        decided,
        decision=decision,
        member_id=actor.user_account_id,
        name=actor.name,
        channel=channel,
        calls=calls,
        key_id=key.id,
        standing=standing,
    )
    await receipts.insert(tx, decided.id, key.id, body, key.sign(body), decided.now)


def why_not(
    vault: Vault,
    stamp: Stamp | None,
    *,
    org_id: UUID,
    call_id: UUID,
    tool_name: str,
    tool_digest: str | None,
    input_hash: str,
    now: datetime | None,
) -> str | None:
    """Why an approved call must not be sent: its receipt is missing or not true; None where it is.

    ``now`` is left out for a call that was sent in time before.
    """
    if stamp is None:
        return "there is no receipt of its approval"
    if not signing.is_ours(vault, org_id, stamp):
        return "the key of its receipt is not one of the org's"
    return why_not_sent(
        stamp, org_id=org_id, call_id=call_id, tool_name=tool_name, tool_digest=tool_digest,
        input_hash=input_hash, now=now,
    )  # fmt: skip


@verb(Permission.APPROVAL_READ)
async def get(db: Database, actor: Actor, approval_id: UUID) -> Receipt:
    """The receipt of a decision, for whoever sees the approval."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await approvals.get(tx, approval_id, actor.sees), "approval")
        row = await receipts.get(tx, approval_id)
    if row is None:
        raise NotFound(
            "There is no receipt: nobody approved or denied this.",
            code="receipt_not_found",
            hint="Look at its status with `cortex approval show`.",
        )
    return Receipt(
        approval_id=row["approval_id"],
        body=row["body"].decode(errors="replace"),
        signature=to_base64(row["signature"]),
        public_key=to_base64(row["public_key"]),
        key_id=row["key_id"],
        fingerprint=fingerprint(row["public_key"]),
        created_at=row["created_at"],
    )
